"""`status`, `list`, `report` and `catalog`: what they find, and that looking changes nothing."""

import json
import shutil

import pytest
from tests.forged import unsealed

from taetpu.cli.catalog import describe_field
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.report import summary
from taetpu.spec.fields import find_fields, walk_fields
from taetpu.spec.schema import StudySpec
from taetpu.spec.train_config import TrainConfig
from taetpu.stats import formatting


def test_status_before_anything_is_trained(taetpu, here):
    assert taetpu("status") == (0, "no studies under ./runs\n", "")
    assert taetpu("status", "--json").json() == {}
    assert taetpu("list") == (0, "no studies under ./runs\n", "")
    assert taetpu("list", "--root", "nowhere", "--json").json() == []
    assert [p.name for p in here.iterdir()] == ["s.yaml"]


def test_status_and_list_of_one_study_and_of_a_root_of_many(taetpu, here, trained, contents):
    root = here / "root"
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", root / name)
    before = contents(root)
    assert list(taetpu("status", root, "--json").json()) == ["other", "small"]
    assert list(taetpu("status", root / "small", "--json").json()) == ["small"]
    rows = taetpu("status", root / "small", "--json").json()["small"]
    table = taetpu("status", root / "small").out.splitlines()
    assert table[0] == "small"
    assert table[1].split() == ["arm", "done", "step", "train/loss", "val/loss"]
    for row, line in zip(rows, table[2:4], strict=True):
        losses = [formatting.number(row[metric], row["places"]) for metric in ("train/loss", "val/loss")]
        assert line.split() == [row["arm"], row["done"], str(row["step"]), *losses]
        assert (row["done"], row["step"]) == ("2/2", 20)
    results = json.loads((root / "small/results.json").read_text())
    arms = results["arms"]
    assert [(row["effect"], row["ci95"]) for row in rows] == [(arm["effect"], arm["ci95"]) for arm in arms]
    assert [row["standing"] for row in rows] == ["baseline", arms[1]["verdict"]]
    assert (table[4], table[5].split()) == ("", ["arm", "effect", "95", "%", "interval", "verdict"])
    assert table[6].split() == [
        "low-lr", summary.format_effect(arms[1], results), *summary.format_interval(arms[1]["ci95"], results).split(),
        arms[1]["verdict"],
    ]  # fmt: skip

    found = taetpu("list", "--root", root, "--json").json()
    assert [(entry["study"], entry["arms"], entry["seeds"], entry["runs"]) for entry in found] == [
        ("other", 2, 2, "4/4"),
        ("small", 2, 2, "4/4"),
    ]
    assert taetpu("list", "--root", root).out.splitlines()[1].split()[:4] == ["other", "2", "2", "4/4"]
    assert contents(root) == before


def test_a_diverged_run_is_shown_and_its_json_is_strict(taetpu, here, trained):
    """One arm's last losses are NaN in the store."""
    from taetpu.store.index import find_study

    root = here / "root"
    shutil.copytree(trained[0], root)
    for run in find_study(root).runs():
        if run.arm == "low-lr":
            run.append(20, 21, {"train/loss": ([21], [float("nan")]), "val/loss": ([21], [float("inf")])})
    unsealed(root / "small")
    row = taetpu("status", root, "--json").json()["small"][1]
    assert (row["train/loss"], row["val/loss"]) == (None, None)
    assert taetpu("status", root).out.splitlines()[3].split()[-2:] == ["nan", "inf"]


def test_a_damaged_study_is_listed_with_its_problem(taetpu, here, trained):
    root = here / "root"
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", root / name)
    (root / "other/study.yaml").write_text("study: [")
    found = taetpu("list", "--root", root, "--json").json()
    assert [bool(entry["problem"]) for entry in found] == [True, False]
    assert "not valid YAML" in found[0]["problem"]
    assert taetpu("list", "--root", root).code == 0
    code, out, err = taetpu("status", root)
    assert (code, err) == (0, "")
    assert f"  where:  {root}/other/study.yaml:1" in out
    assert "\nsmall\n" in out
    told = taetpu("status", root, "--json").json()
    assert "not valid YAML" in told["other"][0]["problem"]
    assert [row["done"] for row in told["small"]] == ["2/2", "2/2"]
    done = taetpu("status", root / "other")
    assert done.code == 2
    assert f"where:  {root}/other/study.yaml:1" in done.err


def test_an_unfinished_study_gets_effects_and_no_verdict(taetpu, here, trained, contents):
    root = here / "root"
    shutil.copytree(trained[0], root)
    file = unsealed(root / "small") / "study.yaml"
    file.write_text(file.read_text().replace("seeds:\n- 0\n- 1\n", "seeds:\n- 0\n- 1\n- 2\n", 1))
    before = contents(root)
    rows = taetpu("status", root / "small", "--json").json()["small"]
    finished = json.loads((root / "small/results.json").read_text())["arms"][1]
    assert [row["standing"] for row in rows] == ["baseline", "interim"]
    assert (rows[1]["done"], rows[1]["effect"], rows[1]["ci95"]) == ("2/3", finished["effect"], finished["ci95"])
    lines = taetpu("status", root / "small").out.splitlines()
    assert lines[4].startswith("interim effects of finished runs")
    assert lines[5].split() == ["arm", "effect", "95", "%", "interval"]
    assert lines[6].startswith("low-lr  +")
    assert not [line for line in lines if any(verdict in line for verdict in ("better", "worse", "inconclusive"))]
    assert contents(root) == before


def test_a_report_is_made_again_from_what_is_stored(taetpu, here, trained):
    root = here / "root"
    shutil.copytree(trained[0], root)
    shutil.rmtree(root / "small/report")
    (root / "small/results.json").unlink()
    done = taetpu("report", root / "small")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"report: {root}/small/report/index.html"
    for name in ("results.json", "report/index.html", "report/report.md"):
        assert (root / "small" / name).read_bytes() == (trained[0] / "small" / name).read_bytes()


def test_a_report_of_many_studies_asks_for_one(taetpu, here, trained):
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", here / "root" / name)
    done = taetpu("report", here / "root")
    assert done.code == 2
    assert "2 studies are stored here" in done.err
    assert "Name the folder of one of them: other, small" in done.err


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


def test_every_field_of_a_study_file_has_a_meaning_and_is_found_by_its_path():
    for slot in BUILTIN_MODULES:
        kinds(slot)
    paths = dict(walk_fields())
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


def test_a_field_is_documented_as_the_schema_has_it(taetpu):
    out = taetpu("catalog", "train.optimizer.lr").out
    assert out.startswith("train.optimizer.lr (adamw): float > 0 = 0.001 (traced)\n    Peak learning rate")
    assert "e.g. tune: {train.optimizer.lr: [1e-3, 3e-3]}" in taetpu("catalog", "tune").out
    assert "taetpu catalog schedule" in taetpu("catalog", "train.schedule").out
    entry = taetpu("catalog", "train", "--json").json()["train"][0]
    assert [field["name"] for field in entry["fields"]] == list(TrainConfig.model_fields)


@pytest.mark.parametrize(
    ("path", "problem", "remedy"),
    [
        ("trane", "unknown slot or field 'trane'", "Did you mean 'train'?"),
        ("train.schedul", "train has no field 'schedul'", "Did you mean 'schedule'?"),
        ("model.mixer.num_head", "model.mixer has no field 'num_head'", "Did you mean 'num_heads'?"),
        ("model.dim.x", "model.dim has no field 'x'", "taetpu catalog model.dim"),
        ("base.seeds", "no field of a study file is called 'seeds'", "Use one of: "),
    ],
)
def test_a_misspelt_field_is_told_with_the_nearest(taetpu, path, problem, remedy):
    code, out, err = taetpu("catalog", path)
    assert (code, out) == (2, "")
    assert problem in err
    assert remedy in err


def test_a_kind_is_shown_with_its_fields_defaults_and_reference(taetpu):
    out = taetpu("catalog", "mixer/attention").out
    for line in (
        "num_kv_heads: int > 0 and <= 4096 or none = none",
        "drop_heads: list of int >= 0 = [] (traced)",
        "bias: ",
    ):
        assert f"\n{'':16}{line}" in out
    assert "Vaswani et al. 2017" in out
    assert "\n  none " not in out
    required = taetpu("catalog", "task/copy").out
    assert f"\n{'':16}seq_len: int > 0 and <= 1048576 required\n" in required
