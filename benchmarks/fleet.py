"""Simulate a study of 10,000 runs on preemptible machines: makespan, lost work and cost compared with the ideal.

The packs are those of the real planner, for a v5e-8. A pack takes its FLOPs at an assumed share of the chips' peak.
Machines, preemptions and the clock are simulated: no number here was measured on a TPU. Machines are taken away without
a SIGTERM, so that work since the last checkpoint is lost.
"""

import argparse
import heapq
import json
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track

from taetpu.core.chips import parse_slice

TPU = "v5e-8"
FLEETS, LIVES = (1, 8, 64), (None, 6.0, 1.0)
"""Numbers of machines, and their mean lifetimes in hours; None: no preemption."""
ENGINES = ("shard", "takeover", "ray")
PEAK_SHARE = 0.3
"""Assumed share of the chips' published peak during steps."""
BOOT, START = 5 / 60, 2 / 60
"""Assumed hours until a new machine works, and until a pack steps (Python, data, compiling). Both cost money."""
RUNS, SEEDS, WIDTH = 10_000, 20, 32
REPEATS = 20
"""Simulations of each fleet, with different preemptions; the table has the means."""
STUDY = """
study: fleet
base:
  task: {{kind: copy, seq_len: 128, symbols: 16, min_length: 2, max_length: 60}}
  model: {{dim: 256, num_layers: 8, mixer: {{kind: attention, num_heads: 4}}}}
  train: {{steps: {steps}, batch_size: 64, checkpoint: {checkpoint}, sample: none}}
seeds: {seeds}
grid:
  model.norm.kind: [layer, rms]
  model.position: [rope, sinusoidal, none]
  model.ffn.kind: [gelu-tanh, relu, swiglu]
  train.optimizer.lr: [{rates}]
"""
"""18 structures, which cannot share a program; learning rates and seeds, which can."""


@dataclass(frozen=True)
class Pack:
    """A simulated pack: hours of steps, and hours between checkpoints."""

    hours: float
    checkpoint: float


@dataclass(frozen=True)
class Outcome:
    """The result of a study on a fleet.

    Attributes:
        hours: from the start until all work is done.
        machine_hours: paid for.
        work, lost: hours of steps, and of those that were taken again.
        preemptions: machines that were taken away.
    """

    hours: float
    machine_hours: float
    work: float
    lost: float
    preemptions: int


# --- the plan --------------------------------------------------------------------------------------------------------


def planned(runs: int, steps: int = 100_000, checkpoint: int = 5_000) -> list[Pack]:
    """Return the planner's packs for a study of at least `runs` runs on eight devices."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    from taetpu.spec.loading import load_study
    from taetpu.train import choose_compute, layout
    from taetpu.train.model_cost import flops_per_token
    from taetpu.train.pack_plan import plan_packs

    tpu = parse_slice(TPU)
    choose_compute.memory_bytes = layout.memory_bytes = lambda: tpu.hbm_bytes  # in place of this machine's
    rates = math.ceil(runs / SEEDS / 18)
    listed = ", ".join(f"{1e-4 * 1.03**i:.3e}" for i in range(rates))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(STUDY.format(steps=steps, checkpoint=checkpoint, seeds=SEEDS, rates=listed))
        study = load_study(file)
        all_runs = study.runs()
        sources = [study.sources.prepare(run.config) for run in all_runs]
        plans = plan_packs(all_runs, sources, packing=layout.parse_packing(WIDTH))
    by_id = {run.id: (run, source) for run, source in zip(all_runs, sources, strict=True)}
    packs = []
    peak = tpu.chips * tpu.generation.bf16_flops * PEAK_SHARE
    for plan in plans:
        run, source = by_id[plan.runs[0][2]]
        tokens = run.config.train.batch_size * source.seq_len
        flops = plan.layout.width * tokens * flops_per_token(run.config.model, source.vocab_size, source.seq_len)
        packs.append(Pack(steps * flops / peak / 3600, checkpoint * flops / peak / 3600))
    return packs


# --- the fleet -------------------------------------------------------------------------------------------------------


class Queue:
    """An engine: selects the pack that a machine trains next.

    Args:
        engine: `shard`: the I-th of every N packs; `takeover`: then those of others that nobody trains, as when
            `--shard` is given again; `ray`: the next of all.
    """

    def __init__(self, packs: int, machines: int, engine: str) -> None:
        self.engine = engine
        queues = 1 if engine == "ray" else machines
        self.waiting = [list(range(start, packs, queues)) for start in range(queues)]

    def next(self, machine: int) -> int | None:
        """Return the next pack for a machine; None if it is no longer needed."""
        own = self.waiting[machine % len(self.waiting)]
        if not own and self.engine == "takeover":
            own = max(self.waiting, key=len)
        return own.pop(0) if own else None

    def back(self, machine: int, pack: int) -> None:
        """Put back the pack of a preempted machine, to be the next."""
        self.waiting[machine % len(self.waiting)].insert(0, pack)


def simulate(packs: Sequence[Pack], machines: int, life: float | None, engine: str, seed: str = "") -> Outcome:
    """Simulate training all packs on machines with a mean lifetime of `life` hours that are replaced at once."""
    queue, chance = Queue(len(packs), machines, engine), random.Random(f"{machines} {life} {engine} {seed}")
    kept = [0.0] * len(packs)  # hours of each pack in its last checkpoint
    paid, lost, end, preemptions, number = 0.0, 0.0, 0.0, 0, count()
    events: list[tuple[float, int, int, float, int | None]] = []
    """Time at which a machine is free, tie breaker, its number, time of its preemption, pack that it then leaves."""

    def make(machine: int, now: float) -> None:
        nonlocal paid, preemptions
        while True:
            death = math.inf if life is None else now + chance.expovariate(1 / life)
            if death > now + BOOT:
                break
            paid, preemptions, now = paid + death - now, preemptions + 1, death
        paid += BOOT
        heapq.heappush(events, (now + BOOT, next(number), machine, death, None))

    for machine in range(machines):
        make(machine, 0.0)
    while events:
        now, _, machine, death, left = heapq.heappop(events)
        if left is not None:
            preemptions += 1
            queue.back(machine, left)
            make(machine, now)
            continue
        if (chosen := queue.next(machine)) is None:
            continue  # no packs are left: it is deleted
        pack = packs[chosen]
        done = now + START + pack.hours - kept[chosen]
        if done <= death:
            paid, end, kept[chosen] = paid + done - now, max(end, done), pack.hours
            heapq.heappush(events, (done, next(number), machine, death, None))
            continue
        reached = kept[chosen] + max(0.0, death - now - START)
        stored = max(kept[chosen], reached // pack.checkpoint * pack.checkpoint)
        paid, lost, kept[chosen] = paid + death - now, lost + reached - stored, stored
        heapq.heappush(events, (death, next(number), machine, death, chosen))
    work = sum(pack.hours for pack in packs)
    if sum(kept) != work:
        raise RuntimeError(f"{work - sum(kept)} hours of work were left")
    return Outcome(end, paid, work, lost, preemptions)


# --- showing ---------------------------------------------------------------------------------------------------------


def compare(packs: Sequence[Pack], fleets: Sequence[int], lives: Sequence[float | None], seed: int) -> list[dict]:
    """Return a row per fleet, mean lifetime and engine, with ratios to the ideal.

    The ideal has no start-up, loss or idle machine. One machine trains all packs in turn with any engine.
    """
    rate, rows = parse_slice(TPU).usd_per_hour(spot=True) or math.nan, []
    cases = [
        (fleet, life, engine) for fleet in fleets for life in lives for engine in ENGINES[: 1 if fleet == 1 else 3]
    ]
    work, longest = sum(pack.hours for pack in packs), max(pack.hours for pack in packs)
    for fleet, life, engine in track(cases, "fleets", console=Console(stderr=True), transient=True):
        found = [simulate(packs, fleet, life, engine, f"{seed} {again}") for again in range(REPEATS)]
        hours, paid = fmean(one.hours for one in found), fmean(one.machine_hours for one in found)
        row = {"machines": fleet, "life": life, "engine": engine, "hours": hours}
        row |= {"of_ideal": hours / max(work / fleet, longest), "preemptions": fmean(one.preemptions for one in found)}
        row |= {"lost": fmean(one.lost for one in found) / work, "usd": paid * rate, "usd_of_ideal": paid / work}
        rows.append(row)
    return rows


def show(rows: Sequence[dict]) -> str:
    """Return a Markdown table of at most 80 columns."""
    head = ("machines", "life", "engine", "hours", "x ideal", "taken", "lost", "USD", "x ideal")
    cells = [head, ("--:", "--:", "---", *["--:"] * 6)]
    for row in rows:
        life = "none" if row["life"] is None else f"{row['life']:g} h"
        cells.append(
            (
                str(row["machines"]), life, row["engine"], f"{row['hours']:.1f}", f"{row['of_ideal']:.2f}",
                f"{row['preemptions']:.0f}", f"{row['lost']:.1%}", f"{row['usd']:.0f}", f"{row['usd_of_ideal']:.2f}",
            )
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def main() -> None:
    """Plan, simulate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help="in the study, at least; up to 10,000")
    parser.add_argument("--seed", type=int, default=0, help="of the preemptions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    told = parser.parse_args()
    with Console(stderr=True).status("planning"):
        packs = planned(told.runs)
    rows = compare(packs, FLEETS, LIVES, told.seed)
    work, longest = sum(pack.hours for pack in packs), max(pack.hours for pack in packs)
    print(f"{len(packs)} packs, {work:.0f} h on one {TPU}, the longest {longest:.2f} h\n\n{show(rows)}")
    if told.json:
        told.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
