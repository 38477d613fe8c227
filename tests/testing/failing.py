"""Helpers for tests of components with faults: failed checks and the lines that they name."""

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from taetpu.plugin import Component
from taetpu.testing import ComponentError, check_component


def failing(component: Component) -> dict[str, Any]:
    """Return the failed checks of a component by name, and check that the error's text lists each."""
    with pytest.raises(ComponentError) as caught:
        check_component(component.slot, component)
    report = caught.value.report
    for finding in report.failed:
        assert f"\n{finding.check}: {finding.message}\n" in str(caught.value)
    return {finding.check: finding for finding in report.failed}


def line_of(owner: Any, text: str) -> str:
    """Return `file:line` of the line of `owner` that contains `text`, as a finding names it."""
    lines, first = inspect.getsourcelines(owner)
    number = first + next(i for i, line in enumerate(lines) if text in line)
    return f"{Path(inspect.getsourcefile(owner) or '').name}:{number}"


def leaky(x):
    """Return `x` in a single run and the last run's value in a pack. The gradient is that of `x`."""
    return x + jax.lax.stop_gradient(_last_of_a_pack(jax.lax.stop_gradient(x)) - x)


@jax.custom_batching.custom_vmap
def _last_of_a_pack(x):
    return x


@_last_of_a_pack.def_vmap
def _batched(size, batched, x):
    return (jnp.broadcast_to(x[-1], x.shape) if batched[0] else x), batched[0]
