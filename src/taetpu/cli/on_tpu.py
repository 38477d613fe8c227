"""`taetpu run --on tpu`: train a study on a new Cloud TPU machine, fetch its report, and delete the machine."""

import os
import re
import signal
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.cloud_common import (
    build_spec,
    candidate_zones,
    confirm,
    describe_plan,
    open_zones,
    read_settings,
    show_creation,
    warn_of_costs,
    with_idle_minutes,
)
from taetpu.cli.options import AUDIT, MachineOptions, TrainOptions, to_argv
from taetpu.cli.output import log
from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taetpu.cloud.machine_api import Machine
    from taetpu.cloud.settings import Settings
    from taetpu.cloud.ssh import Hosts
    from taetpu.spec.resolved_study import Study
    from taetpu.store.backend import Store

FETCHED = ("results.json", "study.yaml", "report/")
"""Parts of a study's folder that are copied to this machine. Runs and models stay in the bucket."""
COORDINATOR_PORT = 8476
"""JAX's default coordinator port on Cloud TPU, for slices with several hosts."""


@dataclass(frozen=True, kw_only=True)
class OnTpuOptions(MachineOptions):
    """Options that require `--on tpu`."""

    tpu: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the TPU (requires --on tpu).")] = None
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the TPU at the end.")] = False


@dataclass(frozen=True, kw_only=True)
class TpuRunOptions(OnTpuOptions, TrainOptions):
    """Options of `taetpu run` that affect `--on tpu`."""


def run_on_tpu(options: TpuRunOptions) -> int:
    """Train a study on a machine, store the study's folder in the bucket, and return the exit code.

    A preempted machine is created again while some of the maximum hours remain. At the end, the machine is deleted,
    unless `--keep` is set or the machine was created for another purpose.

    Raises:
        UserError: if the options, the study, the settings or the bucket cannot be used. In this case, no machine is
            created.
        CloudError: if no machine is available or too many machines were lost.
    """
    from taetpu.cloud import lifecycle
    from taetpu.cloud.names_and_labels import default_name, label_value
    from taetpu.cloud.supervise import Limits, supervise
    from taetpu.spec.document import read_document
    from taetpu.store.backend import open_store
    from taetpu.study.data_travel import describe_travel
    from taetpu.study.loading import load_study

    check_options(options)
    settings = with_idle_minutes(read_settings(), options)
    named = str(read_document(options.study).data.get("study", options.study.stem))
    machine = options.tpu or default_name(label_value(settings.owner), label_value(named))
    spec = build_spec(settings, machine, options)
    zones = candidate_zones(spec, settings, options)
    study = load_study(options.study, options.sets or [])
    check_paths(study)
    address = bucket_address(settings, options.root)
    store = open_store(address)
    check_bucket(store, study)
    spec = replace(spec, study=label_value(study.name))
    existing = lifecycle.find_existing(spec)
    if existing is None and finished(store, study, options):
        log(f"all runs of {study.name} are done, so no machine is created")
        fetch_report(store, study.name)
        return 0
    keep = options.keep
    plan = f"train {study.name}, store it in {store.where(study.name)}, and {'keep' if keep else 'delete'} the machine"
    plan = "\n".join([plan + _transfers(address, zones), *describe_travel(study)])
    if options.dry_run:
        show_creation(spec, zones, settings, f"\n{plan}")
        return 0
    if existing is None:
        zones = open_zones(settings, zones)
        confirm(f"{describe_plan(spec, zones)}\n{plan}", "Continue?", yes=options.yes)
    else:
        keep = keep or existing.study != spec.study  # created for another purpose: never deleted here
        log(f"{spec.name} exists in {existing.zone}; if this machine is lost, it is replaced by:")
        log("\n".join([describe_plan(spec, zones), *describe_travel(study)]))
    job = StudyJob(settings, study, store, options.study, to_argv(replace(options, root=address), TrainOptions))

    def make(hours: float) -> "Machine":
        return lifecycle.make(replace(spec, hours=hours), zones, settings, log)

    warning = (
        f"{study.name} may be training on {spec.name}, which costs money. Repeat the command to continue. "
        f"`taetpu tpu logs -f --tpu {spec.name}` shows the log, and `taetpu tpu down {spec.name}` deletes the machine."
    )
    with warn_of_costs(warning, spec.name):
        code = supervise(make, job, Limits(spec.hours), settings, log)
        if keep or code == 128 + signal.SIGTERM:
            log(f"{spec.name} is kept; `taetpu tpu down {spec.name}` deletes it")
        else:
            lifecycle.down(spec.name, spec.owner, settings, log)
    fetch_report(store, study.name)  # last: an error here leaves no machine running
    return code


def check_options(options: TpuRunOptions) -> None:
    """Raise `UserError`, before a machine is created, if the command on the machine would reject the options."""
    from importlib.util import find_spec

    from taetpu.core.jax_setup import prepare_jax
    from taetpu.core.xla_flags import LIBTPU, XLA, check_flags

    for root in options.reuse or []:
        if not root.startswith("gs://"):
            problem, remedy = f"a TPU cannot read {root!r}", "Use a root in a bucket, as in --reuse gs://BUCKET/FOLDER."
            raise UserError(problem, path=("--reuse",), remedy=remedy)
    if options.xla_flags:
        check_flags(XLA, options.xla_flags)
    if options.libtpu_args and find_spec("libtpu"):  # otherwise only libtpu on the machine can check them
        check_flags(LIBTPU, options.libtpu_args)
    prepare_jax()
    from taetpu.study.run import parse_audit, parse_profile
    from taetpu.train.layout import parse_packing

    parse_packing(options.pack)
    parse_audit(AUDIT if options.audit is None else options.audit)
    parse_profile(options.profile)


def _transfers(address: str, zones: "Sequence[str]") -> str:
    """Return a warning about zones outside the bucket's region; "" if no zone is outside or the region is unknown."""
    from taetpu.cloud import bucket
    from taetpu.cloud.gcloud import CloudError

    try:
        region = (bucket.describe(address.split("/")[2]) or {}).get("location", "").lower()
    except CloudError:  # the warning is not essential
        region = ""
    far = bucket.far_zones(region, zones) if region else []
    return f"\nthe bucket is in {region}, so transfers from {', '.join(far)} cost money and time" if far else ""


class StudyJob:
    """A study as a job on a machine; implements `taetpu.cloud.supervise.Job`.

    Args:
        settings: settings of the current folder.
        study: the study as loaded from its file.
        store: the store in the bucket.
        file: the study file.
        words: arguments of `taetpu run` that follow the study file.
    """

    def __init__(self, settings: "Settings", study: "Study", store: "Store", file: Path, words: list[str]) -> None:
        self.settings, self.study, self.store = settings, study, store
        self.file, self.words = file, words
        self.hosts: Hosts | None = None
        self.name, self.offsets = "", dict[int, int]()

    def start(self, machine: "Machine") -> None:
        """Copy the study to the machine and start `taetpu run` there, unless it is already running."""
        from taetpu.cloud import host_jobs, startup, transfer
        from taetpu.store.errors import CLAIM_PATIENCE

        with _as_lost():
            hosts = self.hosts = startup.prepare(machine, self.settings, log)
            base, names = study_files(self.study, self.file)
            transfer.send(hosts, base, names, f"studies/{self.study.name}", hosts.all)
            command = ["python", "-m", "taetpu", "run", names[0], *self.words]
            running = [job for job in host_jobs.running(hosts) if job["commands"] == [command]]
            if running:
                log(f"{self.study.name} is already running there")
                self.name, self.offsets = running[0]["name"], {}
                return
            # A preempted machine may still hold the study's claim.
            environment = {
                CLAIM_PATIENCE: "120",
                "GOOGLE_CLOUD_PROJECT": self.settings.project,
                **_coordinator(hosts),
            }
            request = host_jobs.Request(
                [command], f"studies/{self.study.name}", environment, self.settings.image, self.settings.secret_names
            )
            self.name = host_jobs.start(hosts, request, name=f"{self.study.name}-{host_jobs.new_name()}")
            self.offsets = {}

    def follow(self, machine: "Machine") -> int:
        """Print the job's log until the job ends, and return its exit code. After `taetpu tpu stop`, it is 143."""
        from taetpu.cloud import host_jobs
        from taetpu.cloud.supervise import Lost

        hosts = self.hosts
        assert hosts is not None

        def write(worker: int, line: str) -> None:
            log(f"[{worker}] {line}" if len(hosts.workers) > 1 else line)

        with _as_lost():
            patience = 6 * self.settings.poll_seconds
            host_jobs.follow(hosts, self.name, write, patience=patience, offsets=self.offsets)
            ended = host_jobs.find(hosts, self.name).values()
            codes = [state["rc"] for state in ended]
        if any(state["stopped"] for state in ended):  # by `taetpu tpu stop`
            return 128 + signal.SIGTERM
        if None in codes or any(code >= 128 for code in codes):
            raise Lost("a signal ended the study")
        return max(codes)

    def progress(self) -> object:
        """Return the keys of the finished runs and of the checkpoints."""
        keys = self.store.list(self.study.name)
        matches = (re.search(r".*/runs/.*/result\.json$|.*/packs/[^/]+/\d+(?=/)", key) for key in keys)
        return {match[0] for match in matches if match}


def _coordinator(hosts: "Hosts") -> dict[str, str]:
    """Return the environment variables with which JAX connects several hosts, or {} for a single host."""
    if len(hosts.workers) == 1:
        return {}
    return {
        "JAX_COORDINATOR_ADDRESS": f"{hosts.workers[0].internal}:{COORDINATOR_PORT}",
        "JAX_NUM_PROCESSES": str(len(hosts.workers)),
        "JAX_PROCESS_ID": "{worker}",
    }


@contextmanager
def _as_lost():
    """Raise `Lost` in place of errors that mean that the machine is unreachable or unusable."""
    from taetpu.cloud.ssh import RemoteFailed, Unreachable
    from taetpu.cloud.startup import NotSetUp
    from taetpu.cloud.supervise import Lost

    try:
        yield
    except (NotSetUp, RemoteFailed, Unreachable) as error:
        raise Lost(error.problem, remedy=error.remedy) from error


def check_bucket(store: "Store", study: "Study") -> None:
    """Check the bucket and the stored study before a machine costs money.

    Raises:
        UserError: if the bucket is not readable or the folder contains another study.
    """
    from taetpu.data.corpora import PYTHON_DOCS
    from taetpu.spec.frozen import check_frozen, frozen_data
    from taetpu.stats.load import read_study
    from taetpu.store.study import StudyFolder

    store.list(study.name)
    folder = StudyFolder(store, study.name)
    if folder.exists() and not study.match:
        # The text of Python's help, a data source, differs between Python versions.
        reads_docs = any(PYTHON_DOCS in getattr(arm.config.task, "source", ()) for arm in study.arms)
        data = {"data": frozen_data(study)["data"]} if reads_docs else {}
        check_frozen(read_study(folder) | data, study)


def bucket_address(settings: "Settings", root: str | None) -> str:
    """Return `--root` if given, else a gs:// address in TAETPU_ROOT, else the address of the bucket in the settings.

    Raises:
        UserError: if `--root` is not a gs:// address.
    """
    named = root or os.environ.get("TAETPU_ROOT", "")
    if named.startswith("gs://"):
        return named
    if root:
        problem = f"--root must be a gs:// address with --on tpu, got {root!r}"
        raise UserError(problem, path=("--root",), remedy="Use gs://BUCKET/FOLDER, or set `bucket` in taetpu.toml.")
    return f"gs://{settings.bucket}/studies"


def fetch_report(store: "Store", name: str) -> None:
    """Copy the results and the report of a study into the subfolder `cloud/` of the current folder."""
    from taetpu.store.backend import open_store

    local: Any = open_store("cloud")
    for key in store.list(name):
        if key.removeprefix(f"{name}/").startswith(FETCHED):
            local.write(key, store.read(key), replace=True)
    if local.exists(f"{name}/report/index.html"):
        log(f"report: {local.where(f'{name}/report/index.html')}")


# --- the study's files -----------------------------------------------------------------------------------------------


def study_files(study: "Study", file: Path) -> tuple[Path, list[str]]:
    """Return a common folder and the relative paths of the study file, its plug-ins and its texts, in this order."""
    from taetpu.study.data_travel import data_files

    data = data_files(study)
    data |= {study.folder / name for name in _tokenizers(study)}
    paths = [path.resolve() for path in (file, *(Path(plugin.file) for plugin in study.plugins), *sorted(data))]
    files = [
        entry for path in paths for entry in (sorted(path.rglob("*")) if path.is_dir() else [path]) if entry.is_file()
    ]
    base = Path(os.path.commonpath([path.parent for path in files]))
    return base, [path.relative_to(base).as_posix() for path in files]


def check_paths(study: "Study") -> None:
    """Raise `UserError` if the path of a plug-in or text is absolute, since other machines have different folders.

    Data that are on this machine are read, so that their errors cost no machine. Others are not downloaded for it.
    """
    from taetpu.study.data_travel import fetched_sources

    named = {name for arm in study.arms for name in arm.config.task.sources}
    if not fetched_sources(study):
        study.runs()
    for name in sorted({*named, *_tokenizers(study), *study.document.data.get("plugins", [])}):
        if name.startswith(("/", "~")):
            remedy = "Use a path relative to the study file. The file is copied with the study."
            raise UserError(f"{name!r} is an absolute path", file=study.file, remedy=remedy)
    baseline = study.arms[0]
    for arm, start in ((baseline, study.start_model), *((arm, arm.config.train.start) for arm in study.arms)):
        if start is not None and start.revision is None and not start.folder.startswith("gs://"):
            problem = f"the model {start.folder!r} is on this machine, and models are not copied to others"
            remedy = "Import it, copy it to a bucket (gcloud storage cp -r FOLDER gs://...), and name that folder."
            raise arm.explain(UserError(problem, path=("train", "start", "folder"), remedy=remedy))


def finished(store: "Store", study: "Study", options: TrainOptions) -> bool:
    """Return whether all runs are stored and the report is up to date.

    Returns False if tuning, matching or an option may require more work.
    """
    from taetpu.store.study import StudyFolder

    folder, page = StudyFolder(store, study.name), f"{study.name}/report/index.html"
    more = options.until_resolved or options.reuse or options.profile or options.dump
    if study.tune or study.match or more or not store.exists(page):
        return False
    results = [f"{folder.run(run.arm, run.seed, run.id).key}/result.json" for run in study.runs()]
    return all(store.exists(key) and store.modified(key) <= store.modified(page) for key in results)


def _tokenizers(study: "Study") -> set[str]:
    """Return the files of the tasks' tokenizers."""
    named = {getattr(getattr(arm.config.task, "tokenizer", None), "path", None) for arm in study.arms}
    return {name for name in named if name is not None}
