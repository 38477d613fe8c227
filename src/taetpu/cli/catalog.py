"""`taetpu catalog`: the kinds and fields that study files may use."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.corpus_pages import print_corpora
from taetpu.cli.kind_pages import (
    TRACED,
    describe,
    describe_field,
    markdown_page,
    print_field,
    print_fields,
    print_page,
    print_summary,
    search_kinds,
)
from taetpu.cli.options import AsJson
from taetpu.cli.output import print_json
from taetpu.cli.preset_pages import print_presets
from taetpu.core.errors import UserError, suggest

if TYPE_CHECKING:
    from taetpu.core.config import Component

PRESET = "preset"
"""The argument that selects the presets of `model.preset`."""
CORPUS = "corpus"
"""The argument that selects the published corpora."""
STUDY = "study"
"""The argument that selects all top-level fields of a study file. The first of these fields has the same name."""


def catalog(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SLOT|KIND|SLOT/KIND|FIELD",
            help="A slot, a kind with or without its slot, or the path of a study file's field. `study` selects all "
            "top-level fields.",
        ),
    ] = "",
    plugin: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A plug-in whose kinds are included. May be repeated.")
    ] = None,
    search: Annotated[
        str, typer.Option(metavar="WORDS", help="Show the kinds whose names, descriptions or fields contain all words.")
    ] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the kinds as a page in Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the kinds of each slot and the fields of study files.

    Example: taetpu catalog mixer/attention
    """
    from taetpu.core.plugins import load_plugins
    from taetpu.core.registry import kinds, slots

    load_plugins(plugin or [])
    slot, _, kind = what.partition("/")
    if what == CORPUS:
        print_corpora(as_json)
        return
    if slot == PRESET:
        print_presets(kind, as_json)
        return
    named = _kinds_named(what)
    if what and slot not in slots() and not named:
        _catalog_fields(what, as_json)
        return
    names = [slot] if what else list(slots())
    classes = named or {(name, k): cls for name in names for k, cls in kinds(name).items() if kind in ("", k)}
    if kind and not classes:
        raise UserError(f"unknown {slot} kind {kind!r}", remedy=suggest(kind, kinds(slot)))
    if search:
        matches = search_kinds(search, classes)
        if not matches:
            raise UserError(f"no kind mentions {search!r}", remedy="Use fewer or shorter words, e.g. the stem of one.")
        classes = {key: classes[key] for key in matches}
    if as_json:
        entries: dict[str, dict[str, Any]] = {}
        for (name, k), cls in classes.items():
            entries.setdefault(name, {})[k] = describe(cls)
        print_json(entries)
    elif kind or len(named) == 1:
        print_page(next(iter(classes.values())))
    elif markdown:
        typer.echo(markdown_page(classes), nl=False)
    else:
        _print_kinds(classes, fields=bool(slot) and not search, headings=not search and not named)


def _kinds_named(name: str) -> "dict[tuple[str, str], type[Component]]":
    """Return the kinds with a name, by slot and kind. A slot or field of that name has precedence."""
    from taetpu.core.registry import kinds, slots
    from taetpu.spec.field_paths import known_paths

    if name in (*slots(), *known_paths(), STUDY):
        return {}
    return {(slot, name): kinds(slot)[name] for slot in slots() if name in kinds(slot)}


def _print_kinds(classes: "Mapping[tuple[str, str], type[Component]]", fields: bool, headings: bool) -> None:
    """Print the summaries of kinds, by slot or, without `headings`, with the slot before each kind."""
    traced, before = False, ""
    for (slot, kind), cls in classes.items():
        if headings and slot != before:
            typer.echo(slot)
            before = slot
        if not headings:
            typer.echo(f"{slot}/{kind}")
        print_summary(kind if headings else "", cls)
        if fields:
            print_fields(entry := describe(cls))
            traced |= any(field["traced"] for field in entry["fields"])
    if traced:
        typer.echo(f"\n{TRACED}")
    if not fields:
        typer.echo("\nFormula, fields, source and an example: taetpu catalog SLOT/KIND")
        typer.echo("Search: taetpu catalog --search WORD. Known architectures: taetpu catalog preset")
        typer.echo("Published corpora: taetpu catalog corpus")
        typer.echo("Fields of a study file: taetpu catalog study, or a path such as train.schedule")


# --- fields of a study file ------------------------------------------------------------------------------------------


def _catalog_fields(path: str, as_json: bool) -> None:
    """Print the field at the given path and its nested fields."""
    from taetpu.core.registry import kinds, slots
    from taetpu.spec.field_paths import find_fields, known_paths, list_fields
    from taetpu.spec.study_spec import StudySpec

    top = path.partition("/")[0].partition(".")[0]
    if top not in (*known_paths(), STUDY) or "/" in path:
        names = {kind for slot in slots() for kind in kinds(slot)}
        near = get_close_matches(path, names, n=3, cutoff=0.7)
        remedy = f"{suggest(path, [*slots(), *known_paths(), *near])} Search: `taetpu catalog --search WORD`."
        raise UserError(f"unknown slot, kind or field {path!r}", remedy=remedy)
    places = list_fields(StudySpec) if path == STUDY else find_fields(path)
    entries = [describe_field(place) for place in places]
    if as_json:
        print_json({path: entries})
        return
    whole = path == STUDY or path.rpartition(".")[2] != places[0].name  # all fields of a section
    for number, entry in enumerate(entries):
        name = entry["name"] if whole else path
        kind = f" ({entry['kind']})" if entry["kind"] else ""
        typer.echo("", nl=number > 0)
        print_field({**entry, "name": f"{name}{kind}"}, "", " " * 4)
        for below in () if whole else entry["fields"]:
            typer.echo("")
            print_field(below, " " * 4, " " * 8)
        if entry["slot"] and not whole:
            typer.echo(f"    Kinds and their fields: taetpu catalog {entry['slot']}")
