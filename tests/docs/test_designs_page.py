"""Every study of docs/designs.md loads and has the arms that the page names; those on stored models are trained."""

import re
from pathlib import Path

import pytest

import taetpu
from taetpu.spec.loading import load_study
from taetpu.study.arm_stages import ArmStages

PAGE = (Path(__file__).parents[2] / "docs/designs.md").read_text()
STUDIES = dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
ARMS = {
    "one-by-one.yaml": ["without-rope", "without-gate", "without-norm", "without-all"],
    "crossed.yaml": [
        *("lr=0.01,big", "position=none,lr=0.01", "position=none,big"),
        *("norm=layer,lr=0.01", "norm=layer,big", "norm=layer,position=none"),
        "norm=layer,position=none,lr=0.01,big",
    ],
    "climbing.yaml": [
        *("baseline@dim=32,steps=250", "no-rope@dim=32,steps=250", "no-rope"),
        *("baseline@dim=128,steps=1000", "no-rope@dim=128,steps=1000"),
    ],
    "several.yaml": [
        *("no-rope", "relu", "baseline@sort", "no-rope@sort", "relu@sort"),
        *("baseline@induction", "no-rope@induction", "relu@induction"),
    ],
    "elsewhere.yaml": [
        *("relu", "baseline@init=fan-in", "relu@init=fan-in", "baseline@lr=0.003", "relu@lr=0.003"),
    ],
    "tuned.yaml": ["no-rope", "slow"],
    "matched.yaml": ["relu", "deep", "relu@flops", "relu@params", "deep@flops", "deep@params"],
    "stopped.yaml": ["no-rope", "mean"],
    "sized.yaml": [f"baseline@dim={dim}" for dim in (4, 8, 24, 32, 48, 64)],
    "solving.yaml": ["no-rope"],
    "arriving.yaml": ["no-rope"],
    "initial.yaml": ["no-skips", "no-mixer-skips"],
    "looked.yaml": ["no-rope"],
    "pretrained.yaml": [],
    "finetuned.yaml": ["scratch", "last-layer", "norms"],
    "adapted.yaml": ["rank-4", "rank-16"],
    "pruned.yaml": ["healed-1", "healed-2", "healed-both", "removed-both"],
}


def test_every_yaml_block_is_a_study_of_this_test():
    assert STUDIES.keys() == ARMS.keys()
    assert PAGE.count("```yaml") == len(STUDIES)


STARTED = ("finetuned.yaml", "adapted.yaml", "pruned.yaml")
SHORT = ["train.steps=2", "train.batch_size=4", "task.eval_size=8", "train.sample=none"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder with all studies of the page, of which the one that others start from has been run for a few steps."""
    folder = tmp_path_factory.mktemp("pretrained")
    for name, text in STUDIES.items():
        (folder / name).write_text(text)
    taetpu.run(folder / "pretrained.yaml", SHORT, root=str(folder / "runs"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ARMS)
def test_a_study_has_the_arms_named_on_the_page(name, pretrained, monkeypatch):
    monkeypatch.chdir(pretrained)
    study = load_study(name)
    study.runs()
    stages = ArmStages.of(study)
    assert sorted(arm.name for arm in stages.matched.arms[1:]) == sorted(ARMS[name])
    if stages.trials is not None:
        tuned = {arm for arm in ARMS[name] if arm != "slow"}
        assert {arm.name.split("~")[0] for arm in stages.trials.arms} == {"baseline", *tuned}
    if "factorial" in study.design:
        assert ["big", "lr", "norm", "position"] in study.design["factorial"]["words"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
def test_a_study_that_starts_from_a_stored_model_is_trained(name, pretrained, monkeypatch):
    monkeypatch.chdir(pretrained)
    outcome = taetpu.run(name, SHORT, root="runs")
    assert not outcome.failed
    results = {arm["name"]: arm for arm in outcome.results["arms"]}
    assert results.keys() >= {"baseline", *ARMS[name]}
    if name == "pruned.yaml":
        before, after = (
            [taetpu.open_run(f"{study}/0").weights() for study in pair]
            for pair in (("pretrained/baseline", "pretrained/baseline"), ("pruned/removed-both", "pruned/healed-both"))
        )
        assert all((after[0][key] == array).all() for key, array in before[0].items())
        assert not all((after[1][key] == array).all() for key, array in before[1].items())
