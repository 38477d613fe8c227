"""Build a study's report from what its folder holds, and put it there."""

from collections.abc import Iterator, Mapping
from typing import Any

from taetpu.core.errors import UserError
from taetpu.report.curves import read_curves
from taetpu.report.exports import markdown
from taetpu.report.page import Background, Facts, Sample, html
from taetpu.report.terms import Results
from taetpu.stats.costs import costs
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

SAMPLE_CHARACTERS = 600


def build(folder: StudyFolder) -> dict[str, str]:
    """Write `report/index.html` and `report/report.md` from the stored results, metrics and samples.

    Returns:
        where each can be opened: `{"html": ..., "markdown": ...}`.

    Raises:
        UserError: there are no results yet, or a stored file is damaged.
    """
    results = folder.read_results()
    if results is None:
        remedy = "run the study first: `taetpu run STUDY`"
        raise UserError(f"study {folder.name!r} has no results to report", file=folder.where, remedy=remedy)
    beside = background(folder, results)
    return {
        "html": folder.write_report("index.html", html(results, beside).encode()),
        "markdown": folder.write_report("report.md", markdown(results, beside.costs).encode()),
    }


def background(folder: StudyFolder, results: Results) -> Background:
    """What the report shows beside the results: curves, samples, and where it all comes from."""
    runs = [(arm["name"], run["seed"], run["id"]) for arm in results["arms"] for run in arm["runs"]]
    ended = [folder.run(arm, seed, run_id) for arm, seed, run_id in runs if run_id]
    return Background(
        costs=costs(folder, results),
        curves=read_curves(folder, results),
        samples=list(_samples(ended)),
        provenance=_provenance(results, [run.result() or {} for run in ended]),
        baseline=[(path, str(value)) for path, value in _flat(folder.read_study()["base"])],
    )


def _samples(runs: list[RunFolder]) -> Iterator[Sample]:
    """The last sample of each arm's first run that has any."""
    seen = set()
    for run in runs:
        samples = {} if run.arm in seen else run.samples()
        if samples:
            seen.add(run.arm)
            step = max(samples)
            yield Sample(run.arm, run.seed, step, samples[step][:SAMPLE_CHARACTERS])


def _provenance(results: Results, ended: list[Mapping[str, Any]]) -> Facts:
    """What the runs were trained with. A fact that differs between runs has all its values."""
    facts: dict[str, list[str]] = {"study": [results["study"]], "seeds": [", ".join(map(str, results["seeds"]))]}
    facts["runs that ended"] = [str(len(ended))]
    for result in ended:
        details = {**result.get("environment", {}), "steps": result.get("steps"), "pack": result.get("pack", {})}
        for name, value in _flat(details):
            values = facts.setdefault(name, [])
            if str(value) not in values:
                values.append(str(value))
    return [(name, ", ".join(values)) for name, values in facts.items()]


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested data as dotted paths with values."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
