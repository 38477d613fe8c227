"""`taetpu catalog`: every kind and every field, in 80 columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taetpu.cli.kind_pages import describe_field, example_lines
from taetpu.core.config import Config, iter_components, slot_of
from taetpu.core.errors import UserError
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.data.remote.named import PUBLISHED
from taetpu.spec.field_paths import Place, find_fields, list_fields
from taetpu.spec.kind_examples import example_arm
from taetpu.spec.loading import load_study
from taetpu.spec.presets import PRESETS
from taetpu.spec.study_spec import StudySpec
from taetpu.spec.train_config import TrainConfig
from taetpu.store.documents import from_yaml, to_yaml


def test_the_catalog_lists_every_kind(taetpu):
    found = taetpu("catalog", "--json").json()
    assert {slot: set(entries) for slot, entries in found.items()} == {
        slot: set(kinds(slot)) for slot in BUILTIN_MODULES
    }
    lines = taetpu("catalog").out.splitlines()
    for slot in BUILTIN_MODULES:
        at = lines.index(slot)
        for kind in kinds(slot):
            assert any(line.startswith(f"  {kind} ") for line in lines[at:])


@pytest.mark.parametrize("slot", ["", *BUILTIN_MODULES])
def test_the_catalog_fits_a_terminal(taetpu, slot):
    code, out, err = taetpu("catalog", slot)
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if len(line) > 80] == []


def walk_fields(cls: type[Config], prefix: str = "") -> Iterator[tuple[str, Place]]:
    """Yield the path and the field for all fields of a study file, including the fields of all registered kinds."""
    for place in list_fields(cls):
        path = f"{prefix}{place.name}"
        yield path, place
        if place.section is not None:
            yield from walk_fields(place.section, f"{path}.")
        mark = slot_of(cls, place.name)
        for kind, filling in kinds(mark.name).items() if mark else ():
            yield from walk_fields(filling, f"{path}.{kind}." if mark and mark.many else f"{path}.")


def test_every_field_of_a_study_file_has_a_meaning_and_is_found_by_its_path():
    for slot in BUILTIN_MODULES:
        kinds(slot)
    paths = dict(walk_fields(StudySpec))
    assert {"study", "base.train.schedule.warmup", "base.model.layers.drop", "measure.primary"} <= set(paths)
    silent = [path for path, place in paths.items() if not describe_field(place)["about"]]
    assert silent == [], "give each a docstring or Field(description=...)"
    for path, place in paths.items():
        named = path.replace("model.layers.", "model.layers.-1.")
        assert (place.owner, place.name) in [(found.owner, found.name) for found in find_fields(named)], path


SECTIONS = ["study", "base", "task.seq_len", "model", "train", "measure", "model.layers", "train.metrics.gradient-norm"]


@pytest.mark.parametrize("path", [*SECTIONS, *list(StudySpec.model_fields)[2:], "train.schedule", "base.train.compute"])
def test_every_field_is_documented_in_80_columns(taetpu, path):
    code, out, err = taetpu("catalog", path)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    (entries,) = taetpu("catalog", path, "--json").json().values()
    shown = entries if path == "study" else entries + [below for entry in entries for below in entry["fields"]]
    for entry in shown:
        assert any(f"{name}{end}" in words for name in (entry["name"], path) for end in (": ", " ("))
        assert entry["type"] in words
        assert " ".join(entry["about"].split())[1:].rstrip(".") in words


def test_field_is_documented_as_in_the_schema(taetpu):
    out = taetpu("catalog", "train.optimizer.lr").out
    assert "train.optimizer.lr (adamw): float > 0 = 0.001 (traced)\n    Peak learning rate" in out
    assert "e.g. tune: {train.optimizer.lr: [1e-3, 3e-3]}" in taetpu("catalog", "tune").out
    assert "taetpu catalog schedule" in taetpu("catalog", "train.schedule").out
    entry = taetpu("catalog", "train", "--json").json()["train"][0]
    assert [field["name"] for field in entry["fields"]] == list(TrainConfig.model_fields)


@pytest.mark.parametrize(
    ("path", "problem", "remedy"),
    [
        ("trane", "slot, kind or field 'trane'", "Did you mean 'train'?"),
        ("train.schedul", "no field 'schedul'", "Did you mean 'schedule'?"),
        ("model.mixer.num_head", "model.mixer has no field 'num_head'", "Did you mean 'num_heads'?"),
        ("model.dim.x", "model.dim has no field 'x'", "taetpu catalog model.dim"),
        ("base.seeds", "called 'seeds'", "Use one of: "),
    ],
)
def test_misspelt_field_is_refused_with_the_nearest(taetpu, path, problem, remedy):
    code, out, err = taetpu("catalog", path)
    assert (code, out) == (2, "")
    assert problem in err
    assert remedy in err


def test_kind_is_shown_with_fields_defaults_and_reference(taetpu):
    out = taetpu("catalog", "mixer/attention").out
    for line in (
        "num_kv_heads: int > 0 and <= 4096 or none = none",
        "drop_heads: list of int >= 0 = [] (traced)",
        "bias: ",
    ):
        assert f"\n  {line}" in out
    assert "Vaswani et al. 2017" in out
    assert "\n  none " not in out
    required = taetpu("catalog", "task/copy").out
    assert "\n  seq_len: int > 0 and <= 1048576 required\n" in required


# --- pages of kinds --------------------------------------------------------------------------------------------------


def test_the_page_of_a_kind_has_everything_to_use_it(taetpu):
    out = taetpu("catalog", "mask/prefix").out
    assert max(map(len, out.splitlines())) <= 80
    assert "Causal, except that" in out
    assert "separator: int >= 0 or none = none" in out
    assert "  arms:\n    prefix:\n      model.mixer.mask: {kind: prefix, separator: 0}" in out
    out = taetpu("catalog", "norm/rms").out
    assert out.startswith("norm/rms (default)\n")
    assert "arms:" not in out
    assert "Published: layer -> rms:" in out


def test_the_page_of_a_kind_has_the_published_findings(taetpu):
    out = " ".join(taetpu("catalog", "gate/sigmoid").out.split())
    assert "Published: none -> sigmoid: better. " in out
    assert "more stable. Qiu et al. 2025." in out
    adapter = " ".join(taetpu("catalog", "adapter/lora").out.split())
    assert "Published: none -> lora: mixed." in adapter
    assert "Published" not in taetpu("catalog", "hook/label-smoothing").out


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_of_a_preset_has_its_heads_settings_and_omissions(taetpu, name):
    out = taetpu("catalog", f"preset/{name}").out
    assert out.startswith(f"preset/{name}\n")
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    assert PRESETS[name].omits in words
    assert PRESETS[name].omits in " ".join(taetpu("catalog", "preset").out.split())
    mixer = PRESETS[name].settings(768, 4)["mixer"]
    assert f"dim 768: {mixer['num_heads']}" in words
    for key in PRESETS[name].settings(128, 4):
        assert f"\n  {key}: " in out
    assert list(taetpu("catalog", f"preset/{name}", "--json").json()["preset"]) == [name]


def test_an_unknown_preset_is_refused(taetpu):
    code, _, err = taetpu("catalog", "preset/lama3")
    assert (code, "Did you mean 'llama3'?" in err) == (2, True)


def test_the_published_corpora_have_licences_and_sizes(taetpu):
    out, listed = taetpu("catalog", "corpus").out, taetpu("catalog", "corpus", "--json").json()["corpus"]
    assert max(map(len, out.splitlines())) <= 80
    assert {*listed} == {*PUBLISHED}
    for name, corpus in PUBLISHED.items():
        assert all(text in " ".join(out.split()) for text in (name, corpus.about, corpus.licence, corpus.size))
        assert (listed[name]["licence"], listed[name]["splits"]) == (corpus.licence, [*corpus.splits])
        assert listed[name]["addresses"]["train"] == corpus.splits["train"].address


def test_kind_is_found_without_its_slot(taetpu):
    assert taetpu("catalog", "swiglu").out == taetpu("catalog", "ffn/swiglu").out
    several = [line for line in taetpu("catalog", "none").out.splitlines() if line.endswith("/none")]
    assert several[:2] == ["mixer/none", "position/none"]
    assert set(taetpu("catalog", "swiglu", "--json").json()) == {"ffn"}
    assert "Did you mean 'swiglu'?" in taetpu("catalog", "swigul").err


@pytest.mark.parametrize(
    ("words", "first"), [("rotary", "position/rope"), ("swiglu", "ffn/swiglu"), ("none", "mixer/none")]
)
def test_search_ranks_kinds_by_their_match(taetpu, words, first):
    assert taetpu("catalog", "--search", words).out.splitlines()[0] == first


def test_search_finds_kinds_by_their_words(taetpu):
    found = taetpu("catalog", "--search", "POSITION rotated", "--json").json()
    assert "rope" in found["position"]
    assert "alibi" not in found["position"]
    lines = taetpu("catalog", "--search", "sigmoid").out.splitlines()
    assert lines.index("gate/sigmoid") < lines.index("ffn/deepseek-moe")
    assert taetpu("catalog", "norm", "--search", "sigmoid").err.startswith("error: no kind mentions 'sigmoid'")


ARMS = [(slot, kind) for slot in BUILTIN_MODULES for kind, cls in kinds(slot).items() if example_arm(cls)]


@pytest.mark.parametrize(("slot", "kind"), ARMS)
def test_the_arm_on_a_page_is_valid(tmp_path, slot, kind):
    sees_later = (slot, kind) in (("mask", "full"), ("mask", "local"))
    cls, form = kinds(slot)[kind], "encoder" if sees_later else "causal"
    model = "model: {dim: 64, num_layers: 4}"
    base = f"{{task: {{kind: copy, seq_len: 16, form: {form}}}, {model}, train: {{steps: 9}}}}"
    measure = "measure: {primary: test/loss}"  # runs may choose by validation data
    lines = ["study: example", f"base: {base}", measure, *example_lines(kind, {"arm": example_arm(cls)})]
    file = tmp_path / "s.yaml"
    file.write_text("\n".join(lines))
    if sees_later:  # the baseline of an encoder task has such a mask already
        with pytest.raises(UserError, match=r"'attention' is causal, and task"):
            load_study(file)
        return
    used = iter_components(load_study(file).arms[1].config)
    assert any(isinstance(component, cls) for component in used)


@pytest.mark.parametrize(("slot", "kind"), [(slot, kind) for slot in ("metric", "eval_metric") for kind in kinds(slot)])
def test_the_baseline_on_the_page_of_a_metric_is_valid(tmp_path, taetpu, slot, kind):
    page = taetpu("catalog", f"{slot}/{kind}").out
    assert max(map(len, page.splitlines())) <= 80
    lines = page.partition("A baseline with this kind, whose arms all have it\n")[2].partition("\n\n")[0].splitlines()
    data = from_yaml("\n".join(line.removeprefix("  ") for line in lines).encode(), "page")["base"]["train"]
    train = {"steps": 9, **data}
    cls: Any = kinds(slot)[kind]
    rows = {"source": str(Path(__file__).parents[1] / "data" / "labelled.jsonl"), "seq_len": 40}
    task = {"kind": "copy", "seq_len": 512}
    if getattr(cls, "of_numbers", False) or getattr(cls, "of_groups", False):
        task = {"kind": "regression", **rows} if cls.of_numbers else {"kind": "pairs", **rows}
    base = {"task": task, "model": {"dim": 16, "num_layers": 2}, "train": train}
    (tmp_path / "s.yaml").write_bytes(to_yaml({"study": "example", "base": base, "arms": {"x": {"model.dim": 32}}}))
    used = iter_components(load_study(tmp_path / "s.yaml").arms[0].config)
    assert any(isinstance(component, kinds(slot)[kind]) for component in used)


def test_the_arm_on_a_page_keeps_the_fields_of_the_baseline(tmp_path):
    file = tmp_path / "s.yaml"
    train = "{steps: 9, optimizer: {kind: adamw, lr: 0.02}, schedule: {kind: cosine, warmup: 5}}"
    base = f"{{task: {{kind: copy, seq_len: 16}}, model: {{dim: 64, num_layers: 1}}, train: {train}}}"
    for kind, cls in [*kinds("schedule").items(), *kinds("optimizer").items()]:
        if (arm := example_arm(cls)) is None:
            continue
        lines = ["study: example", f"base: {base}", "measure: {primary: test/loss}"]
        file.write_text("\n".join([*lines, *example_lines(kind, {"arm": arm})]))
        used = load_study(file).arms[1].config.train
        assert (used.schedule.warmup, used.optimizer.lr) == (5, 0.02), kind


def test_the_page_of_all_kinds_is_current(taetpu):
    page = (Path(__file__).parents[2] / "docs" / "catalogue.md").read_text()
    assert taetpu("catalog", "--markdown").out == page, "run taetpu catalog --markdown > docs/catalogue.md"
