"""Report as a single offline HTML file with text, tables, data, chart specs and the scripts that draw the charts.

The content security policy of the page identifies the two scripts in the file by hash and allows no others. Vega
interprets expressions instead of compiling them, so the policy does not need `unsafe-eval`.
"""

import base64
import functools
import hashlib
import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from taetpu.report import charts, curve_charts, design_charts, overview, summary
from taetpu.report.chart_files import vega_bundle
from taetpu.report.inputs import Inputs
from taetpu.report.judged import noise_band
from taetpu.report.outcomes import ARRIVALS, arrival_chart
from taetpu.report.place_curves import place_chart
from taetpu.report.post_hoc import post_hoc_charts
from taetpu.report.prose_html import cell_html, prose_html
from taetpu.report.rungs import mixes_metrics
from taetpu.report.sections import build_sections
from taetpu.report.verdict_style import DARK, LIGHT, MARKS, VERDICTS, verdict_css
from taetpu.stats.results import Results


def render_page(results: Results, inputs: Inputs) -> str:
    """Render the report as HTML."""
    bundle, script = vega_bundle(), _resource("page.js")
    return _template().render(
        results=results,
        band=noise_band(results),
        mixed=mixes_metrics(results),
        searched=summary.is_search(results),
        kind="Ablation study" if "judged" not in results else "Exploratory analysis of a table of results",
        rows=summary.verdict_rows(results, inputs.costs),
        summary=summary,
        counts=overview.count_labels(results),
        notices=[*summary.notices(results), *inputs.cautions],
        marks=MARKS,
        verdicts=VERDICTS,
        verdict_css=Markup(verdict_css()),
        sections=build_sections(results, inputs.costs, inputs.priors, inputs.places, inputs.measured, inputs.spent),
        inputs=inputs,
        arms=[arm["name"] for arm in results["arms"] if arm["against"]],
        style=Markup(_resource("page.css")),
        vega=Markup(bundle),
        script=Markup(script),
        hashes=" ".join(map(_hash, (bundle, script))),
        data=Markup(_script_json(chart_data(results, inputs))),
    )


def chart_data(results: Results, inputs: Inputs) -> dict[str, Any]:
    """Return the data for `page.js`: chart specs, curves by metric and arm, baselines, verdicts and colours."""
    return {
        "charts": {
            "forest": charts.forest_plot(results),
            **({ARRIVALS: arrivals} if (arrivals := arrival_chart(results)) else {}),
            **design_charts.draw_panels(results, inputs.costs),
            **{curves.title: place_chart(curves) for curves in inputs.places},
            **post_hoc_charts(results),
        },
        "frontiers": design_charts.frontier_charts(results, inputs.costs),
        "curves": curve_charts.drawings(inputs.curves),
        "baselines": {arm["name"]: arm["against"] for arm in results["arms"] if arm["against"]},
        "verdicts": {arm["name"]: summary.verdict_label(arm) for arm in results["arms"]},
        "colours": {"light": LIGHT, "dark": DARK},
        "themes": charts.THEMES,
    }


def _script_json(data: Any) -> str:
    """Serialize data as JSON for a script element, with `<` escaped."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")


@functools.cache
def _template():
    environment = Environment(
        loader=PackageLoader("taetpu.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(prose=prose_html, cell=cell_html)
    return environment.get_template("page.html.j2")


def _resource(name: str) -> str:
    return files("taetpu.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
