"""`taetpu export slurm | skypilot | kueue`: a study as a job of a scheduler that gives its tasks a rank."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.cloud import Spot
from taetpu.cli.options import Root, Sets, StudyFile, integer

if TYPE_CHECKING:
    from taetpu.core.chips import Slice
    from taetpu.spec.resolved_study import Study
    from taetpu.study.export import Share

LOCAL = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders that are local to each node."""

app = typer.Typer(
    help="Write a study as a job of another scheduler. Nothing is started.\n\n"
    "Example: taetpu export slurm study.yaml --shards 8 --root /shared/runs",
    no_args_is_help=True,
)

Shards = Annotated[int, integer(least=1, metavar="N", help="Tasks that share the study's packs.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Default: named after the study.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file where it exists and differs.")]
Tpu = Annotated[str, typer.Option("--tpu", metavar="TPU", help="The slice of each task, such as v6e-8.")]


@app.command()
def slurm(
    study: StudyFile, shards: Shards, root: Root = None, sets: Sets = None, out: Out = None, force: Force = False
):
    """Write a job array for sbatch. All nodes must see the study's folder, the root and this Python.

    Example: taetpu export slurm study.yaml --shards 8 --root /shared/runs
    """
    from taetpu.spec.loading import load_study
    from taetpu.study.export import slurm_script

    loaded, place = load_study(study, sets or []), _shared(root)
    file = out or Path(f"{loaded.name}.slurm.sh")
    logs = file.parent / f"{loaded.name}-slurm"
    _write(file, slurm_script(_share(loaded, sets, place, shards), study, logs), force)
    logs.mkdir(parents=True, exist_ok=True)  # where it is missing, Slurm ends the tasks without a message
    _check_count(loaded, shards)
    _next(f"sbatch {file}", place, loaded)


@app.command()
def skypilot(
    study: StudyFile,
    shards: Shards,
    tpu: Tpu,
    root: Root = None,
    sets: Sets = None,
    spot: Spot = False,
    install: Annotated[str, typer.Option(help="What pip installs there, such as a git address of taetpu.")] = "",
    out: Out = None,
    force: Force = False,
) -> None:
    """Write a task for `sky jobs launch` of SkyPilot 0.14.

    Example: taetpu export skypilot study.yaml --shards 8 --tpu v6e-8 --root gs://my-studies/studies --install GIT
    """
    from taetpu.core.chips import parse_slice
    from taetpu.core.errors import UserError
    from taetpu.study.export import skypilot_task

    if not install:
        remedy = "Use --install 'taetpu[gcp,tpu] @ git+https://github.com/OWNER/taetpu@COMMIT'."
        raise UserError("no package for the machines to install", path=("--install",), remedy=remedy)
    loaded, base, files = _files(study, sets)
    place = _bucket(root)
    each = parse_slice(tpu)
    text = skypilot_task(_share(loaded, sets, place, shards), base, files, each, install, spot)
    file = out or Path(f"{loaded.name}.sky.yaml")
    _write(file, text, force)
    _check_count(loaded, shards, each, spot)
    _next(f"sky jobs launch --num-jobs {shards} {file}", place, loaded)


@app.command()
def kueue(
    study: StudyFile,
    tpu: Tpu,
    image: Annotated[str, typer.Option(help="Container with taetpu; `taetpu image build` prints its address.")],
    shards: Shards = 1,
    root: Root = None,
    sets: Sets = None,
    spot: Spot = False,
    queue: Annotated[str, typer.Option(metavar="NAME", help="Kueue's LocalQueue.")] = "default",
    service_account: Annotated[
        str, typer.Option(metavar="NAME", help="Of Kubernetes; it must be allowed to write to the bucket.")
    ] = "default",
    out: Out = None,
    force: Force = False,
) -> None:
    """Write an indexed Job for GKE with Kueue.

    With --shards 1 the slice may have several hosts, which train the study as one program.

    Example: taetpu export kueue study.yaml --shards 8 --tpu v6e-8 --image IMAGE --root gs://my-studies/studies
    """
    from taetpu.core.chips import parse_slice
    from taetpu.study.export import kueue_job

    loaded, base, files = _files(study, sets)
    place = _bucket(root)
    share, each = _share(loaded, sets, place, shards), parse_slice(tpu)
    text = kueue_job(share, base, files, each, image, queue, service_account, spot)
    file = out or Path(f"{loaded.name}.kueue.yaml")
    _write(file, text, force)
    _check_count(loaded, shards, each, spot)
    _next(f"kubectl apply -f {file}", place, loaded)


def _share(study: "Study", sets: list[str] | None, root: str, shards: int) -> "Share":
    from taetpu.study.export import Share

    options = [word for one in sets or [] for word in ("--set", one)]
    return Share(study.name, (*options, "--root", root), shards, staged=study.tune is not None)


def _check_count(study: "Study", shards: int, tpu: "Slice | None" = None, spot: bool = False) -> None:
    """Say what the machines cost per hour, and warn where there are more of them than packs."""
    if tpu is not None:
        from taetpu.cloud.rates import rate, zones
        from taetpu.core.chips import table_date

        rates = [usd for zone in zones(tpu) if (usd := rate(tpu, zone, spot).usd) is not None]
        if rates:
            most = max(rates) * tpu.chips * shards
            typer.echo(f"cost: at most ${most:,.2f}/h for {shards} x {tpu.name} (rates of {table_date()})")
        else:
            typer.echo(f"cost: unknown, no rate of {tpu.name} is published (rates of {table_date()})")
    packs = _packs(study, tpu)
    if shards > packs:
        where = tpu.name if tpu else "this machine"
        typer.echo(f"warning: {shards} shards, and only {packs} packs on {where}: use --shards {packs}", err=True)


def _packs(study: "Study", tpu: "Slice | None") -> int:
    """The packs of the study's largest stage on a slice, or on this machine."""
    from taetpu.core.runtime import prepare_jax

    prepare_jax(cpu=tpu is not None)
    from taetpu.study.arms import list_arms
    from taetpu.study.tuning import trial_study
    from taetpu.tpu.group_plan import plan_group
    from taetpu.train.layout import AUTO, group
    from taetpu.train.pack_plan import plan_packs

    study = study.changed(arms=list_arms(study))
    stages = [study.runs(), *([trial_study(study).runs()] if study.tune else [])]
    sources = study.sources
    if tpu is None:
        return max(len(plan_packs(runs, [sources.prepare(run.config) for run in runs])) for runs in stages)
    return max(
        sum(plan_group(tpu, one, sources.prepare(one.runs[0].config), AUTO).packs for one in group(runs))
        for runs in stages
    )


def _files(file: Path, sets: list[str] | None) -> "tuple[Study, Path, list[str]]":
    """A study, and its files by their names below a common folder, the study's own first."""
    from taetpu.cli.study_files import check_paths, study_files
    from taetpu.spec.loading import load_study

    study = load_study(file, sets or [])
    check_paths(study)
    found = study_files(study, file)
    paths = [one for path in found for one in (sorted(path.rglob("*")) if path.is_dir() else [path]) if one.is_file()]
    base = Path(os.path.commonpath([path.parent for path in paths]))
    return study, base, [path.relative_to(base).as_posix() for path in paths]


def _shared(root: str | None) -> str:
    """The root for nodes that share a file system.

    Raises:
        UserError: it is a folder that is local to each node.
    """
    from taetpu.core.errors import UserError
    from taetpu.store.backend import default_root
    from taetpu.store.gcs_client import parse_address

    named = default_root(root)
    if found := parse_address(named):
        return str(found)
    path = Path(named).resolve()
    if any(path.is_relative_to(folder) for folder in LOCAL):
        remedy = "Use a folder that all nodes see, or gs://BUCKET/FOLDER."
        raise UserError(f"{path} is local to each node", path=("--root",), remedy=remedy)
    return str(path)


def _bucket(root: str | None) -> str:
    """The root for machines that share no file system.

    Raises:
        UserError: it is not in a bucket.
    """
    from taetpu.core.errors import UserError
    from taetpu.store.backend import default_root
    from taetpu.store.gcs_client import parse_address

    named = default_root(root)
    if found := parse_address(named):
        return str(found)
    remedy = "Use gs://BUCKET/FOLDER; `taetpu bucket create` makes a bucket."
    raise UserError(f"machines in the cloud do not see the folder {named!r}", path=("--root",), remedy=remedy)


def _write(file: Path, text: str, force: bool) -> None:
    """Write the job's file; one with the same content is left alone.

    Raises:
        UserError: the file exists and differs.
    """
    from taetpu.core import disk
    from taetpu.core.errors import UserError

    if file.exists() and not force and file.read_bytes() != text.encode():
        raise UserError("this file exists and differs", file=file, remedy="Give another --out, or --force.")
    disk.write_file(file, text.encode(), replace=True)
    typer.echo(f"wrote {file}")


def _next(command: str, root: str, study: "Study") -> None:
    typer.echo(f"next: {command}\nthen: taetpu report {root}/{study.name}")
