"""Every registered kind compiles for TPUs and has a row in docs/tpu.md."""

import re
from pathlib import Path

import pytest
from benchmarks.kinds import config, every_kind, requests
from tests.tpu.conftest import NEEDS_LIBTPU

from taetpu.core.chips import parse_slice
from taetpu.tpu.compile_client import Compiler

SLOTS = sorted({slot for slot, _ in every_kind()})
PAGE = Path(__file__).parents[2] / "docs/tpu.md"


def test_every_kind_has_a_row() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == list(every_kind())


def test_every_kind_can_be_built_without_settings() -> None:
    assert [kind for kind in every_kind() if config(*kind) is None] == []


def compiles(slot: str, name: str) -> None:
    asked = requests([kind for kind in every_kind() if kind[0] == slot], parse_slice(name))
    with Compiler() as compiler:
        found = dict(zip(asked, compiler.compile_all(list(asked.values())), strict=True))
    assert {kind: facts["error"] for kind, facts in found.items() if "memory" not in facts} == {}


@NEEDS_LIBTPU
@pytest.mark.nightly
@pytest.mark.parametrize("slot", SLOTS)
def test_every_kind_compiles_for_v5e(slot: str) -> None:
    compiles(slot, "v5e-8")


@pytest.mark.nightly
@NEEDS_LIBTPU
@pytest.mark.parametrize("name", ["v3-8", "v6e-8"])
@pytest.mark.parametrize("slot", SLOTS)
def test_every_kind_compiles_for_other_generations(slot: str, name: str) -> None:
    compiles(slot, name)
