"""The docstrings of kinds name their papers."""

import re

import pytest

from taetpu.core.kind_docs import kind_doc
from taetpu.core.registry import BUILTIN_MODULES, kinds

ARCHITECTURE = tuple(slot for slot, module in BUILTIN_MODULES.items() if module.startswith("taetpu.nn."))
WITHOUT_SOURCE = {f"{slot}/none" for slot in ARCHITECTURE}
"""Kinds that leave a part out."""
KINDS = [(slot, kind) for slot in (*ARCHITECTURE, "optimizer") for kind in kinds(slot)]


@pytest.mark.parametrize(("slot", "kind"), KINDS)
def test_every_architecture_kind_and_optimizer_has_a_source(slot, kind):
    doc = kind_doc(kinds(slot)[kind])
    if f"{slot}/{kind}" not in WITHOUT_SOURCE:
        assert re.search(r"(19|20)\d\d", doc.source), "add a line `Source: AUTHORS YEAR, TITLE, IDENTIFIER.`"
    for text in (doc.source, doc.reference, doc.excludes):
        assert not text or text.endswith(".")
