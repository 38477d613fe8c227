"""Plug-ins: files of the user's, each a Python module that registers kinds of its own (`core.registry.register`)."""

import hashlib
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.registry import BUILTIN, registered, withdraw

PREFIX = "taetpu_plugin_"


@dataclass(frozen=True)
class Plugin:
    """A plug-in as it was loaded.

    Attributes:
        source: its content.
        sha256: of the content; it enters the identity of every run that uses one of its kinds.
        kinds: what it registered, as `slot/kind`.
    """

    file: Path
    source: bytes
    sha256: str
    kinds: tuple[str, ...]


def load_plugins(files: Iterable[Path]) -> tuple[Plugin, ...]:
    """Run plug-in files, so that their kinds can be named. Kinds of plug-ins loaded before are forgotten.

    Raises:
        UserError: a file cannot be read or run, registers nothing, or changes what it imports from taetpu.
    """
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        withdraw(name)
        del sys.modules[name]
    return tuple(_load(file.absolute()) for file in files)  # a traceback's file is then told from others'


def _load(file: Path) -> Plugin:
    source = _read(file)
    digest = hashlib.sha256(source).hexdigest()
    for builtin in BUILTIN.values():
        import_module(builtin)
    before = _contents()
    try:
        module = _run(file, source, digest)
    finally:  # a process that goes on, such as a notebook, must not go on with what was refused
        changed = _put_back(before)
    if changed:
        withdraw(module)
        del sys.modules[module]
        raise UserError(
            f"this plug-in replaces {changed[0]}, which arms that do not use it would feel too",
            file=file,
            remedy="register a kind of your own instead",
        )
    found = registered(module)
    if not found:
        raise UserError(
            "this plug-in registers no kind, so that a study could use nothing of it",
            file=file,
            remedy='put @register("SLOT", "NAME") from taetpu.plugin before a config class',
        )
    for cls in found:
        cls.plugin = digest
    return Plugin(file, source, digest, tuple(sorted(f"{cls.slot}/{cls.kind}" for cls in found)))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read this plug-in: {error.strerror}", file=file) from None


def _run(file: Path, source: bytes, digest: str) -> str:
    """Execute a file's content as a module of its own; returns the module's name."""
    name = f"{PREFIX}{file.stem.replace('-', '_')}_{digest[:8]}"
    if name in sys.modules:
        raise UserError("this plug-in is named twice, or two have the same content", file=file, remedy="name it once")
    spec = spec_from_file_location(name, file)
    if spec is None:
        raise UserError("a plug-in is a Python file", file=file, remedy="give it a name that ends in .py")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        # Not by the loader: it takes bytecode of an earlier content where an edit left time and size as they were.
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    except Exception as error:
        withdraw(name)
        del sys.modules[name]
        if isinstance(error, UserError):
            raise error.at(file=file, line=_line_in(error, file)) from None
        raise explained(error, file) or error from None
    return name


def explained(error: BaseException, file: Path | None = None) -> UserError | None:
    """An exception that came out of a plug-in, as one with the plug-in's file and line; None when none is to blame.

    Args:
        file: the plug-in that is being loaded; else any plug-in loaded now.
    """
    if isinstance(error, SyntaxError) and file is not None and error.filename == str(file):
        return UserError(f"not valid Python: {error.msg}", file=file, line=error.lineno)
    files = {str(file)} if file else {str(getattr(m, "__file__", "")) for m in _modules()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        return None
    last = frames[-1]
    where = "" if last.name == "<module>" else f" in {last.name}"
    text = str(error).strip().split("\n")[0]
    return UserError(
        f"the plug-in raised {type(error).__name__}{where}: {text}",
        file=last.filename,
        line=last.lineno,
        remedy=f"look at: {last.line}" if last.line else None,
    )


def _line_in(error: BaseException, file: Path) -> int | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return frames[-1].lineno if frames else None


def _modules() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith(PREFIX)]


def _contents() -> dict[str, tuple[Any, str, Any]]:
    """What a plug-in must leave as it is: every name of every taetpu module, and of the classes in them.

    By its full name, each with the module or class that it is a name of, its name there, and what it stands for.
    """
    found: dict[str, tuple[Any, str, Any]] = {}
    for name, module in list(sys.modules.items()):
        if name != "taetpu" and not name.startswith("taetpu."):
            continue
        for attribute, value in list(vars(module).items()):
            found[f"{name}.{attribute}"] = module, attribute, value
            if isinstance(value, type) and value.__module__ == name:
                own = {k: v for k, v in vars(value).items() if k == "__call__" or not k.startswith(("__", "_abc_"))}
                found |= {f"{name}.{attribute}.{k}": (value, k, v) for k, v in own.items()}
    return found


def _put_back(before: dict[str, tuple[Any, str, Any]]) -> list[str]:
    """Undo what was replaced since; gives the full names, sorted."""
    now = _contents()
    changed = sorted(name for name in before.keys() & now.keys() if before[name][2] is not now[name][2])
    for name in changed:
        setattr(*before[name])
    return changed
