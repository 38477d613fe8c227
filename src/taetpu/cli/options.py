"""Options that several commands take."""

from typing import Annotated

import typer

Root = Annotated[str | None, typer.Option("--root", help="Where studies live; else TAETPU_ROOT, else ./runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
