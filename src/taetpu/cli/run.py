"""`taetpu run` and `demo`: train a study here, on a Ray cluster or on a TPU machine, and report its verdicts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from taetpu.cli.options import AUDIT, OnTpuOptions, Root, RunOptions, StudyOptions, TrainOptions, takes_options, to_argv
from taetpu.cli.output import log, print_json
from taetpu.cli.results import print_results
from taetpu.core.errors import Failed, UserError

if TYPE_CHECKING:
    from taetpu.store.backend import Store


@takes_options
def run(options: RunOptions) -> None:
    """Train what is missing, then report. Repeat the command to resume.

    Example: taetpu run study.yaml --set train.steps=200
    """
    _check(options)
    if options.on == "tpu":
        from taetpu.cli.on_tpu import run_on_tpu

        raise typer.Exit(run_on_tpu(options))
    with started(options):
        if options.coordinator is None:
            train_study(options)
            return
        from taetpu.core.distributed import Cluster, join_cluster  # late: it imports jax, which `started` prepares

        with join_cluster(Cluster(options.coordinator, options.processes, options.process)):
            code = _train_together(options)
        raise typer.Exit(code)


def _check(options: RunOptions) -> None:
    """Raise `UserError` if options exclude each other or if a required option is missing."""
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
            problem = f"{first} and {second} exclude each other"
            remedy = "Give one of them. JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID count as given."
            raise UserError(problem, path=(first,), remedy=remedy if cluster or member else "Give one of them.")
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

    from taetpu.study.progress import StudyProgress
    from taetpu.study.run import run as run_file
    from taetpu.study.shards import SharesLeft

    try:
        with StudyProgress(Console(stderr=True)) as progress:
            outcome = run_file(
                options.study, options.sets or [], root=options.root, pack=options.pack, reuse=options.reuse or [],
                audit=AUDIT if options.audit is None else options.audit, until_resolved=options.until_resolved,
                profile=options.profile, retrain_damaged=options.retrain_damaged, shard=options.shard,
                wait=not options.no_wait, ray=(options.address or "") if options.on == "ray" else None,
                callback=progress,
            )  # fmt: skip
    except SharesLeft as left:
        log(str(left))
        raise typer.Exit(left.exit_code) from None
    if options.as_json:
        print_json(outcome.results)
    else:
        print_results(outcome.results, outcome.report)
    if options.profile and not progress.runs:
        log("no run was left to train, so --profile traced nothing")
    if outcome.refuted:
        wrong = "\n  ".join(outcome.refuted)
        raise Failed(
            f"reused runs have other results when they are trained again:\n  {wrong}\n"
            "No reused run is kept. Repeat the command without --reuse to train what is missing."
        )
    if outcome.failed:
        runs = sum(len(failure.runs) for failure in outcome.failed)
        raise Failed(f"{runs} runs failed, see above; repeat the command to try them again")


def _train_together(options: RunOptions) -> int:
    """Train a study as one process of a JAX cluster, and return the exit code."""
    from taetpu.core.distributed import in_every_process, is_primary
    from taetpu.spec.loading import load_study
    from taetpu.store.backend import default_root, open_store
    from taetpu.store.study import StudyFolder
    from taetpu.train.follower import announce_end, follow

    study = in_every_process(lambda: load_study(options.study, options.sets or []))
    if not is_primary():
        return follow(StudyFolder(open_store(default_root(options.root)), study.name), study.sources)
    with announce_end():
        train_study(options)
    return 0


def demo(root: Root = None) -> None:
    """Run the quick study: which parts of a small Transformer matter. Takes a few minutes on two cores.

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
    """Set the XLA flags and start JAX. At the end, store the dumps and print their address.

    Raises:
        UserError: if a flag is unknown.
    """
    from taetpu.core.flags import enable_dumps, folder_size, set_flags
    from taetpu.core.runtime import prepare_jax

    set_flags(options.xla_flags, options.libtpu_args)
    dumps = _dumps_of(options) if options.dump else None
    if dumps is not None:
        enable_dumps(dumps.folder)
    prepare_jax()
    try:
        yield
    finally:
        if dumps is not None:
            files, size = folder_size(dumps.folder)
            dumps.keep()
            log(
                f"dumps: {files} files, {size / 1e6:.1f} MB in {dumps.where}"
                if files
                else "dumps: nothing was compiled"
            )


@dataclass(frozen=True)
class Dumps:
    """The folder `dumps/<time>/` of a study in the store, and the corresponding folder on the local disk."""

    store: "Store"
    key: str
    folder: Path

    @property
    def where(self) -> str:
        """The address of the folder in the store."""
        return self.store.where(self.key)

    def keep(self) -> None:
        """Store the dumped files, or remove the folder if it is empty."""
        if any(self.folder.iterdir()):
            self.store.save_folder(self.key)
        else:
            self.folder.rmdir()


def _dumps_of(options: StudyOptions) -> Dumps | None:
    """Return an unused dumps folder for the study, or None if the study file is invalid.

    The error in the file is reported later, when the study is loaded.
    """
    from taetpu.store.backend import default_root, open_store
    from taetpu.store.documents import from_yaml
    from taetpu.store.study import StudyFolder

    if not options.study.is_file():
        return None
    try:
        data = from_yaml(options.study.read_bytes(), str(options.study))
        folder = StudyFolder(open_store(default_root(options.root)), str(data["study"]))
    except (OSError, UserError, TypeError, KeyError):
        return None
    now = f"{folder.name}/dumps/{datetime.now(UTC).strftime('%Y-%m-%dT%H-%M-%S')}"
    keys = (now, *(f"{now}-{number}" for number in range(2, 1000)))
    key = next(key for key in keys if not folder.store.list(key))
    return Dumps(folder.store, key, folder.store.folder(key))
