"""The entry point: the commands together, and what an error becomes.

Exit codes: 0 done, 2 the user's input is wrong, 3 finished with failed runs, 130 interrupted and resumable, 1 our bug.
"""

import sys
from typing import Annotated

import typer

from taetpu.cli import inspect, results, studies

app = typer.Typer(
    name="taetpu",
    help="Transformer ablation studies: state a baseline and what to change, train every arm on every seed, get a "
    "verdict.\n\nTry it: taetpu demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(f"taetpu {version('taetpu')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command()(studies.new)
app.command()(inspect.catalog)
app.command()(studies.plan)
app.command()(studies.run)
app.command()(studies.demo)
app.command()(results.status)
app.command("list")(results.list_studies)
app.command()(results.report)


def main() -> None:
    """Run a command; turn errors into a message and an exit code."""
    from taetpu.core.errors import FailedRuns, UserError

    try:
        app()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(UserError.exit_code)
    except FailedRuns as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(FailedRuns.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted: the same command goes on from the last checkpoint\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
