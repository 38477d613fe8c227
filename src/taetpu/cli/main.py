"""The entry point: the commands together, and what an error becomes.

Exit codes: 0 done, 2 the user's input is wrong, 3 failed runs or claims, 130 interrupted and resumable, 1 our bug, or
the user did not agree to what was asked.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from taetpu.cli import (
    bucket,
    catalog,
    check,
    chips,
    dev,
    doctor,
    export,
    image,
    new,
    plan,
    plots,
    results,
    run,
    tpu,
    ui,
    verify,
)

if TYPE_CHECKING:
    from taetpu.core.errors import UserError

INTERRUPTED = 130


class Commands(TyperGroup):
    """The commands; what a plug-in raises in one, `SystemExit` and typer's own exits included, is the user's error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if (plugins := sys.modules.get("taetpu.core.plugins")) is None:
                raise
            from taetpu.core.plugin_code import plugin_location
            from taetpu.core.signals import is_interrupt

            if is_interrupt(error) and (where := plugin_location(error)):
                sys.stderr.write(f"\nstopped in a plug-in, at {where}")
            with plugins.attribute_errors():
                raise


app = typer.Typer(
    name="taetpu",
    cls=Commands,
    help="Transformer ablation studies: state a baseline and what to change, train every arm on every seed, get a "
    "verdict.\n\nTry it: taetpu demo",
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
    device: Annotated[
        str | None,
        typer.Option(
            metavar="N|cpu",
            envvar="TAETPU_DEVICE",
            help="Use one accelerator of several, by its number from 0, or none. Stands before the command.",
        ),
    ] = None,
) -> None:
    if device is not None:
        from taetpu.core.devices import select_device

        select_device(device)


app.command()(new.new)
app.command()(catalog.catalog)
app.command()(plan.plan)
app.command()(run.run)
app.command()(run.demo)
app.command()(results.status)
app.command("list")(results.list_studies)
app.command()(results.report)
app.command()(check.check)
app.command()(plots.plot)
app.command()(ui.ui)
app.command()(verify.verify)
app.command()(chips.chips)
app.add_typer(tpu.app, name="tpu")
app.add_typer(dev.app, name="dev")
app.command()(doctor.doctor)
app.add_typer(image.app, name="image")
app.add_typer(bucket.app, name="bucket")
app.add_typer(export.app, name="export")


def main() -> None:
    """Run a command; turn errors into a message and an exit code."""
    from taetpu.core.errors import Failed, UserError
    from taetpu.core.signals import raise_interrupts

    arguments = sys.argv[1:] or ["--help"]
    try:
        with raise_interrupts():
            code = app(arguments, prog_name="taetpu", standalone_mode=False)
    except typer.TyperException as error:
        _refuse(_misused(error))
    except UserError as error:
        _refuse(error)
    except Failed as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(Failed.exit_code)
    if code == INTERRUPTED:  # typer turns a Ctrl-C into this code
        command = " goes on from the last checkpoint" if {"run", "demo"} & {*arguments} else " can be given again"
        sys.stderr.write(f"\ninterrupted: the same command{command}\n")
    sys.exit(code)


def _refuse(error: "UserError") -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(error.exit_code)


def _misused(error: typer.TyperException) -> "UserError":
    """A mistake in the command line itself, told as every other mistake is."""
    from taetpu.core.errors import UserError

    context = getattr(error, "ctx", None)
    command = context.command_path if context else "taetpu"
    problem = error.format_message().rstrip(".")
    if getattr(error, "option_name", None) == "--device":
        return UserError("--device stands before the command", remedy="taetpu --device N COMMAND ...")
    remedy = f"`{command} --help` shows how it is written"
    if context and not context.command.context_settings.get("allow_interspersed_args", True):
        remedy += "; what is to be run begins with a word that is no option, or after --"
    return UserError(problem[:1].lower() + problem[1:], remedy=remedy)


if __name__ == "__main__":
    main()
