"""Options that several commands share, and functions that convert dataclasses to commands and to command lines.

A command with many options takes a frozen dataclass (see `takes_options`). A command with few options has parameters.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

from taetpu.core.number_parsing import parse_float, parse_int

T = TypeVar("T")

# --- numbers ---------------------------------------------------------------------------------------------------------


def integer(*names: str, least: int | None = None, most: int | None = None, metavar: str = "INTEGER", **kw: Any) -> Any:
    """Return a typer option for an integer in decimal digits. The bounds `least` and `most` are inclusive."""
    return typer.Option(*names, parser=_parser(parse_int, "an integer", least, most), metavar=metavar, **kw)


def number(*names: str, least: float | None = None, metavar: str = "FLOAT", **kw: Any) -> Any:
    """Return a typer option for a finite number in decimal digits. The bound `least` is inclusive."""
    return typer.Option(*names, parser=_parser(parse_float, "a number", least, None), metavar=metavar, **kw)


def _parser(parse: Callable[[str], Any], what: str, least: Any, most: Any) -> Callable[[Any], Any]:
    """Return a strict number parser for typer options. The default parser of typer would read `0_1` as 1.

    Default values are already numbers and are returned unchanged.
    """
    limits = [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
    bounds = " of " + " and ".join(limits) if limits else ""

    def parse_option(value: Any) -> Any:
        try:
            parsed = parse(value) if isinstance(value, str) else value
        except ValueError:
            parsed = None
        if parsed is None or (least is not None and parsed < least) or (most is not None and parsed > most):
            raise typer.BadParameter(f"{value!r} is not {what}{bounds}")
        return parsed

    return parse_option


# --- shared types ----------------------------------------------------------------------------------------------------

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's YAML file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the baseline, e.g. train.steps=200. May be repeated."),
]
Root = Annotated[
    str | None, typer.Option("--root", help="The folder or bucket of studies. Default: TAETPU_ROOT, else ./runs.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Pack = Annotated[
    str,
    typer.Option(
        metavar="auto|N|off",
        help="The number of runs that share a program: chosen by a rule of thumb (auto), at most N, or one (off). "
        "Packs that have started do not change.",
    ),
]
XlaFlags = Annotated[
    str,
    typer.Option(metavar='"--xla_..."', help="Flags for XLA in addition to XLA_FLAGS, checked before training."),
]
LibtpuArgs = Annotated[
    str, typer.Option(metavar='"--xla_tpu_..."', help="Flags for libtpu in addition to LIBTPU_INIT_ARGS.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the changes and their gcloud commands, but change nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The machine. Default: `name` from the settings, else tpu-OWNER.")
]
Tpu = Annotated[
    str | None, typer.Option("--tpu", metavar="NAME", help="The machine. Default: the same as for `tpu up`.")
]
Workers = Annotated[str, typer.Option("--worker", metavar="N|all", help="The number of a host, from 0, or all hosts.")]
Spot = Annotated[
    bool, typer.Option("--spot", help="Use a spot machine, which is cheaper but may be preempted at any time.")
]

# --- options of several commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """A study and the root under which it is stored."""

    study: StudyFile
    sets: Sets = None
    root: Root = None


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """The machine that `tpu up` and `run --on tpu` create."""

    kind: Annotated[str | None, typer.Option("--type", metavar="TPU", help="The slice, such as v6e-8 or v5e:2x4.")] = (
        None
    )
    zone: Annotated[
        list[str] | None,
        typer.Option(
            "--zone",
            metavar="ZONE",
            help="A zone to try. May be repeated. Default: all zones with the slice, cheapest first.",
        ),
    ] = None
    api: Annotated[
        str, typer.Option("--api", metavar="gce|tpu-api", help="The API to use. Each API has a separate quota.")
    ] = ""
    spot: Spot = False
    reservation: Annotated[
        str, typer.Option(metavar="NAME", help="Use chips of a reservation that your project has paid for.")
    ] = ""
    max_hours: Annotated[
        float | None, number(help="Delete the machine after this many hours, to limit its cost. Default: 4.")
    ] = None
    max_usd: Annotated[
        float | None, number(least=0, help="The maximum cost of the machine in USD. Default: no limit.")
    ] = None
    idle_minutes: Annotated[
        int | None,
        integer(
            least=0, help="Delete the machine after this many minutes without a job or login (0: never). Default: 30."
        ),
    ] = None
    runtime: Annotated[
        str, typer.Option(help="Software version (tpu-api) or image family (gce). Default: depends on the slice.")
    ] = ""
    dry_run: DryRun = False
    yes: Yes = False


AUDIT = 0.05
"""Default of `--audit` with `--reuse`."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StudyOptions):
    """Options of `taetpu run` that `--on tpu` passes on to the command on the machine."""

    pack: Pack = "auto"
    until_resolved: Annotated[
        bool,
        typer.Option("--until-resolved", help="While an arm is inconclusive, add seeds as planned in measure.looks."),
    ] = False
    reuse: Annotated[
        list[str] | None,
        typer.Option(metavar="ROOT", help="Reuse identical runs that are stored under this root. May be repeated."),
    ] = None
    audit: Annotated[
        float | None,
        typer.Option(
            help=f"Train this fraction of the reused runs again to check them. Default with --reuse: {AUDIT}."
        ),
    ] = None
    profile: Annotated[
        int,
        integer(
            metavar="N",
            help="Trace N steps of each pack after its first dispatch, and store the traces in the study's "
            "profile/<pack>/<time>/.",
        ),
    ] = 0
    xla_flags: XlaFlags = ""
    libtpu_args: LibtpuArgs = ""
    dump: Annotated[
        bool, typer.Option("--dump", help="Store XLA's dumps of each compiled program in the study's dumps/<time>/.")
    ] = False
    retrain_damaged: Annotated[
        bool,
        typer.Option(
            "--retrain-damaged",
            help="Retrain finished runs whose files have changed or are missing, and move the remaining files of these "
            "runs to the study's damaged/. Without this option, such runs cause an error.",
        ),
    ] = False

    search: Annotated[
        bool,
        typer.Option(
            "--search", help="Train the candidates of the goal in the order that answers it soonest, and no others."
        ),
    ] = False
    max_runs: Annotated[int | None, integer(metavar="N", help="The maximum number of runs, with --search.")] = None

    def study_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `taetpu.run` that these options set."""
        names = ("root", "pack", "until_resolved", "profile", "retrain_damaged", "search", "max_runs")
        audit = AUDIT if self.audit is None else self.audit
        return {name: getattr(self, name) for name in names} | {"reuse": self.reuse or [], "audit": audit}


# --- dataclass to command, dataclass to command line -----------------------------------------------------------------


def takes_options(function: Callable[[T], None]) -> Callable[..., None]:
    """Return a typer command that has an option for each field of the dataclass that `function` takes."""
    (parameter,) = inspect.signature(function).parameters.values()
    kind, hints = parameter.annotation, get_type_hints(parameter.annotation, include_extras=True)

    def command(**given: Any) -> None:
        function(kind(**given))

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__annotations__ = hints
    setattr(command, "__signature__", inspect.Signature([_parameter(field, hints) for field in fields(kind)]))  # noqa: B010
    return command


def _parameter(field: "Field[Any]", hints: dict[str, Any]) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])


def to_argv(options: Any, kind: type[Any]) -> list[str]:
    """Return the options that differ from their defaults, as arguments for a command line.

    Args:
        options: an instance of `kind` or of a subclass.
        kind: the dataclass whose fields are included. Positional arguments are omitted.
    """
    words, hints = list[str](), get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        value = getattr(options, field.name)
        info = next((mark for mark in hints[field.name].__metadata__ if isinstance(mark, OptionInfo)), None)
        if info is None or value == field.default:
            continue
        # The first name of an `Annotated` option is its `default`.
        name = info.default if isinstance(info.default, str) else f"--{field.name.replace('_', '-')}"
        for text in map(str, value if isinstance(value, list) else [value]):
            if value is True:
                words.append(name)
            else:
                words += [f"{name}={text}"] if text.startswith("-") else [name, text]
    return words
