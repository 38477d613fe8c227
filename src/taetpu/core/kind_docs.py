"""The documentation of a kind, read from the docstring of its config class.

The first sentences give the formula and a short citation. The last paragraph may contain lines that start with a label:

    Source: the paper, with its identifier.
    Reference: the implementation that the tests compare the kind with.
    Excludes: what the kind cannot be combined with, and why.
"""

import inspect
import re
from dataclasses import dataclass

LABELS = ("Source", "Reference", "Excludes")
_LABELLED = re.compile(rf"^({'|'.join(LABELS)}): ", re.MULTILINE)


@dataclass(frozen=True)
class KindDoc:
    """The documentation of a kind. Texts are single lines, and empty if the docstring does not contain them.

    Attributes:
        summary: The formula, with a short citation.
        details: Further paragraphs.
        source: The paper.
        reference: The implementation that the tests compare the kind with.
        excludes: What the kind cannot be combined with.
    """

    summary: str
    details: tuple[str, ...] = ()
    source: str = ""
    reference: str = ""
    excludes: str = ""


def kind_doc(cls: type) -> KindDoc:
    """Return the documentation in the docstring of a config class."""
    text = inspect.getdoc(cls) or ""
    first = _LABELLED.search(text)
    body, labelled = (text[: first.start()], text[first.start() :]) if first else (text, "")
    pieces = _LABELLED.split(labelled)[1:]
    sections = {label.lower(): _one_line(value) for label, value in zip(pieces[::2], pieces[1::2], strict=True)}
    summary, *details = [_one_line(paragraph) for paragraph in body.split("\n\n") if paragraph.strip()] or [""]
    return KindDoc(summary, tuple(details), **sections)


def _one_line(text: str) -> str:
    return " ".join(text.split())
