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
from importlib.util import decode_source, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from taetpu.core.config import Component
from taetpu.core.declarations import check_declaration
from taetpu.core.errors import UserError
from taetpu.core.plugin_code import MODULE_PREFIX, announce_slow_import, guard_exit
from taetpu.core.registry import BUILTIN_MODULES, registered_by, unregister
from taetpu.core.signals import is_interrupt
from taetpu.core.snapshot import LIBRARIES, Change, Snapshot

_LOADED: dict[str, Snapshot] = {}  # the shared state before the last plug-in was loaded
UTF_8_REMEDY = "save it as UTF-8 text, without another encoding in its first two lines"
REGISTER_REMEDY = "register a kind instead, and name it in the arms that are to use it"


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in.

    Attributes:
        file: The absolute path of the file.
        source: The content of the file.
        sha256: The SHA-256 digest of the content. It is part of the identity of every run that uses one of the kinds.
        kinds: The registered kinds, as `slot/kind`.
    """

    file: Path
    source: bytes
    sha256: str
    kinds: tuple[str, ...]


def load_plugins(files: Iterable[Path]) -> tuple[Plugin, ...]:
    """Load plug-in files and register their kinds. Plug-ins that were loaded before are unregistered.

    Raises:
        UserError: if a file cannot be read or run, if it registers no kind or a malformed kind, or if it changes state
            that all runs share (see `core.snapshot`).
    """
    for name in [name for name in sys.modules if name.startswith(MODULE_PREFIX)]:
        _forget(name)
    _LOADED.clear()
    return tuple(_load(file.absolute()) for file in files)  # absolute paths are unambiguous in tracebacks


def _load(file: Path) -> Plugin:
    source = _read(file)
    tree = _parsed(file, source)
    digest = hashlib.sha256(source).hexdigest()
    name = f"{MODULE_PREFIX}{file.stem.replace('-', '_')}_{digest[:8]}"
    if name in sys.modules:
        raise UserError("this plug-in is named twice, or two have the same content", file=file, remedy="name it once")
    for module in BUILTIN_MODULES.values():
        import_module(module)
    for module in _imported(tree):
        with suppress(Exception):  # a failing import is reported when the plug-in runs it
            import_module(module)
    before = Snapshot()
    guard_exit()
    try:
        with announce_slow_import(file):
            _run(name, file, tree)
        found = registered_by(name)
        if not found:
            raise UserError(
                "this plug-in registers no kind, so that a study could use nothing of it",
                file=file,
                remedy='put @register("SLOT", "NAME") from taetpu.plugin before a config class',
            )
        for cls in found:
            cls.plugin = digest
            check_declaration(cls)
    except BaseException as error:
        _forget(name)
        _undo(before, name)
        if isinstance(error, UserError) or is_interrupt(error):
            raise
        raise explain_plugin_error(error, file) or error from None
    if changed := _undo(before, name):
        _forget(name)
        raise UserError(f"this plug-in {_listed(changed)}, which all runs share", file=file, remedy=REGISTER_REMEDY)
    _LOADED["snapshot"] = before
    return Plugin(file, source, digest, tuple(sorted(f"{cls.slot}/{cls.kind}" for cls in found)))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read this plug-in: {error.strerror}", file=file) from None


def _parsed(file: Path, source: bytes) -> ast.Module:
    """Return a file's syntax tree.

    Raises:
        UserError: if the file is not valid Python, or is too deeply nested or too long for the parser.
    """
    text = _decoded(file, source)
    line = remedy = None
    try:
        return ast.parse(text, file)
    except SyntaxError as error:
        problem, line = error.msg, error.lineno
        remedy = UTF_8_REMEDY if "null bytes" in problem else None
    except (ValueError, RecursionError, MemoryError) as error:
        problem = str(error) or type(error).__name__
    raise UserError(f"not valid Python: {problem}", file=file, line=line, remedy=remedy)


def _decoded(file: Path, source: bytes) -> str:
    line = None
    try:
        return decode_source(source)
    except UnicodeDecodeError as error:
        problem = f"{error.object[error.start : error.end]!r} is not {error.encoding}"
        line = error.object[: error.start].count(b"\n") + 1
    except (SyntaxError, LookupError) as error:  # the declared encoding is wrong or unknown
        problem = f"{error}, and the file begins with {source[:4]!r}"
    raise UserError(f"not valid Python: {problem}", file=file, line=line, remedy=UTF_8_REMEDY)


def _imported(tree: ast.Module) -> list[str]:
    """Return the modules of taetpu and of the libraries that a file imports.

    They are imported before the snapshot is taken, because a snapshot covers only loaded modules.
    """
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.partition(".")[0] in ("taetpu", *LIBRARIES)]


def _run(name: str, file: Path, tree: ast.Module) -> None:
    """Execute a file's content as a new module."""
    spec = spec_from_file_location(name, file)
    if spec is None:
        raise UserError("a plug-in is a Python file", file=file, remedy="give it a name that ends in .py")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        # The loader would use stale bytecode if an edit left the file's time and size unchanged.
        exec(compile(tree, file, "exec", dont_inherit=True), vars(module))
    except UserError as error:
        raise error.within(file=file, line=_line_in(error, file)) from None
    except RecursionError as error:  # if the compiler raised it, it has no line
        raise explain_plugin_error(error, file) or UserError(f"not valid Python: {error}", file=file) from None


def explain_plugin_error(error: BaseException, file: Path | None = None) -> UserError | None:
    """Return a `UserError` with the file and line of a plug-in's exception, or None if no plug-in raised it.

    Args:
        error: The exception.
        file: The plug-in that is being loaded. By default, all loaded plug-ins are searched.
    """
    files = {str(file)} if file else {str(getattr(m, "__file__", "")) for m in _modules()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        return None
    last = frames[-1]
    where = "" if last.name == "<module>" else f" in {last.name}"
    text = str(error).strip().split("\n")[0]
    remedy = f"look at: {last.line}" if last.line else None
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if missing and Path(last.filename).with_name(f"{missing}.py").exists():
        remedy = f"a plug-in is one file: put what it needs of {missing}.py into it"
    return UserError(
        f"the plug-in raised {type(error).__name__}{where}{': ' if text else ''}{text}",
        file=last.filename,
        line=last.lineno,
        remedy=remedy,
    )


@contextmanager
def attribute_errors(problem: str = "", used: Iterable[Component] = ()) -> Iterator[None]:
    """Convert every exception that a plug-in raises to a `UserError` with its file and line.

    This includes `SystemExit`: `sys.exit(0)` or `os._exit(0)` in a plug-in must not end a study successfully. It also
    includes a `KeyboardInterrupt` that a plug-in raises, but not Ctrl-C.

    Args:
        problem: The problem to report if the exception comes from an object that a plug-in returned, not from one of
            its lines.
        used: The components in use. The message names the components that plug-ins define.

    Raises:
        UserError: if a plug-in raised an exception.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        if (found := explain_plugin_error(error)) is not None:
            raise found from None
        plugged = [component for component in used if component.plugin]
        if not plugged or not isinstance(error, Exception):
            raise
        kinds = ", ".join(dict.fromkeys(f"{one.slot} {one.kind!r}" for one in plugged))
        text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        file = Path(str(sys.modules[type(plugged[0]).__module__].__file__))
        remedy = f"`python -m taetpu.testing {file.name}` checks each kind of the plug-in"
        cause = "" if kinds in problem else f" with {kinds}"
        raise UserError(f"{problem}{cause}: {text}", file=file, remedy=remedy) from error


@contextmanager
def forbid_changes() -> Iterator[None]:
    """On exit, restore shared state that plug-ins changed since they were loaded, for example in an `init`.

    Raises:
        UserError: if plug-ins changed shared state other than values that may be caches.
    """
    try:
        yield
    except BaseException:
        _put_back_later_changes()
        raise
    check_unchanged("while it is built")


def check_unchanged(when: str = "after it was loaded") -> None:
    """Restore shared state that plug-ins, or their threads, changed since they were loaded.

    The check takes about 0.1 s if plug-ins are loaded, and no time otherwise.

    Raises:
        UserError: if plug-ins changed shared state other than values that may be caches.
    """
    if changed := _put_back_later_changes():
        word = re.findall(r"\w+", changed[0].name)[-1].encode()
        modules = [module for module in _modules() if word in Path(str(module.__file__)).read_bytes()] or _modules()
        problem = f"a kind of this plug-in {_listed(changed)}, which all runs share, {when}"
        raise UserError(problem, file=modules[-1].__file__, remedy=REGISTER_REMEDY)


def _put_back_later_changes() -> list[Change]:
    before = _LOADED.get("snapshot")
    changed = [change for change in before.changes() if not change.cache] if before and _modules() else []
    for change in changed:
        change.undo()
    return changed


def _undo(before: Snapshot, name: str) -> list[Change]:
    """Undo and return all changes that a plug-in made, except the registration of its kinds.

    A process that continues after the error, such as a notebook's kernel, must not keep rejected changes.
    """
    changed = [change for change in before.changes() if getattr(change.after, "__module__", "") != name
               or not change.name.startswith("taetpu.core.registry._KINDS")]  # fmt: skip
    for change in changed:
        change.undo()
    return changed


def _listed(changed: list[Change]) -> str:
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{changed[0]}{more}"


def _forget(name: str) -> None:
    """Remove a plug-in's module and kinds."""
    unregister(name)
    sys.modules.pop(name, None)


def _line_in(error: BaseException, file: Path) -> int | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return frames[-1].lineno if frames else None


def _modules() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith(MODULE_PREFIX)]
