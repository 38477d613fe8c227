"""`taetpu run --on tpu`: a study from no machine to its report, and back to none."""

import hashlib
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import agreed
from taetpu.cli.offer import Offer
from taetpu.cli.tables import show_json
from taetpu.cli.wanted import Wanted

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine, Worker
    from taetpu.cloud.errors import CloudError
    from taetpu.cloud.spec import Spec
    from taetpu.cloud.ssh import Slice
    from taetpu.cloud.supervise import Budget
    from taetpu.spec.design import Study
    from taetpu.store.backend import Store

FETCHED = ("results.json", "study.yaml", "report/")
"""What comes back of a study's folder; runs and models stay in the bucket."""
PORT, PORTS = 8476, 1000
"""Where processes of several hosts meet: jax's own port for it on Cloud TPU, or one of those behind it."""
MORE = {"--until-resolved", "--reuse", "--profile", "--dump"}
"""Options with which more may be done than a study's file asks for."""


def run_on_tpu(
    file: Path, sets: list[str], root: str | None, words: Sequence[str], wanted: Wanted, *,
    name: str | None, keep: bool, yes: bool, dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    """Train a study on a Cloud TPU with its folder in the bucket, whatever becomes of machines; its exit code.

    Args:
        words: further options of `taetpu run`.
        name: of the TPU; None: one after the owner and the study. One of this name that was not made for the study is
            used and kept.
        keep: leave the machine when the study has ended.

    Raises:
        UserError: the study, the settings or the bucket are not as they must be; nothing was made.
        CloudError: no machine can be had, or too many were lost.
    """
    from taetpu.cloud.spec import label, stack_of
    from taetpu.cloud.supervise import Budget, Kept, Lost, left, note, supervise
    from taetpu.core.errors import UserError
    from taetpu.spec.loading import load_study
    from taetpu.store.backend import open_store

    study, place = load_study(file, sets), here()
    check_paths(study)
    address = _root(place, root)
    store = open_store(address)
    check_stored(store, study)
    spec = wanted.spec(place, name or stack_of(label(place.settings.owner), study.name))
    spec, budget, cloud = replace(spec, study=label(study.name)), Budget(hours=spec.hours), place.cloud
    if MORE.isdisjoint(words) and finished(store, study) and not _own(cloud.of(spec.stack), spec):
        tell(f"nothing of {study.name} is left to train: no TPU is made")
        if not dry_run:
            note(cloud, spec.stack, None)
            _fetch(store, study.name, as_json)
        return 0
    hours = left(cloud, spec, budget)
    spec = replace(spec, hours=max(budget.shortest, hours))
    offer = Offer.of(place, spec, wanted, again=True)
    lines = _plan(offer, budget, hours, f"{study.name} there into {store.where(study.name)}", keep)
    if not agreed("\n".join(lines), "Go on?", yes=yes, dry_run=dry_run):
        return 0
    setting = [word for one in sets for word in ("--set", one)]
    job = StudyJob(place, offer, study, file, [*setting, "--root", address, *words])

    def up(hours: float) -> "Machine":
        job.name = ""  # what ran on the machine before is at its end
        job.machine = offer.made(hours)
        return job.machine

    try:
        code = supervise(cloud, up, job, lambda: kept(store, study.name), budget, spec.stack, spec.study)
    except KeyboardInterrupt:
        if not job.name:
            if place.cloud.records.read(spec.stack).since is not None:  # else `up` has told of it
                tell(f"\n{remains(spec.stack)}")
            raise
        tell(job.detached(store.where(study.name)))
        sys.exit(130)  # not as a study that was interrupted: this one goes on
    except UserError as error:
        if not isinstance(error, Kept | Lost) and place.cloud.records.read(spec.stack).zones:
            tell(remains(spec.stack))
        raise
    try:
        _fetch(store, study.name, as_json)
    finally:
        _leave(place, spec.stack, keep or not job.own)
    if code:
        where = store.where(study.name)
        tell(f"{study.name} ended with exit code {code}, for the reason above; what it has stored stays in {where}")
    return code


def check_stored(store: "Store", study: "Study") -> None:
    """Find out what is wrong with the bucket, or with what is stored there, before anything is paid for.

    Raises:
        UserError: it cannot be read, or the study's folder holds another study.
    """
    from taetpu.data.corpora import PYTHON_DOCS
    from taetpu.spec.design import check_frozen, frozen
    from taetpu.stats.stored import read_study
    from taetpu.store.study import StudyFolder

    store.list(study.name)
    folder = StudyFolder(store, study.name)
    if folder.exists() and not study.match:
        # The texts that come with Python may be those of another version there.
        docs = PYTHON_DOCS in sources(study)
        check_frozen(read_study(folder) | ({"data": frozen(study)["data"]} if docs else {}), study)


def finished(store: "Store", study: "Study") -> bool:
    """Whether all that the file asks for is trained and reported: then no machine is needed to say so again."""
    from taetpu.store.study import StudyFolder

    folder, page = StudyFolder(store, study.name), f"{study.name}/report/index.html"
    if study.tune or study.match or not store.exists(page):
        return False
    results = [f"{folder.run(run.arm, run.seed, run.id).key}/result.json" for run in study.runs()]
    return all(store.exists(key) and store.modified(key) <= store.modified(page) for key in results)


def kept(store: "Store", name: str) -> str:
    """What of a study's folder the next machine goes on from: a sum over the runs that are done, and the states of
    packs that are not.
    """
    found = (re.search(r".*/runs/.*/result\.json$|.*/packs/[^/]+/\d+(?=/)", key) for key in store.list(name))
    return hashlib.sha256("\n".join(sorted({one[0] for one in found if one})).encode()).hexdigest()[:16]


def remains(stack: str) -> str:
    """What a user is told where a machine may have been made and is not used."""
    return f"{stack} may be there: the same command goes on with it, `taetpu tpu down {stack}` removes it"


def _own(machines: "Sequence[Machine]", spec: "Spec") -> bool:
    """Whether one of them was made for the study of a spec."""
    return any(machine.study == spec.study for machine in machines)


def _plan(offer: Offer, budget: "Budget", hours: float, what: str, keep: bool) -> list[str]:
    """What will happen, in lines.

    Args:
        hours: that are left of the budget's.
        what: is trained where.

    Raises:
        Conflict: a machine of this name is stopped that was not made for the study.
    """
    from taetpu.cloud.backends.base import State
    from taetpu.cloud.errors import Conflict

    there, stack = offer.there, offer.spec.stack
    lines, own = [offer.plan()], there is None or _own([there], offer.spec)
    if there and not own and there.state is State.STOPPED:
        problem = f"{stack} in {there.zone} is stopped, and was not made for this study"
        raise Conflict(problem, remedy=f"start it, or `taetpu tpu down {stack}`; or leave --tpu out")
    if hours < budget.hours:
        used = budget.hours - hours
        lines.append(f"of the {budget.hours:g} h that its machines may take together {used:.3g} are used")
    lines.append(f"made again where it is lost, at most {budget.recoveries} times and for {hours:.3g} h together")
    if own or not offer.rest:
        return [*lines, f"train {what}, then {'keep' if keep else 'delete'} the TPU"]
    lines.append(f"{stack} was not made for this study: it is made again only if it is gone for good")
    return [*lines, f"train {what}, then keep the TPU"]


def _leave(place: Here, stack: str, keep: bool) -> None:
    from taetpu.cloud import ssh
    from taetpu.cloud.reconcile import down

    if keep:
        tell(f"{stack} is kept for the rest of its time: `taetpu tpu down {stack}` removes it")
    else:
        down(place.cloud, stack)
        ssh.forget(stack)


@dataclass
class StudyJob:
    """A study as a job on a machine, see `taetpu.cloud.supervise.Remote`.

    Attributes:
        words: of `taetpu run`, after the study's file.
        machine: that it is on, or was last.
    """

    place: Here
    offer: Offer
    study: "Study"
    file: Path
    words: list[str]
    machine: "Machine | None" = field(default=None, init=False)
    slice: "Slice | None" = field(default=None, init=False)
    name: str = field(default="", init=False)
    read: dict[int, int] = field(default_factory=dict, init=False)

    def prepare(self, machine: "Machine") -> None:
        from taetpu.cloud import transfer
        from taetpu.cloud.ssh import Slice

        with _lost():
            machine = self.offer.set_up(machine)
            self.slice = Slice.of(machine, self.offer.spec.user, self.place.settings)
            files = needed(self.study, self.file)
            base = Path(os.path.commonpath([path.parent for path in files]))
            transfer.send(self.slice, base, files, self.folder)
            self.remote = self.file.resolve().relative_to(base).as_posix()

    @property
    def folder(self) -> str:
        """Where the study's files are, in the home of each host."""
        return f"studies/{self.study.name}"

    def begin(self, machine: "Machine") -> None:
        from taetpu.cloud import jobs
        from taetpu.store.lease import PATIENCE

        assert self.slice
        with _lost():
            command = ["python", "-m", "taetpu", "run", self.remote, *self.words]
            if self._runs(jobs.status(self.slice), command):
                tell(f"{self.study.name} runs there already")
                return
            # The machine before this one may have been taken away with the study's claim in its hands.
            environment = {PATIENCE: "120", "GOOGLE_CLOUD_PROJECT": self.place.settings.project}
            environment |= {"PYTHONUNBUFFERED": "1", **meeting(self.slice.workers)}
            secrets = self.place.settings.secret_names
            asked = jobs.Asked([command], self.folder, environment, self.offer.spec.image, secrets)
            self.read = {}
            self.name = jobs.start(self.slice, asked, name=f"{self.study.name}-{jobs.new_name()}")

    def _runs(self, told: "Mapping[int, dict[str, Any] | CloudError]", command: list[str]) -> bool:
        """Whether this very study is what runs there; it is followed then.

        Raises:
            Conflict: something else runs there, which must not be ended for this.
        """
        from taetpu.cloud.errors import Conflict

        hosts = [host for host in told.values() if isinstance(host, dict)]
        running = [job for host in hosts for job in host["jobs"] if job["state"] == "running"]
        same = [job["name"] for job in running if job["commands"] == [command]]
        if running and not same:
            stack, name = self.offer.spec.stack, running[0]["name"]
            remedy = f"wait for it, end it (`taetpu tpu stop {name}`), or give this one a --tpu of its own"
            raise Conflict(f"{stack} runs another job already, {name}", remedy=remedy)
        if same and same[0] != self.name:
            self.name, self.read = same[0], {}
        return bool(same)

    def follow(self, machine: "Machine") -> int:
        from taetpu.cloud import jobs
        from taetpu.cloud.supervise import Gone

        assert self.slice
        with _lost():
            several = len(self.slice.workers) > 1

            def write(worker: int, line: str) -> None:
                sys.stderr.write(f"[{worker}] {line}\n" if several else f"{line}\n")
                sys.stderr.flush()

            jobs.logs(self.slice, self.name, write, follow=True, patience=self.patience, read=self.read)
            told = list(jobs.job(self.slice, self.name).values())
        codes = [one["rc"] for one in told]
        if None in codes:
            raise Gone("the study was killed there before it could say how it ended")
        if any(codes) and any(one["preempted"] for one in told):
            raise Gone("it is being preempted, and the study was told so")
        return max(codes)

    def detached(self, where: str) -> str:
        """What a user who leaves is told."""
        stack, study = self.offer.spec.stack, self.study.name
        end = f"taetpu tpu down {stack}" if self.own else f"taetpu tpu stop --tpu {stack}"
        return (
            f"\ndetached: {study} goes on. To come back: the same command; to look: `taetpu tpu logs -f --tpu {stack}` "
            f"or `taetpu status {where}`; to end it: `{end}`"
        )

    @property
    def own(self) -> bool:
        """Whether the machine was made for the study."""
        return self.machine is not None and _own([self.machine], self.offer.spec)

    @property
    def patience(self) -> float:
        """Seconds for which a host may be out of reach before the API is asked what became of it."""
        return max(2.0, 6 * self.place.cloud.waits.poll)


def meeting(workers: "Sequence[Worker]") -> dict[str, str]:
    """What tells the processes of several hosts where they meet and who they are; nothing where there is one.

    It is said, rather than left to what jax finds out, because that was never seen for machines of Compute Engine.
    """
    if len(workers) == 1:
        return {}
    port = PORT + secrets.randbelow(PORTS)  # one that was used a moment ago may not be free yet
    return {
        "JAX_COORDINATOR_ADDRESS": f"{workers[0].inside or workers[0].address}:{port}",
        "JAX_NUM_PROCESSES": str(len(workers)),
        "JAX_PROCESS_ID": "{worker}",
    }


def needed(study: "Study", file: Path) -> list[Path]:
    """The files that a study is made of: its own, its plug-ins', its texts."""
    from taetpu.data.corpora import PYTHON_DOCS

    texts = [study.folder / source for source in sorted(sources(study) - {PYTHON_DOCS})]
    return [path.resolve() for path in (file, *(Path(plugin.file) for plugin in study.plugins), *texts)]


def check_paths(study: "Study") -> None:
    """Refuse files that are named by where they lie on this machine: another one has them elsewhere.

    Raises:
        UserError: a plug-in or a text is.
    """
    from taetpu.core.errors import UserError

    for name in sorted({*sources(study), *study.document.data.get("plugins", [])}):
        if name.startswith(("/", "~")):
            remedy = "name it as seen from the study's folder; files are copied to a TPU as they lie to each other"
            raise UserError(f"{name!r} is a path of this machine alone", file=study.file, remedy=remedy)


def sources(study: "Study") -> set[str]:
    """Where a study's texts are, as its tasks name them."""
    named = (getattr(run.config.task, "source", None) for run in study.runs())
    return {source for source in named if source is not None}


def _root(place: Here, root: str | None) -> str:
    """The address of the study root in the bucket.

    Raises:
        UserError: there is none.
    """
    from taetpu.core.errors import UserError

    if root and root.startswith("gs://"):
        return root
    if root:
        problem = f"a machine that goes cannot keep results at {root!r}"
        raise UserError(problem, path=("--root",), remedy="--root gs://BUCKET/FOLDER, or `bucket` in taetpu.toml")
    if not place.settings.bucket:
        problem = "no bucket is named, and results cannot stay on a machine that goes"
        raise UserError(problem, remedy="`taetpu bucket create NAME --write`, or --root gs://BUCKET/FOLDER")
    return f"gs://{place.settings.bucket}/studies"


@contextmanager
def _lost() -> Iterator[None]:
    """What says that a machine does not answer, or not as it should, is told as its loss."""
    from taetpu.cloud.jobs import Busy
    from taetpu.cloud.ssh_errors import CommandFailed, DiskFull, Hung, OtherKey, Unreachable
    from taetpu.cloud.supervise import Lost
    from taetpu.cloud.vm import NotSetUp

    try:
        yield
    except (Busy, CommandFailed, DiskFull, Hung, NotSetUp, OtherKey, Unreachable) as error:
        raise Lost(error.problem, remedy=error.remedy) from error


def _fetch(store: "Store", name: str, as_json: bool) -> None:
    """Bring a study's results and report here; what they say has been in its log."""
    from taetpu.store.backend import open_store
    from taetpu.store.study import StudyFolder

    local = open_store("cloud")
    for key in store.list(name):
        below = key.removeprefix(f"{name}/")
        if below.startswith(FETCHED):
            local.write(key, store.read(key), replace=True)
    if local.exists(f"{name}/report/index.html"):
        tell(f"report, here: {local.where(f'{name}/report/index.html')}")
    if as_json and (results := StudyFolder(store, name).read_results()):
        show_json(results)
