"""Estimate memory, time, utilisation and cost of training from what the compiler reports.

Nothing here was measured on a TPU. The time of a step is a range between two estimates. One is the roofline (Williams
et al. 2009): the larger of its matmuls, padded to the matrix unit, at the chip's peak rate, and its memory traffic at
the chip's bandwidth. The other is the compiler's: its estimated cycles at the chip's clock. Kernels have no estimated
cycles: those of splash attention are estimated by `SPLASH_SHARE`, and with any other the range has no upper end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.core.chips import Slice
from taetpu.train.matmul_count import SPLASH

SPLASH_SHARE = 1.5
"""Time of splash attention over that of its matmuls, padded to 128, at the peak rate. The compiler's instruction
bundles for a v5e give 1.33 (heads of 128), 1.38 (64) and 1.50 (32); see `benchmarks.attention_cycles`."""

Range = tuple[float, float | None]
"""The lower and upper estimate; None if there is no upper one."""


@dataclass(frozen=True)
class Work:
    """The amount of training that one program does.

    Attributes:
        packs: number of packs, trained one after another.
        steps: steps of each pack.
        runs: runs in all packs, without padding.
        tokens: tokens of one run in one step.
        flops: model FLOPs of one run in one step, without rematerialisation and padding.
        width: runs per pack, with padding.
        devices: devices that a pack is spread over.
    """

    packs: int
    steps: int
    runs: int
    tokens: int
    flops: float
    width: int
    devices: int


def estimate(facts: Mapping[str, Any], work: Work, tpu: Slice) -> dict[str, Any]:
    """Estimate what training with a program takes on a slice.

    Args:
        facts: what the compiler reports on the program (`tpu.compile_worker.compile_request`).

    Returns:
        Per device: `hbm` bytes, needed and available to a program; `flops` and `bytes` of a step and their ratio,
        `intensity` (a step is compute-bound above the chip's own ratio, `balance`). Then `[low, high]` ranges, None
        where unknown: `step_seconds`, `seconds` of all packs, `utilisation` (model FLOPs of real runs over the peak of
        all devices of the slice) and `tokens_per_second`; and `missing`: what is unknown, as text.
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
    # The model count has three matmuls for each one; the program has one for those without a gradient.
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
        "step_seconds": step,
        "seconds": _multiply(step, work.packs * work.steps),
        "utilisation": _divide(useful / (peak * tpu.devices), step),
        "tokens_per_second": _divide(work.tokens * work.width * real, step),
        "missing": _missing(facts, tpu),
    }  # fmt: skip


def _missing(facts: Mapping[str, Any], tpu: Slice) -> list[str]:
    chip = tpu.generation
    missing = [facts["missing"]] if "missing" in facts else []
    if unknown := _unknown_kernels(facts):
        missing.append(f"the compiler has no cycle estimate for {unknown}: times have no upper end")
    elif facts["kernel_flops"]:
        share = f"{SPLASH_SHARE} times their matmuls at the peak rate"
        missing.append(f"the compiler has no cycle estimate for splash attention's kernels: counted as {share}")
    if chip.clock_hz is None:
        missing.append(f"the clock of {chip.name} is not published: its cycles cannot be converted to seconds")
    return missing


def _unknown_kernels(facts: Mapping[str, Any]) -> str:
    """Return the kernels of unknown cost, as text; "" if there are none."""
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


def bill(seconds: Sequence[Range | None], compiling: float, tpu: Slice) -> dict[str, Any]:
    """Return the `hours` of a study's steps on a slice and their USD on demand and spot, each `[low, high]`.

    Args:
        seconds: those of each program's packs; None for a program that does not run.
        compiling: CPU seconds of compiling here; also returned as USD of the slice for that time.
    """
    rates = tpu.usd_per_hour(False), tpu.usd_per_hour(True)
    compiled = {
        "compile_seconds": compiling,
        "usd_compiling": [None if rate is None else compiling / 3600 * rate for rate in rates],
    }
    if any(one is None for one in seconds):
        return {"hours": None, "usd_on_demand": None, "usd_spot": None, **compiled}
    known = [one for one in seconds if one is not None]
    highs = [high for _, high in known]
    hours = sum(low for low, _ in known) / 3600, None if None in highs else sum(h for h in highs if h) / 3600

    on_demand, spot = (
        None if rate is None else [None if end is None else end * rate for end in hours] for rate in rates
    )
    return {"hours": list(hours), "usd_on_demand": on_demand, "usd_spot": spot, **compiled}
