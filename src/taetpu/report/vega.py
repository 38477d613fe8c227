"""JavaScript bundle that draws charts in a browser."""

import functools

import vl_convert


@functools.cache
def vega_bundle() -> str:
    """Return vl-convert's bundle of Vega, Vega-Lite and vega-embed, escaped for use inside a script element."""
    return vl_convert.javascript_bundle().replace("</script", "<\\/script")  # pyright: ignore[reportCallIssue]
