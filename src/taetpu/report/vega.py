"""The code that draws charts in a browser."""

import functools

import vl_convert


@functools.cache
def vega_bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which comes with vl-convert. It may stand in a script element."""
    return vl_convert.javascript_bundle().replace("</script", "<\\/script")  # pyright: ignore[reportCallIssue]
