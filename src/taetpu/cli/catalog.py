"""`taetpu catalog`: the kinds and fields that study files may use."""

import json
import textwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from taetpu.cli.options import AsJson
from taetpu.cli.output import WIDTH, print_json
from taetpu.core.errors import UserError, suggest

if TYPE_CHECKING:
    from taetpu.core.config import Config
    from taetpu.spec.field_paths import Place


INDENT = " " * 16
BELOW = " " * 20
REQUIRED = "required"
STUDY = "study"
"""The argument that selects all top-level fields of a study file. The first of these fields has the same name."""


def catalog(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SLOT[/KIND]|FIELD",
            help="A slot, a kind of a slot, or the path of a study file's field. `study` selects all top-level fields.",
        ),
    ] = "",
    plugin: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A plug-in whose kinds are included. May be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the kinds of each slot and the fields of study files.

    Example: taetpu catalog train.schedule
    """
    from taetpu.core.plugins import load_plugins
    from taetpu.core.registry import kinds, slots

    load_plugins(plugin or [])
    if what and what.partition("/")[0] not in slots():
        _catalog_fields(what, as_json)
        return
    slot, _, kind = what.partition("/")
    names = [slot] if what else list(slots())
    entries = {name: {k: describe(cls) for k, cls in kinds(name).items()} for name in names}
    if kind:
        if kind not in entries[slot]:
            raise UserError(f"unknown {slot} kind {kind!r}", remedy=suggest(kind, entries[slot]))
        entries = {slot: {kind: entries[slot][kind]}}
    if as_json:
        print_json(entries)
        return
    for name, found in entries.items():
        typer.echo(f"{name}")
        for k, entry in found.items():
            _print_kind(k, entry, fields=bool(slot))
    if not slot:
        typer.echo("\nFields and defaults: taetpu catalog SLOT, or SLOT/KIND")
        typer.echo("Fields of a study file: taetpu catalog study, or a path such as train.schedule")
    elif any(field["traced"] for found in entries.values() for entry in found.values() for field in entry["fields"]):
        typer.echo("\ntraced: arms that differ only in traced fields share a program")


def _print_kind(kind: str, entry: dict[str, Any], fields: bool) -> None:
    """Print the summary of a kind. If `fields` is set, print the rest of its docstring and its fields too."""
    first, *others = entry["about"].split("\n\n")
    typer.echo(_wrapped(first, f"  {kind:<13} "))
    if not fields:
        return
    for paragraph in others:
        typer.echo("\n" + _wrapped(paragraph, INDENT))
    if entry["fields"]:
        typer.echo("")
    for field in entry["fields"]:
        _print_field(field, INDENT, BELOW)


def _print_field(field: dict[str, Any], before: str, below: str) -> None:
    """Print the name, type and default of a field, followed by its description and its example."""
    default = "required" if field["default"] == REQUIRED else f"= {_value(field['default'])}"
    if field["fields"] and isinstance(field["default"], dict):
        default = "optional"  # the nested fields show the defaults
    traced = "  (traced)" if field["traced"] else ""
    typer.echo(_wrapped(f"{field['name']}: {field['type']} {default}{traced}", before, below))
    if about := field["about"].rstrip("."):
        typer.echo(_wrapped(f"{about[0].upper()}{about[1:]}.", below, below))
    if field["example"]:
        typer.echo(_wrapped(f"e.g. {field['example']}", below, below))


def _wrapped(text: str, before: str, below: str = INDENT) -> str:
    """Wrap a paragraph to 80 columns. `before` precedes the first line, and `below` precedes the following lines."""
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=before, subsequent_indent=below)


def _value(value: Any) -> str:
    """Return a default value in the notation of study files. A component is represented by its kind."""
    if isinstance(value, dict) and "kind" in value:
        return str(value["kind"])
    return "none" if value is None else json.dumps(value)


# --- fields of a study file ------------------------------------------------------------------------------------------


def _catalog_fields(path: str, as_json: bool) -> None:
    """Print the field at the given path and its nested fields."""
    from taetpu.core.registry import slots
    from taetpu.spec.field_paths import find_fields, known_paths, list_fields
    from taetpu.spec.study_config import StudySpec

    top = path.partition("/")[0].partition(".")[0]
    if top not in (*known_paths(), STUDY) or "/" in path:
        raise UserError(f"unknown slot or field {path!r}", remedy=suggest(path, [*slots(), *known_paths()]))
    found = list_fields(StudySpec) if path == STUDY else find_fields(path)
    entries = [describe_field(place) for place in found]
    if as_json:
        print_json({path: entries})
        return
    whole = path == STUDY or path.rpartition(".")[2] != found[0].name  # all fields of a section
    for number, entry in enumerate(entries):
        name = entry["name"] if whole else path
        kind = f" ({entry['kind']})" if entry["kind"] else ""
        typer.echo("", nl=number > 0)
        _print_field({**entry, "name": f"{name}{kind}"}, "", " " * 4)
        for below in () if whole else entry["fields"]:
            typer.echo("")
            _print_field(below, " " * 4, " " * 8)
        if entry["slot"] and not whole:
            typer.echo(f"    Kinds and their fields: taetpu catalog {entry['slot']}")


def describe_field(place: "Place") -> dict[str, Any]:
    """Return the given field of a study file as plain data, including its nested fields."""
    from taetpu.core.config import slot_of, to_data, traced_fields
    from taetpu.spec.field_paths import list_fields

    field, mark = place.owner.model_fields[place.name], slot_of(place.owner, place.name)
    section = place.section
    kind = f"{'kinds' if mark.many else 'kind'} of slot {mark.name}" if mark else ""
    default = REQUIRED if field.is_required() else to_data(field.get_default(call_default_factory=True))
    return {
        "name": place.name,
        "kind": place.kind,
        "type": kind or ("section" if section else "") or type_name(field.annotation, field.metadata),
        "slot": mark.name if mark else None,
        "default": default,
        "traced": place.name in traced_fields(place.owner),
        "about": field.description or "",
        "example": f"{place.name}: {place.example}" if place.example else None,
        "fields": [describe_field(below) for below in list_fields(section)] if section else [],
    }


def describe(cls: "type[Config]") -> dict[str, Any]:
    """Return the docstring and the fields of the given config class as plain data."""
    import inspect

    from taetpu.spec.field_paths import list_fields

    return {"about": inspect.getdoc(cls) or "", "fields": [describe_field(place) for place in list_fields(cls)]}


def type_name(kind: Any, metadata: Any = ()) -> str:
    """Return the type of a field as text, such as `int >= 1 or none`."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        return type_name(inner, marks)
    if kind is Any:
        return "any value"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(type_name(part, metadata) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"list of {type_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "mapping"
    if kind is NoneType:
        return "none"
    metadata = [mark for given in metadata for mark in getattr(given, "metadata", [given])]
    limits = [f"{sign} {getattr(mark, attr)}" for mark in metadata for attr, sign in _LIMITS if hasattr(mark, attr)]
    return " ".join([getattr(kind, "__name__", str(kind)), *[" and ".join(limits)] * bool(limits)])


_LIMITS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
