"""Checks for plug-in authors: `check_component`, or `python -m taetpu.testing FILE` to check every kind in a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.testing.report import ComponentError, Report

if TYPE_CHECKING:
    from taetpu.core.config import Component

__all__ = ["ComponentError", "Report", "check_component"]


def check_component(slot: str, kind: "str | Component", *, plugin: Path | str | None = None, **settings: Any) -> Report:
    """Check a component in tiny models against the requirements of its slot.

    Depending on the slot, the checks cover shapes and dtypes (in float32 and bfloat16), random numbers that depend only
    on the key, agreement of compiled and eager execution, causality, gradients, and agreement of packed and single
    runs. See docs/plugins.md.

    Args:
        slot: The name of the slot, e.g. "ffn".
        kind: The name of a kind in the slot, or a component.
        plugin: The file that registers the kind; None if the kind is already registered.
        settings: Values for the fields of the kind.

    Returns:
        The report with the results of all checks. Print it to see a table.

    Raises:
        ComponentError: If a check fails. The message lists every failure with the expected value, the actual value and
            the place in the source.
        UserError: If the slot or the kind does not exist, or the settings are invalid.
    """
    from taetpu.core.jax_setup import prepare_jax

    prepare_jax()
    from taetpu.core.config_parsing import build_component
    from taetpu.core.plugins import load_plugins
    from taetpu.testing.checks_by_slot import check

    if plugin is not None:
        load_plugins([Path(plugin)])
    report = check(build_component(slot, {"kind": kind, **settings} if isinstance(kind, str) else kind))
    if report.failed:
        raise ComponentError(report)
    return report
