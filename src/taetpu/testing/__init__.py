"""Checks for plug-in authors: `check_component`, or `python -m taetpu.testing FILE` for every kind in a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.testing.report import ComponentError, Report

if TYPE_CHECKING:
    from taetpu.core.config import Component

__all__ = ["ComponentError", "Report", "check_component"]


def check_component(slot: str, kind: "str | Component", *, plugin: Path | str | None = None, **settings: Any) -> Report:
    """Check a component in tiny models against the requirements of its slot.

    The checks depend on the slot: shapes and dtypes (float32 and bfloat16), randomness from the key alone, jit against
    eager execution, causality, gradients, scanned layers against unrolled ones, packed runs against single ones, and
    that traced fields are inputs of the program. See docs/plugins.md.

    Args:
        slot: The slot, e.g. "ffn".
        kind: A kind of the slot by name, or a component.
        plugin: The file that registers the kind; None for a kind that is already registered.
        settings: Fields of the kind.

    Returns:
        The report of every check. `print` it for a table.

    Raises:
        ComponentError: If a check fails. The text lists every failure with expected and actual values and the place.
        UserError: If the slot or the kind does not exist, or the settings are invalid.
    """
    from taetpu.core.runtime import prepare_jax

    prepare_jax()
    from taetpu.core.loading import build_component
    from taetpu.core.plugins import load_plugins
    from taetpu.testing.slots import check

    if plugin is not None:
        load_plugins([Path(plugin)])
    report = check(build_component(slot, {"kind": kind, **settings} if isinstance(kind, str) else kind))
    if report.failed:
        raise ComponentError(report)
    return report
