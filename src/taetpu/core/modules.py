"""Top-level module names that a user's file must not shadow."""

import re
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from pkgutil import iter_modules

STARTUP_MODULES = ("sitecustomize", "usercustomize")
"""Modules that Python imports at start-up if they exist."""

TOOL_FILES = re.compile(r"conftest|noxfile|setup|tests|test_.*|.*_test", re.IGNORECASE)
"""Names of files that pytest, pip or nox run if they exist, and the usual package for tests."""


def is_run_by_tools(name: str) -> bool:
    """Return whether pytest, pip or nox would automatically run a file `name`.py in the current folder."""
    return TOOL_FILES.fullmatch(name) is not None


def find_shadowed(name: str) -> str | None:
    """Return the module that a file `name`.py would shadow for programs started in its folder, or None.

    Case is ignored, because `Jax.py` and `jax.py` are the same file on some file systems. Modules in the current folder
    are not considered.
    """
    return next((module for module in importable_modules() if module.casefold() == name.casefold()), None)


def importable_modules() -> set[str]:
    """Return all top-level modules of Python, installed packages and taetpu's optional requirements."""
    here = Path.cwd().resolve()
    elsewhere = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    names = {*sys.stdlib_module_names, *sys.builtin_module_names, *STARTUP_MODULES, *_extras()}
    names |= {module.name for module in iter_modules(elsewhere)}
    return names | set(packages_distributions())  # `iter_modules` omits namespace packages, such as google


def _extras() -> set[str]:
    """Return the optional requirements of taetpu as module names."""
    try:
        wanted = requires("taetpu") or []
    except PackageNotFoundError:  # run from a checkout
        return set()
    found = (re.match(r"[\w.-]+", line) for line in wanted)
    return {name[0].replace("-", "_").partition(".")[0] for name in found if name}
