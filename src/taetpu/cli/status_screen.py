"""The screen of `taetpu status --watch`: shows studies in 80 columns and a limited number of lines."""

import math
from collections.abc import Sequence
from datetime import timedelta

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from taetpu.cli.output import WIDTH, plural, wrap
from taetpu.cli.status_model import ArmView, PackView, StudyView
from taetpu.report.short_names import shorten_names
from taetpu.stats import formatting

BAR = 16
LEAST = 3
"""Minimum number of lines for a study: progress bar, headline and summary of the arms."""
SHORTEST, LONGEST = 5, 16
"""Minimum and maximum width of a curve."""
NARROWEST = 12
"""Minimum width of the column of arm names."""
BLOCKS = "▁▂▃▄▅▆▇█"
COLOURS = {"better": "blue", "worse": "red", "equivalent": "green", "diverged": "red"}
OPTIONAL = ("curve", "train/loss", "step")
"""Columns that are dropped, in this order, if the table is too wide."""


def screen(views: Sequence[StudyView], height: int | None = None, signs: bool = True) -> list[Text]:
    """Return the lines that show studies.

    Args:
        views: snapshots of the studies.
        height: maximum number of lines, or None for no limit.
        signs: whether to draw bars and curves with non-ASCII characters.
    """
    if height is None:
        return _separated([block(view, None, signs) for view in views])
    if len(views) > _fitting(height):
        unfinished = sorted(views, key=lambda view: view.ended)[: max(_fitting(height - 1), 1)]
        shown = [view for view in views if view in unfinished]
        rest = [view for view in views if view not in unfinished]
        return [*screen(shown, height - 1, signs), _others(rest)] if height > LEAST else [_others(views)][:height]
    rooms = share_lines([len(block(view, None, signs)) for view in views], height - max(len(views) - 1, 0))
    return _separated([block(view, room, signs) for view, room in zip(views, rooms, strict=True)])


def _fitting(height: int) -> int:
    """Return the number of studies that always fit into `height` lines."""
    return (height + 1) // (LEAST + 1)


def share_lines(needs: Sequence[int], height: int) -> list[int]:
    """Return the number of lines for each study.

    A study that needs less than an equal share gets what it needs. The other studies share the remaining lines equally.
    """
    rooms, left = [0] * len(needs), height
    for rank, i in enumerate(sorted(range(len(needs)), key=lambda i: needs[i])):
        rooms[i] = min(needs[i], left // (len(needs) - rank))
        left -= rooms[i]
    return rooms


def _separated(blocks: Sequence[list[Text]]) -> list[Text]:
    return [line for i, lines in enumerate(blocks) for line in ([Text()] if i else []) + lines]


def _others(views: Sequence[StudyView]) -> Text:
    done, total = sum(view.done for view in views), sum(view.total for view in views)
    more = "1 more study" if len(views) == 1 else f"{len(views)} more studies"
    return _line(f"and {more}: {done} of {total} runs done", "dim")


# --- one study -------------------------------------------------------------------------------------------------------


def block(view: StudyView, room: int | None, signs: bool) -> list[Text]:
    """Return the lines that show a study. There are at most `room` lines."""
    if view.problem:
        problem = [line for part in view.problem.splitlines() for line in _wrapped(part, "red")]
        return [_bold(view.name), *problem][:room]
    sentences = [view.headline, *(f"not as planned: {departure}" for departure in view.departures)]
    text = [line for sentence in sentences for line in _wrapped(sentence)]
    packs = [line for pack in view.packs for line in _pack(pack)]
    lines = [_progress(view, signs), *text, *packs, *table(view, view.arms, signs)]
    if room is None or len(lines) <= room:
        return lines
    top = [_progress(view, signs), *([_line(view.headline)] if view.headline else []), *packs[:1]]
    number = room - len(top) - 2  # lines left after the table's head and the summary
    if number < 1:
        return [*top[: room - 1], _summary(view.arms, "")][:room]
    return [*top, *table(view, view.arms[:number], signs), _summary(view.arms[number:], "more ")]


def _progress(view: StudyView, signs: bool) -> Text:
    """Return the progress of a study, such as `name ━━━━━━━━ 12/27 runs, 3 more tried by tuning`."""
    counts = f" {view.done}/{view.total} runs" + (f", {view.tried} more tried by tuning" if view.tried else "")
    counts += "" if view.done < view.total or view.ended else ", not finished"
    full = BAR * view.done // max(view.total, 1)
    done, rest = ("━" * full, "─" * (BAR - full)) if signs else ("#" * full, "." * (BAR - full))
    name = shorten(view.name, WIDTH - BAR - 1 - len(counts))
    return Text.assemble((f"{name} ", "bold"), (done, "green"), (rest, "dim"), counts)


def _pack(pack: PackView) -> list[Text]:
    """Return lines with the progress of a pack and, if it is known, its device utilisation."""
    at = f"step {pack.step:,}" + (f" of {pack.steps:,}" if pack.steps else "")
    parts = [at if pack.step else "starting", f"{_rate(pack.rate)} steps/s" if pack.rate else ""]
    parts.append(f"{timedelta(seconds=round(pack.left))} left" if pack.left is not None and pack.step else "")
    name = f"pack {pack.number}/{pack.of} ({plural(pack.runs, 'run')})"
    line = _line(f"{name}: {', '.join(filter(None, parts))}")
    return [line, _line(f"  device: {pack.use}", "dim")] if pack.use else [line]


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _summary(arms: Sequence[ArmView], more: str) -> Text:
    """Return a line that summarises the progress and verdicts of the arms that are not shown."""
    done, total = sum(arm.done for arm in arms), sum(arm.seeds for arm in arms)
    counts = [f"{sum(arm.verdict == verdict for arm in arms)} {verdict}" for verdict in COLOURS]
    clear = ", ".join(part for part in counts if not part.startswith("0 "))
    count = plural(len(arms), f"{more}arm")
    return _line(f"{'and ' if more else ''}{count}: {done} of {total} runs done{f'; {clear}' if clear else ''}", "dim")


# --- the arms' table -------------------------------------------------------------------------------------------------


def table(view: StudyView, arms: Sequence[ArmView], signs: bool) -> list[Text]:
    """Return the head of the table and a line for each arm. Columns that are empty or do not fit are omitted."""
    last = "95 % interval" if view.interim else "verdict"
    columns = {
        "done": [f"{arm.done}/{arm.seeds}" for arm in arms],
        "step": [f"{arm.step:,}" if arm.step else "" for arm in arms],
        **{name: [_value(arm.values.get(name), view.places) for arm in arms] for name in view.metrics},
        "effect": [arm.effect for arm in arms],
        last: [arm.verdict for arm in arms],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    names = max([len("arm"), *(cell_len(arm.name) for arm in arms)])
    spare = WIDTH - min(names, 2 * NARROWEST) - _taken(columns) - 2
    if signs and spare >= SHORTEST and any(len(arm.curve) > 1 for arm in arms):
        columns["curve"] = [sparkline(arm.curve, min(spare, LONGEST)) for arm in arms]
    for name in OPTIONAL:
        if WIDTH - _taken(columns) < NARROWEST:
            columns.pop(name, None)
    width = max(min(names, WIDTH - _taken(columns)), NARROWEST)
    head = _row("arm", width, {name: (name, cells) for name, cells in columns.items()}, "bold")
    short = shorten_names([arm.name for arm in arms], width)
    return [head, *(_row(name, width, {n: (c[i], c) for n, c in columns.items()}) for i, name in enumerate(short))]


def _taken(columns: dict[str, list[str]]) -> int:
    return sum(2 + max(len(name), *map(len, cells)) for name, cells in columns.items())


def _row(name: str, width: int, cells: dict[str, tuple[str, list[str]]], style: str = "") -> Text:
    """Return a table row. Words are left-aligned, and numbers are right-aligned."""
    line = Text(set_cell_size(name, width), style)
    for column, (text, others) in cells.items():
        wide = max(len(column), *map(len, others))
        words = column in ("verdict", "curve")
        line.append("  " + (text.ljust(wide) if words else text.rjust(wide)), COLOURS.get(text, ""))
    line.truncate(WIDTH)
    line.rstrip()
    return line


def _value(value: float | None, places: int) -> str:
    return "" if value is None else formatting.number(value, places) if math.isfinite(value) else str(value)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a sparkline of eight heights. If there are more than `width` values, evenly spaced ones are drawn."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    steps = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * steps)] for value in values)


# --- lines -----------------------------------------------------------------------------------------------------------


def shorten(text: str, width: int) -> str:
    """Shorten a text to at most `width` columns by omitting its middle."""
    if cell_len(text) <= width:
        return text
    keep = max(width - 2, 0)
    tail = "" if cell_len(text) != len(text) else text[len(text) - keep // 2 :]
    return f"{set_cell_size(text, keep - len(tail))}..{tail}"


def _line(text: str, style: str = "") -> Text:
    return Text(shorten(text, WIDTH), style)


def _wrapped(text: str, style: str = "") -> list[Text]:
    return [_line(line, style) for line in wrap(text, hanging=2).splitlines()]


def _bold(name: str) -> Text:
    return Text(shorten(name, WIDTH), "bold")
