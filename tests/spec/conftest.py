"""Fixtures: a small study on a small text, in which tests replace single parts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from taetpu.spec.loading import load_study
from taetpu.spec.resolved_study import Study

STUDY = """\
study: s
base:
  task: {kind: text, source: text.txt, seq_len: 8, split: order}
  model: {dim: 16, num_layers: 4, mixer: {kind: attention, num_heads: 4}}
  train: {steps: 10, optimizer: {kind: adamw, lr: 1e-2}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("hello world. " * 40)
    return tmp_path


@pytest.fixture
def study(folder: Path) -> Callable[..., Study]:
    """Return `study(added="", sets=(), ("old", "new"), ...)`, which loads the study with changed text."""

    def loaded(added: str = "", sets: tuple[str, ...] = (), *replace: tuple[str, str]) -> Study:
        text = STUDY
        for old, new in replace:
            assert old in text
            text = text.replace(old, new)
        (folder / "s.yaml").write_text(text + added)
        return load_study(folder / "s.yaml", sets)

    return loaded
