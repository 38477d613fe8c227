"""A study that trains and compares arms by shares of solved runs, or by the time to a value."""

import numpy as np
import pytest
from tests.small import TINY

import taetpu
from taetpu.spec.loading import load_study
from taetpu.stats.outcomes import smallest_p
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.preview import prepare_study, preview

ARMS = "seeds: 3\narms:\n  x: {model.position: none}\n"
EVERY = TINY.replace("eval_every: 6", "eval_every: 2")


@pytest.mark.slow
def test_times_of_trained_runs_are_those_of_their_logs(tmp_path):
    """The value is between the first and the last loss of the baseline, so that runs arrive after different times."""
    (tmp_path / "study.yaml").write_text(
        f"{EVERY}{ARMS}measure: {{primary: val_sample/loss, reach: 2.0, by: tokens}}\n"
    )
    outcome = taetpu.run(tmp_path / "study.yaml", root=str(tmp_path / "runs"))
    folder = StudyFolder(open_store(tmp_path / "runs"), "tiny")
    assert verify(folder) == []
    for arm in outcome.results["arms"]:
        for run in arm["runs"]:
            steps, values = folder.run(arm["name"], run["seed"], run["id"]).metrics()["val_sample/loss"]
            assert steps.tolist() == [2, 4, 6]
            first = np.flatnonzero(values <= 2.0)
            assert run["reached"] == bool(len(first))
            tokens = (steps[first[0]] if len(first) else 6) * 4 * 8
            assert run["value"] == pytest.approx(tokens)
            assert run["measured"] == pytest.approx(values[-1])
    assert outcome.results["groups"][0]["horizon"] == 6 * 4 * 8
    report = (tmp_path / "runs/tiny/report/index.html").read_text()
    assert "Kaplan-Meier" in report


@pytest.mark.slow
def test_the_plan_states_the_smallest_p(tmp_path):
    (tmp_path / "study.yaml").write_text(f"{TINY}{ARMS}measure: {{primary: val/accuracy, solved: 0.9}}\n")
    study = load_study(tmp_path / "study.yaml")
    folder = StudyFolder(open_store(tmp_path / "runs"), "tiny")
    shares = preview(prepare_study(study, folder), folder)["resolution"]["shares"]
    assert shares["smallest_p"] == pytest.approx(smallest_p(3))
    assert shares["needed"] == 3
    with pytest.raises(taetpu.UserError) as refused:
        preview(prepare_study(study, folder), folder, effect=0.2)
    assert refused.value.path == ("effect",)


FROZEN = EVERY.replace("steps: 6,", "steps: 40, optimizer: {kind: adamw, lr: 0.01},") + (
    "seeds: 5\narms:\n  frozen: {train.optimizer.lr: 1.0e-9}\n"
)
"""All runs of the baseline reach a loss of 1.9, and none whose learning rate is nearly 0."""
REPEATS = {"ladder": ("model.dim: [8, 16]", "dim=16"), "across": ("train.batch_size: [4, 8]", "batch_size=8")}


@pytest.mark.slow
@pytest.mark.parametrize("key", REPEATS)
def test_outcomes_are_compared_on_each_rung_and_under_each_setting(tmp_path, key):
    values, other = REPEATS[key]
    names, earlier = {"frozen", f"frozen@{other}"}, list[str]()
    for number, rule in enumerate(("primary: val/loss, solved: 1.9", "primary: val_sample/loss, reach: 1.9")):
        (tmp_path / "study.yaml").write_text(f"{FROZEN}{key}: {{{values}}}\nmeasure: {{{rule}}}\n")
        root = tmp_path / str(number)
        results = taetpu.run(tmp_path / "study.yaml", root=root, reuse=earlier).results
        earlier = [str(root / "tiny")]
        arms = {arm["name"]: arm for arm in results["arms"]}
        assert {name for name, arm in arms.items() if arm["verdict"] == "worse"} == names
        assert {name: arm["reached"] for name, arm in arms.items()} == {
            name: 0 if name in names else 5 for name in arms
        }
        assert {arms[name]["against"] for name in names} == {"baseline", f"baseline@{other}"}
        entry = results["designs"][key]["arms"]["frozen"]
        fate = entry["fate" if key == "ladder" else "holds"]
        assert fate == "holds" if "solved" in rule else fate in {"holds", "grows", "shrinks", "depends"}
        assert verify(StudyFolder(open_store(root), "tiny")) == []
        assert (root / "tiny/report/index.html").exists()


@pytest.mark.parametrize(("name", "rule"), [
    ("solved", "primary: val/loss, solved: 1.9"), ("reach", "primary: val_sample/loss, reach: 1.9"),
])  # fmt: skip
@pytest.mark.parametrize(("place", "more", "setting"), [
    ("", "tasks: {copy: {}, sort: {task: {kind: sort, seq_len: 16, symbols: 8}}}", ""),
    ("worth", "ladder: {model.dim: [8, 16, 24, 32]}", ", worth: flops"),
    ("across", "across: {train.eval_every: [2, 3]}", ""),
])  # fmt: skip
def test_outcomes_are_refused_without_a_common_level_or_interval(tmp_path, name, rule, place, more, setting):
    (tmp_path / "study.yaml").write_text(f"{FROZEN}{more}\nmeasure: {{{rule}{setting}}}\n")
    with pytest.raises(taetpu.UserError) as refused:
        load_study(tmp_path / "study.yaml")
    path = ("across", "train.eval_every") if place == "across" else ("measure", place or name)
    assert refused.value.path == path
    assert refused.value.remedy
