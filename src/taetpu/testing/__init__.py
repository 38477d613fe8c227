"""What a plug-in's author checks with: `check_component`, or `python -m taetpu.testing FILE` for every kind in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.testing.report import ComponentError, Report

if TYPE_CHECKING:
    from taetpu.core.config import Component

__all__ = ["ComponentError", "Report", "check_component"]


def check_component(slot: str, kind: "str | Component", *, plugin: Path | str | None = None, **settings: Any) -> Report:
    """Try a component in tiny models and prove what its slot asks for; `print` shows what was checked.

    What is checked depends on the slot: shapes and types (bfloat16 too), that nothing is random but by the key, that
    jit agrees with eager execution, causality, gradients, that layers under a scan agree with layers one by one and
    packed runs with single ones, and that what is marked as traced really is. See docs/plugins.md.

    Args:
        kind: a kind of the slot by name, or a component.
        plugin: the file that registers the kind; left out for kinds that are registered already.
        settings: fields of the kind.

    Raises:
        ComponentError: a check failed; the text names each that did, what was expected, what was seen, and where.
        UserError: no such slot or kind, or settings that it refuses.
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
