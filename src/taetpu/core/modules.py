"""Top-level names that Python can import, which a file of the user's must not take."""

import re
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from pkgutil import iter_modules

STARTUP_MODULES = ("sitecustomize", "usercustomize")
"""Modules that Python imports by itself at start-up, where it finds any."""

TOOL_FILES = re.compile(r"conftest|noxfile|setup|tests|test_.*|.*_test", re.IGNORECASE)
"""Names of files that tools run by themselves where they find any: pytest, pip, nox; and the usual package of tests."""


def is_run_by_tools(name: str) -> bool:
    """Would a tool import or run a file `name`.py of this folder by itself?"""
    return TOOL_FILES.fullmatch(name) is not None


def find_shadowed(name: str) -> str | None:
    """Return the module that a file `name`.py would hide from programs started in its folder, or None.

    Case is ignored, since some file systems ignore it: `Jax.py` is `jax.py` there. Modules of the current folder itself
    do not count.
    """
    return next((module for module in importable_modules() if module.casefold() == name.casefold()), None)


def importable_modules() -> set[str]:
    """Return every top-level module of Python, of what is installed, and of what taetpu's extras would install."""
    here = Path.cwd().resolve()
    elsewhere = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    names = {*sys.stdlib_module_names, *sys.builtin_module_names, *STARTUP_MODULES, *_extras()}
    names |= {module.name for module in iter_modules(elsewhere)}
    return names | set(packages_distributions())  # namespace packages, such as google, are listed here alone


def _extras() -> set[str]:
    """Return the optional requirements of taetpu as module names."""
    try:
        wanted = requires("taetpu") or []
    except PackageNotFoundError:  # run from a checkout
        return set()
    found = (re.match(r"[\w.-]+", line) for line in wanted)
    return {name[0].replace("-", "_").partition(".")[0] for name in found if name}
