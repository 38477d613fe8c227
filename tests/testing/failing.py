"""What tests of planted faults ask: which checks a component fails, and whether the text says where."""

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from taetpu.plugin import Component
from taetpu.testing import ComponentError, check_component


def failing(component: Component) -> dict[str, Any]:
    """The checks that a component fails, by name; their text names each."""
    with pytest.raises(ComponentError) as caught:
        check_component(component.slot, component)
    report = caught.value.report
    for finding in report.failed:
        assert f"\n{finding.check}: {finding.said}\n" in str(caught.value)
    return {finding.check: finding for finding in report.failed}


def line_of(owner: Any, text: str) -> str:
    """`file:line` of a line of a test, as a finding gives it."""
    lines, first = inspect.getsourcelines(owner)
    number = first + next(i for i, line in enumerate(lines) if text in line)
    return f"{Path(inspect.getsourcefile(owner) or '').name}:{number}"


def leaky(x):
    """`x` in a single run; in a pack, what its last run has. Its gradient is that of `x`."""
    return x + jax.lax.stop_gradient(_last_of_a_pack(jax.lax.stop_gradient(x)) - x)


@jax.custom_batching.custom_vmap
def _last_of_a_pack(x):
    return x


@_last_of_a_pack.def_vmap
def _batched(size, batched, x):
    return (jnp.broadcast_to(x[-1], x.shape) if batched[0] else x), batched[0]
