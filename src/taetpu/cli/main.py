"""The entry point of `taetpu`. It registers the commands, and turns errors into messages and exit codes.

Exit codes: 0 success, 1 bug or declined confirmation, 2 invalid input, 3 failed runs or claims, 75 other processes
still train packs (`--no-wait`), 130 interrupted.
"""

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from taetpu.cli import (
    catalog,
    chips,
    cloud_resources,
    export_jobs,
    lens,
    model,
    new,
    plan,
    report_commands,
    run,
    status,
    tpu,
    tpu_hosts,
    verify_machine,
)
from taetpu.core.errors import Failed, UserError

INTERRUPTED = 130


class Commands(TyperGroup):
    """The group of commands. Exceptions raised by a plug-in, including `SystemExit`, become user errors."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An exception from a plug-in is attributed to the plug-in."""
        try:
            return super().invoke(ctx)
        except BaseException:
            if (plugins := sys.modules.get("taetpu.core.plugins")) is None:
                raise
            with plugins.attribute_errors():
                raise


app = typer.Typer(
    name="taetpu",
    cls=Commands,
    help="Transformer ablation studies: define a baseline and changes, train every arm on every seed, and get verdicts."
    "\n\nTry it: taetpu demo",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(f"taetpu {version('taetpu')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="N|cpu",
            envvar="TAETPU_DEVICE",
            help="Use only the accelerator with this number (from 0), or only the CPU. Must precede the command.",
        ),
    ] = None,
) -> None:
    """Apply options that precede the command."""
    if device is not None:
        from taetpu.core.accelerators import select_device

        select_device(device)


app.command()(new.new)
app.command()(catalog.catalog)
app.command()(plan.plan)
app.command()(run.run)
app.command()(run.demo)
app.command()(status.status)
app.command("list")(status.list_studies)
app.command()(report_commands.report)
app.command()(report_commands.check)
app.command()(report_commands.plot)
app.command()(status.ui)
app.command()(verify_machine.verify)
app.command()(chips.chips)
app.add_typer(lens.app, name="lens")
app.add_typer(model.app, name="model")
app.add_typer(tpu.app, name="tpu")
app.add_typer(tpu_hosts.dev_app, name="dev")
app.command()(cloud_resources.doctor)
app.add_typer(cloud_resources.image_app, name="image")
app.add_typer(cloud_resources.bucket_app, name="bucket")
app.add_typer(export_jobs.app, name="export")


def main() -> None:
    """Run the command in `sys.argv` and exit with its code. An error is printed and determines the exit code."""
    arguments = sys.argv[1:] or ["--help"]
    try:
        code = app(arguments, prog_name="taetpu", standalone_mode=False)
    except typer.TyperException as error:
        _fail(_usage_error(error))
    except UserError as error:
        _fail(error)
    except Failed as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(Failed.exit_code)
    if code == INTERRUPTED:  # typer returns this code after Ctrl-C
        remedy = "continue from the last checkpoint" if {"run", "demo"} & {*arguments} else "start again"
        sys.stderr.write(f"\ninterrupted: repeat the command to {remedy}\n")
    sys.exit(code)


def _fail(error: "UserError") -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(error.exit_code)


def _usage_error(error: typer.TyperException) -> "UserError":
    """Convert a typer usage error to a `UserError`."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "taetpu"
    problem = error.format_message().rstrip(".")
    if getattr(error, "option_name", None) == "--device":
        return UserError("--device must precede the command", remedy="Write `--device N` directly after taetpu.")
    return UserError(problem[:1].lower() + problem[1:], remedy=f"See `{command} --help`.")


if __name__ == "__main__":
    main()
