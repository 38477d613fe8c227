"""Transformer ablation studies, from a laptop to a TPU pod.

The names below are imported when they are first used, so that importing the package stays cheap.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "FailedRuns": "taetpu.core.errors",
    "UserError": "taetpu.core.errors",
    "from_huggingface": "taetpu.interop.huggingface",
    "load_folder": "taetpu.interop.huggingface",
    "load_study": "taetpu.spec.loading",
    "register": "taetpu.core.registry",
    "run_study": "taetpu.study.run",
    "to_huggingface": "taetpu.interop.huggingface",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
