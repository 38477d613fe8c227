"""`taetpu.components`: the three ways of removing a part, each compared with what it must equal."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.suites import by_default
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app
from taetpu.core.errors import Failed, UserError
from taetpu.lens.ablation.documents import split_documents
from taetpu.lens.opening import open_run
from taetpu.report.components import TITLE
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.components import component_study, find_parts
from taetpu.train.callbacks import Callback
from taetpu.ui.feed import Feed

STUDY = """\
study: parts
base:
  task: {kind: reverse, seq_len: 12, symbols: 4, min_length: 2, max_length: 4, eval_size: 64}
  model: {dim: 8, num_layers: 2, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 20, batch_size: 8, sample: none, optimizer: {kind: adamw, lr: 1e-2}}
seeds: 2
measure: {equivalence: 0.5}
leave_one_out:
  first-head: {model.layers.0.mixer.drop_heads: [0]}
  ffn: {model.layers.1.drop: [ffn]}
"""
UNTRAINED = """\
arms:
  learned: {model.position: learned}
  fast: {train.optimizer.lr: 2e-2}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder of the study file. The root is its folder `runs`, with the trained study and its component study."""
    folder = tmp_path_factory.mktemp("components")
    (folder / "parts.yaml").write_text(STUDY)
    taetpu.run(folder / "parts.yaml", root=str(folder / "runs"))
    return folder


@pytest.fixture(scope="module")
def outcome(trained):
    """The component study of the arms of `leave_one_out`."""
    return taetpu.components(trained / "parts.yaml", root=str(trained / "runs"))


def arms_of(outcome):
    """Return the values by seed of each arm."""
    return {arm["name"]: {run["seed"]: run["value"] for run in arm["runs"]} for arm in outcome.results["arms"]}


@pytest.mark.slow
def test_the_unchanged_model_is_the_trained_baseline(outcome) -> None:
    values = arms_of(outcome)
    for seed, value in values["baseline"].items():
        assert values["unchanged"][seed] == pytest.approx(value, rel=1e-6)


@pytest.mark.slow
def test_removal_after_training_equals_zeroing_in_the_trained_model(trained, outcome) -> None:
    values = arms_of(outcome)
    for seed in range(2):
        opened = open_run(f"parts/baseline/{seed}", root=trained / "runs", data_folder=trained)
        documents = split_documents(opened.data.evaluation("val"))
        heads = taetpu.knockout(opened, documents, "heads", "zero", controls=False)
        effects = {row["component"]: row["effect"] for row in heads.rows()}
        expected = heads.intact[0] + effects["0.0"]
        assert values["removed-first-head"][seed] == pytest.approx(expected, rel=1e-5)
        assert values["unchanged"][seed] == pytest.approx(heads.intact[0], rel=1e-5)


@pytest.mark.slow
def test_the_removed_model_has_the_parameters_of_the_trained_one(trained, outcome) -> None:
    old = open_run("parts/baseline/0", root=trained / "runs").model
    new = open_run("parts-components-arms/removed-first-head/0", root=trained / "runs").model
    heal = open_run("parts-components-arms/healed-first-head/0", root=trained / "runs").model
    a, b, c = (jax.tree.leaves(model.embedding) for model in (old, new, heal))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(a, c, strict=True))


@pytest.mark.slow
def test_runs_of_the_study_are_reused(trained, outcome) -> None:
    folder = StudyFolder(open_store(str(trained / "runs")), "parts-components-arms")
    copied = {run.arm for run in folder.runs() if run.origin()}
    assert copied == {"baseline", "without-first-head", "without-ffn"}


@pytest.mark.slow
def test_each_way_has_a_baseline_of_its_own(outcome) -> None:
    against = {arm["name"]: arm["against"] for arm in outcome.results["arms"]}
    assert against["without-ffn"] == "baseline"
    assert against["removed-ffn"] == "unchanged"
    assert against["healed-ffn"] == "continued"
    rows = outcome.results["designs"]["components"]["rows"]
    arms = {arm["name"]: arm for arm in outcome.results["arms"]}
    assert [row["part"] for row in rows] == ["first-head", "ffn"]
    for row in rows:
        for way in ("without", "removed", "healed"):
            assert row[way]["effect"] == arms[f"{way}-{row['part']}"]["effect"]


@pytest.mark.slow
def test_changes_are_in_words(outcome) -> None:
    change = {arm["name"]: arm["change"] for arm in outcome.results["arms"]}
    assert change["unchanged"] == "the trained baseline, evaluated again"
    assert change["continued"] == "the trained baseline, trained for 2 more steps"
    assert change["removed-ffn"].endswith("[ffn] after training")
    assert change["healed-ffn"].endswith("[ffn] after training, then 2 more steps")


@pytest.mark.slow
def test_repeating_the_command_trains_nothing(trained, outcome) -> None:
    trained_again = []

    class Noted(Callback):
        def on_pack_begin(self, number, total, runs):
            trained_again.append(runs)

    again = taetpu.components(trained / "parts.yaml", root=str(trained / "runs"), callback=Noted())
    assert not trained_again
    assert again.results == outcome.results


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("branches", ["mixer-0", "ffn-0", "mixer-1", "ffn-1"]),
        ("mixers", ["mixer-0", "mixer-1"]),
        ("layers", ["layer-0", "layer-1"]),
        ("heads", ["head-0.0", "head-0.1", "head-1.0", "head-1.1"]),
        ("arms", ["first-head", "ffn"]),
    ],
)
def test_parts(tmp_path, what, names) -> None:
    (tmp_path / "parts.yaml").write_text(STUDY)
    assert [part.name for part in find_parts(load_study(tmp_path / "parts.yaml"), what)] == names


def test_the_arm_without_all_parts_is_a_part_of_its_name(tmp_path) -> None:
    (tmp_path / "parts.yaml").write_text(STUDY)
    (part,) = find_parts(load_study(tmp_path / "parts.yaml"), "arms", ["without-all"])
    assert part.name == "without-all"
    assert len(part.overrides) == 2


def derive(trained, **options):
    (trained / "more.yaml").write_text(STUDY + UNTRAINED)
    study = load_study(trained / "more.yaml")
    return component_study(study, StudyFolder(open_store(str(trained / "runs")), "parts"), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"what": "headz"}, "unknown parts 'headz'", "heads"),
        ({"arms": ["learnd"]}, "no arm 'learnd'", "learned"),
        ({"arms": ["learned"]}, "'learned' has parameters", "remove a part"),
        ({"arms": ["fast"]}, "'fast' changes more than", "remove a part"),
        ({"what": "heads", "arms": ["without-ffn"]}, "parts are heads", "--what"),
        ({"heal": 0.0}, "0", "0.1"),
        ({"heal": 1.5}, "1.5", "0.1"),
        ({"equivalence": 0.0}, "equivalence is 0", "0.02"),
    ],
)
def test_invalid_parts_are_refused(trained, options, problem, remedy) -> None:
    with pytest.raises(UserError) as error:
        derive(trained, **options)
    assert problem in str(error.value)
    assert remedy in error.value.remedy


def test_without_leave_one_out_arms_must_be_named(tmp_path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY.partition("leave_one_out")[0] + UNTRAINED)
    study = load_study(tmp_path / "s.yaml")
    with pytest.raises(UserError, match="no leave_one_out") as error:
        find_parts(study, "arms")
    assert "--arm" in error.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "parts-components-arms"),
        ({"what": "layers", "equivalence": 0.5}, "parts-components-layers"),
        ({"heal": 0.5, "equivalence": 0.1}, "parts-components-arms-heal=0.5-equivalence=0.1"),
    ],
)
def test_other_settings_make_another_study(trained, options, name) -> None:
    derived = derive(trained, **options)
    assert derived.name == name
    assert derived.measure.equivalence == options.get("equivalence", 0.5)


def test_models_without_the_parts_are_refused(tmp_path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY.replace("kind: attention, num_heads: 2", "kind: gru")
                                     .partition("leave_one_out")[0])  # fmt: skip
    with pytest.raises(UserError, match="no heads") as error:
        find_parts(load_study(tmp_path / "s.yaml"), "heads")
    assert "layers" in error.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("change", by_default(["missing", "other settings"], "missing"))
def test_a_missing_baseline_is_refused(trained, tmp_path, change) -> None:
    file, root = trained / "parts.yaml", trained / "runs"
    sets = ["train.steps=21"] if change == "other settings" else []
    root = root if sets else tmp_path / "empty"
    with pytest.raises(UserError, match="baseline of study 'parts' with seed 0") as error:
        taetpu.components(file, sets, root=str(root))
    assert "taetpu run parts.yaml" in error.value.remedy
    assert not (tmp_path / "empty").exists()


@pytest.mark.slow
def test_the_command(trained, outcome, tmp_path, monkeypatch) -> None:
    root, picture = str(trained / "runs"), tmp_path / "parts.svg"
    words = ["components", str(trained / "parts.yaml"), "--root", root]
    found = CliRunner().invoke(app, [*words, "-o", str(picture)])
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith("report:")) <= 80
    assert [line.split()[0] for line in lines[1:7:3]] == ["first-head", "ffn"]
    assert picture.read_text().startswith("<svg")
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert printed == outcome.results["designs"]["components"]


@pytest.mark.slow
def test_failed_runs_leave_no_picture(trained, tmp_path, monkeypatch) -> None:
    def breaks(state, rows, context):
        return 1 / 0

    monkeypatch.setattr("taetpu.train.program.train_step", breaks)
    words = ["components", str(trained / "parts.yaml"), "--root", str(trained / "runs"), "--what", "mixers"]
    ended = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "parts.svg")])
    assert isinstance(ended.exception, Failed)
    assert not (tmp_path / "parts.svg").exists()


@pytest.mark.slow
def test_the_report_shows_the_parts(trained, outcome) -> None:
    page = Path(outcome.report["html"]).read_text()
    text = Path(outcome.report["markdown"]).read_text()
    assert "Necessary, redundant or compensated?" in page
    row = next(line for line in text.splitlines() if line.startswith("| first-head"))
    for way in outcome.results["designs"]["components"]["rows"][0].values():
        if isinstance(way, dict):
            assert way["says"] in row


@pytest.mark.slow
def test_the_live_page_has_the_picture(trained, outcome) -> None:
    feed = Feed(StudyFolder(open_store(str(trained / "runs")), "parts-components-arms"))
    feed.poll()
    assert set(feed.effects["pictures"]) == {TITLE}
    assert "equivalence" in feed.effects["themes"]["dark"]["style"]
