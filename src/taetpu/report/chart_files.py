"""Render charts to files or to SVG, and provide the scripts that render charts in a browser."""

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import altair as alt
import vl_convert

from taetpu.core.atomic_files import explain_os_error, write_file
from taetpu.core.jax_setup import cache_folder
from taetpu.core.output_files import check_output
from taetpu.report.charts import THEMES, Spec

WIDTH = 520
RASTER_SCALE = 2.0
FONT_PADDING = {"left": 32, "right": 16, "top": 5, "bottom": 5}
"""Space around an SVG, in pixels: labels in DejaVu Sans are a sixth wider than in Arial."""
FORMATS: dict[str, Callable[[str], bytes]] = {
    ".svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
    ".pdf": lambda spec: bytes(vl_convert.vegalite_to_pdf(spec)),
    ".png": lambda spec: bytes(vl_convert.vegalite_to_png(spec, scale=RASTER_SCALE)),
    ".json": lambda spec: spec.encode(),
    ".html": lambda spec: vl_convert.vegalite_to_html(spec, bundle=True).encode(),
}
FIGURES = ("pdf", "svg", "png")
"""Formats in which `build_report` writes charts as files."""


def save_chart(drawn: alt.TopLevelMixin, file: Path) -> None:
    """Write a chart to a file.

    Args:
        drawn: the chart.
        file: the file to write. The suffix selects the format.

    Raises:
        UserError: If the suffix is not one of `FORMATS`, or the file cannot be written.
    """
    check_output(file, FORMATS, "chart")
    data = FORMATS[file.suffix](json.dumps(drawn.to_dict()))
    with explain_os_error("write", file, needed=len(data), option="-o"):
        file.write_bytes(data)


def render_figure(spec: Spec, suffix: str) -> bytes:
    """Render a chart of the report with light colours in the format `suffix`, a key of `FORMATS`.

    SVG has more space around the chart, because a reader's font may be wider than the one that measured the labels.
    """
    padded = {**spec, "padding": FONT_PADDING} if suffix == ".svg" else spec
    return FORMATS[suffix](_spec_json(padded, {**THEMES["light"], "background": "white"}))


def as_altair(spec: Spec) -> alt.LayerChart:
    """Return a layered chart of the report as an Altair chart with light colours, which a notebook displays."""
    return alt.LayerChart.from_dict(json.loads(_spec_json(spec, {**THEMES["light"], "background": "white"})))


def render_svg(spec: Spec, theme: Spec) -> str:
    """Render a chart of the report as SVG with a theme."""
    return vl_convert.vegalite_to_svg(_spec_json(spec, theme))


def draw_svg(drawn: alt.TopLevelMixin) -> str:
    """Return a chart with its own colours and size as SVG."""
    return vl_convert.vegalite_to_svg(json.dumps(drawn.to_dict()))


def _spec_json(spec: Spec, theme: Spec) -> str:
    return json.dumps({**spec, "width": WIDTH, "autosize": {"type": "pad"}, "config": theme})


@functools.cache
def vega_bundle() -> str:
    """Return vl-convert's bundle of Vega, Vega-Lite and vega-embed, escaped for use inside a script element.

    vl-convert needs seconds to create the bundle, so it is cached on disk.
    """
    file = cache_folder() / f"vega-bundle-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):  # a damaged file is written again
        return file.read_bytes().decode()
    bundle = vl_convert.javascript_bundle().replace("</script", "<\\/script")  # pyright: ignore[reportCallIssue]
    with suppress(OSError):
        write_file(file, bundle.encode(), replace=True)
    return bundle
