"""Plug-ins: the user's Python files, which register additional kinds (`core.registry.register`)."""

import ast
import hashlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.global_state import Change, Snapshot
from taetpu.core.registry import (
    BUILTIN_MODULES,
    import_builtin_kinds,
    registered_by,
    registrations,
    restore,
    unregister,
)
from taetpu.core.slot_requirements import check_declaration

MODULE_PREFIX = "taetpu_plugin_"
"""The prefix of every plug-in's module name."""
REGISTER_REMEDY = "Register a kind instead, and name it in the arms that use it."
_LOADED: dict[str, Snapshot] = {}  # the shared state before the last plug-in was loaded


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in.

    Attributes:
        file: The absolute path of the file.
        source: The content of the file.
        sha256: The SHA-256 digest of the content. It is part of the identity of every run that uses a kind of this
            plug-in.
        kinds: The registered kinds, as `slot/kind`.
    """

    file: Path
    source: bytes
    sha256: str
    kinds: tuple[str, ...]


def load_plugins(files: Iterable[Path]) -> tuple[Plugin, ...]:
    """Load plug-in files and register their kinds. The kinds of previously loaded plug-ins are unregistered.

    Raises:
        UserError: if a file cannot be read or run, if it registers no kind or a malformed kind, or if it changes state
            that all runs share (see `core.global_state`).
    """
    for name in [name for name in sys.modules if name.startswith(MODULE_PREFIX)]:
        _forget(name)
    _LOADED.clear()
    return tuple(_load(file.absolute()) for file in files)  # absolute paths are unambiguous in tracebacks


def loaded_files() -> tuple[Path, ...]:
    """Return the files of the loaded plug-ins, in the order in which they were loaded."""
    return tuple(Path(str(module.__file__)) for module in _modules())


def _load(file: Path) -> Plugin:
    try:
        source = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read this plug-in: {error.strerror}", file=file) from None
    tree = _parse(file, source)
    digest = hashlib.sha256(source).hexdigest()
    name = f"{MODULE_PREFIX}{file.stem.replace('-', '_')}_{digest[:8]}"
    if name in sys.modules:
        problem = "this plug-in is listed twice, or another plug-in has the same content"
        raise UserError(problem, file=file, remedy="List the plug-in once.")
    for slot in BUILTIN_MODULES:  # a snapshot covers only loaded modules
        import_builtin_kinds(slot)
    for module in _imported(tree):
        with suppress(Exception):  # a failing import is reported when the plug-in runs it
            import_module(module)
    before, registered_before = Snapshot(), registrations()
    try:
        _run(name, file, tree)
        registered = registered_by(name)
        if not registered:
            raise UserError(
                "this plug-in registers no kind, so a study cannot use it",
                file=file,
                remedy='Put @register("SLOT", "NAME") from taetpu.plugin before a config class.',
            )
        for cls in registered:
            cls.plugin = digest
            check_declaration(cls)
    except BaseException as error:
        _forget(name)
        restore(registered_before)  # a plug-in may have registered a class of another module
        _undo_changes(before)
        if isinstance(error, UserError | KeyboardInterrupt):
            raise
        raise explain_plugin_error(error, file) or error from None
    if changed := _undo_changes(before):
        _forget(name)
        restore(registered_before)
        raise UserError(f"this plug-in {_summary(changed)}, which all runs share", file=file, remedy=REGISTER_REMEDY)
    _LOADED["snapshot"] = before
    return Plugin(file, source, digest, tuple(sorted(f"{cls.slot}/{cls.kind}" for cls in registered)))


def _parse(file: Path, source: bytes) -> ast.Module:
    """Return a file's syntax tree. Raise `UserError` if the file is not valid Python."""
    try:
        return ast.parse(source, file)
    except SyntaxError as error:
        remedy = "Save the file as UTF-8 text." if re.search("null bytes|encoding|utf-8", error.msg) else None
        raise UserError(f"not valid Python: {error.msg}", file=file, line=error.lineno, remedy=remedy) from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; too deeply nested or too long
        raise UserError(f"not valid Python: {error or type(error).__name__}", file=file) from None


def _imported(tree: ast.Module) -> list[str]:
    """Return the modules of taetpu that a file imports."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.partition(".")[0] == "taetpu"]


def _run(name: str, file: Path, tree: ast.Module) -> None:
    """Execute a file's content as a new module."""
    spec = spec_from_file_location(name, file)
    if spec is None:
        raise UserError("a plug-in must be a Python file", file=file, remedy="Use a file name that ends in .py.")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        # The loader would use stale bytecode if an edit left the file's time and size unchanged.
        exec(compile(tree, file, "exec", dont_inherit=True), vars(module))
    except UserError as error:
        frames = _frames(error, {str(file)})
        raise error.within(file=file, line=frames[-1].lineno if frames else None) from None


def _frames(error: BaseException, files: set[str]) -> list[traceback.FrameSummary]:
    """Return the stack frames of an exception that are in the given files."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]


TRACED = ("TracerBoolConversionError", "ConcretizationTypeError", "TracerIntegerConversionError")
"""The exceptions of JAX for traced values in Python's control flow."""


def explain_plugin_error(error: BaseException, file: Path | None = None) -> UserError | None:
    """Return a `UserError` with the file and line of a plug-in's exception, or None if no plug-in raised it.

    Args:
        error: The exception.
        file: The plug-in that is being loaded. By default, all loaded plug-ins are searched.
    """
    frames = _frames(error, {str(file)} if file else {str(getattr(m, "__file__", "")) for m in _modules()})
    if not frames:
        return None
    last = frames[-1]
    where = "" if last.name == "<module>" else f" in {last.name}"
    text = str(error).strip().split("\n")[0]
    remedy = f"Correct this line: {last.line}" if last.line else None
    if type(error).__name__ in TRACED:
        remedy = f"Numbers and arrays are traced: use jnp.where instead of if, and no float() or int(), in: {last.line}"
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if missing and Path(last.filename).with_name(f"{missing}.py").exists():
        remedy = f"Move the code that the plug-in uses from {missing}.py into this file: a plug-in is a single file."
    return UserError(
        f"the plug-in raised {type(error).__name__}{where}{': ' if text else ''}{text}",
        file=last.filename,
        line=last.lineno,
        remedy=remedy,
    )


@contextmanager
def attribute_errors(problem: str = "", used: Iterable[Component] = ()) -> Iterator[None]:
    """Convert exceptions that a plug-in raises, except Ctrl-C, to a `UserError` with the plug-in's file and line.

    This includes `SystemExit`, because `sys.exit(0)` in a plug-in must not end a study successfully.

    Args:
        problem: The problem to report if the exception comes from an object that a plug-in returned, not from a line of
            the plug-in.
        used: The components in use. The message names the components that plug-ins define.

    Raises:
        UserError: if a plug-in raised an exception.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if (explained := explain_plugin_error(error)) is not None:
            raise explained from None
        plugged = [component for component in used if component.plugin]
        if not plugged or not isinstance(error, Exception):
            raise
        kinds = ", ".join(dict.fromkeys(f"{component.slot} {component.kind!r}" for component in plugged))
        text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        file = Path(str(sys.modules[type(plugged[0]).__module__].__file__))
        remedy = f"Run `python -m taetpu.testing {file.name}` to check each kind of the plug-in."
        cause = "" if kinds in problem else f" with {kinds}"
        raise UserError(f"{problem}{cause}: {text}", file=file, remedy=remedy) from error


@contextmanager
def forbid_changes() -> Iterator[None]:
    """On exit, restore shared state that plug-ins changed since they were loaded, for example in an `init`.

    Raises:
        UserError: if plug-ins changed shared state.
    """
    before = _LOADED.get("snapshot")
    try:
        yield
    except BaseException:
        _undo_changes(before)
        raise
    if changed := _undo_changes(before):
        word = re.findall(r"\w+", changed[0].name)[-1].encode()
        modules = [module for module in _modules() if word in Path(str(module.__file__)).read_bytes()] or _modules()
        problem = f"a kind of this plug-in {_summary(changed)}, which all runs share, while it is built"
        raise UserError(problem, file=modules[-1].__file__, remedy=REGISTER_REMEDY)


def _undo_changes(before: Snapshot | None) -> list[Change]:
    """Undo and return all changes to shared state.

    A process that continues after the error, such as a notebook's kernel, must not keep rejected changes.
    """
    changed = before.changes() if before else []
    for change in changed:
        change.undo()
    return changed


def _summary(changed: list[Change]) -> str:
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{changed[0]}{more}"


def _forget(name: str) -> None:
    """Remove a plug-in's module and kinds."""
    unregister(name)
    sys.modules.pop(name, None)


def _modules() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith(MODULE_PREFIX)]
