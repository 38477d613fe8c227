"""`taetpu run` and `demo`: from a study file to its results, here or on a machine that is made for it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from taetpu.cli.cloud import (
    ApiOption,
    DryRun,
    IdleMinutes,
    MaxHours,
    MaxUsd,
    Reservation,
    Runtime,
    Spot,
    Type,
    Yes,
    Zones,
)  # fmt: skip
from taetpu.cli.options import AsJson, Pack, Root, Sets, StudyFile, integer
from taetpu.cli.output import show_json
from taetpu.cli.results import show
from taetpu.cli.xla_options import Dump, LibtpuArgs, Profiled, XlaFlags, started

AUDIT = 0.05
"""The share of reused runs that is trained again, unless the command says another."""

UntilResolved = Annotated[
    bool, typer.Option("--until-resolved", help="While an arm is inconclusive, go on to the next of measure.looks.")
]
Reuse = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROOT", help="Take over runs that were trained there, where they are the same. May be repeated."
    ),
]
Audit = Annotated[
    float | None, typer.Option(help=f"Train this share of the reused runs again, to prove them; {AUDIT} with --reuse.")
]
RetrainDamaged = Annotated[
    bool,
    typer.Option(
        "--retrain-damaged",
        help="Train runs again that are done and whose files were changed or lost since; what is left of them moves "
        "to the study's folder damaged/. Without it such runs are listed, and nothing is trained.",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|auto",
        envvar="JAX_COORDINATOR_ADDRESS",
        help="Train in several processes, which meet there; or as Cloud TPU, SLURM or Open MPI say (auto).",
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Train the I-th (from 0) of N shares of the packs; other processes train the others into the same --root.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="tpu|ray",
        help="tpu: make a Cloud TPU, train on it into a bucket, delete it. ray: train on the nodes of a Ray cluster.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="With --on ray, the cluster; default: RAY_ADDRESS, or one on this host, else a new one.",
    ),
]


def run(
    study: StudyFile,
    sets: Sets = None,
    root: Root = None,
    pack: Pack = "auto",
    until_resolved: UntilResolved = False,
    reuse: Reuse = None,
    audit: Audit = None,
    retrain_damaged: RetrainDamaged = False,
    coordinator: Coordinator = None,
    processes: Annotated[int | None, integer(envvar="JAX_NUM_PROCESSES", help="How many there are.")] = None,
    process: Annotated[int | None, integer(envvar="JAX_PROCESS_ID", help="Which one this is, from 0.")] = None,
    shard: ShardOption = None,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="With --shard, end with exit code 75 where the study has to wait for others."),
    ] = False,
    profile: Profiled = 0,
    xla_flags: XlaFlags = "",
    libtpu_args: LibtpuArgs = "",
    dump: Dump = False,
    on: On = None,
    address: Address = None,
    tpu: Annotated[str | None, typer.Option(metavar="NAME", help="The TPU's name, with --on tpu.")] = None,
    kind: Type = None,
    zone: Zones = None,
    api: ApiOption = "",
    spot: Spot = False,
    reservation: Reservation = "",
    max_hours: MaxHours = None,
    max_usd: MaxUsd = None,
    idle_minutes: IdleMinutes = None,
    runtime: Runtime = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the TPU when the study has ended.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Train what is missing, then report. The same command goes on where it was stopped.

    Example: taetpu run study.yaml --set train.steps=200
    """
    from taetpu.core.errors import UserError

    machine = {
        "--type": kind, "--tpu": tpu, "--zone": zone, "--api": api, "--spot": spot, "--reservation": reservation,
        "--max-hours": max_hours, "--max-usd": max_usd, "--idle-minutes": idle_minutes, "--runtime": runtime,
        "--keep": keep, "--dry-run": dry_run,
    }  # fmt: skip
    if audit is not None and not reuse:
        problem = f"--audit {audit:g} trains reused runs again, and none is reused"
        raise UserError(problem, path=("--audit",), remedy="--reuse ROOT, or leave --audit out")
    _check_shard(shard, no_wait, on, coordinator)
    if address is not None and on != "ray":
        raise UserError("--address requires --on ray", path=("--address",), remedy="Add --on ray.")
    if on == "ray" and coordinator is not None:
        problem = "--on ray and --coordinator exclude each other"
        raise UserError(problem, path=("--on",), remedy="Give one of them.")
    if on is not None and on != "ray":
        if (coordinator, processes, process) != (None, None, None):
            remedy = "leave it out, and JAX_COORDINATOR_ADDRESS unset: the hosts of a TPU are told where they meet"
            raise UserError("processes of this machine do not meet on a TPU", path=("--coordinator",), remedy=remedy)
        words = _words(pack, until_resolved, reuse, audit, profile, xla_flags, libtpu_args, dump)
        words += ["--retrain-damaged"] if retrain_damaged else []
        _check_elsewhere(on, reuse or [], pack, audit, profile, xla_flags, libtpu_args)
        asked = {
            "kind": kind, "api": api, "spot": spot, "reservation": reservation, "max_hours": max_hours,
            "runtime": runtime,
        }  # fmt: skip
        where = {"zones": zone or [], "max_usd": max_usd, "idle_minutes": idle_minutes}
        how = {"keep": keep, "yes": yes, "dry_run": dry_run}
        raise typer.Exit(_elsewhere(study, sets or [], root, words, tpu, asked, where, how))
    if given := [name for name, value in machine.items() if value]:
        remedy = "Add --on tpu. `taetpu plan` shows what would be trained here."
        raise UserError(f"{given[0]} requires --on tpu", path=(given[0],), remedy=remedy)

    how = {"pack": pack, "until_resolved": until_resolved, "reuse": reuse or []}
    how |= {"audit": AUDIT if audit is None else audit, "profile": profile, "retrain_damaged": retrain_damaged}
    how |= {"ray": address or ""} if on == "ray" else {}
    how |= {} if shard is None else {"shard": shard, "wait": not no_wait}
    if coordinator is None and (processes, process) != (None, None):
        remedy = "--coordinator HOST:PORT, the first one's address"
        raise UserError("several processes have to meet somewhere", path=("--coordinator",), remedy=remedy)
    if coordinator is not None and profile:
        remedy = "leave it out, or profile a pack in one process"
        raise UserError("several processes are not profiled together", path=("--profile",), remedy=remedy)
    from taetpu.core.distributed import Cluster, join_cluster

    with started(study, root, xla_flags, libtpu_args, dump):
        cluster = Cluster(coordinator, processes, process) if coordinator else None
        with join_cluster(cluster):
            if cluster is None:
                train_study(study, sets or [], root, how, as_json)
                return
            code = _train_together(study, sets or [], root, how, as_json)
        raise typer.Exit(code)


def _train_together(file: Path, sets: list[str], root: str | None, how: dict[str, Any], as_json: bool) -> int:
    """Train a study in several processes, of which this is one; return the exit code."""
    from taetpu.core.distributed import in_every_process, is_primary
    from taetpu.spec.loading import load_study
    from taetpu.store.backend import default_root, open_store
    from taetpu.store.study import StudyFolder
    from taetpu.train.follower import follow, leading

    study = in_every_process(lambda: load_study(file, sets))
    if not is_primary():
        return follow(StudyFolder(open_store(default_root(root)), study.name), study.sources)
    with leading():
        train_study(file, sets, root, how, as_json)
    return 0


def _check_shard(shard: str | None, no_wait: bool, on: str | None, coordinator: str | None) -> None:
    """Refuse options that exclude each other.

    Raises:
        UserError: they do.
    """
    from taetpu.core.errors import UserError

    if no_wait and shard is None:
        raise UserError("--no-wait requires --shard", path=("--no-wait",), remedy="Add --shard I/N.")
    for option, given in (("--on", on), ("--coordinator", coordinator)):
        if shard is not None and given is not None:
            problem = f"--shard and {option} exclude each other"
            raise UserError(problem, path=("--shard",), remedy="Give one of them.")


def _words(
    pack: str, until_resolved: bool, reuse: list[str] | None, audit: float | None, profile: int, xla_flags: str,
    libtpu_args: str, dump: bool,
) -> list[str]:  # fmt: skip
    """Options of `run` that hold on another machine too, as they are written."""
    words = [] if pack == "auto" else ["--pack", pack]
    words += ["--until-resolved"] if until_resolved else []
    words += [word for root in reuse or [] for word in ("--reuse", root)]
    words += [] if audit is None else ["--audit", str(audit)]
    words += ["--profile", str(profile)] if profile else []
    words += [f"--xla-flags={xla_flags}"] if xla_flags else []
    words += [f"--libtpu-args={libtpu_args}"] if libtpu_args else []
    return words + (["--dump"] if dump else [])


def _check_elsewhere(
    on: str, reuse: list[str], pack: str, audit: float | None, profile: int, xla_flags: str, libtpu_args: str
) -> None:
    """Refuse here, before a machine is paid for, what the command there would refuse.

    Raises:
        UserError: what `--on` names is none, a root to reuse is not seen from there, or an option is not what it takes.
    """
    from importlib.util import find_spec

    from taetpu.core.errors import UserError
    from taetpu.core.flags import LIBTPU, XLA, check_flags
    from taetpu.core.runtime import prepare_jax

    if on != "tpu":
        raise UserError(f"unknown machine {on!r}", path=("--on",), remedy="Use --on tpu or --on ray.")
    for root in reuse:
        if not root.startswith("gs://"):
            problem, remedy = f"no TPU sees {root!r}", "a root in a bucket: --reuse gs://BUCKET/FOLDER"
            raise UserError(problem, path=("--reuse",), remedy=remedy)
    if xla_flags:
        check_flags(XLA, xla_flags)
    if libtpu_args and find_spec("libtpu"):  # else nothing here knows them: the machine's own does
        check_flags(LIBTPU, libtpu_args)
    prepare_jax()
    from taetpu.study.run import parse_audit, parse_profile
    from taetpu.train.layout import parse_packing

    parse_packing(pack)
    parse_audit(AUDIT if audit is None else audit)
    parse_profile(profile)


def _elsewhere(
    file: Path, sets: list[str], root: str | None, words: list[str], name: str | None, asked: dict[str, Any],
    where: dict[str, Any], how: dict[str, Any],
) -> int:  # fmt: skip
    """Train on a machine that is made for the study; the exit code."""
    from taetpu.cli.cloud import build_spec, candidate_zones, read_settings
    from taetpu.cli.on_tpu import run_on_tpu
    from taetpu.cloud.labels import default_name, label_value
    from taetpu.spec.document import read_document

    settings = read_settings()
    if where["idle_minutes"] is not None:
        settings = settings.model_copy(update={"idle_minutes": where["idle_minutes"]})
    study = str(read_document(file).data.get("study", file.stem))
    spec = build_spec(settings, name or default_name(label_value(settings.owner), label_value(study)), **asked)
    zones = candidate_zones(spec, where["zones"], settings, where["max_usd"])
    return run_on_tpu(file, sets, root, words, spec, zones, settings, **how)


def demo(root: Root = None) -> None:
    """The quick study: which parts of a small Transformer matter. A few minutes on two cores.

    Example: taetpu demo
    """
    from importlib.resources import as_file, files

    with as_file(files("taetpu.study").joinpath("templates/quickstart.yaml")) as file, started(file, root):
        train_study(file, [], root, {}, False)


def train_study(file: Path, sets: list[str], root: str | None, how: dict[str, Any], as_json: bool) -> None:
    """Run a study file to its report, with progress, and print the verdicts; jax must be `started`."""
    from rich.console import Console

    from taetpu.core.errors import Failed
    from taetpu.study.progress import StudyProgress
    from taetpu.study.run import run as run_file
    from taetpu.study.shards import SharesLeft

    try:
        with StudyProgress(Console(stderr=True)) as progress:
            outcome = run_file(file, sets, root=root, callback=progress, **how)
    except SharesLeft as left:
        typer.echo(str(left), err=True)
        raise typer.Exit(left.exit_code) from None
    if as_json:
        show_json(outcome.results)
    else:
        show(outcome.results, outcome.report)
    if how.get("profile") and not progress.runs:
        typer.echo("nothing was left to train, so that nothing was traced", err=True)
    if outcome.refuted:
        wrong = "\n  ".join(outcome.refuted)
        raise Failed(
            f"reused runs came out otherwise when they were trained again:\n  {wrong}\n"
            "nothing that was reused is kept; the same command without --reuse trains what is missing now"
        )
    if outcome.failed:
        runs = sum(len(failure.runs) for failure in outcome.failed)
        raise Failed(f"{runs} runs failed, for the reason above; the same command tries them again")
