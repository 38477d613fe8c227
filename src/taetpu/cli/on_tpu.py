"""`taetpu run --on tpu`: train a study on Cloud TPUs, from no machine to its report and back to none."""

import os
import signal
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.cli.cloud import confirm, describe_plan, open_zones, show_creation, tell, telling_what_runs
from taetpu.cli.study_files import check_paths, finished, study_files

if TYPE_CHECKING:
    from taetpu.cloud.machines import Machine, Spec
    from taetpu.cloud.settings import Settings
    from taetpu.cloud.ssh import Hosts
    from taetpu.spec.resolved_study import Study
    from taetpu.store.backend import Store

FETCHED = ("results.json", "study.yaml", "report/")
"""What is copied here from a study's folder; runs and models stay in the bucket."""
COORDINATOR_PORT = 8476
"""JAX's own port on Cloud TPU for processes of several hosts."""


def run_on_tpu(
    file: Path, sets: list[str], root: str | None, words: Sequence[str], spec: "Spec", zones: Sequence[str],
    settings: "Settings", *, keep: bool, yes: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Train a study on a machine with its folder in the bucket; its exit code.

    The machine is made again when it is taken away, within its hours. It is deleted at the end unless `keep` is set.

    Args:
        words: further options of `taetpu run`.

    Raises:
        UserError: the study, the settings or the bucket are not usable; nothing was made.
        CloudError: no machine can be had, or too many were lost.
    """
    from taetpu.cloud import provision
    from taetpu.cloud.labels import label_value
    from taetpu.cloud.supervise import Limits, supervise
    from taetpu.spec.loading import load_study
    from taetpu.store.backend import open_store

    study = load_study(file, sets)
    check_paths(study)
    address = bucket_address(settings, root)
    store = open_store(address)
    check_bucket(store, study)
    spec = replace(spec, study=label_value(study.name))
    there = provision.find_existing(spec)
    if finished(store, study, words) and there is None:
        tell(f"all runs of {study.name} are done: no machine is made")
        fetch_report(store, study.name)
        return 0
    plan = f"train {study.name} into {store.where(study.name)}, then {'keep' if keep else 'delete'} the machine"
    plan += _transfers(address, zones)
    if dry_run:
        show_creation(spec, zones, settings, f"\n{plan}")
        return 0
    if there is None:
        zones = open_zones(settings, zones)
        confirm(f"{describe_plan(spec, zones)}\n{plan}", "Go on?", yes=yes)
    else:
        keep = keep or there.study != spec.study  # made for something else: it is not this command's to delete
        tell(f"{spec.name} exists in {there.zone}; if it is lost, this is made in its place:")
        tell(describe_plan(spec, zones))
    options = [word for one in sets for word in ("--set", one)]
    job = StudyJob(settings, spec, study, store, file, [*options, "--root", address, *words])

    def make(hours: float) -> "Machine":
        return provision.make(replace(spec, hours=hours), zones, settings, tell)

    with telling_what_runs(_still_running(spec, study), spec.name):
        code = supervise(make, job, Limits(spec.hours), settings, tell)
        if keep or code == 128 + signal.SIGTERM:
            tell(f"{spec.name} is kept; `taetpu tpu down {spec.name}` deletes it")
        else:
            provision.down(spec.name, spec.owner, settings, tell)
    fetch_report(store, study.name)  # nothing that fails here may leave a machine running
    return code


def _transfers(address: str, zones: Sequence[str]) -> str:
    """Return a line where machines may be in other regions than the bucket; "" otherwise."""
    from taetpu.cloud import bucket
    from taetpu.cloud.gcloud import CloudError

    try:
        region = (bucket.describe(address.split("/")[2]) or {}).get("location", "").lower()
    except CloudError:  # it can be read and written; only its region stays unknown
        region = ""
    far = bucket.far_zones(region, zones) if region else []
    return f"\nthe bucket is in {region}: transfers cost money and time from {', '.join(far)}" if far else ""


def _still_running(spec: "Spec", study: "Study") -> str:
    return (
        f"{study.name} may be training on {spec.name}, which costs money. The same command picks it up; "
        f"`taetpu tpu logs -f --tpu {spec.name}` shows its log; `taetpu tpu down {spec.name}` deletes the machine."
    )


class StudyJob:
    """A study as a job on a machine, see `taetpu.cloud.supervise.Job`.

    Args:
        words: of `taetpu run`, after the study's file.
    """

    def __init__(
        self, settings: "Settings", spec: "Spec", study: "Study", store: "Store", file: Path, words: list[str]
    ) -> None:  # fmt: skip
        self.settings, self.spec, self.study, self.store = settings, spec, study, store
        self.file, self.words = file, words
        self.hosts: Hosts | None = None
        self.name, self.offsets = "", dict[int, int]()

    def start(self, machine: "Machine") -> None:
        from taetpu.cloud import jobs, startup, transfer
        from taetpu.store.lease import CLAIM_PATIENCE

        with _as_lost():
            hosts = self.hosts = startup.prepare(machine, self.settings, tell)
            files = study_files(self.study, self.file)
            base = Path(os.path.commonpath([path.parent for path in files]))
            names = [path.relative_to(base).as_posix() for path in files]
            transfer.send(hosts, base, names, f"studies/{self.study.name}", hosts.all)
            remote = self.file.resolve().relative_to(base).as_posix()
            command = ["python", "-m", "taetpu", "run", remote, *self.words]
            running = [job for job in jobs.running(hosts) if job["commands"] == [command]]
            if running:
                tell(f"{self.study.name} is running there already")
                self.name, self.offsets = running[0]["name"], {}
                return
            # The machine before may have been taken away while it held the study's claim.
            environment = {
                CLAIM_PATIENCE: "120",
                "GOOGLE_CLOUD_PROJECT": self.settings.project,
                **_coordinator(hosts),
            }
            request = jobs.Request(
                [command], f"studies/{self.study.name}", environment, self.settings.image, self.settings.secret_names
            )
            self.name, self.offsets = jobs.start(hosts, request, name=f"{self.study.name}-{jobs.new_name()}"), {}

    def follow(self, machine: "Machine") -> int:
        from taetpu.cloud import jobs
        from taetpu.cloud.supervise import Lost

        hosts = self.hosts
        assert hosts is not None

        def write(worker: int, line: str) -> None:
            tell(f"[{worker}] {line}" if len(hosts.workers) > 1 else line)

        with _as_lost():
            patience = 6 * self.settings.poll_seconds
            jobs.follow(hosts, self.name, write, patience=patience, offsets=self.offsets)
            ended = jobs.find(hosts, self.name).values()
            codes = [one["rc"] for one in ended]
        if any(one["stopped"] for one in ended):  # by `taetpu tpu stop`
            return 128 + signal.SIGTERM
        if None in codes or any(code >= 128 for code in codes):
            raise Lost("the study was ended by a signal")
        return max(codes)

    def progress(self) -> object:
        return stored_results(self.store, self.study.name)


def _coordinator(hosts: "Hosts") -> dict[str, str]:
    """Return JAX's variables for processes of several hosts; none for one host."""
    if len(hosts.workers) == 1:
        return {}
    return {
        "JAX_COORDINATOR_ADDRESS": f"{hosts.workers[0].internal}:{COORDINATOR_PORT}",
        "JAX_NUM_PROCESSES": str(len(hosts.workers)),
        "JAX_PROCESS_ID": "{worker}",
    }


@contextmanager
def _as_lost():
    """Raise `Lost` for errors that say that a machine does not answer or cannot do its work."""
    from taetpu.cloud.ssh import RemoteFailed, Unreachable
    from taetpu.cloud.startup import NotSetUp
    from taetpu.cloud.supervise import Lost

    try:
        yield
    except (NotSetUp, RemoteFailed, Unreachable) as error:
        raise Lost(error.problem, remedy=error.remedy) from error


def stored_results(store: "Store", name: str) -> set[str]:
    """Return the finished runs and the checkpoints in a study's folder."""
    import re

    found = (re.search(r".*/runs/.*/result\.json$|.*/packs/[^/]+/\d+(?=/)", key) for key in store.list(name))
    return {one[0] for one in found if one}


def check_bucket(store: "Store", study: "Study") -> None:
    """Find what is wrong with the bucket or the stored study before anything is paid for.

    Raises:
        UserError: the bucket cannot be read, or the folder holds another study.
    """
    from taetpu.data.corpora import PYTHON_DOCS
    from taetpu.spec.resolved_study import check_frozen, frozen_data
    from taetpu.stats.load import read_study
    from taetpu.store.study import StudyFolder

    store.list(study.name)
    folder = StudyFolder(store, study.name)
    if folder.exists() and not study.match:
        # The help texts of Python differ between its versions.
        sources = {getattr(run.config.task, "source", None) for run in study.runs()}
        data = {"data": frozen_data(study)["data"]} if PYTHON_DOCS in sources else {}
        check_frozen(read_study(folder) | data, study)


def bucket_address(settings: "Settings", root: str | None) -> str:
    """Return the address of the study root: `--root`, TAETPU_ROOT if it is one, else the settings' bucket.

    Raises:
        UserError: `--root` is not a gs:// address.
    """
    from taetpu.core.errors import UserError

    named = root or os.environ.get("TAETPU_ROOT", "")
    if named.startswith("gs://"):
        return named
    if root:
        problem = f"--root must be a gs:// address with --on tpu, got {root!r}"
        raise UserError(problem, path=("--root",), remedy="Use gs://BUCKET/FOLDER, or set `bucket` in taetpu.toml.")
    return f"gs://{settings.bucket}/studies"


def fetch_report(store: "Store", name: str) -> None:
    """Copy a study's results and report into `cloud/` here."""
    from taetpu.store.backend import open_store

    local: Any = open_store("cloud")
    for key in store.list(name):
        if key.removeprefix(f"{name}/").startswith(FETCHED):
            local.write(key, store.read(key), replace=True)
    if local.exists(f"{name}/report/index.html"):
        tell(f"report: {local.where(f'{name}/report/index.html')}")
