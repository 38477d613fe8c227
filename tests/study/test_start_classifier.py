"""Classifiers that start from language models: the body is loaded, the output matrix is drawn."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import taetpu
from taetpu.core.errors import UserError
from taetpu.nn.named_arrays import named_parameters
from taetpu.study.loading import load_study
from taetpu.train.step import new_model

pytestmark = pytest.mark.slow

LANGUAGE = """\
study: language
plugins: [letters.py]
base:
  task: letters
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 2, batch_size: 4, sample: none}
seeds: 1
arms:
  untied: {model.embedding: untied}
"""
CLASSES = """\
study: classes
plugins: [groups.py]
base:
  task: TASK
  model: MODEL
  train: {steps: 2, batch_size: 4, hooks: {freeze: {trained: [embedding.unembed]}}}
seeds: 1
"""


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A folder with two finished language models. Tests copy it."""
    folder = tmp_path_factory.mktemp("language")
    for name in ("letters.py", "groups.py"):
        shutil.copy(Path(__file__).parent / "tasks" / name, folder)
    (folder / "language.yaml").write_text(LANGUAGE)
    taetpu.run(folder / "language.yaml", root=str(folder / "runs"))
    return folder


@pytest.fixture
def classes(language, tmp_path):
    """Return a function that writes and loads a study of classes."""
    shutil.copytree(language, tmp_path, dirs_exist_ok=True)

    def loaded(model, task="three-groups"):
        (tmp_path / "classes.yaml").write_text(CLASSES.replace("TASK", task).replace("MODEL", model))
        return load_study(tmp_path / "classes.yaml")

    return loaded


@pytest.mark.parametrize("task", ["three-groups", "twelve-groups"])
@pytest.mark.parametrize("arm", ["baseline", "untied"])
def test_the_body_is_loaded_and_the_outputs_are_drawn(classes, tmp_path, arm, task):
    study = classes(f"{{start: 'runs/language/runs/{arm}/0-*', embedding: untied}}", task)
    (baseline,) = study.arms
    drawn = named_parameters(new_model(baseline.config, study.source(baseline), 0))
    outcome = taetpu.run(tmp_path / "classes.yaml", root=str(tmp_path / "runs"))
    assert not outcome.failed
    before = taetpu.open_run(f"language/{arm}/0", plugins=[tmp_path / "letters.py"], root=tmp_path / "runs").weights()
    after = taetpu.open_run("classes/baseline/0", plugins=[tmp_path / "groups.py"], root=tmp_path / "runs").weights()
    for name in after.keys() - {"embedding.unembed"}:
        np.testing.assert_array_equal(after[name], before[name])
    assert after["embedding.unembed"].shape == drawn["embedding.unembed"].shape
    np.testing.assert_allclose(after["embedding.unembed"], drawn["embedding.unembed"], atol=0.02)
    shapes = {name: array.shape for name, array in drawn.items()}
    facts = study.start(baseline, 0).facts(shapes)
    assert [*facts["outputs"], *facts["drawn"]] == ["embedding.unembed"]


def test_equal_sizes_do_not_make_tokens_of_classes(classes):
    twelve, three = (
        classes("{start: 'runs/language/runs/untied/0-*'}", task) for task in ("twelve-groups", "three-groups")
    )
    starts = [study.start(study.arms[0], 0) for study in (twelve, three)]
    assert starts[0].outputs == {"embedding.unembed"}
    assert not starts[1].outputs
    assert starts[0].digest != starts[1].digest == starts[1].model.digest


def test_a_tied_table_cannot_lead_to_classes(classes):
    study = classes("{start: 'runs/language/runs/baseline/0-*'}")
    with pytest.raises(UserError) as caught:
        study.runs()
    assert "untied" in caught.value.remedy
    assert caught.value.path[:2] == ("base", "model")
