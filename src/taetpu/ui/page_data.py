"""Data for the pages without a message stream: the list of studies, the table of all runs, and a single run."""

from typing import Any
from urllib.parse import quote

from taetpu.core.errors import UserError, check_known
from taetpu.report.inputs import read_inputs
from taetpu.report.page import render_page
from taetpu.stats.analyse import compute_results
from taetpu.stats.load import read_result
from taetpu.store.addresses import Match, only_run
from taetpu.store.flat_config import differing_paths, read_settings
from taetpu.store.index import find_studies, list_studies
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.ui.feed import name_series, thin_series

MAX_SAMPLES = 20
"""Maximum number of samples shown for a run. The last samples are shown."""


class Root:
    """Folder of a study, or root folder with several studies."""

    def __init__(self, place: str):
        self.place = place

    def study(self, name: str) -> StudyFolder:
        """Return the study with this name.

        Raises:
            UserError: If there is no study with this name.
        """
        studies = {study.name: study for study in find_studies(self.place)}
        check_known(name, studies, f"there is no study {name!r} here", file=self.place)
        return studies[name]

    def report(self, name: str) -> str:
        """Return the report of a study as HTML, with the runs that ended so far.

        Raises:
            UserError: If there is no study with this name, or a stored file is damaged.
        """
        folder = self.study(name)
        results = compute_results(folder)
        return render_page(results, read_inputs(folder, results))

    def studies(self) -> list[dict[str, Any]]:
        """Return a row for each study, including the study's progress."""
        rows = []
        for entry in list_studies(self.place):
            row = {"study": entry.name, "arms": entry.arms, "seeds": entry.seeds, "done": entry.done}
            rows.append({**row, "runs": entry.total, "changed": entry.changed.isoformat(), "problem": entry.problem})
        return rows

    def runs(self) -> dict[str, Any]:
        """Return all runs of all studies, the settings that differ between runs, and the problems of damaged runs."""
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
        """Return the settings, samples, result and series of a run, and the names of the series.

        Args:
            study: name of the study.
            arm: name of the arm.
            run: seed and ID of the run, as `seed-id`.

        Raises:
            UserError: If there is no such study or run, or a file of the run is damaged.
        """
        owner = self.study(study)
        folder = next((each for each in owner.runs() if each.arm == arm and f"{each.seed}-{each.id}" == run), None)
        if folder is None:
            raise UserError(f"study {study!r} has no run {arm}/{run}", remedy="See the study's page for its runs.")
        samples, series = folder.samples(), folder.metrics()
        return {
            **_run_facts(study, folder),
            "settings": read_settings(folder),
            "samples": {str(step): samples[step] for step in sorted(samples)[-MAX_SAMPLES:]},
            "result": folder.result(),
            "series": {name: thin_series(s.step.tolist(), s.value.tolist()) for name, s in sorted(series.items())},
            "names": name_series(owner.read_study().get("plan", {}), series),
        }


def page_path(match: Match) -> str:
    """Return the path of the page that shows a study or run; that of the list of studies for a folder of studies."""
    if match.root is not None:
        return "/"
    run = match.run
    if run is None and match.seed is not None:
        run = only_run(match.runs(), match.name, match.place)
    parts = ["study", match.study.name] if run is None else ["run", run.study, run.arm, f"{run.seed}-{run.id}"]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _run_facts(study: str, run: RunFolder) -> dict[str, Any]:
    result = read_result(run) or {"outcome": "unfinished", "steps": None, "metrics": {}}
    facts = {"study": study, "arm": run.arm, "seed": run.seed, "run": f"{run.seed}-{run.id}"}
    return {**facts, "status": result["outcome"], "steps": result["steps"], "metrics": result["metrics"]}
