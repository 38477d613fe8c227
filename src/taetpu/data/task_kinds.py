"""Slot `task`: imports every module of `data`, so that a new file of this package can register a task."""

from importlib import import_module
from pkgutil import iter_modules

from taetpu import data

for module in iter_modules(data.__path__):
    import_module(f"{data.__name__}.{module.name}")
