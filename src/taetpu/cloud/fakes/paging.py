"""Lists in pages, as Google's REST APIs give them."""

from collections.abc import Sequence
from typing import Any

from taetpu.cloud.fakes.server import Request

LENGTH = 3
"""Entries of a page, however many are asked for: short, so that whoever reads only the first page is found out."""


def page(request: Request, key: str, entries: Sequence[Any]) -> dict[str, Any]:
    """The page that a request asks for, under the key that the API calls its list."""
    start = int(request.query.get("pageToken") or 0)
    answer: dict[str, Any] = {key: list(entries[start : start + LENGTH])}
    if start + LENGTH < len(entries):
        answer["nextPageToken"] = str(start + LENGTH)
    return answer
