"""From what the compiler says of a program to what training with it takes: memory, seconds, utilisation, dollars.

Nothing here was measured on a TPU. The time of a step is given as a range between two estimates. One is the roofline:
the larger of the step's products, their sides filled up to the matrix unit's, at the chip's peak rate and its memory
traffic at the chip's bandwidth (Williams et al. 2009). The other is the compiler's own: the cycles that it expects of
each operation, at the chip's clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.core.chips import Slice

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
        devices: of the slice, that a pack is spread over.
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
        facts: what the compiler said of it (`tpu.child.compiled`).

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
    compiler = cycles / chip.clock_hz if cycles and chip.clock_hz else None
    step: Range = (min(roofline, compiler), max(roofline, compiler)) if compiler else (roofline, None)
    filled = work.runs / (work.packs * work.width)
    useful = work.flops * work.width * filled
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
    if facts.get("kernels"):
        found.append("attention's kernels have no cycles in the compiler's text: its estimate leaves them out")
    if chip.clock_hz is None:
        found.append(f"the clock of {chip.name} is not published: its cycles are no seconds")
    return found


def _times(found: Range, factor: float) -> Range:
    low, high = found
    return low * factor, None if high is None else high * factor


def _over(amount: float, seconds: Range) -> tuple[float | None, float]:
    low, high = seconds
    return None if high is None else amount / high, amount / low


def bill(seconds: Sequence[Range | None], compiling: float, tpu: Slice) -> dict[str, Any]:
    """What a study takes on a slice: `hours` of steps, and dollars on demand and spot, each `[low, high]`.

    Args:
        seconds: of each program's packs.
        compiling: seconds that compiling took here; a TPU's host takes about as long once.
    """
    if any(one is None for one in seconds):
        return {"hours": None, "usd_on_demand": None, "usd_spot": None, "compile_seconds": compiling}
    known = [one for one in seconds if one is not None]
    highs = [high for _, high in known]
    hours = sum(low for low, _ in known) / 3600, None if None in highs else sum(h for h in highs if h) / 3600

    def usd(spot: bool) -> list[float | None] | None:
        rate = tpu.usd_per_hour(spot)
        return None if rate is None else [None if h is None else (h + compiling / 3600) * rate for h in hours]

    return {"hours": list(hours), "usd_on_demand": usd(False), "usd_spot": usd(True), "compile_seconds": compiling}
