"""Estimates of time and cost, against numbers computed by hand."""

import pytest

from taetpu.core.chips import parse_slice
from taetpu.tpu.estimate import SPLASH_SHARE, Work, bill, estimate

V5E = parse_slice("v5e-8")
FACTS = {
    "flops": 10**12, "padded_flops": 2 * 10**12, "kernel_flops": {}, "bytes": 10**9, "cycles": 30_000_000,
    "memory": {"needed": 2**30, "arguments": 2**28, "temporaries": 2**29, "code": 2**20},
}  # fmt: skip
WORK = Work(packs=2, steps=100, runs=12, tokens=1000, flops=1e12, width=8, devices=8)


def test_step_time_ranges_from_the_roofline_to_the_compilers_cycles() -> None:
    found = estimate(FACTS, WORK, V5E)
    chip = V5E.generation
    roofline, compiler = 2e12 / chip.bf16_flops, 30e6 / 1.5e9
    assert found["step_seconds"] == pytest.approx((roofline, compiler))
    assert found["seconds"] == pytest.approx((200 * roofline, 200 * compiler))
    # 12 runs in two packs of 8: a quarter is padding and does not count.
    assert found["tokens_per_second"] == pytest.approx((6000 / compiler, 6000 / roofline))
    assert found["utilisation"] == pytest.approx((6e12 / (8 * chip.bf16_flops * compiler), 6e12 / (8 * 2e12)))
    assert found["hbm"]["available"] == 15.75 * 2**30  # of 16 GiB; libtpu reserves the rest
    assert found["missing"] == []


def test_memory_traffic_bounds_the_roofline() -> None:
    found = estimate({**FACTS, "bytes": 10**11}, WORK, V5E)
    assert found["roofline_seconds"] == pytest.approx(1e11 / V5E.generation.hbm_bandwidth)
    assert found["intensity"] == 10 < found["balance"]


def test_a_device_has_its_share_of_a_chip() -> None:
    """jax shows a v3 chip as two devices, each with half of its memory and rates."""
    v3 = parse_slice("v3-8")
    assert estimate(FACTS, WORK, v3)["hbm"]["available"] < v3.generation.hbm_bytes / 2
    assert estimate(FACTS, WORK, v3)["roofline_seconds"] == pytest.approx(2e12 / (v3.generation.bf16_flops / 2))


def test_unknown_cycles_give_no_upper_bound() -> None:
    facts = {name: value for name, value in FACTS.items() if name not in ("cycles", "bytes")}
    found = estimate({**facts, "missing": "no text"}, WORK, V5E)
    assert found["step_seconds"] == (pytest.approx(2e12 / V5E.generation.bf16_flops), None)
    assert found["tokens_per_second"][0] is None
    assert found["missing"] == ["no text"]
    cost = bill([found["seconds"]], V5E)
    assert cost["hours"][1] is cost["usd_spot"][1] is None


def test_splash_kernels_are_estimated_and_others_give_no_upper_bound() -> None:
    splash = {"splash_mha_fwd": 10**13, "splash_mha_dq_no_residuals": 10**13}
    step = 30e6 / 1.5e9 + SPLASH_SHARE * 2e13 / V5E.generation.bf16_flops
    found = estimate({**FACTS, "kernels": 2, "kernel_flops": splash}, WORK, V5E)
    assert found["step_seconds"][1] == pytest.approx(step)
    assert "splash" in found["missing"][0]
    for kernels in ({"mine": 10**9, **splash}, {}):
        found = estimate({**FACTS, "kernels": 1, "kernel_flops": kernels}, WORK, V5E)
        assert found["step_seconds"][1] is None
        assert found["missing"][0].endswith("no upper end")


def test_utilisation_is_at_most_1() -> None:
    """The model count includes gradients that the program may not compute."""
    full = {**FACTS, "padded_flops": 10**12, "bytes": 0}
    work = Work(packs=1, steps=1, runs=8, tokens=1000, flops=9e12, width=8, devices=8)
    assert estimate(full, work, V5E)["utilisation"][1] == pytest.approx(1.0)


def test_cost_is_that_of_all_programs_in_sequence() -> None:
    cost = bill([(3600.0, 7200.0), (0.0, 1800.0)], V5E)
    assert cost["hours"] == [1.0, 2.5]
    assert cost["usd_on_demand"] == pytest.approx([8 * 1.2, 2.5 * 8 * 1.2])


def test_without_a_rate_there_is_no_price() -> None:
    ironwood = parse_slice("tpu7x-8")
    assert ironwood.usd_per_hour(spot=True) is None
    assert bill([(1.0, 1.0)], ironwood)["usd_spot"] is None
    assert bill([(1.0, 1.0), None], V5E)["usd_spot"] is None
