"""`taetpu lens`: inspect trained and imported models. The commands are in the modules `lens_*`."""

import typer

app = typer.Typer(
    help="Inspect trained and imported models.\n\nRUN is a run (its folder, the start of its ID, study/arm/seed, or "
    "latest), or the folder of a model of taetpu or of Hugging Face."
    "\n\nExample: taetpu lens --help",
    no_args_is_help=True,
)
