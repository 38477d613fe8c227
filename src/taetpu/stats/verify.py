"""Everything once more from the raw logs: does `results.json` say what the runs say?"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taetpu.stats.analyse import results
from taetpu.stats.blocked import Array
from taetpu.stats.evaluation import SUMS
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

EVALUATED = "test/"  # metrics that are measured once, at the end, and have no curve
CLOSE = 1e-9  # relative: sums over an evaluation set are added up in another order


def verify(folder: StudyFolder) -> list[str]:
    """Every difference between what is stored of a study and what its raw metrics come to; empty if there is none.

    Raises:
        UserError: as `stats.analyse.results`; among others, the analysis plan is not the one that was frozen.
    """
    found = [problem for run in folder.runs() for problem in _of_run(run)]
    found += _of_tuning(folder, folder.read_study())
    stored, computed = folder.read_results(), json.loads(json.dumps(results(folder)))
    if stored is None:
        return [*found, "results.json is missing"]
    return [*found, *(f"results.json: {problem}" for problem in _differences(stored, computed, ""))]


def _of_run(run: RunFolder) -> Iterator[str]:
    """A run's result against the last points of its metrics, and its steps against its schedule."""
    result = run.result()
    if result is None:
        return
    series, sums = run.metrics(), run.evaluation()
    for name, value in result["metrics"].items():
        mean = _mean(sums, name)
        if mean is not None and (value is None or not math.isclose(value, mean, rel_tol=CLOSE)):
            yield f"{run.where}: {name} is {value} in the result, and {mean} over the evaluation set"
        if name.startswith(EVALUATED):
            continue
        if name not in series:
            yield f"{run.where}: {name} is in the result and was never logged"
        elif not _same(value, float(series[name].value[-1])):
            yield f"{run.where}: {name} is {value} in the result, and {float(series[name].value[-1])} in the log"
    reached = max((int(s.step[-1]) for s in series.values()), default=0)
    if series and reached != result["steps"]:
        yield f"{run.where}: the result is of step {result['steps']}, and the log ends at step {reached}"


def _of_tuning(folder: StudyFolder, study: Mapping[str, Any]) -> Iterator[str]:
    """What tuning found, against the runs that it tried."""
    tuning, primary = study.get("tuning"), study["plan"]["primary"]
    if not tuning:
        return
    ended = {(run.arm, run.seed): run.result() for run in folder.runs()}
    for name, entry in tuning["arms"].items():
        for cell, trial in entry["trials"].items():
            came_to = [_finished(ended.get((trial["arm"], seed)), primary) for seed in tuning["seeds"]]
            if came_to != trial["by_seed"]:
                yield f"study.yaml: tuning {name} with {cell} came to {came_to}, and {trial['by_seed']} is recorded"
        means = {cell: _over_seeds(trial["by_seed"]) for cell, trial in entry["trials"].items()}
        known = {cell: mean for cell, mean in means.items() if mean is not None}
        pick = min if study["plan"]["direction"] == "min" else max
        best = pick(known, key=lambda cell: known[cell], default=None)
        if best != entry["best"]:
            yield f"study.yaml: tuning {name} found {best} best, and {entry['best']} is recorded"


def _finished(result: Mapping[str, Any] | None, metric: str) -> float | None:
    return result["metrics"].get(metric) if result is not None and result["outcome"] == "finished" else None


def _over_seeds(values: Sequence[float | None]) -> float | None:
    """The mean; None where a run is lost."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _mean(sums: Mapping[str, Array], metric: str) -> float | None:
    """The metric from sums over the evaluation set; None where these are not kept, or are no finite numbers."""
    split, _, what = metric.partition("/")
    total, weight = (sums.get(f"{split}/{name}") for name in (SUMS.get(what), "weight"))
    mean = None if total is None or weight is None else float(total.sum() / max(weight.sum(), 1.0))
    return mean if mean is not None and math.isfinite(mean) else None


def _same(stored: float | None, logged: float) -> bool:
    """A result has null for what is no finite number."""
    return stored == logged or (stored is None and logged - logged != 0)


def _differences(stored: Any, computed: Any, path: str) -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(computed, Mapping):
        for name in {**stored, **computed}:
            there = f"{path}.{name}" if path else str(name)
            if name not in stored or name not in computed:
                yield f"{there} is {'missing' if name not in stored else 'not computed from the runs'}"
            else:
                yield from _differences(stored[name], computed[name], there)
    elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        for i, (a, b) in enumerate(zip(stored, computed, strict=True)):
            name = a.get("name", i) if isinstance(a, Mapping) else i
            yield from _differences(a, b, f"{path}[{name}]")
    elif stored != computed:
        yield f"{path} is {stored!r}, and {computed!r} from the runs"
