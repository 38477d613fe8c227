"""`taetpu schema`: the JSON schema of study files, for editors."""

import json
from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.output import explain_write_error

FILE = "taetpu.schema.json"
"""The file that `taetpu new` writes beside a study."""
LINE = f"# yaml-language-server: $schema={FILE}\n"
"""The first line of a study file, by which editors find the schema."""


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the schema to this file (.json).")
    ] = None,
    plugin: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A plug-in whose kinds are included. May be repeated.")
    ] = None,
) -> None:
    """Print the JSON schema of study files, for editors.

    Editors with a YAML language server complete and check studies with it. `taetpu new` writes it beside the study as
    taetpu.schema.json, and the first line of the study names it. After an update of taetpu, write it again:
    `taetpu schema -o taetpu.schema.json`.

    Example: taetpu schema --plugin my-idea.py -o taetpu.schema.json
    """
    from taetpu.core.output_files import check_output
    from taetpu.core.plugins import load_plugins

    if out is not None:
        check_output(out, [".json"])
    load_plugins(plugin or [])
    text = schema_text()
    if out is None:
        typer.echo(text, nl=False)
        return
    with explain_write_error(out, "Choose another file with -o."):
        out.write_text(text, encoding="utf-8")


def schema_text() -> str:
    """Return the JSON schema of study files as text."""
    from taetpu.spec.json_schema import study_schema

    return json.dumps(study_schema(), separators=(",", ":")) + "\n"
