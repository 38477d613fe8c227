"""Each stage of a study's arms is computed once, however often a command asks for it."""

from collections import Counter

import pytest
from tests.small import TINY

from taetpu.spec import resolved_study
from taetpu.spec.loading import load_study
from taetpu.spec.study_config import RunConfig
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study import arm_stages
from taetpu.study.arm_stages import ArmStages
from taetpu.study.components import component_study
from taetpu.study.preview import prepare_study
from taetpu.study.run import Options, run_study
from taetpu.train.callbacks import Callback

ARMS = """\
seeds: 2
arms:
  relu: {model.ffn: relu}
  deep: {model.num_layers: 2}
  two: {model.ffn: {kind: relu, hidden: 48}, model.norm: layer}
"""
LADDER = """\
arms: {wide: {model.ffn: {kind: relu, hidden: 128}}}
match: [flops, params]
ladder: {model.dim: [8, 16]}
"""
TUNED = """\
arms: {wide: {model.ffn: {kind: relu, hidden: 128}}}
seeds: 1
match: flops
tune: {train.optimizer.lr: [1e-2, 1e-3], seeds: 1}
"""


@pytest.fixture
def calls(monkeypatch) -> Counter:
    """The numbers of calls so far that resolve a config, match arms by size, and hash the configs of an arm's runs."""
    counts: Counter = Counter()

    def count(owner, name):
        called = getattr(owner, name)

        def counted(*args):
            counts[name] += 1
            return called(*args)

        monkeypatch.setattr(owner, name, counted)

    count(RunConfig, "resolve")
    count(arm_stages, "match_sizes")
    count(resolved_study, "run_ids")
    return counts


@pytest.fixture
def load(tmp_path):
    def loaded(more):
        (tmp_path / "study.yaml").write_text(TINY + more)
        study = load_study(tmp_path / "study.yaml")
        return study, StudyFolder(open_store(tmp_path / "root"), study.name)

    return loaded


def test_an_arm_is_resolved_once_and_once_without_each_of_several_overrides(load, calls):
    study, _ = load(ARMS)
    assert [len(arm.overrides) for arm in study.arms] == [0, 1, 1, 2]
    assert calls == {"resolve": 1 + 1 + 1 + 3}
    assert [*study.arms[3].variants] == ["model.ffn", "model.norm"]
    assert study.arms[3].variants["model.norm"] not in (study.arms[0].config, study.arms[3].config)


@pytest.mark.slow
def test_a_plan_matches_arms_once_and_resolves_each_new_arm_once(load, calls):
    study, folder = load(LADDER)
    calls.clear()
    ready = prepare_study(study, folder)
    kinds = Counter(arm.role["match"]["by"] for arm in ready.study.arms if arm.stage == "matched")
    assert kinds == {"flops": 2, "params": 2}
    # The width that matches the parameters follows from two other widths.
    assert calls == {
        "match_sizes": 1,
        "resolve": kinds["flops"] + 3 * kinds["params"],
        "run_ids": len(ready.study.arms),
    }


@pytest.mark.slow
def test_a_run_resolves_and_identifies_each_arm_and_trial_once(load, calls):
    study, folder = load(TUNED)
    calls.clear()
    run_study(study, folder, Callback(), Options())
    roles = folder.read_study()["roles"].values()
    tuned = sum("tuned" in role for role in roles)
    untuned = len(study.arms) + sum("match" in role and "tuned" not in role for role in roles)
    assert (untuned, tuned) == (3, 3)
    trials = 2 * untuned
    assert calls["match_sizes"] == 1
    assert calls["resolve"] == untuned - len(study.arms) + trials + tuned
    assert calls["run_ids"] == untuned + trials + tuned


@pytest.mark.slow
def test_a_component_study_resolves_each_of_its_arms_once(load, calls):
    study, folder = load("seeds: 2\n")
    run_study(study, folder, Callback(), Options())
    calls.clear()
    derived = component_study(study, folder)
    assert len(derived.arms) == 3 * 3
    assert calls == {"resolve": len(derived.arms) - 1}
    prepare_study(derived, StudyFolder(folder.store, derived.name))
    assert calls == {"resolve": len(derived.arms) - 1, "match_sizes": 1, "run_ids": len(derived.arms) - 1}


def test_a_changed_study_keeps_the_runs_that_are_identified(load, calls):
    study, _ = load(ARMS)
    before = study.runs()
    calls.clear()
    after = study.changed(seeds=(0, 1, 2), arms=study.arms[:2]).runs()
    assert [(run.arm, run.seed) for run in after] == [(arm.name, seed) for arm in study.arms[:2] for seed in (0, 1, 2)]
    assert [run for run in before if run.arm in ("baseline", "relu")] == [run for run in after if run.seed < 2]
    assert all(any(run is known for known in before) for run in after if run.seed < 2)
    assert calls == {"run_ids": 2}  # for the new seed of each arm
    assert len({run.id for run in after}) == len(after)


def test_stages_of_measured_steps_share_the_arms_that_are_matched_by_size(load):
    study, _ = load(ARMS + "match: [flops, time]\n")
    stages = ArmStages.of(study)
    timed = stages.timed({"deep": 5})
    assert stages.timed({}) is stages
    assert timed.sized is stages.sized is stages.matched
    assert [arm.name for arm in timed.matched.arms if arm.stage == "matched"][-1] == "deep@time"
