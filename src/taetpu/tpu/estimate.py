"""From what the compiler says of a program to what training with it takes: memory, seconds, utilisation, dollars.

Nothing here was measured on a TPU. The time of a step is given as a range between two estimates. One is the roofline:
the larger of the step's products, their sides filled up to the matrix unit's, at the chip's peak rate and its memory
traffic at the chip's bandwidth (Williams et al. 2009). The other is the compiler's own: the cycles that it expects of
each operation, at the chip's clock. For kernels it expects none. For splash attention's an estimate stands in
(`SPLASH_SHARE`); a program with others has no upper end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.core.chips import Slice
from taetpu.train.matmul_count import SPLASH

# Splash attention's time over that of its products, all sides filled up to 128, at the peak rate. The bundles that the
# compiler scheduled for a v5e give 1.33 (heads of 128), 1.38 (64) and 1.50 (32); see `benchmarks.attention_cycles`.
SPLASH_SHARE = 1.5

Range = tuple[float, float | None]
"""From at least to about; None where the larger estimate cannot be made."""


@dataclass(frozen=True)
class Work:
    """What is trained with one program.

    Attributes:
        packs: how many, one after another.
        steps: of each.
        runs: in all packs together.
        tokens: of one run in one step.
        flops: of one run in one step, the model's own: what is computed twice or for padding does not count.
        devices: that a pack is spread over.
    """

    packs: int
    steps: int
    runs: int
    tokens: int
    flops: float
    width: int
    devices: int


def estimate(facts: Mapping[str, Any], work: Work, tpu: Slice) -> dict[str, Any]:
    """What a program takes on a slice.

    Args:
        facts: what the compiler said of it (`tpu.compile_worker.compiled`).

    Returns:
        Per device: `hbm` bytes needed of those that the compiler lets a program have; `flops` and `bytes` of a step and
        their ratio, `intensity` (above the chip's own ratio, `balance`, products decide); `step_seconds`, `seconds` of
        all packs, `utilisation` (the model's FLOPs of real runs over what all devices of the slice could do) and
        `tokens_per_second` as `[low, high]`, an end None where no estimate of it can be made; `missing`, in words, what
        is not known.
    """
    chip, share = tpu.generation, tpu.generation.devices_per_chip
    peak, bandwidth = chip.bf16_flops / share, chip.hbm_bandwidth / share
    memory, moved, cycles = facts.get("memory"), facts.get("bytes"), facts.get("cycles")
    roofline = max(facts["padded_flops"] / peak, (moved or 0) / bandwidth)
    compiler = cycles / chip.clock_hz if cycles and chip.clock_hz and not _unknown_kernels(facts) else None
    if compiler:
        compiler += SPLASH_SHARE * sum(facts["kernel_flops"].values()) / peak
    step: Range = (min(roofline, compiler), max(roofline, compiler)) if compiler else (roofline, None)
    filled = work.runs / (work.packs * work.width)
    # A product that has no gradient is in the model's three times, and once in the program.
    useful = min(work.flops * work.width, facts["flops"] * work.devices) * filled
    return {
        "hbm": None if memory is None else {
            "needed": memory["needed"], "available": int(chip.program_gib * 2**30),
            **{part: memory[part] for part in ("arguments", "temporaries", "code")},
        },
        "flops": facts["flops"],
        "padded_flops": facts["padded_flops"],
        "bytes": moved,
        "intensity": facts["flops"] / moved if moved else None,
        "balance": peak / bandwidth,
        "roofline_seconds": roofline,
        "compiler_seconds": compiler,
        "step_seconds": step,
        "seconds": _times(step, work.packs * work.steps),
        "utilisation": _over(useful / (peak * tpu.devices), step),
        "tokens_per_second": _over(work.tokens * work.width * filled, step),
        "missing": _missing(facts, tpu),
    }  # fmt: skip


def _missing(facts: Mapping[str, Any], tpu: Slice) -> list[str]:
    chip = tpu.generation
    found = [facts["missing"]] if "missing" in facts else []
    if unknown := _unknown_kernels(facts):
        found.append(f"the compiler's text has no cycles for {unknown}: there is no upper end")
    elif facts["kernel_flops"]:
        found.append(
            f"splash attention's kernels have no cycles in the compiler's text: {SPLASH_SHARE} times their products at "
            "the peak rate stand for them"
        )
    if chip.clock_hz is None:
        found.append(f"the clock of {chip.name} is not published: its cycles are no seconds")
    return found


def _unknown_kernels(facts: Mapping[str, Any]) -> str:
    """Kernels of which nothing says what they cost, in words."""
    known = facts["kernel_flops"]
    if facts.get("kernels") and not known:
        return "kernels"
    others = [name for name in known if not name.startswith(SPLASH)]
    return ", ".join(f"kernel {name!r}" for name in sorted(others))


def _times(found: Range, factor: float) -> Range:
    low, high = found
    return low * factor, None if high is None else high * factor


def _over(amount: float, seconds: Range) -> tuple[float | None, float]:
    low, high = seconds
    return None if high is None else amount / high, amount / low


def bill(seconds: Sequence[Range | None], compiling: float, tpu: Slice) -> dict[str, Any]:
    """What a study takes on a slice: `hours` of steps, and their dollars on demand and spot, each `[low, high]`.

    Args:
        seconds: of each program's packs.
        compiling: seconds of this machine's processors that compiling took, handed on with what the slice costs for as
            long.
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
