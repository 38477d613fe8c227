"""A screen of studies as `taetpu status --watch` shows it: at most 80 columns, and no more lines than there are."""

import math
from collections.abc import Sequence
from datetime import timedelta

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from taetpu.cli.output import WIDTH, filled
from taetpu.cli.status_model import ArmView, PackView, StudyView
from taetpu.report.short_names import shorten_names
from taetpu.stats import formatting

BAR = 16
LEAST = 3
"""Lines that a study takes at least: bar, headline, and the arms in a sentence."""
SHORTEST, LONGEST = 5, 16
"""Columns of a curve."""
NARROWEST = 12
"""Columns of an arm's name."""
BLOCKS = "▁▂▃▄▅▆▇█"
COLOURS = {"better": "blue", "worse": "red", "equivalent": "green", "diverged": "red"}
SPARE = ("curve", "train/loss", "step")
"""Columns that are given up, in this order, where not all fit."""


def screen(views: Sequence[StudyView], height: int | None = None, signs: bool = True) -> list[Text]:
    """The lines that show these studies.

    Args:
        height: the most lines; None for as many as it takes.
        signs: whether bars and curves can be drawn, which takes more than ASCII.
    """
    if height is None:
        return _together([block(view, None, signs) for view in views])
    if len(views) > _fitting(height):
        unfinished = sorted(views, key=lambda view: view.ended)[: max(_fitting(height - 1), 1)]
        shown = [view for view in views if view in unfinished]
        rest = [view for view in views if view not in unfinished]
        return [*screen(shown, height - 1, signs), _others(rest)] if height > LEAST else [_others(views)][:height]
    rooms = shared([len(block(view, None, signs)) for view in views], height - max(len(views) - 1, 0))
    return _together([block(view, room, signs) for view, room in zip(views, rooms, strict=True)])


def _fitting(height: int) -> int:
    """How many studies fit at the least."""
    return (height + 1) // (LEAST + 1)


def shared(needs: Sequence[int], height: int) -> list[int]:
    """Lines for each: what it needs where that is less than its share, and the rest in equal shares."""
    rooms, left = [0] * len(needs), height
    for rank, i in enumerate(sorted(range(len(needs)), key=lambda i: needs[i])):
        rooms[i] = min(needs[i], left // (len(needs) - rank))
        left -= rooms[i]
    return rooms


def _together(blocks: Sequence[list[Text]]) -> list[Text]:
    return [line for i, lines in enumerate(blocks) for line in ([Text()] if i else []) + lines]


def _others(views: Sequence[StudyView]) -> Text:
    done, total = sum(view.done for view in views), sum(view.total for view in views)
    what = "1 more study" if len(views) == 1 else f"{len(views)} more studies"
    return _line(f"and {what}: {done} of {total} runs done", "dim")


# --- one study -------------------------------------------------------------------------------------------------------


def block(view: StudyView, room: int | None, signs: bool) -> list[Text]:
    """The lines of one study, at most so many."""
    if view.problem:
        told = [line for part in view.problem.splitlines() for line in _filled(part, "red")]
        return [_bold(view.name), *told][:room]
    sentences = [view.headline, *(f"not as planned: {departure}" for departure in view.departures)]
    said = [line for text in sentences for line in _filled(text)]
    packs = [line for pack in view.packs for line in _pack(pack)]
    lines = [_progress(view, signs), *said, *packs, *table(view, view.arms, signs)]
    if room is None or len(lines) <= room:
        return lines
    top = [_progress(view, signs), *([_line(view.headline)] if view.headline else []), *packs[:1]]
    number = room - len(top) - 2  # for the table's head, and what sums up the rest
    if number < 1:
        return [*top[: room - 1], _summary(view.arms, "")][:room]
    return [*top, *table(view, view.arms[:number], signs), _summary(view.arms[number:], "more ")]


def _progress(view: StudyView, signs: bool) -> Text:
    """`name ━━━━━━━━ 12/27 runs, 3 of them ...`."""
    told = f" {view.done}/{view.total} runs" + (f", {view.tried} more tried by tuning" if view.tried else "")
    told += "" if view.done < view.total or view.ended else ", going on"
    full = BAR * view.done // max(view.total, 1)
    done, rest = ("━" * full, "─" * (BAR - full)) if signs else ("#" * full, "." * (BAR - full))
    name = shortened(view.name, WIDTH - BAR - 1 - len(told))
    return Text.assemble((f"{name} ", "bold"), (done, "green"), (rest, "dim"), told)


def _pack(pack: PackView) -> list[Text]:
    """How far a pack is and, where that is known, how its devices are used."""
    at = f"step {pack.step:,}" + (f" of {pack.steps:,}" if pack.steps else "")
    told = [at if pack.step else "starting", f"{_rate(pack.rate)} steps/s" if pack.rate else ""]
    told.append(f"{timedelta(seconds=round(pack.left))} left" if pack.left is not None and pack.step else "")
    what = f"pack {pack.number}/{pack.of} ({_count(pack.runs, 'run')})"
    line = _line(f"{what}: {', '.join(filter(None, told))}")
    return [line, _line(f"  device: {pack.use}", "dim")] if pack.use else [line]


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _summary(arms: Sequence[ArmView], more: str) -> Text:
    """What arms that are not shown have come to."""
    done, total = sum(arm.done for arm in arms), sum(arm.seeds for arm in arms)
    said = [f"{sum(arm.said == verdict for arm in arms)} {verdict}" for verdict in COLOURS]
    clear = ", ".join(part for part in said if not part.startswith("0 "))
    what = _count(len(arms), f"{more}arm")
    return _line(f"{'and ' if more else ''}{what}: {done} of {total} runs done{f'; {clear}' if clear else ''}", "dim")


# --- the arms' table -------------------------------------------------------------------------------------------------


def table(view: StudyView, arms: Sequence[ArmView], signs: bool) -> list[Text]:
    """Head and a line for each of these arms. Columns without any value are left out, and those that do not fit."""
    last = "95 % interval" if view.interim else "verdict"
    columns = {
        "done": [f"{arm.done}/{arm.seeds}" for arm in arms],
        "step": [f"{arm.step:,}" if arm.step else "" for arm in arms],
        **{name: [_value(arm.values.get(name), view.places) for arm in arms] for name in view.metrics},
        "effect": [arm.effect for arm in arms],
        last: [arm.said for arm in arms],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    names = max([len("arm"), *(cell_len(arm.name) for arm in arms)])
    spare = WIDTH - min(names, 2 * NARROWEST) - _taken(columns) - 2
    if signs and spare >= SHORTEST and any(len(arm.curve) > 1 for arm in arms):
        columns["curve"] = [sparkline(arm.curve, min(spare, LONGEST)) for arm in arms]
    for name in SPARE:
        if WIDTH - _taken(columns) < NARROWEST:
            columns.pop(name, None)
    width = max(min(names, WIDTH - _taken(columns)), NARROWEST)
    head = _row("arm", width, {name: (name, cells) for name, cells in columns.items()}, "bold")
    short = shorten_names([arm.name for arm in arms], width)
    return [head, *(_row(name, width, {n: (c[i], c) for n, c in columns.items()}) for i, name in enumerate(short))]


def _taken(columns: dict[str, list[str]]) -> int:
    return sum(2 + max(len(name), *map(len, cells)) for name, cells in columns.items())


def _row(name: str, width: int, cells: dict[str, tuple[str, list[str]]], style: str = "") -> Text:
    """A name, and under each column its text as wide as the column; words to the left, figures to the right."""
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
    """Values as blocks of eight heights, from the least to the most of them; of more than `width`, every so-manieth."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    steps = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * steps)] for value in values)


# --- lines -----------------------------------------------------------------------------------------------------------


def shortened(text: str, width: int) -> str:
    """A text that is too wide, without its middle."""
    if cell_len(text) <= width:
        return text
    keep = max(width - 2, 0)
    tail = "" if cell_len(text) != len(text) else text[len(text) - keep // 2 :]
    return f"{set_cell_size(text, keep - len(tail))}..{tail}"


def _line(text: str, style: str = "") -> Text:
    return Text(shortened(text, WIDTH), style)


def _filled(text: str, style: str = "") -> list[Text]:
    return [_line(line, style) for line in filled(text, hanging=2).splitlines()]


def _bold(name: str) -> Text:
    return Text(shortened(name, WIDTH), "bold")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
