"""The comparisons of kinds with reference implementations, which the modules of this folder register."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np

BOUND = 5e-5
"""The largest allowed difference in float32, as a share of the reference's largest value if that exceeds 1."""
OTHERS = ("registry", "test_parity")


@dataclass(frozen=True)
class Entry:
    """A comparison of a kind with a reference.

    Attributes:
        kind: The kind, as `slot/kind`.
        reference: The class or function of the other library, as its users import it.
        variant: The settings that differ from the defaults; empty if none do.
        compare: A function that returns our result and the reference's for the same random inputs and weights.
        module: The module that registers the comparison.
        float64: Whether both sides are computed in float64, because rounding in float32 exceeds the bound.
    """

    kind: str
    reference: str
    variant: str
    compare: Callable[[], tuple[Any, Any]]
    module: str
    float64: bool = False

    @property
    def name(self) -> str:
        """The kind with its variant."""
        return f"{self.kind}, {self.variant}" if self.variant else self.kind

    def difference(self) -> float:
        """Return the largest difference, as a share of the reference's largest value if that exceeds 1."""
        with jax.enable_x64(self.float64):
            ours, theirs = (np.asarray(one, np.float64) for one in self.compare())
        assert ours.shape == theirs.shape, f"{self.name}: shapes {ours.shape} and {theirs.shape} differ"
        return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


ENTRIES: list[Entry] = []


def parity(
    kind: str, reference: str, variant: str = "", float64: bool = False
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register the decorated function, which returns our result and that of a reference."""

    def registered(compare: Callable[[], Any]) -> Callable[[], Any]:
        ENTRIES.append(Entry(kind, reference, variant, compare, compare.__module__, float64))
        return compare

    return registered


def entries() -> list[Entry]:
    """Return all comparisons, in alphabetical order of their modules, which may have been imported in any order."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in OTHERS and not path.stem.startswith("_"):
            import_module(f"tests.parity.{path.stem}")
    return sorted(ENTRIES, key=lambda entry: entry.module)
