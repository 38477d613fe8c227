"""Kinds equal their reference implementations, and docs/parity.md lists all comparisons."""

import pytest
from tests.parity.__main__ import PAGE, format_page
from tests.parity.registry import BOUND, entries

from taetpu.core.kind_docs import kind_doc
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.spec.presets import PRESETS

FOUND = entries()
BY_DEFAULT = ("mixer/attention", "preset/gpt2")


@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, id=entry.name, marks=() if entry.name in BY_DEFAULT else pytest.mark.slow) for entry in FOUND],
)
def test_the_kind_equals_its_reference(entry):
    slot, kind = entry.kind.split("/")
    assert kind in (PRESETS if slot == "preset" else kinds(slot))
    assert entry.difference() < BOUND


def test_every_kind_is_compared_with_the_reference_that_it_names():
    for slot in BUILTIN_MODULES:
        for kind, cls in kinds(slot).items():
            compared = tuple(entry.reference for entry in FOUND if entry.kind == f"{slot}/{kind}")
            named = kind_doc(cls).reference
            assert not named or named.startswith(compared), f"{slot}/{kind}"


def test_the_page_lists_every_comparison():
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    expected = [line.split("|")[1:3] for line in format_page([(one, 0.0) for one in FOUND]).splitlines()
                if line.startswith("| `")]  # fmt: skip
    assert rows == expected, "run python -m tests.parity --write"
