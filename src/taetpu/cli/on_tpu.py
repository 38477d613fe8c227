"""`taetpu run --on tpu`: a study from no machine to its report, and back to none."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import agreed
from taetpu.cli.wanted import Offer, Wanted

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.ssh import Slice
    from taetpu.spec.design import Study

FETCHED = ("results.json", "study.yaml", "report/")
"""What comes back of a study's folder; runs and models stay in the bucket."""


def run_on_tpu(
    file: Path, sets: list[str], root: str | None, words: Sequence[str], wanted: Wanted, *,
    name: str | None, keep: bool, yes: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Train a study on a Cloud TPU with its folder in the bucket, whatever becomes of machines; its exit code.

    Args:
        words: further options of `taetpu run`.
        name: of the TPU.
        keep: leave the machine when the study has ended.

    Raises:
        UserError: the study, the settings or the bucket are not as they must be; nothing was made.
        CloudError: no machine can be had, or too many were lost.
    """
    from taetpu.cloud.reconcile import down
    from taetpu.cloud.supervise import Budget, supervise
    from taetpu.spec.loading import load_study
    from taetpu.store.backend import open_store

    study, place = load_study(file, sets), here()
    address = _root(place, root)
    store = open_store(address)
    store.list(study.name)  # says what is wrong with the bucket before anything is paid for
    spec = wanted.spec(place, name)
    offer = Offer.of(place, spec, wanted)
    plan = f"{offer.plan()}\ntrain {study.name} there into {store.where(study.name)}"
    if not agreed(f"{plan}, then {'keep' if keep else 'delete'} the TPU", "Go on?", yes=yes, dry_run=dry_run):
        return 0
    setting = [word for one in sets for word in ("--set", one)]
    job = StudyJob(place, offer, study, file, [*setting, "--root", address, *words])
    try:
        code = supervise(place.cloud, offer.made, job, lambda: store.list(study.name), Budget())
    except KeyboardInterrupt:
        tell(
            f"\ndetached: {study.name} goes on. To come back: the same command; to look: taetpu tpu logs -f, "
            f"taetpu status {store.where(study.name)}; to end it: taetpu tpu down {spec.stack}"
        )
        raise
    _fetch(store, study.name)
    if keep:
        tell(f"{spec.stack} is kept until {spec.hours:g} h after it was made: taetpu tpu down {spec.stack} removes it")
    else:
        down(place.cloud, spec.stack)
    return code


@dataclass
class StudyJob:
    """A study as a job on a machine, see `taetpu.cloud.supervise.Remote`.

    Attributes:
        words: of `taetpu run`, after the study's file.
    """

    place: Here
    offer: Offer
    study: "Study"
    file: Path
    words: list[str]
    slice: "Slice | None" = field(default=None, init=False)
    name: str = field(default="", init=False)

    @property
    def prefix(self) -> str:
        return f"{self.study.name}-"

    def prepare(self, machine: "Machine") -> None:
        from taetpu.cloud import transfer
        from taetpu.cloud.ssh import Slice

        with _lost():
            self.offer.set_up(machine)
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
            told = jobs.status(self.slice)
            running = [
                job["name"] for host in told.values() if isinstance(host, dict)
                for job in host["jobs"] if job["state"] == "running" and job["name"].startswith(self.prefix)
            ]  # fmt: skip
            if running:
                self.name = running[0]
                tell(f"{self.study.name} runs there already")
                return
            together = ["--coordinator", "auto"] if len(self.slice.workers) > 1 else []
            command = ["python", "-m", "taetpu", "run", self.remote, *self.words, *together]
            # The machine before this one may have been taken away with the study's claim in its hands.
            environment = {
                PATIENCE: "120",
                "GOOGLE_CLOUD_PROJECT": self.place.settings.project,
                "PYTHONUNBUFFERED": "1",
            }
            own = self.place.settings.secret_names
            asked = jobs.Asked([command], self.folder, environment, self.offer.spec.image, own)
            self.name = jobs.start(self.slice, asked, name=self.prefix + jobs.new_name())

    def follow(self, machine: "Machine") -> int:
        from taetpu.cloud import jobs

        assert self.slice
        with _lost():
            several = len(self.slice.workers) > 1

            def write(worker: int, line: str) -> None:
                sys.stderr.write(f"[{worker}] {line}\n" if several else f"{line}\n")
                sys.stderr.flush()

            jobs.logs(self.slice, self.name, write, follow=True, patience=self.patience)
            codes = [one["rc"] for one in jobs.job(self.slice, self.name).values()]
        return max(1 if code is None else code for code in codes)

    @property
    def patience(self) -> float:
        """Seconds for which a host may be out of reach before the API is asked what became of it."""
        return max(2.0, 6 * self.place.cloud.waits.poll)


def needed(study: "Study", file: Path) -> list[Path]:
    """The files that a study is made of: its own, its plug-ins', its texts."""
    from taetpu.data.corpora import PYTHON_DOCS

    sources = {getattr(run.config.task, "source", PYTHON_DOCS) for run in study.runs()} - {PYTHON_DOCS}
    texts = [study.folder / Path(source).expanduser() for source in sorted(sources)]
    return [path.resolve() for path in (file, *(Path(plugin.file) for plugin in study.plugins), *texts)]


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
    from taetpu.cloud.ssh_errors import OtherKey, Unreachable
    from taetpu.cloud.supervise import Lost
    from taetpu.cloud.vm import NotSetUp

    try:
        yield
    except (Busy, NotSetUp, OtherKey, Unreachable) as error:
        raise Lost(error.problem, remedy=error.remedy) from error


def _fetch(store: Any, name: str) -> None:
    """Bring a study's results and report here; what they say has been in its log."""
    from taetpu.store.backend import open_store

    local = open_store("cloud")
    for key in store.list(name):
        below = key.removeprefix(f"{name}/")
        if below.startswith(FETCHED):
            local.write(key, store.read(key), replace=True)
    if local.exists(f"{name}/report/index.html"):
        tell(f"report, here: {local.where(f'{name}/report/index.html')}")
