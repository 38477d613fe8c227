"""Published findings: valid entries, changes matched in both directions, the same words in every format."""

import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from taetpu.core.config import config_class_of, slot_of
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.nn.block import LayerConfig
from taetpu.report.build import build_report
from taetpu.report.priors import SEVERAL, find_priors, read_priors
from taetpu.spec.field_paths import find_fields
from taetpu.spec.kind_examples import slot_path
from taetpu.spec.study_config import RunConfig
from taetpu.stats.arm_changes import value_at
from taetpu.store.documents import from_yaml
from taetpu.study.gallery_index import entry_files, find_entry

BASE = {
    "model": {
        "mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": None, "causal": True},
        "position": {"kind": "rope"},
        "norm": {"kind": "rms", "placement": "pre"},
        "ffn": {"kind": "swiglu"},
        "embedding": {"kind": "tied"},
        "layers": {},
    }
}
ENTRIES = read_priors()["entries"]


def known(diff: dict[str, Any], base: dict[str, Any] = BASE, against: dict[str, Any] | None = None, match: Any = None):
    """Return the prior of an arm with these changes."""
    arms = [
        {"name": "baseline", "against": None, "diff": against or {}, "role": {}},
        {"name": "arm", "against": "baseline", "diff": {**(against or {}), **diff},
         "role": {"match": match} if match else {}},
    ]  # fmt: skip
    return find_priors({"arms": arms}, base).get("arm")


def based(**slots: Any) -> dict[str, Any]:
    return {"model": {**BASE["model"], **slots}}


def is_accepted(setting: str, value: Any) -> bool:
    """Return whether a setting can have the value: a kind of its slot, `none` or a value of its field's type."""
    slot = next((slot for slot in BUILTIN_MODULES if slot_path(slot) == setting), None)
    if slot is not None:
        return value in kinds(slot) or (value == "none" and is_many(setting))
    above, _, name = setting.rpartition(".")
    owner_slot = next((slot for slot in BUILTIN_MODULES if slot_path(slot) == above), None)
    if above == "model.layers.0":
        owners = [LayerConfig]
    else:
        owners = list(kinds(owner_slot).values()) if owner_slot else [config_class_of(RunConfig, above)]
    fields = [owner.model_fields[name] for owner in owners if owner is not None and name in owner.model_fields]
    if value == "none":
        return any(field.default is None for field in fields)
    adapters = [TypeAdapter(Annotated[(field.annotation, *field.metadata, "")]) for field in fields]
    return any(accepts(adapter, value) for adapter in adapters)


def accepts(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def is_many(setting: str) -> bool:
    """Return whether a setting is a list of kinds."""
    top, _, name = setting.partition(".")
    mark = slot_of(RunConfig.model_fields[top].annotation, name)
    return mark is not None and mark.many


def test_only_existing_kinds_and_valid_values_are_accepted() -> None:
    assert is_accepted("train.hooks", "none")
    assert is_accepted("model.dropout", 0.1)
    for setting, value in (
        ("model.ffn", "swigloo"),
        ("train.optimizer", "none"),
        ("model.norm.placement", "inside"),
        ("model.dropout", 1.5),
        ("model.mixer.number", 1),
        ("model.ffns", "relu"),
    ):
        assert not is_accepted(setting, value)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry['setting']} {entry['to']}")
def test_entries_name_existing_kinds_and_dated_sources(entry) -> None:
    for value in (*entry["from"], *entry["to"]):
        assert value == SEVERAL or is_accepted(entry["setting"], value)
    for path, values in entry.get("where", {}).items():
        assert all(is_accepted(path, value) for value in values)
    assert entry["found"] in ("better", "worse", "no clear difference", "mixed")
    assert entry["what"].endswith(".")
    assert not re.search(r"\d", entry["what"])
    assert entry["sources"]
    for source in entry["sources"]:
        assert re.search(r" (19|20)\d\d$", source["by"])
        assert re.fullmatch(r"\d{4}\.\d{4,5}", source["arxiv"])
        assert source["read"].startswith("abstract")
    assert set(entry) <= {"setting", "from", "to", "where", "found", "what", "sources", "gallery"}


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "gallery" in e], ids=lambda e: e["gallery"]["study"])
def test_results_of_the_gallery_are_on_the_same_change_and_as_they_were_measured(entry) -> None:
    about = find_entry(entry["gallery"]["study"])
    cited = {"study": about.name, "claim": about.claim, "measured": f"{about.outcome}: {about.measured.values}"}
    assert entry["gallery"] == cited
    with entry_files(about) as (file, _):
        study = from_yaml(file.read_bytes(), file.name)
    used = [value_at(study["base"], entry["setting"]), *(arm.get(entry["setting"]) for arm in study["arms"].values())]
    used = [value["kind"] if isinstance(value, dict) else value for value in used]
    old, new = (next(value for value in entry[side] if value in used) for side in ("from", "to"))
    parent, _, name = entry["setting"].removeprefix("model.").rpartition(".")
    base = based(**{parent: {**BASE["model"][parent], name: old}} if parent else {name: {"kind": old}})
    assert cited["measured"] in known({entry["setting"]: new}, base).measured


def test_the_collection_is_dated_and_has_no_duplicates() -> None:
    assert re.search(r"20\d\d", read_priors()["collected"])
    pairs = [(e["setting"], frozenset((str(a), str(b)))) for e in ENTRIES for a in e["from"] for b in e["to"]]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize(
    ("slot", "old", "new", "found"),
    [
        ("norm", "layer", "rms", "no clear difference"),
        ("norm", "rms", "derf", "better"),
        ("ffn", "gelu-erf", "swiglu", "mixed"),
        ("ffn", "relu", "relu2", "better"),
        ("mixer", "attention", "mamba2", "mixed"),
        ("position", "learned", "none", "no clear difference"),
        ("residual", "standard", "rezero", "better"),
    ],
)
def test_both_directions_match(slot: str, old: str, new: str, found: str) -> None:
    path, base = f"model.{slot}", based(**{slot: {"kind": old}})
    written = [{path: new}, {path: {"kind": new}}, {f"{path}.kind": new}, *([{path: None}] if new == "none" else [])]
    said = [known(diff, base) for diff in written]
    assert [prior and prior.found for prior in said] == [found] * len(written)
    assert said[0].change == f"{path}: {old} -> {new}"
    back = known({path: old}, based(**{slot: {"kind": new}}))
    assert back.found == {"better": "worse", "worse": "better"}.get(found, found)
    assert (back.what, back.sources) == (said[0].what, said[0].sources)


def test_values_match_like_kinds() -> None:
    few = "model.mixer.num_kv_heads"
    assert known({few: 1}).found == "worse"
    assert known({few: 2}).found == "no clear difference"
    assert known({few: None}, based(mixer={"kind": "attention", "num_kv_heads": 1})).found == "better"
    assert known({"model.norm.placement": "post"}).found == "mixed"


def test_slots_in_a_mixer_and_settings_of_training_match() -> None:
    mixer = {"kind": "attention", "gate": {"kind": "none"}}
    assert known({"model.mixer.gate": "sigmoid"}, based(mixer=mixer)).found == "better"
    for optimizer, found in (("adamw", "better"), ("lion", "no clear difference"), ("sgd", "worse")):
        assert known({"train.optimizer": optimizer}, {**BASE, "train": {"optimizer": {"kind": "adam"}}}).found == found
    assert known({"model.dropout": 0.1}, based(dropout=0.0)).change == "model.dropout: 0.0 -> 0.1"


@pytest.mark.parametrize("written", [["multi-token"], {"multi-token": {}}, {"mine": {"kind": "multi-token"}}])
def test_the_only_component_of_a_list_matches_like_a_kind(written) -> None:
    prior = known({"model.heads": written}, based(heads={}))
    assert (prior.found, prior.change) == ("better", "model.heads: none -> multi-token")
    back = known({"model.heads": {}}, based(heads={"multi-token": {"kind": "multi-token", "tokens": 3}}))
    assert (back.found, back.change) == ("worse", "model.heads: multi-token -> none")


def test_several_components_or_other_settings_have_no_prior() -> None:
    base = {**based(heads={}), "train": {"sample": {"tokens": 60}}}
    assert known({"model.heads": ["multi-token", "mtp"]}, base) is None
    assert known({"model.heads": {"multi-token": {"tokens": 5}}}, base) is None
    assert known({"train.sample": {"tokens": 10}}, base) is None


def test_findings_apply_only_to_baselines_that_meet_their_conditions() -> None:
    for causal, found in ((True, "no clear difference"), (False, None)):
        mixer = {"kind": "attention", "causal": causal}
        prior = known({"model.position": "none"}, based(mixer=mixer, position={"kind": "learned"}))
        assert (prior and prior.found) == found


def test_other_or_additional_changes_have_no_prior() -> None:
    relu = based(ffn={"kind": "relu"})
    assert known({"model.ffn": "relu2"}, relu).found == "better"
    assert known({}, relu) is None
    assert known({"model.ffn": "relu2", "train.steps": 10}, relu) is None
    assert known({"model.ffn": {"kind": "relu2", "mult": 8}}, relu) is None
    assert known({"model.layers.0.ffn": "relu2"}, relu) is None
    assert known({"model.ffn": "clamped-swiglu"}, relu) is None
    assert known({"model.ffn": "relu2"}, based(ffn={"kind": "relu"}, layers={"0": {"ffn": "relu"}})) is None
    assert known({"model.position": "none"}, {}) is None


def test_settings_that_matching_changed_do_not_count() -> None:
    match = {"of": "arm", "by": "params", "model.ffn.hidden": 96}
    diff = {"model.ffn": "relu2", "model.ffn.hidden": 96}
    relu = based(ffn={"kind": "relu"})
    assert (known(diff, relu, match=match).found, known(diff, relu)) == ("better", None)


def test_changes_are_relative_to_the_baseline_of_the_rung() -> None:
    """An arm on a rung of a ladder, like its baseline, also has the changes of the rung."""
    prior = known({"model.norm": "layer"}, against={"model.dim": 16})
    assert (prior.found, prior.change) == ("no clear difference", "model.norm: rms -> layer")
    assert known({"model.norm": "derf"}, against={"model.norm": "dyt"}).change == "model.norm: dyt -> derf"


def test_settings_are_paths_of_a_config() -> None:
    for entry in ENTRIES:
        for path in (entry["setting"], *entry.get("where", {})):
            assert find_fields(path)


@pytest.mark.slow
def test_every_format_of_the_report_has_the_findings(store_study) -> None:
    folder = store_study()
    before = folder.read_results()
    written = build_report(folder)
    assert folder.read_results() == before
    page, text = (Path(written[kind]).read_text() for kind in ("html", "markdown"))
    found = find_priors(before, folder.read_study()["base"])
    assert set(found) == {"layernorm"}
    for prior in found.values():
        assert prior.by in page
        assert prior.by in text
        assert prior.what.replace("'", "&#39;") in page
        assert prior.what in text
    assert "## Published findings" in text
    assert "verdicts do not" in text
    assert "three billion. Zhao et al. 2026" in text
    arm = next(arm for arm in before["arms"] if arm["name"] == "layernorm")
    line = next(line for line in text.splitlines() if line.startswith("| layernorm |") and "Sennrich" in line)
    assert f"| Zhang and Sennrich 2019 | {arm['verdict']}, " in line


@pytest.mark.slow
def test_a_report_cites_the_gallery_on_the_changes_that_it_measured(store_study) -> None:
    folder = store_study({"baseline": ({}, 0.0), "gelu": ({"model.ffn": "gelu-erf"}, 0.02)})
    written = build_report(folder)
    for kind in ("html", "markdown"):
        text = Path(written[kind]).read_text()
        assert "GLU Variants" in text
        assert find_entry("swiglu").measured.values in text


@pytest.mark.slow
def test_a_study_without_priors_has_no_section(store_study) -> None:
    folder = store_study({"baseline": ({}, 0.0), "one-head": ({"model.mixer.num_heads": 1}, 0.02)})
    written = build_report(folder)
    for kind in ("html", "markdown"):
        text = Path(written[kind]).read_text()
        assert "Published findings" not in text
