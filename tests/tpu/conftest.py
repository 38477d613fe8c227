"""Fixtures that compile studies with the real TPU compiler, which needs no TPU."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from taetpu.core.chips import parse_slice
from taetpu.spec.loading import load_study
from taetpu.tpu.preflight import PreflightRequest, preflight
from taetpu.train.layout import AUTO, Packing

NEEDS_LIBTPU = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed")

STUDY = """\
study: small
base:
  task: {kind: copy, seq_len: 64, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 128, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 20, batch_size: 4, sample: none}
seeds: 2
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of compiled programs, which is empty at first."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def compile_study(
    tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that compiles a study for slices."""
    monkeypatch.setenv("TAETPU_CACHE", str(compiled))
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)  # the compiler's process optimises as for users

    def run(
        *names: str, text: str = STUDY, sets: tuple[str, ...] = (), packing: Packing = AUTO
    ) -> list[dict[str, Any]]:
        file = tmp_path / "small.yaml"
        file.write_text(text)
        study = load_study(file, list(sets))
        plugins = tuple(plugin.file for plugin in study.plugins)
        request = PreflightRequest(study.runs(), study.sources, packing, study.folder, plugins)
        return preflight(request, [parse_slice(name) for name in names])

    return run
