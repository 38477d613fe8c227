"""The entry point of `taetpu`. It registers the commands, and turns errors into messages and exit codes.

Exit codes: 0 success, 1 bug or declined confirmation, 2 invalid input, 3 failed runs or claims, 75 other processes
still train packs (`--no-wait`), 130 interrupted.
"""

import errno
import sys
import warnings
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from taetpu.core.errors import DataWarning, Failed, UserError
from taetpu.core.jax_setup import collect_garbage_less_often
from taetpu.core.streams import discard_output, escape_controls, prepare_streams

INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk or an exhausted quota. Standard output has no file name."""

COMMANDS = {
    "new": ("new:new", "Write a commented study that runs as it is."),
    "catalog": ("catalog:catalog", "Show the kinds of each slot and the fields of study files."),
    "schema": ("schema:schema", "Print the JSON schema of study files, for editors."),
    "plan": ("plan:plan", "Show arms, sizes and packs without training."),
    "run": ("run:run", "Train the missing runs, then report."),
    "demo": ("run:demo", "Run a quick study of which parts of a small Transformer matter."),
    "components": ("components:components", "Tell which parts of a model are necessary or redundant."),
    "status": ("status:status", "Show each arm's progress, losses and effect."),
    "list": ("status:list_studies", "List studies with their progress, or runs by settings and dates."),
    "report": ("report_commands:report", "Analyse the stored runs, and write the report and results.json."),
    "costs": ("costs:costs", "Show what arms cost, as ratios to their baselines."),
    "check": ("report_commands:check", "Check claims about a study."),
    "gallery": ("gallery:app", "List studies of known results, with what was measured."),
    "judge": ("judge:judge", "Judge the arms of a table of results that other programs wrote."),
    "plot": ("report_commands:plot", "Draw a metric of all runs of one or more studies."),
    "ui": ("status:ui", "Serve a live page with progress, curves and effects."),
    "verify": ("verify_machine:verify", "Check this machine: devices, numerics, speed and training."),
    "chips": ("chips:chips", "Show published TPU data: chips, slices, prices and hosts."),
    "doctor": ("cloud_resources:doctor", "Check the account, project and network, and look for key files."),
    "lens": ("lens:app", "Inspect trained and imported models."),
    "data": ("data:app", "Show and prepare the data of studies."),
    "import-config": ("import_config:import_config", "Translate configs of other systems into study files."),
    "model": ("model:app", "Import Hugging Face models, and export models to transformers."),
    "tpu": ("tpu:app", "Cloud TPUs."),
    "dev": ("tpu_hosts:dev_app", "Try files on a TPU."),
    "image": ("cloud_resources:image_app", "Containers for jobs."),
    "bucket": ("cloud_resources:bucket_app", "The bucket for studies."),
    "export": ("export_jobs:app", "Write a study as a job for another scheduler."),
}
"""Each command or group of commands: the module and name of its function or app, and its line in the help."""


class LazyCommand(TyperCommand):
    """A command or group whose module is imported only when it is called, so that `taetpu --help` imports none."""

    def load(self) -> Any:
        """Import the module, and return the command or group."""
        module, _, attribute = COMMANDS[str(self.name)][0].partition(":")
        target = getattr(import_module(f"taetpu.cli.{module}"), attribute)
        group = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
        if isinstance(target, typer.Typer):
            group.add_typer(target, name=self.name)
        else:
            group.command(self.name)(target)
        return typer.main.get_group(group).commands[str(self.name)]

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments of the command."""
        return self.load().make_context(*args, **options)


class Commands(TyperGroup):
    """The group of commands. Exceptions raised by a plug-in, including `SystemExit`, become user errors."""

    def __init__(self, **options: Any) -> None:
        """Add all commands."""
        super().__init__(**options)
        self.commands.update({name: LazyCommand(name, short_help=summary) for name, (_, summary) in COMMANDS.items()})

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


def main() -> None:
    """Run the command in `sys.argv` and exit with its code. An error is printed and determines the exit code."""
    arguments = sys.argv[1:] or ["--help"]
    prepare_streams()
    collect_garbage_less_often()
    warnings.showwarning = partial(_show_warning, set())
    try:
        code = app(arguments, prog_name="taetpu", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _fail(_usage_error(error))
    except UserError as error:
        _fail(error)
    except BrokenPipeError:  # the reader of the output ended, such as `head`
        discard_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        discard_output()
        _fail(UserError(f"cannot write the output: {error.strerror}", remedy="Free space, or redirect the output."))
    except Failed as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(Failed.exit_code)
    if code == INTERRUPTED:  # typer returns this code after Ctrl-C
        remedy = "resume" if {"run", "demo"} & {*arguments} else "start again"
        sys.stderr.write(f"\ninterrupted: repeat the command to {remedy}\n")
    sys.exit(code)


def _show_warning(
    shown: set[str], message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any
) -> None:
    """Print a warning about data in one line, unless its text is in `shown`, and any other warning as Python does."""
    if issubclass(category, DataWarning):
        if str(message) not in shown:  # reading and writing a model may give the same warning
            shown.add(str(message))
            sys.stderr.write(escape_controls(f"warning: {message}\n"))
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _fail(error: "UserError") -> NoReturn:
    sys.stderr.write(escape_controls(f"error: {error}\n"))
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
