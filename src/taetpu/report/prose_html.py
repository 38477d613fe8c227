"""Sentences of the report as HTML: code, and links to the sources that they name."""

import re

from markupsafe import Markup, escape

_SOURCE = re.compile(
    r"(?P<address>https?://[^\s<>\"']*[^\s<>\"'.,;:)])"
    r"|arXiv[ :](?P<arxiv>\d{4}\.\d{4,5})"
    r"|doi[ :](?P<doi>10\.\d+/[^\s;,]*[^\s;,.])"
)
_ADDRESSES = {"address": "", "arxiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}


def prose_html(text: str) -> Markup:
    """Return a sentence as HTML: code between backticks, and addresses, arXiv and DOI numbers as links."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # odd number of backticks, e.g. one inside a name
        return cell_html(text)
    html = (Markup("<code>{}</code>").format(part) if i % 2 else cell_html(part) for i, part in enumerate(parts))
    return Markup("").join(html)


def cell_html(text: object) -> Markup:
    """Return text as HTML, with addresses, arXiv and DOI numbers as links."""
    parts, end = [], 0
    for match in _SOURCE.finditer(str(text)):
        kind = match.lastgroup or "address"
        link = Markup('<a href="{}" rel="noreferrer">{}</a>').format(_ADDRESSES[kind] + match[kind], match[0])
        parts += [escape(str(text)[end : match.start()]), link]
        end = match.end()
    return Markup("").join([*parts, escape(str(text)[end:])])
