"""Runs arranged by arm and block: names of arms, the baseline, seeds or blocks, and what is missing."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.core.short_paths import short_paths
from taetpu.judging.cells import LARGEST_SEED, format_cell, parse_setting
from taetpu.judging.columns import Columns, Run

BASELINE = "baseline"
"""The name of the arm of a table without a column of arms."""
LONGEST_NAME = 100
"""Maximum length of an arm's name in bytes, since it is that of a folder."""
UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True)
class Arrangement:
    """The runs of a table by arm and block.

    Attributes:
        arms: the settings of each arm by name, the baseline first.
        titles: the names in the table of arms that have another name here, since it is not a valid folder's.
        seeds: the seeds; numbers of blocks from 0 if the seeds are not integers or blocks have other columns.
        labels: the values of the columns of a block, and the seed if there is one, if `seeds` are numbers of blocks.
        runs: the runs by arm and seed.
        blocks: the number of the block of each seed if runs are not paired, so that seeds only number the runs of an
            arm; otherwise None.
        disjoint: whether runs are not paired because an arm shares fewer than two seeds with the baseline.
        strata: the values of the block's columns for each seed; None without such columns.
    """

    arms: Mapping[str, Mapping[str, Any]]
    titles: Mapping[str, str]
    seeds: Sequence[int]
    labels: Mapping[int, Sequence[str]]
    runs: Mapping[tuple[str, int], Run]
    blocks: Sequence[int] | None = None
    disjoint: bool = False
    strata: Sequence[Sequence[str]] | None = None

    @property
    def baseline(self) -> str:
        """The name of the baseline."""
        return next(iter(self.arms))

    def overrides(self, arm: str) -> dict[str, Any]:
        """Return the settings in which an arm differs from the baseline."""
        base = self.arms[self.baseline]
        return {name: value for name, value in self.arms[arm].items() if value != base.get(name)}


def arrange(runs: Sequence[Run], columns: Columns, baseline: str, source: str) -> Arrangement:
    """Arrange runs by arm and block.

    Args:
        runs: the runs.
        columns: the roles of the columns.
        baseline: the name of the baseline as in the table; empty if there is one arm.
        source: the name of the table, for messages.

    Raises:
        UserError: If no arm has this name.
    """
    settings = {run.arm: run.settings for run in reversed(runs)}
    order = list(dict.fromkeys(run.arm for run in runs))
    titles = {arm: _title(arm, columns) for arm in order}
    first = _find_baseline(baseline, titles, source)
    names = _folder_names(titles)
    arms = {names[arm]: settings[arm] for arm in [first, *(arm for arm in order if arm != first)]}
    changed = {names[arm]: title for arm, title in titles.items() if names[arm] != title}
    disjoint = bool(columns.seed) and not columns.unpaired and _is_disjoint(runs, first)
    if columns.unpaired or disjoint:
        numbers, blocks, labels = _number_runs(runs)
        placed = {(names[run.arm], number): run for run, number in zip(runs, numbers, strict=True)}
        strata = [labels[number] for number in range(len(blocks))] if columns.block else None
        return Arrangement(arms, changed, range(len(blocks)), labels, placed, blocks, disjoint, strata)
    seeds, labels = _number_blocks([(run.block, run.seed) for run in runs])
    placed = {(names[run.arm], seeds[run.block, run.seed]): run for run in runs}
    strata = [block for block, _ in seeds] if columns.block else None
    return Arrangement(arms, changed, sorted(seeds.values()), labels, placed, strata=strata)


def _is_disjoint(runs: Sequence[Run], baseline: tuple[str, ...]) -> bool:
    """Return whether an arm shares fewer than two runs' blocks and seeds with the baseline, although it has them."""
    places: dict[tuple[str, ...], set[Any]] = {}
    for run in runs:
        places.setdefault(run.arm, set()).add((run.block, run.seed))
    base = places[baseline]
    return any(len(place & base) < min(2, len(place), len(base)) for place in places.values())


def _number_runs(runs: Sequence[Run]) -> tuple[list[int], list[int], dict[int, tuple[str, ...]]]:
    """Return a number for each run of an arm. Runs of a number are in the same block in all arms.

    Returns:
        The number of each run, the block of each number, and the values of its columns if blocks have columns.
    """
    blocks = list(dict.fromkeys(run.block for run in runs))
    within: list[int] = []  # the number of each run within its arm and block
    counts: Counter[tuple[Any, ...]] = Counter()
    for run in runs:
        within.append(counts[run.arm, run.block])
        counts[run.arm, run.block] += 1
    sizes = [max(count for (_, block), count in counts.items() if block == wanted) for wanted in blocks]
    starts = dict(zip(blocks, accumulate([0, *sizes]), strict=False))
    numbers = [starts[run.block] + number for run, number in zip(runs, within, strict=True)]
    block_of = [place for place, size in enumerate(sizes) for _ in range(size)]
    return numbers, block_of, {number: blocks[place] for number, place in enumerate(block_of) if blocks[place]}


def _title(arm: tuple[str, ...], columns: Columns) -> str:
    """Return the name of an arm: the value of its column, or of each column, such as `optimizer=adam,lr=0.001`."""
    if len(arm) < 2:
        return arm[0] if arm else BASELINE
    short = short_paths(list(columns.arm))
    return ",".join(f"{short[column]}={text}" for column, text in zip(columns.arm, arm, strict=True))


def _find_baseline(name: str, titles: Mapping[tuple[str, ...], str], source: str) -> tuple[str, ...]:
    wanted = format_cell(name)
    matches = [arm for arm, title in titles.items() if title == wanted]
    matches = matches or [
        arm for arm, title in titles.items() if _with_plain_numbers(title) == _with_plain_numbers(wanted)
    ]
    if len(matches) == 1:
        return matches[0]
    if not name and len(titles) == 1:
        return next(iter(titles))
    problem = f"there is no arm {name!r}" if name else f"the table has {len(titles)} arms, and no baseline is named"
    raise UserError(problem, path=("--baseline",), file=source, remedy=suggest(name, titles.values()))


def _with_plain_numbers(title: str) -> list[str]:
    """Return the settings in a title in alphabetical order, with numbers such as `1e-3` and `0.001` written alike."""
    parts = [part.strip().rpartition("=") for part in title.split(",")]
    return sorted(f"{name}{sign}{parse_setting(value)!r}" for name, sign, value in parts)


def _folder_names(titles: Mapping[tuple[str, ...], str]) -> dict[tuple[str, ...], str]:
    """Return a valid folder name for each arm: its title, unless that is invalid or equals another up to case.

    A changed name ends in a hash of the title, so that it does not depend on the other arms.
    """
    safe = {arm: folder_name(title) for arm, title in titles.items()}
    folded: dict[str, list[tuple[str, ...]]] = {}
    for arm, name in safe.items():
        folded.setdefault(unicodedata.normalize("NFC", name).casefold(), []).append(arm)
    return {
        arm: titles[arm]
        if safe[arm] == titles[arm] and len(folded[unicodedata.normalize("NFC", safe[arm]).casefold()]) == 1
        else f"{safe[arm]}-{hashlib.sha256(titles[arm].encode()).hexdigest()[:6]}"
        for arm in titles
    }


def folder_name(title: str) -> str:
    """Return a title, cut to length, without the characters that a folder's name must not have."""
    name = UNSAFE.sub("-", title)
    name = "".join(sign if sign.isprintable() else "-" for sign in name)
    name = f"-{name[1:]}" if name.startswith(".") else name
    return name.encode()[:LONGEST_NAME].decode(errors="ignore").strip() or "-"


def _number_blocks(
    keys: Iterable[tuple[tuple[str, ...], int | str | None]],
) -> tuple[dict[tuple[tuple[str, ...], int | str | None], int], dict[int, tuple[str, ...]]]:
    """Return the number of each block, and the values of each number if numbers are not the seeds themselves."""
    blocks = list(dict.fromkeys(keys))
    if all(not block and (isinstance(seed, int) and 0 <= seed < LARGEST_SEED) for block, seed in blocks):
        return {(block, seed): int(seed) for block, seed in blocks if seed is not None}, {}
    numbers = {key: number for number, key in enumerate(blocks)}
    texts = {number: (*block, *([] if seed is None else [str(seed)])) for (block, seed), number in numbers.items()}
    return numbers, {number: parts for number, parts in texts.items() if parts}
