"""`taetpu catalog`: what can be switched, with every field, default and reference."""

import json
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

if TYPE_CHECKING:
    from taetpu.core.config import Config


def catalog(
    what: Annotated[str, typer.Argument(metavar="[SLOT[/KIND]]", help="A slot, or a kind of a slot.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What can fill each slot.

    Example: taetpu catalog mixer/attention
    """
    from taetpu.core.registry import BUILTIN, kinds

    slot, _, kind = what.partition("/")
    slots = [slot] if slot else list(BUILTIN)
    entries = {name: {k: describe(cls) for k, cls in kinds(name).items()} for name in slots}
    if kind:
        entries = {slot: {kind: entries[slot].get(kind) or _unknown(slot, kind, entries[slot])}}
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    for name, found in entries.items():
        typer.echo(f"{name}")
        for k, entry in found.items():
            _show(k, entry, fields=bool(slot))
    if not slot:
        typer.echo("\nFields and defaults: taetpu catalog SLOT, or SLOT/KIND")


def _show(kind: str, entry: dict[str, Any], fields: bool) -> None:
    import textwrap

    lines = entry["about"].splitlines()
    typer.echo(textwrap.fill(f"{kind:<14}{lines[0]}", 80, initial_indent="  ", subsequent_indent=" " * 16))
    if fields:
        for line in lines[1:]:
            typer.echo(f"{'':16}{line}" if line.strip() else "")
        for field in entry["fields"]:
            traced = "  (traced: arms may differ in it within one program)" if field["traced"] else ""
            typer.echo(f"{'':16}{field['name']}: {field['type']} = {json.dumps(field['default'])}{traced}")


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
            "default": "required" if info.is_required() else to_data(info.get_default(call_default_factory=True)),
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
