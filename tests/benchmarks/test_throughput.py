"""`benchmarks.throughput` computes ratios within rounds and shows them in a table."""

import json
import subprocess
import sys

import pytest
from benchmarks.shapes import SHAPES
from benchmarks.throughput import OURS, PEERS, compare, products, show

ABOUT = {
    "one run": {"flops_per_token": 1000, "way": "1 run on 2 cores"},
    "packed": {"flops_per_token": 1000, "way": "40 runs on 2 cores"},
    **{peer: {"way": "sdpa attention, foreach AdamW"} for peer in PEERS},
}


def round_of(slowness):
    """All as fast as each other, a pack at twice that, the machine so many times as slow as it may be."""
    tokens = {"one run": 600_000, "packed": 1_200_000, **dict.fromkeys(PEERS, 200_000)}
    windows = {name: {"steps": 10, "seconds": slowness, "tokens": count} for name, count in tokens.items()}
    bounds = {products(our): {"steps": 1, "seconds": slowness, "flops": 1e9} for our in OURS}
    return {**windows, **bounds, "matmul": {"steps": 1, "seconds": slowness, "flops": 2e9}}


def test_a_temporary_slowdown_does_not_change_ratios():
    found = compare([round_of(1.0), round_of(5.0), round_of(2.0)], ABOUT)
    for peer in PEERS:
        assert found["ratio"]["one run"][peer] == pytest.approx({"median": 3.0, "least": 3.0, "most": 3.0})
        assert found["ratio"]["packed"][peer]["median"] == pytest.approx(6.0)
    assert found["share"]["one run"] == pytest.approx({"median": 0.3, "least": 0.3, "most": 0.3})
    assert found["bound"]["packed"] == {"median": 0.5, "least": 0.5, "most": 0.5}
    assert found["tokens_per_second"]["gpt2"] == {"median": 100_000, "least": 40_000, "most": 200_000}


def test_the_table_shows_rates_shares_and_ratios_in_80_columns():
    found = compare([round_of(1.0), round_of(2.0)], ABOUT)
    table = show({"shape": SHAPES[256].data, "about": ABOUT, **found}).splitlines()
    assert max(map(len, table)) <= 80
    assert table[0] == "dim 256, 4 layers, seq 128, batch 8"
    assert table[2] == "one run          450,000        30%  1 run on 2 cores; its products alone: 50%"
    assert table[4].split() == ["gpt2", "150,000", "3.00", "x", "(3.00-3.00)", "6.00", "x", "(6.00-6.00)"]


@pytest.mark.nightly
def test_the_real_contestants_take_turns(tmp_path, one_core):
    file = tmp_path / "found.json"
    command = ["-m", "benchmarks.throughput", "--dims", "32", "--rounds", "2", "--seconds", "0.05", "--json", file]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    found = json.loads(file.read_text())["shapes"][0]
    assert show(found) in done.stdout
    assert [set(one) for one in found["windows"]] == 2 * [{*OURS, *PEERS, *map(products, OURS), "matmul"}]
    assert all(window["seconds"] >= 0.05 for one in found["windows"] for window in one.values())
    one = found["windows"][0]
    assert one["one run"]["tokens"] == one["one run"]["steps"] * SHAPES[32].tokens
    assert (
        one["packed"]["tokens"]
        == one["packed"]["steps"] * SHAPES[32].tokens * found["about"]["packed"]["layout"]["width"]
    )
    assert found["about"]["packed"]["layout"]["width"] > 1
    rates = [one[name]["tokens"] / one[name]["seconds"] for name in ("one run", "gpt2")]
    span = found["ratio"]["one run"]["gpt2"]
    assert span["least"] <= rates[0] / rates[1] <= span["most"]
    assert 0 < found["share"]["one run"]["median"] < 1.5
    assert found["share"]["packed"]["median"] < found["bound"]["packed"]["most"] < 1.5
