"""Transformer ablation studies, from a laptop to a TPU pod.

The names below are imported when they are first used, so that importing the package stays cheap.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "FailedRuns",
    "UserError",
    "from_huggingface",
    "load_folder",
    "load_study",
    "register",
    "run_study",
    "to_huggingface",
]

_WHERE = {
    "FailedRuns": "core.errors",
    "UserError": "core.errors",
    "from_huggingface": "interop.huggingface",
    "load_folder": "interop.huggingface",
    "load_study": "spec.loading",
    "register": "core.registry",
    "run_study": "study.run",
    "to_huggingface": "interop.huggingface",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
