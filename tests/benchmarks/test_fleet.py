"""`benchmarks.fleet` finishes all work, is never faster than the ideal, and prints the table of the page."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.fleet import BOOT, ENGINES, START, Pack, compare, show, simulate
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn(count: int, seed: int) -> list[Pack]:
    """Packs of 0.1 to 2 hours with ten checkpoints each."""
    hours = random.Random(seed)
    return [Pack(length, length / 10) for length in (hours.uniform(0.1, 2.0) for _ in range(count))]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 12), st.sampled_from([None, 6.0, 1.0, 0.3]), st.sampled_from(ENGINES),
    st.integers(0, 99),
)  # fmt: skip
def test_no_fleet_beats_the_ideal(count, machines, life, engine, seed):
    packs = drawn(count, seed)
    found = simulate(packs, machines, life, engine, str(seed))  # raises where work is left
    work, longest = sum(pack.hours for pack in packs), max(pack.hours for pack in packs)
    assert found.work == work
    assert found.hours >= max(work / machines, longest) + BOOT + START - 1e-9
    assert found.machine_hours >= work + found.lost + count * START - 1e-9
    assert found.lost <= found.preemptions * max(pack.checkpoint for pack in packs) + 1e-9
    if life is None:
        assert (found.lost, found.preemptions) == (0, 0)
        assert found.machine_hours == pytest.approx(work + count * START + machines * BOOT)
    assert simulate(packs, machines, life, engine, str(seed)) == found


def test_takeover_is_never_slower_than_shards_without_preemption():
    """Where no machine is taken away, so that chance has no part in it."""
    for seed in range(20):
        packs = drawn(30, seed)
        hours = {engine: simulate(packs, 7, None, engine).hours for engine in ENGINES}
        assert hours["takeover"] <= hours["shard"]


def test_more_preemptions_lose_more_work_and_cost_more():
    rows = compare(drawn(300, 0), [8], [None, 6.0, 1.0], 0)
    for engine in ENGINES:
        lost, usd = zip(*((row["lost"], row["usd"]) for row in rows if row["engine"] == engine), strict=True)
        assert sorted(lost) == list(lost)
        assert sorted(usd) == list(usd)
        assert lost[0] == 0 < lost[1] < lost[2]


def test_the_table_has_a_row_for_each_fleet_in_80_columns():
    lines = show(compare(drawn(20, 0), [1, 64], [None, 1.0], 0)).splitlines()
    assert len(lines) == 2 + 2 * (1 + len(ENGINES))
    assert max(map(len, lines)) <= 80


@pytest.mark.nightly
def test_the_page_has_what_the_command_prints():
    """The planner makes the same packs on every machine, and the preemptions follow from the seed."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.fleet"], capture_output=True, text=True, check=True)
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    summary, _, table = done.stdout.strip().partition("\n\n")
    assert summary in " ".join(page.split())
    assert table in page
    assert re.search(r"`python -m benchmarks\.fleet`, 20\d\d-\d\d-\d\d", page)
