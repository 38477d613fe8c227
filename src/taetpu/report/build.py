"""Building of a study's report from the study's folder."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from taetpu.core.errors import UserError
from taetpu.report import arms, held_out, overview
from taetpu.report.chart_files import FIGURES, render_figure
from taetpu.report.charts import Spec
from taetpu.report.comparison import Results
from taetpu.report.csvs import arms_csv, runs_csv
from taetpu.report.curve_charts import fill_spec
from taetpu.report.curves import read_curves
from taetpu.report.exports import markdown
from taetpu.report.inputs import Background, Facts
from taetpu.report.latex import latex_table
from taetpu.report.page import chart_data, render_page
from taetpu.report.priors import find_priors
from taetpu.stats.costs import read_costs
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder


def build_report(folder: StudyFolder, figures: str = "") -> dict[str, str]:
    """Write a study's report: `report/index.html`, `report.md`, `verdicts.tex`, `arms.csv` and `runs.csv`.

    Args:
        folder: the study's folder.
        figures: format of figures, `pdf`, `svg` or `png`. If it is not empty, each chart is also written as a file.

    Returns:
        The location of each file by format (`html`, `markdown`, `latex`, `arms`, `runs`). With `figures`, the entry
        `figures` is the location of their folder.

    Raises:
        UserError: If the study has no results, a stored file is damaged, or the figure format is unknown.
    """
    results = folder.read_results()
    if results is None:
        remedy = "Run the study first: `taetpu run STUDY`."
        raise UserError(f"study {folder.name!r} has no results", file=folder.where, remedy=remedy)
    beside = gather_background(folder, results)
    written = {
        "html": folder.write_report("index.html", render_page(results, beside).encode()),
        "markdown": folder.write_report("report.md", markdown(results, beside).encode()),
        "latex": folder.write_report("verdicts.tex", latex_table(results).encode()),
        "arms": folder.write_report("arms.csv", arms_csv(results).encode()),
        "runs": folder.write_report("runs.csv", runs_csv(results).encode()),
    }
    if figures:
        if figures not in FIGURES:
            raise UserError(
                f"unknown figure format {figures!r}", path=("figures",), remedy=f"Use {', '.join(FIGURES)}."
            )
        for name, spec in _charts(results, beside):
            place = folder.write_report(f"figures/{name}.{figures}", render_figure(spec, f".{figures}"))
            written["figures"] = place.rpartition("/")[0]
    return written


def _charts(results: Results, beside: Background) -> Iterator[tuple[str, Spec]]:
    """Yield a file name and the spec for every chart in the report, filled with the same data as on the page."""
    drawn = chart_data(results, beside)
    for name, spec in drawn["charts"].items():
        if spec is not None:
            yield _file_name(name), spec
    for found in drawn["curves"]:
        for arm in found["arms"]:
            colour = drawn["colours"][drawn["verdicts"][arm]]
            data = {name: found[name].get(arm, {}) for name in ("arms", "seeds")}
            baseline = found["arms"].get(drawn["baselines"].get(arm, arm), {})
            lines = {"arm": data["arms"], "seeds": data["seeds"], "baseline": baseline}
            yield _file_name(f"{found['metric']} {arm}"), fill_spec(found["curve"], lines, colour, found["ranges"][arm])
        for arm, line in found["differences"].items():
            bounds, colour = found["difference_ranges"][arm], drawn["colours"][drawn["verdicts"][arm]]
            name = _file_name(f"{found['metric']} difference {arm}")
            yield name, fill_spec(found["difference"], {"arm": line}, colour, bounds)


def _file_name(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9=.,+_-]+", "-", title)


def gather_background(folder: StudyFolder, results: Results) -> Background:
    """Return the report's inputs besides the results, such as costs, curves, samples and provenance."""
    runs = [(arm["name"], run["seed"], run["id"]) for arm in results["arms"] for run in arm["runs"]]
    ended = [folder.run(arm, seed, run_id) for arm, seed, run_id in runs if run_id]
    data = _data_by_arm(ended)
    return Background(
        costs=read_costs(folder, results),
        curves=read_curves(folder, results),
        arms=arms.arm_details(folder, results),
        provenance=_provenance(results, [run.result() or {} for run in ended]),
        priors=find_priors(results, folder.read_study().get("base", {})),
        trained=overview.describe_training(results, folder, arms.first_settings(folder, results["arms"][0])),
        cautions=[
            *overview.learning_cautions(results, next(iter(data.values()), {})),
            *held_out.describe_held_out(data),
        ],
    )


def _data_by_arm(ended: list[RunFolder]) -> dict[str, Mapping[str, Any]]:
    """Return the facts recorded by each arm's task, taken from the arm's first run that ended."""
    found: dict[str, Mapping[str, Any]] = {}
    for run in ended:
        if run.arm not in found:
            found[run.arm] = (run.result() or {}).get("environment", {}).get("data", {})
    return found


def _provenance(results: Results, ended: list[Mapping[str, Any]]) -> Facts:
    """Return facts on the runs' environment. If a fact differs between runs, all its values are listed."""
    facts: dict[str, list[str]] = {"study": [results["study"]], "seeds": [", ".join(map(str, results["seeds"]))]}
    facts["runs that ended"] = [str(len(ended))]
    for result in ended:
        details = {**result.get("environment", {}), "steps": result.get("steps"), "pack": result.get("pack", {})}
        for name, value in _flatten(details):
            values = facts.setdefault(name, [])
            if str(value) not in values:
                values.append(str(value))
    return [(name, ", ".join(values)) for name, values in facts.items()]


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of each item in nested data, except items that are None."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
