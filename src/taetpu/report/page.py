"""The report as one offline HTML file: text, tables, data, chart specs and the scripts that draw them.

The page's content security policy allows only its own two scripts, by hash. Vega's expressions are interpreted, not
compiled, so the policy needs no `unsafe-eval`.
"""

import base64
import functools
import hashlib
import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from taetpu.report import charts, contents, curve_charts, overview, panels, summary
from taetpu.report.comparison import Results
from taetpu.report.inputs import Background
from taetpu.report.vega import vega_bundle


def render_page(results: Results, background: Background) -> str:
    """Render the report as HTML."""
    bundle, script = vega_bundle(), _resource("page.js")
    return _template().render(
        results=results,
        rows=summary.verdict_rows(results, background.costs),
        summary=summary,
        overview=overview,
        sections=contents.build_sections(results, background.costs, background.priors),
        background=background,
        arms=[arm["name"] for arm in results["arms"] if arm["against"]],
        style=Markup(_resource("page.css")),
        vega=Markup(bundle),
        script=Markup(script),
        hashes=" ".join(map(_hash, (bundle, script))),
        data=Markup(_script_json(chart_data(results, background))),
    )


def chart_data(results: Results, background: Background) -> dict[str, Any]:
    """Return the data of the page's script: specs, curves by metric and arm, colours."""
    return {
        "charts": {
            "forest": charts.forest_plot(results, background.priors),
            **panels.draw_panels(results, background.costs),
        },
        "curves": curve_charts.drawings(background.curves),
        "baselines": {arm["name"]: arm["against"] for arm in results["arms"] if arm["against"]},
        "verdicts": {arm["name"]: summary.verdict_label(arm) for arm in results["arms"]},
        "colours": curve_charts.ARM_COLOURS,
        "themes": charts.THEMES,
    }


def _script_json(data: Any) -> str:
    """Serialise to JSON for a script element, with `<` escaped."""
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
    return environment.get_template("page.html.j2")


def _resource(name: str) -> str:
    return files("taetpu.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
