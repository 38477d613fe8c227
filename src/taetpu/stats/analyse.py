"""From a study's folder to `results.json`: values, model, verdicts. The same runs give the same bytes."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from taetpu.core.errors import UserError, suggest
from taetpu.stats import model, verdict
from taetpu.stats.verdict import Count
from taetpu.store.documents import finite
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

BASELINE = "baseline"
SCREENING_SEEDS = 3
"""With so few seeds, a study finds candidates for a larger one."""

# The baseline has no verdict on itself.
_BASELINE = {
    "effect": None,
    "ci95": None,
    "p": None,
    "p_holm": None,
    "guarded": False,
    "verdict": None,
    "evidence": "What every other arm is compared with.",
    "more_seeds": None,
}

Cell = dict[str, Any]
"""One run: seed, id, outcome, value, and the whole `result` behind them."""


def analyse(folder: StudyFolder) -> dict[str, Any]:
    """Judge every arm of a study against its baseline, and store that as `results.json`.

    Runs that have not ended are counted, and `complete` is then false.

    Returns:
        what is stored: `study, primary, direction, alpha, seeds, complete, label, noise_floor, model, packs, arms`.

    Raises:
        UserError: no study is stored here; no run has the primary metric; two runs claim one arm and seed.
    """
    study = folder.read_study()
    metric, direction = study["measure"]["primary"], study["measure"]["direction"]
    cells = _cells(folder, study, metric)
    values = {arm: {c["seed"]: c["value"] for c in row if c["outcome"] == "finished"} for arm, row in cells.items()}
    counts = {arm: _count(row) for arm, row in cells.items()}
    fit = model.fit(values, BASELINE)
    evidence = verdict.weigh(fit.effects, counts, BASELINE)
    judged = {arm: _judged(found, direction, metric, study["seeds"], len(evidence)) for arm, found in evidence.items()}
    results = {
        "study": study["study"],
        "primary": metric,
        "direction": direction,
        "alpha": verdict.ALPHA,
        "seeds": list(study["seeds"]),
        "complete": all(cell["outcome"] != "unfinished" for row in cells.values() for cell in row),
        "label": _label(len(study["seeds"])),
        "noise_floor": {"sd": _sd(values[BASELINE]), "seeds": len(values[BASELINE])},
        "model": {
            "residual_sd": fit.residual_sd,
            "df": fit.df,
            "levene_p": fit.levene_p,
            "noisy": sorted(fit.noisy),
            "completers_only": any(count.diverged for count in counts.values()),
        },
        "packs": _packs(cells),
        "arms": [_arm(arm, study, cells[arm], values[arm], judged.get(arm, _BASELINE)) for arm in study["arms"]],
    }
    results = finite(results)
    folder.write_results(results)
    return results


def _cells(folder: StudyFolder, study: Mapping[str, Any], metric: str) -> dict[str, list[Cell]]:
    """Every arm's runs, one for each seed of the study, in the study's order."""
    done: dict[tuple[str, int], tuple[RunFolder, dict[str, Any]]] = {}
    for run in folder.runs():
        result = run.result()
        if result is None:
            continue
        if (run.arm, run.seed) in done:
            other = done[run.arm, run.seed][0]
            problem = f"two finished runs are of arm {run.arm!r} and seed {run.seed}: {other.id} and {run.id}"
            raise UserError(
                problem, file=run.where, remedy="move the one that does not belong out of the study's folder"
            )
        done[run.arm, run.seed] = run, result
    return {arm: [_cell(done.get((arm, seed)), seed, metric) for seed in study["seeds"]] for arm in study["arms"]}


def _cell(found: tuple[RunFolder, dict[str, Any]] | None, seed: int, metric: str) -> Cell:
    if found is None:
        return {"seed": seed, "id": None, "outcome": "unfinished", "value": None, "result": None}
    run, result = found
    if result["outcome"] == "finished" and metric not in result["metrics"]:
        known = suggest(metric, result["metrics"])
        raise UserError(f"no metric {metric!r} was measured", path=("measure", "primary"), file=run.where, remedy=known)
    value = result["metrics"].get(metric)
    finished = result["outcome"] == "finished" and value is not None and math.isfinite(value)
    return {
        "seed": seed,
        "id": run.id,
        "outcome": "finished" if finished else "diverged",
        "value": value if finished else None,
        "result": result,
    }


def _packs(cells: Mapping[str, list[Cell]]) -> list[dict[str, Any]]:
    """How runs were packed: the layout of their packs, how it was chosen, and how many `runs` were trained so."""
    found: dict[str, dict[str, Any]] = {}
    for cell in (cell for row in cells.values() for cell in row if cell["result"]):
        pack = {key: value for key, value in cell["result"].get("pack", {}).items() if key != "id"}
        entry = found.setdefault(str(sorted(pack.items())), {**pack, "runs": 0})
        entry["runs"] += 1
    return list(found.values())


def _count(row: list[Cell]) -> Count:
    outcomes = [cell["outcome"] for cell in row]
    return Count(outcomes.count("finished"), outcomes.count("diverged"))


def _judged(
    found: verdict.Evidence, direction: verdict.Direction, metric: str, seeds: list[int], arms: int
) -> dict[str, Any]:
    decision = verdict.decide(found, direction)
    return {
        "effect": found.effect.effect,
        "ci95": list(found.effect.interval) if found.effect.interval else None,
        "p": found.p,
        "p_holm": found.p_holm,
        "guarded": found.effect.guarded,
        "verdict": decision,
        "evidence": verdict.sentence(found, direction, metric, len(seeds)),
        "more_seeds": verdict.more_seeds(found, arms) if decision == "inconclusive" else None,
    }


def _arm(
    name: str, study: Mapping[str, Any], row: list[Cell], values: Mapping[int, float], judged: Mapping[str, Any]
) -> dict[str, Any]:
    ended = [cell["result"] for cell in row if cell["result"]]
    finished = [cell["result"]["metrics"] for cell in row if cell["outcome"] == "finished"]
    diff = study["arms"][name]
    return {
        "name": name,
        "diff": diff,
        "change": in_words(diff, study["base"]),
        "runs": [{key: cell[key] for key in ("seed", "id", "outcome", "value")} for cell in row],
        "diverged": _count(row).diverged,
        "mean": float(np.mean(list(values.values()))) if values else None,
        "sd": _sd(values),
        **judged,
        **{key: ended[0].get(key) if ended else None for key in ("params", "flops", "tokens")},
        "metrics": _means(finished),
    }


def in_words(diff: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """What an arm changes: `model.position: rope -> none`, or without the old value where the baseline has none."""
    return "; ".join(_change(path, value, base) for path, value in diff.items())


def _change(path: str, value: Any, base: Mapping[str, Any]) -> str:
    old: Any = base
    for part in path.split("."):
        old = old.get(part) if isinstance(old, Mapping) else None
    new = _short(value)
    return f"{path}: {new}" if old is None else f"{path}: {_kind(old)} -> {new}"


def _kind(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, Mapping) and "kind" in value else _short(value)


def _short(value: Any) -> str:
    """A component as its kind with the fields that are given, anything else as YAML would have it."""
    if isinstance(value, Mapping):
        fields = [f"{key}={_short(part)}" for key, part in value.items() if key != "kind"]
        return str(value.get("kind", "")) + (f"({', '.join(fields)})" if fields else "")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_short, value))}]"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _means(metrics: list[Mapping[str, float | None]]) -> dict[str, float]:
    """Each metric's mean over the finished runs; NaN where one of them has no number for it."""
    columns: dict[str, list[float]] = {}
    for row in metrics:
        for name, value in row.items():
            columns.setdefault(name, []).append(math.nan if value is None else value)
    return {name: float(np.mean(column)) for name, column in sorted(columns.items())}


def _sd(values: Mapping[int, float]) -> float | None:
    return float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else None


def _label(seeds: int) -> str | None:
    if seeds == 1:
        return "single seed"
    return "screening" if seeds <= SCREENING_SEEDS else None
