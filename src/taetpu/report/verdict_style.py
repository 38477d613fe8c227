"""Colours, shapes and symbols of verdicts: the same in all charts, pages and terminals."""

from collections.abc import Mapping

VERDICTS = ("better", "worse", "equivalent", "inconclusive")
PENDING = ("interim", "single seed", "baseline")
"""Labels of arms without a verdict, as returned by `summary.verdict_label`."""
MARKS = {
    "better": "\u25c6",
    "worse": "\u25a0",
    "equivalent": "\u25b2",
    **dict.fromkeys(("inconclusive", *PENDING), "\u25cf"),
}
"""Symbols by label, so that readers do not need colour."""
SHAPES = {
    "better": "diamond",
    "worse": "square",
    "equivalent": "triangle-up",
    **dict.fromkeys(("inconclusive", *PENDING), "circle"),
}
"""Vega's names of the symbols in `MARKS`."""


def _palette(better: str, worse: str, equivalent: str, undecided: str) -> Mapping[str, str]:
    decided = {"better": better, "worse": worse, "equivalent": equivalent}
    return {**decided, **dict.fromkeys(("inconclusive", *PENDING), undecided)}


# Colour-blind readers can distinguish blue from vermilion. The contrast of text with the page is at least 4.5.
LIGHT = _palette(better="#1c659f", worse="#b8431f", equivalent="#2c7450", undecided="#5c646e")
DARK = _palette(better="#6db3ea", worse="#f0875f", equivalent="#6cc49a", undecided="#9aa3af")
COLOURS = _palette(better="#2a7fc1", worse="#d5562f", equivalent="#3f9b6d", undecided="#8a9099")
"""Colours by label where the background is unknown, as in terminals and notebooks: between `LIGHT` and `DARK`."""


def verdict_css() -> str:
    """Return CSS with the variables `--better`, `--worse`, `--equivalent` and `--inconclusive` for both themes."""
    light, dark = ("; ".join(f"--{name}: {palette[name]}" for name in VERDICTS) for palette in (LIGHT, DARK))
    return f":root {{ {light}; }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}; }} }}\n"
