"""`taetpu export slurm | skypilot | kueue`: write a study as a job with numbered tasks for another scheduler."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.options import Spot, StudyOptions, integer, takes_options, to_argv
from taetpu.cli.program_studies import has_program
from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from taetpu.core.chips import Slice
    from taetpu.spec.resolved_study import Study
    from taetpu.study.scheduler_jobs import Share

LOCAL = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders that are local to each node."""

app = typer.Typer(
    help="Write a study as a job for another scheduler.\n\nNothing is submitted.\n\n"
    "Example: taetpu export slurm study.yaml --shards 8 --root /shared/runs",
)

Shards = Annotated[int, integer(least=1, metavar="N", help="Number of tasks that share the study's packs.")]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(StudyOptions):
    """Options that all `taetpu export` commands have. `taetpu export slurm` has no other options."""

    shards: Shards
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file to write. Default: named after the study."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CloudOptions(ExportOptions):
    """Options of schedulers in the cloud."""

    tpu: Annotated[str, typer.Option("--tpu", metavar="TPU", help="The slice of each task, such as v6e-8.")]
    spot: Spot = False


@dataclass(frozen=True, kw_only=True)
class SkyPilotOptions(CloudOptions):
    """Options of `taetpu export skypilot`."""

    install: Annotated[
        str, typer.Option(help="The package that pip installs on the machines, such as a git address of taetpu.")
    ] = ""


@dataclass(frozen=True, kw_only=True)
class KueueOptions(CloudOptions):
    """Options of `taetpu export kueue`."""

    shards: Shards = 1
    image: Annotated[str, typer.Option(help="The address of an image with taetpu, as printed by `taetpu image build`.")]
    queue: Annotated[str, typer.Option(metavar="NAME", help="Kueue's LocalQueue.")] = "default"
    service_account: Annotated[
        str,
        typer.Option(metavar="NAME", help="The Kubernetes service account, which must be able to write to the bucket."),
    ] = "default"


@app.command()
@takes_options
def slurm(options: ExportOptions) -> None:
    """Write a job array for sbatch. All nodes must see the study's folder, the root and this Python.

    Example: taetpu export slurm study.yaml --shards 8 --root /shared/runs
    """
    from taetpu.study.programs.running import open_folder
    from taetpu.study.scheduler_jobs import slurm_script

    is_program = has_program(options.study)
    study, root = _load(options, is_program), _shared_root(options.root)
    if is_program:
        open_folder(study, root)  # refuses a bucket
    file = options.out or Path(f"{study.name}.slurm.sh")
    logs = file.parent / f"{study.name}-slurm"
    _write(file, slurm_script(_share(options, study, root), options.study, logs))
    logs.mkdir(parents=True, exist_ok=True)  # without this folder, Slurm ends tasks silently
    if not is_program:  # a program says itself which data it reads
        _print_data(study, shared=True)
    _print_next("sbatch", file, root, study)


@app.command()
@takes_options
def skypilot(options: SkyPilotOptions) -> None:
    """Write a task for `sky jobs launch` of SkyPilot 0.14.

    Example: taetpu export skypilot study.yaml --shards 8 --tpu v6e-8 --root gs://my-studies/studies --install GIT
    """
    from taetpu.study.scheduler_jobs import skypilot_task

    if not options.install:
        remedy = "Use --install 'taetpu[gcp,tpu] @ git+https://github.com/OWNER/taetpu@COMMIT'."
        raise UserError("missing --install, the package for the machines", path=("--install",), remedy=remedy)

    task = partial(skypilot_task, install=options.install, spot=options.spot)
    _export_to_cloud(options, task, "sky.yaml", f"sky jobs launch --num-jobs {options.shards}")


@app.command()
@takes_options
def kueue(options: KueueOptions) -> None:
    """Write an indexed Job for GKE with Kueue.

    Example: taetpu export kueue study.yaml --shards 8 --tpu v6e-8 --image IMAGE --root gs://my-studies/studies
    """
    from taetpu.study.scheduler_jobs import kueue_job

    account = options.service_account
    job = partial(kueue_job, image=options.image, queue=options.queue, account=account, spot=options.spot)
    _export_to_cloud(options, job, "kueue.yaml", "kubectl apply -f")


def _export_to_cloud(
    options: CloudOptions, text: "Callable[[Share, Path, list[str], Slice], str]", ending: str, command: str
) -> None:
    """Write a job whose tasks store their results in a bucket, and print the job's cost and the next commands.

    Args:
        options: options of the command.
        text: function that returns the job's text. Its arguments are the share, a folder, the paths of the study's
            files in this folder, and the slice.
        ending: suffix of the file's default name.
        command: the command that submits the file.
    """
    from taetpu.cli.on_tpu import check_paths, study_files
    from taetpu.core.chips import parse_slice
    from taetpu.study.loading import load_study

    if has_program(options.study):
        problem = "the program and its environment are on this machine, and not on those of this scheduler"
        raise UserError(problem, path=("program",), file=options.study, remedy="Use `taetpu export slurm`.")
    study = load_study(options.study, options.sets or [])
    check_paths(study)
    base, names = study_files(study, options.study)
    root, tpu = _bucket_root(options.root), parse_slice(options.tpu)
    file = options.out or Path(f"{study.name}.{ending}")
    _write(file, text(_share(options, study, root), base, names, tpu))
    _print_data(study)
    _print_cost(tpu, options)
    _print_next(command, file, root, study)


def _load(options: ExportOptions, is_program: bool) -> Any:
    """Return the study of models or of a program."""
    from taetpu.spec.programs.loading import load_program_study
    from taetpu.study.loading import load_study

    load = load_program_study if is_program else load_study
    return load(options.study, options.sets or [])


def _share(options: ExportOptions, study: "Study", root: str) -> "Share":
    from taetpu.study.scheduler_jobs import Share

    words = to_argv(replace(options, root=root), StudyOptions)
    return Share(study.name, tuple(words), options.shards, staged=study.tune is not None)


def _print_cost(tpu: "Slice", options: CloudOptions) -> None:
    """Print the maximum cost per hour of all tasks."""
    from taetpu.cloud.zone_rates import rate, zones
    from taetpu.core.chips import table_date

    rates = [usd for zone in zones(tpu) if (usd := rate(tpu, zone, options.spot).usd) is not None]
    usd = f"at most ${max(rates) * tpu.chips * options.shards:,.2f}/h" if rates else "unknown"
    typer.echo(f"cost: {usd} for {options.shards} x {tpu.name} (rates of {table_date()})")


def _shared_root(root: str | None) -> str:
    """Return the path or gs:// address of the root, for nodes that share a file system.

    Raises:
        UserError: if the root is a folder that is local to each node.
    """
    address, named = _root_address(root)
    path = Path(named).resolve()
    if address is None and any(path.is_relative_to(folder) for folder in LOCAL):
        remedy = "Use a folder on a shared file system, or gs://BUCKET/FOLDER."
        raise UserError(f"{path} is local to each node", path=("--root",), remedy=remedy)
    return address or str(path)


def _bucket_root(root: str | None) -> str:
    """Return the gs:// address of the root, for machines without a shared file system.

    Raises:
        UserError: if the root is not in a bucket.
    """
    address, named = _root_address(root)
    if address is None:
        remedy = "Use gs://BUCKET/FOLDER; `taetpu bucket create` creates a bucket."
        raise UserError(f"machines in the cloud cannot read the folder {named!r}", path=("--root",), remedy=remedy)
    return address


def _root_address(root: str | None) -> tuple[str | None, str]:
    """Return the root's gs:// address (None for a local folder), and the root as the user wrote it, or its default."""
    from taetpu.store.backend import default_root
    from taetpu.store.gcs_client import parse_address

    named = default_root(root)
    address = parse_address(named)
    return (str(address) if address else None), named


def _write(file: Path, text: str) -> None:
    """Write a job to a file, and print the file's path.

    Raises:
        UserError: if the file exists with different content, or its path has a control character.
    """
    from taetpu.core import atomic_files
    from taetpu.core.script_text import check_script_text

    check_script_text(str(file), "file", ("--out",))
    if file.exists() and file.read_bytes() != text.encode():
        remedy = "Delete the file, or use another --out."
        raise UserError("file exists with other content", file=file, remedy=remedy)
    atomic_files.write_file(file, text.encode(), replace=True)
    typer.echo(f"wrote {file}")


def _print_data(study: "Study", *, shared: bool = False) -> None:
    """Print what of the study's data travels."""
    from taetpu.study.data_travel import describe_travel

    for line in describe_travel(study, shared=shared):
        typer.echo(line)


def _print_next(command: str, file: Path, root: str, study: "Study") -> None:
    typer.echo(f"next: {command} {shlex.quote(str(file))}\nthen: taetpu report {shlex.quote(f'{root}/{study.name}')}")
