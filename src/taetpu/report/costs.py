"""Read the costs of arms: those of their runs, and those that `taetpu costs` measured."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from taetpu.core.machine_load import BUSY
from taetpu.report.summary import is_untrained
from taetpu.stats.results import Arm, Results
from taetpu.store.runs import RunFolder
from taetpu.store.stored_costs import Round, StoredCosts, Timing
from taetpu.store.study import StudyFolder

Values = Mapping[str, Mapping[str, float | None]]
"""Values by arm and name of a cost."""


@dataclass(frozen=True)
class Ratio:
    """A timed cost of an arm, divided by that of its baseline within a round.

    Attributes:
        median: the median over rounds.
        least: the smallest of a round.
        most: the largest of a round.
        others: the largest share of the cores that other processes used; None if it is not known.
    """

    median: float
    least: float
    most: float
    others: float | None

    @property
    def busy(self) -> bool:
        """Whether the machine was busy."""
        return self.others is not None and self.others >= BUSY


@dataclass(frozen=True)
class MachineTimes:
    """Times on one machine.

    Attributes:
        where: the machine, in words.
        date: the day of the last measurement.
        rounds: the largest number of rounds.
        ratios: the ratios of each arm, by cost.
        values: the costs of each arm and baseline, by name: those of an arm are its ratio times its baseline's median.
        same: the arms whose program is that of their baseline.
        missing: why a cost of an arm is missing, by reason.
    """

    where: str
    date: str
    rounds: int
    ratios: Mapping[str, Mapping[str, Ratio]]
    values: Values
    same: Sequence[str]
    missing: Mapping[str, Sequence[str]]

    @property
    def others(self) -> float | None:
        """The largest share of the cores that other processes used; None if it is not known."""
        known = [ratio.others for each in self.ratios.values() for ratio in each.values() if ratio.others is not None]
        return max(known, default=None)


@dataclass(frozen=True)
class Measured:
    """What `taetpu costs` measured for a study.

    Attributes:
        machines: the times on each machine, the latest first.
        memory: the memory of the compiled train step, by arm, on the machine of the latest costs; empty if it is not
            known for all arms.
        tpu: the name of the slice whose compiler gave `cycles`; empty without cycles.
        cycles: the cycles of a train step, by arm.
    """

    machines: Sequence[MachineTimes] = ()
    memory: Mapping[str, float] = field(default_factory=dict)
    tpu: str = ""
    cycles: Mapping[str, float] = field(default_factory=dict)


NOT_MEASURED = Measured()


def read_costs(folder: StudyFolder, results: Results, measured: Measured = NOT_MEASURED) -> Values:
    """Return the costs of each arm. Those that differ between executions are not in `results.json`.

    Args:
        folder: the study's folder.
        results: the content of `results.json`.
        measured: the result of `read_measured`.

    Returns:
        A mapping from each arm to its costs by the names in `report.cost_columns`, and `inference_seconds`, the time
        per token in an evaluation batch, and `width`, the number of runs in a pack. Times of runs are medians; that of
        a pack is divided evenly among its runs, so they are comparable only at equal width. `memory` is that of the
        compiled program if it was measured, else the upper estimate of `results.json`. Values that are not known are
        None, as are `flops` and `memory` if nothing was trained.
    """
    trains = not is_untrained(results)
    latest: Values = measured.machines[0].values if measured.machines else {}
    costs = {}
    for arm in results["arms"]:
        name, runs = arm["name"], [folder.run(arm["name"], run["seed"], run["id"]) for run in arm["runs"] if run["id"]]
        ended = [(run.times(), run.result() or {}) for run in runs]
        step = [float(t["step_seconds"].value[-1]) * r.get("steps", 0) for t, r in ended if "step_seconds" in t]
        token = [float(t["forward_seconds"].value[-1]) for t, _ in ended if "forward_seconds" in t]
        width = [float(r["pack"]["width"]) for _, r in ended if "width" in r.get("pack", {})]
        memory = arm["memory"]
        costs[name] = {
            "params": arm["params"],
            "flops": arm["flops"] if trains else None,
            "flops_per_token": arm["flops"] / arm["tokens"] if arm["flops"] and arm["tokens"] else None,
            "memory": measured.memory.get(name, memory and memory["training"]) if trains else None,
            "cache_bytes": _cache_per_token(arm, runs),
            "train_seconds": _median(step),
            "inference_seconds": _median(token),
            "width": _median(width),
            "cycles": measured.cycles.get(name),
            **latest.get(name, {}),
        }
    return costs


def _cache_per_token(arm: Arm, runs: Sequence[RunFolder]) -> float | None:
    """Return the bytes of the cache of one sequence of the training length, divided by its tokens."""
    cache = (arm["memory"] or {}).get("kv_cache")
    if cache is None or not runs:
        return None
    result, train = runs[0].result() or {}, runs[0].config().get("config", {}).get("train", {})
    sequences = result.get("steps", 0) * train.get("batch_size", 0)
    return cache * sequences / result["tokens"] if sequences and result.get("tokens") else None


def _median(values: list[float]) -> float | None:
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else None


# --- what `taetpu costs` measured -------------------------------------------------------------------------------------


def read_measured(folder: StudyFolder, results: Results) -> Measured:
    """Return what `taetpu costs` measured for the runs in `results.json`. Costs of other runs are left out."""
    stored = sorted(folder.read_costs().values(), key=lambda each: each["date"], reverse=True)
    ids = {arm["name"]: {run["id"] for run in arm["runs"] if run["id"]} for arm in results["arms"]}

    def is_current(arm: str, run: str) -> bool:
        return run[:8] in ids.get(arm, ())

    def compiled(each: StoredCosts, what: str) -> dict[str, float]:
        current = {arm: entry for arm, entry in each["compiled"].items() if is_current(arm, entry["run"])}
        return {arm: value for arm, entry in current.items() if (value := entry.get(what)) is not None}

    memory = [sizes for each in stored if "machine" in each and len(sizes := compiled(each, "bytes")) == len(ids)]
    cycles = [(each["tpu"], counts) for each in stored if "tpu" in each and (counts := compiled(each, "cycles"))]
    machines = []
    for each in stored:
        timings = {arm: timing for arm, timing in each.get("timings", {}).items() if is_current(arm, timing["run"])}
        if timings:
            machines.append(_machine_times(each, timings))
    tpu, counts = cycles[0] if cycles else ("", {})
    return Measured(machines, memory[0] if memory else {}, tpu, counts)


def _machine_times(stored: StoredCosts, timings: Mapping[str, Timing]) -> MachineTimes:
    parts = {"step_time": "step", "decode_rate": "decode"}
    rounds = {arm: {cost: timing[part] for cost, part in parts.items()} for arm, timing in timings.items()}
    ratios: dict[str, dict[str, Ratio]] = {}
    values: dict[str, dict[str, float | None]] = {}
    for cost in parts:
        windows: dict[str, list[float]] = {}
        for arm, timing in timings.items():
            for each in rounds[arm][cost]:
                windows.setdefault(timing["against"], []).append(_value(each, timing["against"], cost))
        for base, known in windows.items():
            values.setdefault(base, {})[cost] = statistics.median(known)
        for arm, timing in timings.items():
            base = timing["against"]
            if timing["same_program"] and cost in values.get(base, {}):
                values.setdefault(arm, {})[cost] = values[base][cost]
            if rounds[arm][cost]:
                ratio = _ratio(rounds[arm][cost], arm, timing, cost)
                ratios.setdefault(arm, {})[cost] = ratio
                values.setdefault(arm, {})[cost] = ratio.median * (values[base][cost] or 0.0)
    missing: dict[str, list[str]] = {}
    for arm, timing in timings.items():
        for part, reason in timing["missing"].items():
            what = "step time" if part == "step" else "decode rate"
            missing.setdefault(f"no {what}: {reason}", []).append(arm)
    return MachineTimes(
        _machine(stored),
        max(timing["date"] for timing in timings.values())[:10],
        max(len(each) for arm in rounds.values() for each in arm.values()),
        ratios,
        values,
        [arm for arm, timing in timings.items() if timing["same_program"]],
        missing,
    )


def _value(each: Round, arm: str, cost: str) -> float:
    return 1 / each["seconds"][arm] if cost == "decode_rate" else each["seconds"][arm]


def _ratio(rounds: Sequence[Round], arm: str, timing: Timing, cost: str) -> Ratio:
    ratios = [_value(each, arm, cost) / _value(each, timing["against"], cost) for each in rounds]
    others = [share for share in (timing["before"], *(each["others"] for each in rounds)) if share is not None]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), max(others, default=None))


def _machine(stored: StoredCosts) -> str:
    machine = stored.get("machine")
    if machine is None:
        return "an unknown machine"
    if machine["platform"] == "cpu":
        return f"{machine['cpu'] or 'a CPU'} ({machine['cores']} cores)"
    return f"{machine['device']} (1 of {machine['devices']})" if machine["devices"] > 1 else machine["device"]
