"""Data of the pages besides the stream: studies under a root, all runs, and one run."""

from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.stats.load import read_result
from taetpu.store.index import find_studies, list_studies
from taetpu.store.runs import RunFolder
from taetpu.store.settings import differing_paths, read_settings
from taetpu.store.study import StudyFolder
from taetpu.ui.feed import thin_series

MAX_SAMPLES = 20
"""Most samples shown of a run, the last ones."""


class Root:
    """A study's folder, or a root folder of several studies."""

    def __init__(self, place: str):
        self.place = place

    def study(self, name: str) -> StudyFolder:
        """Return the study with a name; raise `UserError` if there is none."""
        found = {study.name: study for study in find_studies(self.place)}
        if name not in found:
            raise UserError(f"there is no study {name!r} here", file=self.place, remedy=suggest(name, found))
        return found[name]

    def studies(self) -> list[dict[str, Any]]:
        """Return a row for each study with its progress."""
        rows = []
        for entry in list_studies(self.place):
            row = {"study": entry.name, "arms": entry.arms, "seeds": entry.seeds, "done": entry.done}
            rows.append({**row, "runs": entry.total, "changed": entry.changed.isoformat(), "problem": entry.problem})
        return rows

    def runs(self) -> dict[str, Any]:
        """Return all runs of all studies, the settings in which they differ, and problems of damaged runs."""
        tables, rows, problems = [], [], []
        for run in [run for study in find_studies(self.place) for run in study.runs()]:
            try:
                table, row = read_settings(run), _run_facts(run.study, run)
            except UserError as error:
                problems.append(str(error))
            else:
                tables.append(table)
                rows.append(row)
        columns = differing_paths(tables)
        for row, table in zip(rows, tables, strict=True):
            row["settings"] = {path: table.get(path) for path in columns}
        return {"columns": columns, "rows": rows, "problems": problems}

    def run(self, study: str, arm: str, run: str) -> dict[str, Any]:
        """Return settings, samples, result and series of a run; raise `UserError` if there is none."""
        own = self.study(study).runs()
        found = next((one for one in own if one.arm == arm and f"{one.seed}-{one.id}" == run), None)
        if found is None:
            raise UserError(f"study {study!r} has no run {arm}/{run}", remedy="See the study's page for its runs.")
        samples = found.samples()
        return {
            **_run_facts(study, found),
            "settings": read_settings(found),
            "samples": {str(step): samples[step] for step in sorted(samples)[-MAX_SAMPLES:]},
            "result": found.result(),
            "series": {
                name: thin_series(s.step.tolist(), s.value.tolist()) for name, s in sorted(found.metrics().items())
            },
        }


def _run_facts(study: str, run: RunFolder) -> dict[str, Any]:
    result = read_result(run)
    facts = {"study": study, "arm": run.arm, "seed": run.seed, "run": f"{run.seed}-{run.id}", "status": run.status()}
    if result is None:
        return {**facts, "steps": None, "metrics": {}}
    return {**facts, "status": result["outcome"], "steps": result["steps"], "metrics": result["metrics"]}
