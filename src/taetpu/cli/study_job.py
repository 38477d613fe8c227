"""A study as a job on a TPU's hosts: what is brought there, how it is begun and followed."""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.cli.cloud import Here, tell
from taetpu.cli.offer import Offer

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine, Worker
    from taetpu.cloud.errors import CloudError
    from taetpu.cloud.ssh import Slice
    from taetpu.spec.design import Study
    from taetpu.store.backend import Store

MORE = {"--until-resolved", "--reuse", "--profile", "--dump"}
"""Options with which more may be done than a study's file asks for."""
PORT, PORTS = 8476, 1000
"""Where processes of several hosts meet: jax's own port for it on Cloud TPU, or one of those behind it."""


@dataclass
class StudyJob:
    """A study as a job on a machine, see `taetpu.cloud.supervise.Remote`.

    Attributes:
        store: where it keeps its results.
        words: of `taetpu run`, after the study's file.
        machine: that it is on, or was last.
    """

    place: Here
    offer: Offer
    study: "Study"
    store: "Store"
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
            try:
                name = jobs.start(self.slice, asked, name=f"{self.study.name}-{jobs.new_name()}")
            except jobs.Running:  # maybe this study, begun a moment ago from another terminal
                if not self._runs(jobs.status(self.slice), command):
                    raise
            else:
                self.name, self.read = name, {}

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

    def ended(self) -> bool:
        return finished(self.store, self.study, self.words)

    def detached(self, where: str) -> str:
        """What a user who leaves is told."""
        stack, study = self.offer.spec.stack, self.study.name
        end = f"taetpu tpu down {stack}" if self.own else f"taetpu tpu stop --tpu {stack}"
        return (
            f"detached: {study} goes on. To come back: the same command; to look: `taetpu tpu logs -f --tpu {stack}` "
            f"or `taetpu status {where}`; to end it: `{end}`"
        )

    @property
    def own(self) -> bool:
        """Whether the machine was made for the study."""
        return self.machine is not None and self.machine.study == self.offer.spec.study

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


def finished(store: "Store", study: "Study", words: Sequence[str]) -> bool:
    """Whether all that the file asks for, and no option more, is trained and reported: then no machine is needed."""
    from taetpu.store.study import StudyFolder

    folder, page = StudyFolder(store, study.name), f"{study.name}/report/index.html"
    if study.tune or study.match or not MORE.isdisjoint(words) or not store.exists(page):
        return False
    results = [f"{folder.run(run.arm, run.seed, run.id).key}/result.json" for run in study.runs()]
    return all(store.exists(key) and store.modified(key) <= store.modified(page) for key in results)


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
