"""Every study of docs/designs.md loads and has the arms that the page names."""

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

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
    "tuned.yaml": ["no-rope", "slow"],
    "matched.yaml": ["relu", "deep", "relu@flops", "relu@params", "deep@flops", "deep@params"],
    "looked.yaml": ["no-rope"],
    "finetuned.yaml": ["scratch", "lora", "last-layer"],
}


def test_every_yaml_block_is_a_study_of_this_test():
    assert STUDIES.keys() == ARMS.keys()
    assert PAGE.count("```yaml") == len(STUDIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARMS)
def test_a_study_has_the_arms_named_on_the_page(name, tmp_path):
    (tmp_path / name).write_text(STUDIES[name])
    for seed in range(5):  # the stored models from which the runs of one study start
        stored = tmp_path / f"runs/pretrained/runs/baseline/{seed}-0a1b2c3d/model"
        stored.mkdir(parents=True)
        (stored / "model.safetensors").write_bytes(save({"norm.weight": np.ones(64, np.float32)}))
    study = load_study(tmp_path / name)
    study.runs()
    stages = ArmStages.of(study)
    assert sorted(arm.name for arm in stages.matched.arms[1:]) == sorted(ARMS[name])
    if stages.trials is not None:
        assert {arm.name.split("~")[0] for arm in stages.trials.arms} == {"baseline", "no-rope"}
    if "factorial" in study.design:
        assert ["big", "lr", "norm", "position"] in study.design["factorial"]["words"]
