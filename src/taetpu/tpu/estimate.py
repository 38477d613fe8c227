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

Range = tuple[float, float]


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
        Per device: `hbm` bytes needed of those available; `flops` and `bytes` of a step and their ratio, `intensity`
        (above the chip's own ratio, `balance`, products decide); `step_seconds`, `seconds` of all packs, `utilisation`
        (the model's FLOPs of real runs over what all devices of the slice could do) and `tokens_per_second` as
        `[low, high]`, None where no estimate can be made; `missing`, in words, what is not known.
    """
    chip, share = tpu.generation, tpu.generation.devices_per_chip
    peak, bandwidth = chip.bf16_flops / share, chip.hbm_bandwidth / share
    memory, moved, cycles = facts.get("memory"), facts.get("bytes"), facts.get("cycles")
    roofline = max(facts["padded_flops"] / peak, (moved or 0) / bandwidth)
    compiler = cycles / chip.clock_hz if cycles and chip.clock_hz else None
    step = _range([roofline, compiler])
    filled = work.runs / (work.packs * work.width)
    useful = work.flops * work.width * filled
    return {
        "hbm": None if memory is None else {
            "needed": memory["needed"], "available": tpu.hbm_bytes_per_device,
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
    if chip.clock_hz is None:
        found.append(f"the clock of {chip.name} is not published: its cycles are no seconds")
    return found


def _range(estimates: Sequence[float | None]) -> Range | None:
    known = [value for value in estimates if value]
    return (min(known), max(known)) if known else None


def _times(found: Range | None, factor: float) -> Range | None:
    return None if found is None else (found[0] * factor, found[1] * factor)


def _over(amount: float, seconds: Range | None) -> Range | None:
    return None if seconds is None else (amount / seconds[1], amount / seconds[0])


def bill(seconds: Sequence[Range | None], compiling: float, tpu: Slice) -> dict[str, Any]:
    """What a study takes on a slice: `hours` of steps, and dollars on demand and spot, each `[low, high]`.

    Args:
        seconds: of each program's packs.
        compiling: seconds that compiling took here; a TPU's host takes about as long once.
    """
    if any(one is None for one in seconds):
        return {"hours": None, "usd_on_demand": None, "usd_spot": None, "compile_seconds": compiling}
    total = tuple(sum(one[i] for one in seconds if one) / 3600 for i in (0, 1))
    paid = [total[i] + compiling / 3600 for i in (0, 1)]

    def usd(spot: bool) -> list[float] | None:
        rate = tpu.usd_per_hour(spot)
        return None if rate is None else [hours * rate for hours in paid]

    return {"hours": list(total), "usd_on_demand": usd(False), "usd_spot": usd(True), "compile_seconds": compiling}
