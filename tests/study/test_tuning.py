"""Tuning: the values that arms try, the chosen values, and a tuned study that is interrupted and resumed."""

from statistics import mean

import pytest
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.spec.loading import derive_arm, load_study
from taetpu.spec.tuning import FIRST_SEED
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import resolve_runs
from taetpu.study.tuning import choose_values, trial_study, tuned_arms
from taetpu.train.callbacks import Callback

TUNED = """\
seeds: 2
arms:
  momentum: {train.optimizer.b1: 0.5}
  low-lr: {train.optimizer.lr: 1e-5}
  other: {train.optimizer: {kind: adamw, lr: 1e-5, b2: 0.9}}
tune: {train.optimizer.lr: [1e-4, 1e-2, 1e-3], seeds: 1}
"""


@pytest.fixture
def load(tmp_path):
    def loaded(added):
        (tmp_path / "s.yaml").write_text(TINY + added)
        return load_study(tmp_path / "s.yaml")

    return loaded


def rates(arms):
    return {arm.name: arm.config.train.optimizer.lr for arm in arms}


def test_arms_try_the_same_values_and_keep_their_own_overrides(load):
    study = load(TUNED)
    tried = rates(trial_study(study, derive_arm).arms)
    for arm in ("baseline", "momentum", "other"):
        own = {name: lr for name, lr in tried.items() if name.startswith(f"{arm}~")}
        assert own == {f"{arm}~lr=0.0001": 1e-4, f"{arm}~lr=0.01": 1e-2, f"{arm}~lr=0.001": 1e-3}
    assert not any(name.startswith("low-lr~") for name in tried)
    b2 = {arm.name: arm.config.train.optimizer.b2 for arm in trial_study(study, derive_arm).arms}
    assert {b2[name] for name in b2 if name.startswith("other~")} == {0.9}  # other overrides of the arm are kept


def test_seeds_of_tuning_are_separate(load):
    assert {run.seed for run in trial_study(load(TUNED), derive_arm).runs()} == {FIRST_SEED}
    assert {run.seed for run in trial_study(load(TUNED.replace("seeds: 1", "seeds: [7, 9]")), derive_arm).runs()} == {
        7,
        9,
    }


def test_several_values_are_combined(load):
    study = load(TUNED.replace("seeds: 1", "train.optimizer.weight_decay: [0, 0.1]"))
    cells = [arm.name for arm in trial_study(study, derive_arm).arms if arm.name.startswith("momentum~")]
    assert len(cells) == 6
    assert "momentum~lr=0.01,weight_decay=0.1" in cells
    assert [a.name for a in trial_study(study, derive_arm).arms if "low-lr" in a.name] == [
        "low-lr~weight_decay=0",
        "low-lr~weight_decay=0.1",
    ]


def test_arm_without_a_tuned_field_is_refused_before_training(load):
    study = load("arms: {none: {model.mixer: none}}\ntune: {model.mixer.num_heads: [1, 2]}\n")
    with pytest.raises(UserError) as caught:
        trial_study(study, derive_arm)
    assert caught.value.problem == "unknown field 'num_heads'"
    assert caught.value.path[:2] == ("tune", "model.mixer.num_heads")


@pytest.mark.parametrize("primary", ["test/loss", "val/loss", "test/accuracy"])
def test_values_are_chosen_on_the_validation_split_whatever_the_primary_metric_is(load, tmp_path, primary):
    """The test split ranks the learning rates in the opposite order."""
    study = load(f"measure: {{primary: {primary}}}\n" + TUNED)
    folder = StudyFolder(open_store(tmp_path / "root"), study.name)
    trial_runs = resolve_runs(trial_study(study, derive_arm), folder)
    for spec in trial_runs:
        rate, run = spec.config.train.optimizer.lr, spec.folder
        metrics = {"val/loss": 1 - rate, "val/accuracy": rate, "test/loss": rate, "test/accuracy": 1 - rate}
        run.start(spec.record())
        run.finish({"outcome": "finished", "steps": 6, "metrics": metrics})
    chosen = choose_values(study, [(run.arm, run.folder) for run in trial_runs])
    assert chosen["metric"] == f"val/{primary.rpartition('/')[2]}"
    assert {entry["best"] for entry in chosen["arms"].values()} == {"lr=0.01"}
    assert study.measure.primary == primary  # verdicts and planned looks go on testing this one


TEXT = """\
study: s
base:
  task: {kind: text, source: corpus.txt, seq_len: 8, val: 0, test: 0.2}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 6, batch_size: 4}
measure: {primary: test/loss}
arms: {nope: {model.position: none}}
"""


def test_tuning_without_a_validation_split_is_refused(tmp_path):
    (tmp_path / "s.yaml").write_text(TEXT)
    assert load_study(tmp_path / "s.yaml").measure.primary == "test/loss"
    (tmp_path / "s.yaml").write_text(TEXT + "tune: {train.optimizer.lr: [1e-4, 1e-2]}\n")
    with pytest.raises(UserError) as caught:
        load_study(tmp_path / "s.yaml")
    assert "val/loss" in caught.value.problem
    assert caught.value.path[-1] == "val"


def test_arms_whose_every_trial_diverged_have_no_tuned_arm(load):
    study = load(TUNED)
    entry = {"trials": {"lr=0.01": {"values": {"train.optimizer.lr": 1e-2}}}, "best": "lr=0.01"}
    chosen = {"arms": {"baseline": entry, "momentum": {**entry, "best": None}, "other": entry}}
    assert rates(tuned_arms(study, chosen, derive_arm)) == {"baseline@tuned": 1e-2, "other@tuned": 1e-2}
    chosen["arms"]["baseline"] = {**entry, "best": None}
    assert list(tuned_arms(study, chosen, derive_arm)) == []


class StopsAtTrials(Callback):
    def __init__(self):
        self.trying = False

    def on_pack_begin(self, number, total, runs):
        self.trying = any("~" in run.arm for run in runs)

    def on_save(self, step):
        if self.trying:
            raise KeyboardInterrupt


@pytest.mark.nightly
def test_tuned_study_ends_with_shared_and_tuned_effects_also_after_an_interruption(study):
    outcome, folder = study(TINY + TUNED)
    results = outcome.results
    with pytest.raises(KeyboardInterrupt):
        study(TINY + TUNED, root="stopped", callback=StopsAtTrials())
    assert study(TINY + TUNED, root="stopped")[0].results == results
    arms = {arm["name"]: arm for arm in results["arms"]}
    assert list(arms) == [
        *("baseline", "momentum", "low-lr", "other"),
        *("baseline@tuned", "momentum@tuned", "other@tuned"),
    ]
    assert {run["seed"] for arm in arms.values() for run in arm["runs"]} == {0, 1}
    assert all(arm["planned"] for arm in arms.values())
    for name in ("momentum", "other"):
        assert arms[name]["against"] == "baseline"
        assert arms[f"{name}@tuned"]["against"] == "baseline@tuned"
        shift = arms[f"{name}@tuned"]["mean"] - arms["baseline@tuned"]["mean"]
        assert arms[f"{name}@tuned"]["effect"] == pytest.approx(shift)

    found = results["tuning"]
    assert found["seeds"] == [FIRST_SEED]
    assert list(found["arms"]) == ["baseline", "momentum", "other"]
    for name, entry in found["arms"].items():
        means = {cell: mean(trial["by_seed"]) for cell, trial in entry["trials"].items()}
        assert entry["best"] == min(means, key=means.__getitem__)
        best = entry["trials"][entry["best"]]["values"]["train.optimizer.lr"]
        assert entry["edge"] == (["train.optimizer.lr"] if best in (1e-4, 1e-2) else [])
        assert folder.read_study()["arms"][f"{name}@tuned"] == arms[f"{name}@tuned"]["diff"]

    moved = TUNED[: TUNED.index("tune:")].replace("seeds: 2", f"seeds: [0, 1, {FIRST_SEED}]")
    with pytest.raises(UserError) as caught:  # seeds that arms were tuned on cannot judge them later
        study(TINY + moved)
    assert caught.value.problem.startswith(f"seed {FIRST_SEED} ")
    assert "for tuning" in caught.value.problem
