"""Provenance of a study's results: its data, its software and its machines, in groups of facts."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taetpu.report.judged import block_label, block_noun
from taetpu.stats.load import OUTCOMES
from taetpu.stats.results import Results
from taetpu.store.flat_config import flatten
from taetpu.store.runs import RunFolder

Facts = Sequence[tuple[str, str]]
"""Pairs of name and value."""

GROUPS = {"data": "Data", "versions": "Software", "pack": "Packs", "": "Machine"}
"""Title of a group of facts by the part of `result.json` that holds them."""
LISTED = 4
"""Maximum number of values that are listed if a fact differs between runs. More values are counted."""


def read_provenance(results: Results, ended: Sequence[RunFolder]) -> list[tuple[str, Facts]]:
    """Return the facts on the runs that finished or diverged, in groups with titles.

    If a fact differs between runs, all its values are listed, or counted if they are many.
    """
    outcomes = [run["outcome"] for arm in results["arms"] for run in arm["runs"]]
    counts = {name: outcomes.count(name) for name in (*OUTCOMES, "unfinished", "missing", "untrained")}
    study = [
        ("study", results["study"]),
        (f"{block_noun(results)}s", _format_seeds(results)),
        ("runs", ", ".join(f"{number} {name}" for name, number in counts.items() if number)),
    ]
    groups: dict[str, dict[str, list[Any]]] = {part: {} for part in GROUPS}
    for run in ended:
        result = run.result() or {}
        facts = {**result.get("environment", {}), "steps": result.get("steps"), "pack": result.get("pack", {})}
        facts.pop("start", None)  # differs between arms
        for path, value in flatten(facts):
            part, _, name = path.partition(".")
            part, name = (part, name) if part in GROUPS and name else ("", path)
            values = groups[part].setdefault(name, [])
            if value is not None and value not in values:
                values.append(value)
    steps = groups[""].pop("steps", [])
    study += [("steps", _format_values(steps))] * any(steps)
    titled = ((GROUPS[part], [*_joined(facts)]) for part, facts in groups.items())
    table = results.get("judged")
    read = [("Table", [("file", table["source"]), ("SHA-256", table["sha256"])])] if table else []
    if (program := results.get("program")) is not None:
        words = ("command", shlex.join(program["command"]))
        read = [("Program", [words, ("inputs", str(program["inputs"])), ("SHA-256", program["data"])])]
    return [("Study", study), *read, *((title, facts) for title, facts in titled if facts)]


def _format_seeds(results: Results) -> str:
    if block_noun(results) == "block":
        return str(len(results["seeds"]))
    return ", ".join(block_label(results, seed) for seed in results["seeds"])


def _joined(facts: Mapping[str, list[Any]]) -> Iterator[tuple[str, str]]:
    """Yield the facts as text. Facts by split, such as `tokens.train` and `tokens.val`, are joined."""
    rows: dict[str, list[str]] = {}
    for path, values in facts.items():
        name, _, split = path.partition(".")
        if values and not (split and values == [0]):
            rows.setdefault(name.replace("_", " "), []).append(f"{split} {_format_values(values)}".strip())
    yield from ((name, ", ".join(texts)) for name, texts in rows.items())


def _format_values(values: Sequence[Any]) -> str:
    if len(values) > LISTED:
        return f"{len(values)} different values"
    return ", ".join(map(_format_value, values))


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
