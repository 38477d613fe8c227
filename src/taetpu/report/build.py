"""Build a study's report from the files in the study's folder."""

import re
from collections.abc import Iterator

from taetpu.core.errors import UserError
from taetpu.report.chart_files import FIGURES, render_figure
from taetpu.report.charts import Spec
from taetpu.report.curve_charts import fill_spec
from taetpu.report.inputs import Inputs, read_inputs
from taetpu.report.page import chart_data, render_page
from taetpu.report.text_formats import arms_csv, latex_table, markdown, runs_csv
from taetpu.stats.load import require_results
from taetpu.stats.results import Results
from taetpu.store.study import StudyFolder


def build_report(folder: StudyFolder, figures: str = "") -> dict[str, str]:
    """Write a study's report: `report/index.html`, `report.md`, `verdicts.tex`, `arms.csv` and `runs.csv`.

    Args:
        folder: the study's folder.
        figures: the format (`pdf`, `svg` or `png`) in which each chart is also written to a file. If the format is
            empty, no figures are written.

    Returns:
        The location of each file by format (`html`, `markdown`, `latex`, `arms`, `runs`). If figures are
        written, the entry `figures` is the location of their folder.

    Raises:
        UserError: If the study has no results, a stored file is damaged, or the figure format is unknown.
    """
    if figures and figures not in FIGURES:
        raise UserError(f"unknown figure format {figures!r}", path=("figures",), remedy=f"Use {', '.join(FIGURES)}.")
    results = require_results(folder)
    inputs = read_inputs(folder, results)
    written = {
        "html": folder.write_report("index.html", render_page(results, inputs).encode()),
        "markdown": folder.write_report("report.md", markdown(results, inputs).encode()),
        "latex": folder.write_report("verdicts.tex", latex_table(results).encode()),
        "arms": folder.write_report("arms.csv", arms_csv(results).encode()),
        "runs": folder.write_report("runs.csv", runs_csv(results).encode()),
    }
    if figures:
        for title, spec in _charts(results, inputs):
            name = re.sub(r"[^A-Za-z0-9=.,+_-]+", "-", title)
            place = folder.write_report(f"figures/{name}.{figures}", render_figure(spec, f".{figures}"))
            written["figures"] = place.rpartition("/")[0]
    return written


def _charts(results: Results, inputs: Inputs) -> Iterator[tuple[str, Spec]]:
    """Yield the title and the spec of every chart in the report. The specs contain the data of the page's charts."""
    drawn = chart_data(results, inputs)
    yield from ((name, spec) for name, spec in drawn["charts"].items() if spec is not None)
    for curves in drawn["curves"]:
        for arm, line in curves["arms"].items():
            colour = drawn["colours"]["light"][drawn["verdicts"][arm]]
            baseline = curves["arms"].get(drawn["baselines"].get(arm, arm), {})
            lines = {"arm": line, "seeds": curves["seeds"].get(arm, {}), "baseline": baseline}
            yield f"{curves['metric']} {arm}", fill_spec(curves["curve"], lines, colour, curves["ranges"][arm])
            if difference := curves["differences"].get(arm):
                spec = fill_spec(curves["difference"], {"arm": difference}, colour, curves["difference_ranges"][arm])
                yield f"{curves['metric']} difference {arm}", spec
