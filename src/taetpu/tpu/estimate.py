"""Estimate memory, time, utilisation and cost of training from the compiler's report.

The estimates have not been compared with measurements on a TPU. The time of a step is a range between two estimates.
The first estimate is the roofline (Williams et al. 2009). It is the larger of two times: the time for the matmuls,
padded to the matrix unit, at the chip's peak rate, and the time for the memory traffic at the chip's bandwidth. The
second estimate is the number of cycles that the compiler estimates, divided by the chip's clock rate. The compiler does
not estimate the cycles of kernels. `SPLASH_SHARE` determines the time of splash attention. If a program has any other
kernel, or the clock rate is unknown, the range has no upper end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.core.chips import Slice
from taetpu.train.matmul_count import SPLASH

SPLASH_SHARE = 1.5
"""Ratio of the time of splash attention to the time that its matmuls, padded to 128, would take at the peak rate. The
compiler's instruction bundles for a v5e give 1.33, 1.38 and 1.50 for heads of size 128, 64 and 32; see
`benchmarks.attention_cycles`."""

Range = tuple[float, float | None]
"""Lower and upper estimate of a time in seconds; the upper estimate is None if it is unknown."""


@dataclass(frozen=True)
class Work:
    """The amount of training that one program does.

    Attributes:
        packs: number of packs, trained one after another.
        steps: number of training steps per pack.
        runs: number of runs in all packs, excluding padding.
        tokens: number of tokens per run and step.
        flops: model FLOPs per run and step, excluding rematerialisation and padding.
        width: number of runs per pack, including padding.
        devices: number of devices that train a pack.
    """

    packs: int
    steps: int
    runs: int
    tokens: int
    flops: float
    width: int
    devices: int


def estimate(facts: Mapping[str, Any], work: Work, tpu: Slice) -> dict[str, Any]:
    """Estimate the memory, time and utilisation of training with a program on a slice.

    Args:
        facts: the compiler's report on the program (see `tpu.compile_worker.compile_request`).

    Returns:
        Per device: `hbm`, the bytes that the program needs and the bytes available to it; `flops`, `padded_flops` and
        `bytes` of a step; `intensity`, the ratio of FLOPs to bytes; `balance`, the ratio of the chip's peak rate to its
        bandwidth. A step is compute-bound if its intensity exceeds the balance. `roofline_seconds` and
        `compiler_seconds` are the two estimates of a step's time, and `cycles` is the
        second one in cycles; None if it is unknown.

        The following values are ranges `[low, high]`; an unknown end is None. `step_seconds` is the time of a step and
        `seconds` the time of all packs. `utilisation` is the share of the peak rate of all devices in the slice that
        the model FLOPs of real runs use. `tokens_per_second` counts the tokens of real runs.

        `missing` lists the unknown quantities, as text.
    """
    chip, share = tpu.generation, tpu.generation.devices_per_chip
    peak, bandwidth = chip.bf16_flops / share, chip.hbm_bandwidth / share
    memory, traffic, cycles = facts.get("memory"), facts.get("bytes"), facts.get("cycles")
    roofline = max(facts["padded_flops"] / peak, (traffic or 0) / bandwidth)
    compiler = cycles / chip.clock_hz if cycles and chip.clock_hz and not _unknown_kernels(facts) else None
    if compiler:
        compiler += SPLASH_SHARE * sum(facts["kernel_flops"].values()) / peak
    step: Range = (min(roofline, compiler), max(roofline, compiler)) if compiler else (roofline, None)
    real = work.runs / (work.packs * work.width)
    # Model FLOPs count three matmuls (one forward, two backward) for each matmul in the model. A program executes only
    # one of them if the matmul has no gradient.
    useful = min(work.flops * work.width, facts["flops"] * work.devices) * real
    return {
        "hbm": None if memory is None else {
            "needed": memory["needed"], "available": int(chip.program_gib * 2**30),
            **{part: memory[part] for part in ("arguments", "temporaries", "code")},
        },
        "flops": facts["flops"],
        "padded_flops": facts["padded_flops"],
        "bytes": traffic,
        "intensity": facts["flops"] / traffic if traffic else None,
        "balance": peak / bandwidth,
        "roofline_seconds": roofline,
        "compiler_seconds": compiler,
        "cycles": _cycles(facts, compiler and compiler * chip.clock_hz),
        "step_seconds": step,
        "seconds": _multiply(step, work.packs * work.steps),
        "utilisation": _divide(useful / (peak * tpu.devices), step),
        "tokens_per_second": _divide(work.tokens * work.width * real, step),
        "missing": _missing(facts, tpu),
    }  # fmt: skip


def _cycles(facts: Mapping[str, Any], with_kernels: float | None) -> float | None:
    """Return the cycles of a step. Those of kernels are part of the estimate in seconds only."""
    return with_kernels if facts["kernel_flops"] or facts.get("kernels") else facts.get("cycles")


def _missing(facts: Mapping[str, Any], tpu: Slice) -> list[str]:
    chip = tpu.generation
    missing = [facts["missing"]] if "missing" in facts else []
    if unknown := _unknown_kernels(facts):
        missing.append(f"the compiler has no cycle estimate for {unknown}, so times have no upper end")
    elif facts["kernel_flops"]:
        share = f"{SPLASH_SHARE} times the time of their matmuls at the peak rate"
        missing.append(f"the compiler has no cycle estimate for splash attention's kernels; {share} is assumed")
    if chip.clock_hz is None:
        missing.append(f"the clock of {chip.name} is not published, so cycles cannot be converted to seconds")
    return missing


def _unknown_kernels(facts: Mapping[str, Any]) -> str:
    """Return text that names the kernels whose cost is unknown, or "" if no cost is unknown."""
    known = facts["kernel_flops"]
    if facts.get("kernels") and not known:
        return "kernels"
    others = [name for name in known if not name.startswith(SPLASH)]
    return ", ".join(f"kernel {name!r}" for name in sorted(others))


def _multiply(seconds: Range, factor: float) -> Range:
    low, high = seconds
    return low * factor, None if high is None else high * factor


def _divide(amount: float, seconds: Range) -> tuple[float | None, float]:
    low, high = seconds
    return None if high is None else amount / high, amount / low


def bill(seconds: Sequence[Range | None], tpu: Slice) -> dict[str, Any]:
    """Return the time and cost of training a study on a slice.

    Args:
        seconds: time for all packs of each program; None for a program that cannot be trained.
        tpu: the slice.

    Returns:
        `hours`, `usd_on_demand` and `usd_spot`, each `[low, high]`, or None if unknown.
    """
    if any(span is None for span in seconds):
        return {"hours": None, "usd_on_demand": None, "usd_spot": None}
    known = [span for span in seconds if span is not None]
    highs = [high for _, high in known]
    hours = sum(low for low, _ in known) / 3600, None if None in highs else sum(h for h in highs if h) / 3600
    rates = tpu.usd_per_hour(False), tpu.usd_per_hour(True)
    on_demand, spot = (
        None if rate is None else [None if end is None else end * rate for end in hours] for rate in rates
    )
    return {"hours": list(hours), "usd_on_demand": on_demand, "usd_spot": spot}
