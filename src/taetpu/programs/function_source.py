"""The text that identifies a function: its source, and that of what it uses from the same module or notebook."""

import hashlib
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

SIMPLE = (str, bytes, int, float, complex, bool, type(None))


def function_digest(function: Callable[..., Any]) -> str:
    """Return the SHA-256 of a function's source, and of what it uses.

    Functions and classes of its module are described by their source, and what these use likewise; other modules and
    their members by name; values by their content. So a function has the same digest in each session until it or
    something that it uses in its module is edited. Changes of other modules are not noticed.
    """
    digest = hashlib.sha256()
    inner = function.func if isinstance(function, partial) else function
    for part in _describe("", function, getattr(inner, "__module__", None), set()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _describe(name: str, value: Any, home: str | None, seen: set[int]) -> Iterator[str]:
    """Yield the parts that describe a value of a name."""
    if isinstance(value, SIMPLE):
        yield f"{name} = {value!r}"
    elif isinstance(value, ModuleType):
        yield f"{name} = module {value.__name__}"
    elif id(value) in seen:
        yield f"{name} = above"
    elif isinstance(value, FunctionType) and value.__module__ == home:
        seen.add(id(value))
        yield f"{name} = {_read_source(value)}"
        yield from _describe_used(value, home, seen)
    elif isinstance(value, type) and value.__module__ == home:
        seen.add(id(value))
        yield f"{name} = class {value.__qualname__}({', '.join(base.__qualname__ for base in value.__bases__)})"
        for member, content in vars(value).items():
            content = getattr(content, "__func__", content)
            if not member.startswith("__") or isinstance(content, FunctionType):
                yield from _describe(member, content, home, seen)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _describe(f"{name}[{index}]", item, home, seen)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _describe(f"{name}[{key!r}]", item, home, seen)
    elif isinstance(value, partial):
        yield from _describe(name, [value.func, value.args, value.keywords], home, seen)
    elif type(value).__module__ == home:
        seen.add(id(value))
        yield from _describe(f"type of {name}", type(value), home, seen)
        yield from _describe(name, getattr(value, "__dict__", {}), home, seen)
    elif hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        yield f"{name} = {value.__module__}.{value.__qualname__}"
    else:
        yield f"{name} = {_digest_object(value)}"


def _describe_used(function: FunctionType, home: str | None, seen: set[int]) -> Iterator[str]:
    """Yield the parts that describe a function's defaults, enclosed variables and globals."""
    yield from _describe(
        "defaults", [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()], home, seen
    )
    used = {**inspect.getclosurevars(function).nonlocals} if function.__closure__ else {}
    names = sorted({name for code in _codes(function.__code__) for name in code.co_names})
    used |= {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, value in used.items():
        yield from _describe(name, value, home, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _read_source(function: FunctionType) -> str:
    """Return a function's source; or its bytecode if the source is not known, as in `python -c`."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return "".join(f"{code.co_code!r} {code.co_names} {_constants(code)}" for code in _codes(function.__code__))


def _constants(code: CodeType) -> list[Any]:
    return [constant for constant in code.co_consts if not isinstance(constant, CodeType)]


def _digest_object(value: Any) -> str:
    """Return the digest of an object's pickle; the name of its type if it cannot be pickled."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        return f"{kind} {hashlib.sha256(pickle.dumps(value, protocol=5)).hexdigest()}"
    except Exception:  # of any type, raised by the object
        return kind
