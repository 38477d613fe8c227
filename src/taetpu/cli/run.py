"""`taetpu run` and `demo`: train a study here, on a Ray cluster or on a TPU machine, and report its verdicts."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.on_tpu import OnTpuOptions, TpuRunOptions, run_on_tpu
from taetpu.cli.options import AsJson, Root, TrainOptions, integer, takes_options, to_argv
from taetpu.cli.output import log, plural, print_json
from taetpu.cli.program_studies import has_program, refuse_check, run_program
from taetpu.cli.report_commands import costs_of, print_next, print_results
from taetpu.core.errors import Failed, UserError

if TYPE_CHECKING:
    from taetpu.stats.results import Results


@dataclass(frozen=True, kw_only=True)
class RunOptions(TpuRunOptions):
    """Options of `taetpu run`."""

    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="STUDY", help="More study files, to run one after the other with these options."),
    ] = None
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto",
            envvar="JAX_COORDINATOR_ADDRESS",
            help="Train in several processes that connect to this address. auto: use the address that Cloud TPU, Slurm "
            "or Open MPI define.",
        ),
    ] = None
    processes: Annotated[
        int | None, integer(envvar="JAX_NUM_PROCESSES", help="The number of processes, with --coordinator.")
    ] = None
    process: Annotated[int | None, integer(envvar="JAX_PROCESS_ID", help="This process's number, from 0.")] = None
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Train share I (from 0) of N shares of the packs. Other processes with the same --root train the "
            "other shares.",
        ),
    ] = None
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="With --shard, exit with 75 instead of waiting for other shards.")
    ] = False
    on: Annotated[
        str | None,
        typer.Option(
            metavar="tpu|ray",
            help="tpu: create a Cloud TPU, train on it, store the results in a bucket, and delete the TPU. ray: train "
            "on the nodes of a Ray cluster.",
        ),
    ] = None
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The cluster, with --on ray. Default: RAY_ADDRESS, else a cluster on this host, else a new cluster.",
        ),
    ] = None
    samples: Annotated[
        bool, typer.Option("--samples", help="Also print the texts that the models generate (train.sample) in logs.")
    ] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="For a study with a program: run the baseline's program for seconds, and show which metrics are read.",
        ),
    ] = False
    as_json: AsJson = False

    def study_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `taetpu.run` that these options set."""
        ray = (self.address or "") if self.on == "ray" else None
        return {**super().study_arguments(), "shard": self.shard, "wait": not self.no_wait, "ray": ray}


@takes_options
def run(options: RunOptions) -> None:
    """Train the missing runs, then report. Repeat the command to resume.

    Several studies are all loaded first. A study that fails does not stop the next ones; the exit code is the worst.

    Example: taetpu run study.yaml --set train.steps=200
    """
    _check(options)
    if options.more:
        from taetpu.cli.several_studies import run_studies

        raise typer.Exit(run_studies(options, [options.study, *options.more]))
    if has_program(options.study):
        run_program(options)
        return
    refuse_check(options)
    if options.on == "tpu":
        raise typer.Exit(run_on_tpu(options))
    with started(options):
        if options.coordinator is None:
            train_study(options)
            return
        from taetpu.core.distributed import Cluster, join_cluster  # imports jax, so it must follow `started`

        with join_cluster(Cluster(options.coordinator, options.processes, options.process)):
            code = _train_together(options)
        raise typer.Exit(code)


def _check(options: RunOptions) -> None:
    """Raise `UserError` if options cannot be used together or if a required option is missing."""
    tpu, ray, shard = options.on == "tpu", options.on == "ray", options.shard is not None
    cluster, member = options.coordinator is not None, (options.processes, options.process) != (None, None)
    if not (tpu or ray or options.on is None):
        raise UserError(f"unknown machine {options.on!r}", path=("--on",), remedy="Use --on tpu or --on ray.")
    for first, second, both in (
        ("--shard", "--on", shard and options.on is not None),
        ("--shard", "--coordinator", shard and cluster),
        ("--on", "--coordinator", options.on is not None and cluster),
        ("--on", "--processes", tpu and member),
        ("--profile", "--coordinator", options.profile and cluster),
    ):
        if both:
            problem = f"{first} and {second} cannot be used together"
            remedy = "Use only one of these options."
            if cluster or member:
                remedy += " JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID also set options."
            raise UserError(problem, path=(first,), remedy=remedy)
    machine = next((word for word in to_argv(options, OnTpuOptions) if word != "--yes"), "")
    for option, needed, missing in (
        ("--audit", "--reuse ROOT", options.audit is not None and not options.reuse),
        ("--no-wait", "--shard I/N", options.no_wait and not shard),
        ("--address", "--on ray", options.address is not None and not ray),
        (machine, "--on tpu", machine and not tpu),
        ("--processes" if options.processes is not None else "--process", "--coordinator", member and not cluster),
    ):
        if missing:
            raise UserError(f"{option} requires {needed}", path=(option,), remedy=f"Add {needed}, or remove {option}.")


def train_study(options: RunOptions) -> None:
    """Train a study, display the progress, and print the verdicts. Must be called within `started`.

    Raises:
        Failed: if runs failed, or if reused runs have different results when they are trained again.
    """
    from rich.console import Console

    from taetpu.store.addresses import resolve
    from taetpu.study.progress import StudyProgress
    from taetpu.study.run_file import run as run_file
    from taetpu.study.shares import SharesLeft

    try:
        with StudyProgress(Console(stderr=True), options.samples, nodes=options.on == "ray") as progress:
            outcome = run_file(options.study, options.sets or [], callback=progress, **options.study_arguments())
    except SharesLeft as left:
        log(str(left))
        raise typer.Exit(left.exit_code) from None
    if options.as_json:
        print_json(outcome.results)
    else:
        print_results(outcome.results, outcome.report, costs_of(resolve(outcome.folder).study, outcome.results))
        if (run := finished_run(outcome.results)) is not None:
            print_next(outcome.results, run, options.root, progress.look)
    if outcome.refuted:
        wrong = "\n  ".join(outcome.refuted)
        raise Failed(
            f"reused runs have different results when they are trained again:\n  {wrong}\n"
            "No reused run is kept. Repeat the command without --reuse to train the missing runs."
        )
    if outcome.failed:
        runs = sum(len(failure.runs) for failure in outcome.failed)
        raise Failed(f"{runs} runs failed (see above); repeat the command to train these runs again")
    if number := len(outcome.failed_tables):
        raise Failed(f"{plural(number, 'post-hoc table')} failed (see above); repeat the command to compute them again")


def finished_run(results: "Results") -> str | None:
    """Return the address of the first finished run in `results.json`, or None if no run has finished."""
    from taetpu.stats.load import COMPLETED

    runs = ((arm["name"], run) for arm in results["arms"] for run in arm["runs"] if run["outcome"] in COMPLETED)
    return next((f"{results['study']}/{arm}/{run['seed']}" for arm, run in runs), None)


def _train_together(options: RunOptions) -> int:
    """Train a study as one process of a JAX cluster, and return the exit code."""
    from taetpu.core.distributed import in_every_process, is_primary
    from taetpu.store.backend import default_root, open_store
    from taetpu.store.study import StudyFolder
    from taetpu.study.loading import load_study
    from taetpu.train.follower import announce_end, follow

    study = in_every_process(lambda: load_study(options.study, options.sets or []))
    if not is_primary():
        return follow(StudyFolder(open_store(default_root(options.root)), study.name), study.sources)
    with announce_end():
        train_study(options)
    return 0


def demo(root: Root = None) -> None:
    """Run a quick study of which parts of a small Transformer matter. Takes a few minutes on two cores.

    Example: taetpu demo
    """
    from importlib.resources import as_file, files

    with as_file(files("taetpu.study").joinpath("templates/quickstart.yaml")) as file:
        options = RunOptions(study=file, root=root)
        with started(options):
            train_study(options)


# --- XLA's flags and dumps -------------------------------------------------------------------------------------------


@contextmanager
def started(options: TrainOptions) -> Iterator[None]:
    """Set the XLA flags and start JAX.

    Raises:
        UserError: if a flag is unknown.
    """
    from taetpu.core.jax_setup import prepare_jax
    from taetpu.core.xla_flags import set_flags

    set_flags(options.xla_flags, options.libtpu_args)
    with _dumped(options) if options.dump else nullcontext():
        prepare_jax()
        yield


@contextmanager
def _dumped(options: TrainOptions) -> Iterator[None]:
    """Make XLA dump each program into the study's folder `dumps/<time>/`, and print the folder's address at the end.

    Raises:
        UserError: if the study's file cannot be read.
    """
    from taetpu.core.xla_flags import enable_dumps, folder_size
    from taetpu.spec.document import read_document
    from taetpu.store.backend import default_root, open_store

    name = read_document(options.study).data.get("study", options.study.stem)
    store = open_store(default_root(options.root))
    key = f"{name}/dumps/{datetime.now(UTC).strftime('%Y-%m-%dT%H-%M-%S.%f')}"
    folder = store.folder(key)
    enable_dumps(folder)
    try:
        yield
    finally:
        files, size = folder_size(folder)
        store.save_folder(key)
        log(f"dumps: {files} files, {size / 1e6:.1f} MB in {store.where(key)}")
