"""Matched arms have as many FLOPs, parameters or seconds as the baseline."""

from pathlib import Path

import pytest
from tests.small import STUDY, TINY

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.study.arm_stages import ArmStages
from taetpu.study.matching import flops_per_step, num_arm_params, steps_of, time_matched_steps
from taetpu.train import step_time
from taetpu.train.callbacks import Callback

BASE = STUDY[: STUDY.index("seeds:")].replace("steps: 20", "steps: 2000").replace("dim: 16", "dim: 32")


@pytest.fixture
def load(tmp_path):
    def loaded(added, *replace):
        text = BASE
        for old, new in replace:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "s.yaml").write_text(text + added)
        return load_study(tmp_path / "s.yaml")

    return loaded


ARMS = """\
arms:
  relu: {model.ffn: relu}
  narrow-relu: {model.ffn: {kind: relu, mult: 2}}
  deep: {model.num_layers: 2}
  batch: {train.batch_size: 8}
  low-lr: {train.optimizer.lr: 1e-4}
"""


def by_name(arms):
    return {arm.name: arm for arm in arms}


def arms_of(study, steps=()):
    return ArmStages.of(study).timed(dict(steps)).matched.arms


def matched(study, steps=()):
    return [arm for arm in arms_of(study, steps) if arm.stage == "matched"]


def test_arms_matched_by_flops_compute_as_much_as_the_baseline(load):
    study = load(f"{ARMS}match: flops\n")
    found = by_name(matched(study))
    assert list(found) == ["relu@flops", "narrow-relu@flops", "deep@flops", "batch@flops"]  # low-lr has as many already
    goal = steps_of(study, study.arms[0]) * flops_per_step(study, study.arms[0])
    for name, arm in found.items():
        assert steps_of(study, arm) * flops_per_step(study, arm) == pytest.approx(goal, rel=0.01)
        assert arm.role["match"] == {
            "of": name.removesuffix("@flops"),
            "by": "flops",
            "train.steps": steps_of(study, arm),
        }


def test_arms_matched_by_parameters_have_as_many_as_the_baseline(load):
    study = load(f"{ARMS}match: [params]\n")
    found = by_name(matched(study))
    assert list(found) == ["relu@params", "narrow-relu@params", "deep@params"]
    for arm in found.values():
        assert num_arm_params(study, arm) == pytest.approx(num_arm_params(study, study.arms[0]), rel=0.01)
        assert steps_of(study, arm) == 2000
    assert found["narrow-relu@params"].config.model.layers[0].ffn.kind == "relu"


def test_arm_keeps_its_own_length_and_width(load):
    study = load(
        "arms: {long: {model.num_layers: 2, train.steps: 3000}, wide: {model.ffn.hidden: 200}}\n"
        "match: [flops, params]\n"
    )
    assert [arm.name for arm in matched(study)] == ["long@params", "wide@flops"]


def test_arms_are_matched_to_the_baseline_of_their_rung(load):
    study = load(
        "arms: {deep: {model.num_layers: 2}}\nladder: {model.dim: [32, 64], train.steps: [2000, 500]}\nmatch: flops\n"
    )
    for arm in matched(study):
        baseline = study.against(arm)
        total = steps_of(study, arm) * flops_per_step(study, arm)
        assert total == pytest.approx(steps_of(study, baseline) * flops_per_step(study, baseline), rel=0.01)
    assert [arm.role["against"] for arm in matched(study)] == ["baseline", "baseline@dim=64,steps=500"]


def test_arms_matched_by_time_take_as_long_as_the_baseline(load):
    study = load(f"{ARMS}match: time\n")
    seconds = {"baseline": 1e-3, "relu": 1e-3, "narrow-relu": 8e-4, "deep": 2.5e-3, "batch": 2e-3, "low-lr": 1.001e-3}
    steps = time_matched_steps(study, seconds.__getitem__, {})
    assert steps == {"relu": 2000, "narrow-relu": 2500, "deep": 800, "batch": 1000, "low-lr": 1998}
    assert {a.name: steps_of(study, a) for a in matched(study, steps)} == {
        "narrow-relu@time": 2500, "deep@time": 800, "batch@time": 1000,
    }  # fmt: skip
    asked = []
    known = {name: steps[name] for name in ("relu", "deep")}
    again = time_matched_steps(study, lambda name: asked.append(name) or seconds[name], known)
    assert again == steps
    assert set(asked) == {"baseline", "narrow-relu", "batch", "low-lr"}


def test_matched_arm_that_equals_an_existing_arm_is_not_added(load):
    study = load(f"{ARMS}  short: {{model.num_layers: 2, train.steps: 900}}\nmatch: [flops, time]\n")
    steps = steps_of(study, by_name(arms_of(study))["deep@flops"])
    found = by_name(arms_of(study, {"deep": steps, "relu": 1234}))
    assert "deep@time" not in found
    assert found["deep@flops"].role["match"]["by"] == "flops"
    assert found["deep@flops"].role["also"] == [{"of": "deep", "by": "time", "train.steps": steps}]
    assert "also" not in found["relu@time"].role
    written = by_name(arms_of(study, {"deep": 900}))
    assert (written["short"].stage, written["deep@flops"].stage) == ("written", "matched")
    assert "match" not in written["short"].role
    assert written["short"].role["also"] == [{"of": "deep", "by": "time", "train.steps": 900}]
    assert len({repr(arm.config) for arm in found.values()}) == len(found)


REFUSED = [
    ("arms: {x: {model.ffn: none}}", ()),
    ("arms: {x: {model.num_layers: 2}}", (("dim: 32,", "dim: 32, ffn: none,"),)),
    ("arms: {x: {model.num_layers: 30}}", ()),
]


@pytest.mark.parametrize(("added", "replace"), REFUSED)
def test_arm_that_cannot_be_matched_by_parameters_is_refused(load, added, replace, wording):
    with pytest.raises(UserError) as caught:
        matched(load(f"{added}\nmatch: params\n", *replace))
    error = caught.value
    assert (Path(str(error.file)).name, error.line, error.path) == ("s.yaml", len(BASE.splitlines()) + 2, ("match",))
    wording(f"{error.problem}\n{error.remedy}")


def test_epochs_become_steps(load):
    study = load("arms: {deep: {model.num_layers: 2}}\nmatch: flops\n", ("steps: 2000", "steps: 2000, epochs: none"))
    assert [arm.config.train.epochs for arm in matched(study)] == [None]


class Measures(Callback):
    def __init__(self):
        self.arms = []

    def on_step_timing(self, arm):
        self.arms.append(arm)


@pytest.mark.nightly
def test_step_times_are_measured_once_and_stored(study, monkeypatch):
    text = TINY.replace("steps: 6,", "steps: 20,") + "seeds: 1\nmatch: time\narms: {deep: {model.num_layers: 4}}\n"
    first, again = Measures(), Measures()
    monkeypatch.setattr(step_time, "WINDOW", 0.05)
    _, folder = study(text, callback=first)
    kept = folder.read_study()["matching"]
    assert set(kept) == {"deep"}
    assert kept["deep"] < 20
    assert folder.read_study()["arms"]["deep@time"]["train.steps"] == kept["deep"]
    outcome, _ = study(text, callback=again)
    assert (set(first.arms), again.arms) == ({"baseline", "deep"}, [])
    assert folder.read_study()["matching"] == kept
    assert "deep@time" in [arm["name"] for arm in outcome.results["arms"]]
