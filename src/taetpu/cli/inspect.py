"""`taetpu catalog`: what can be switched, with every field, default and reference."""

import json
import textwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from taetpu.cli.tables import WIDTH, show_json

if TYPE_CHECKING:
    from taetpu.core.config import Config


INDENT = " " * 16
REQUIRED = "required"


def catalog(
    what: Annotated[str, typer.Argument(metavar="SLOT[/KIND]", help="A slot, or a kind of a slot.")] = "",
    plugin: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A plug-in whose kinds are shown, too. May be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What can fill each slot.

    Example: taetpu catalog mixer/attention
    """
    from taetpu.core.plugins import load_plugins
    from taetpu.core.registry import BUILTIN, kinds

    load_plugins(plugin or [])
    slot, _, kind = what.partition("/")
    slots = [slot] if what else list(BUILTIN)
    entries = {name: {k: describe(cls) for k, cls in kinds(name).items()} for name in slots}
    if kind:
        entries = {slot: {kind: entries[slot].get(kind) or _unknown(slot, kind, entries[slot])}}
    if as_json:
        show_json(entries)
        return
    for name, found in entries.items():
        typer.echo(f"{name}")
        for k, entry in found.items():
            _show(k, entry, fields=bool(slot))
        if not found:
            typer.echo(_wrapped("kinds of your own, by a plug-in", "  (none)        "))
    if not slot:
        typer.echo("\nFields and defaults: taetpu catalog SLOT, or SLOT/KIND")
    elif any(field["traced"] for found in entries.values() for entry in found.values() for field in entry["fields"]):
        typer.echo("\ntraced: arms that differ in this field alone are trained in one program")


def _show(kind: str, entry: dict[str, Any], fields: bool) -> None:
    first, *others = entry["about"].split("\n\n")
    typer.echo(_wrapped(first, f"  {kind:<13} "))
    if not fields:
        return
    for paragraph in others:
        typer.echo("\n" + _wrapped(paragraph, INDENT))
    if entry["fields"]:
        typer.echo("")
    for field in entry["fields"]:
        default = "required" if field["default"] == REQUIRED else f"= {_value(field['default'])}"
        traced = "  (traced)" if field["traced"] else ""
        typer.echo(_wrapped(f"{field['name']}: {field['type']} {default}{traced}", INDENT))


def _wrapped(text: str, before: str) -> str:
    """A paragraph of at most 80 columns, its lines under one another."""
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=before, subsequent_indent=INDENT)


def _value(value: Any) -> str:
    """A default as a study file would have it."""
    return "none" if value is None else json.dumps(value)


def _unknown(slot: str, kind: str, known: dict[str, Any]) -> Any:
    from taetpu.core.errors import UserError, suggest

    raise UserError(f"unknown {slot} kind {kind!r}", remedy=suggest(kind, known))


def describe(cls: "type[Config]") -> dict[str, Any]:
    """A config class as plain data: what it is, and its fields with type, default and whether they are traced."""
    import inspect

    from taetpu.core.config import marks, to_data

    traced = marks(cls)
    fields = [
        {
            "name": name,
            "type": type_name(info.annotation, info.metadata),
            "default": REQUIRED if info.is_required() else to_data(info.get_default(call_default_factory=True)),
            "traced": name in traced,
        }
        for name, info in cls.model_fields.items()
    ]
    return {"about": inspect.getdoc(cls) or "", "fields": fields}


def type_name(kind: Any, metadata: Any = ()) -> str:
    """A field's type in words: `int >= 1 or none`."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        return type_name(inner, marks)
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(type_name(part, metadata) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"list of {type_name(get_args(kind)[0])}"
    if kind is NoneType:
        return "none"
    limits = [f"{sign} {getattr(mark, attr)}" for mark in metadata for attr, sign in _LIMITS if hasattr(mark, attr)]
    return " ".join([getattr(kind, "__name__", str(kind)), *limits])


_LIMITS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
