"""`taetpu run --on tpu` as a user gives it, on machines of the fake cloud that are taken away: what comes of it is what
comes of the same study here.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from tests.clouds import BUCKET

from taetpu.cloud.fakes.everything import FakeCloud
from taetpu.cloud.fakes.hosts import Trouble

V5E = ("--type", "v5e-8", "--zone", "us-west4-a", "--spot")
V6E = ("--type", "v6e-8", "--zone", "us-east5-b", "--spot")
PACKED = ("--pack", "2")
PROGRAMS = Path(__file__).parents[2] / ".pytest_cache" / "programs"


def shortened() -> str:
    """The quick study with three of its arms, on two seeds, for fewer steps, each evaluation with a checkpoint."""
    text = files("taetpu.study").joinpath("templates/quickstart.yaml").read_text(encoding="utf-8")
    kept = ("no-ffn", "one-head")
    lines = [
        line
        for line in text.splitlines()
        if not re.match(r"  [\w-]+: \{model\.", line) or line.strip().startswith(kept)
    ]
    text = "\n".join(lines)
    for old, new in {
        "steps: 320": "steps: 120",
        "eval_every: 80": "eval_every: 40\n    checkpoint: eval\n    log_every: 5\n    sample: none",
        "seeds: 3": "seeds: 2",
    }.items():
        assert old in text
        text = text.replace(old, new)
    return text


class Command:
    """A `taetpu` in a process of its own, and what it says."""

    def __init__(self, folder: Path, *words: str, **environment: str):
        self.log = folder / f"log-{time.monotonic_ns()}"
        ours = {name: text for name, text in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "taetpu", *words], cwd=folder, env=ours | environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, holds: Callable[[], object], seconds: float = 120.0) -> None:
        """Wait for something to hold while the command runs."""
        end = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.002)

    def end(self, seconds: float = 300.0) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def place(fake: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the study, where the bucket is known, and whose machines keep compiled programs between them."""
    fake.hosts.troubles["*"] = Trouble(environment={"JAX_COMPILATION_CACHE_DIR": str(PROGRAMS)})
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "quick.yaml").write_text(shortened())
    return folder


@pytest.fixture
def local(place: Path) -> Path:
    """The study trained here."""
    run = Command(place, "run", "quick.yaml", *PACKED, "--root", "local", JAX_COMPILATION_CACHE_DIR=str(PROGRAMS))
    assert run.end() == 0, run.said
    return place / "local" / "quickstart"


def names(fake: FakeCloud) -> set[str]:
    """The keys of the study's folder in the bucket."""
    with fake.world.lock:
        start = f"{BUCKET}/studies/quickstart/"
        return {name.removeprefix(start) for name in fake.world.table("storage.objects") if name.startswith(start)}


def stored(fake: FakeCloud, pattern: str) -> Callable[[], object]:
    return lambda: any(re.fullmatch(pattern, name) for name in names(fake))


def packs(fake: FakeCloud) -> set[str]:
    """The packs with a checkpoint of step 40."""
    return {name.split("/")[1] for name in names(fake) if re.fullmatch(r"packs/[^/]+/40/\.files\.json", name)}


def same(local: Path, fake: FakeCloud, place: Path) -> None:
    """The results, here and in the bucket, are those of the study that was trained here; nothing runs any more."""
    there = fake.world.table("storage.objects")[f"{BUCKET}/studies/quickstart/results.json"].data
    assert there == (local / "results.json").read_bytes()
    assert (place / "cloud/quickstart/results.json").read_bytes() == there
    for name in ("index.html", "report.md"):
        assert (place / "cloud/quickstart/report" / name).stat().st_size
    nothing_left(fake)


def nothing_left(fake: FakeCloud) -> None:
    kinds = {line.partition(":")[0] for line in fake.world.left()}
    assert kinds <= {"storage.buckets", "storage.objects"}, fake.world.left()
    assert fake.hosts.vms == {}


@pytest.mark.slow
def test_preempted_three_times_it_ends_as_it_does_here(fake: FakeCloud, place: Path, local: Path):
    run = Command(place, "run", "quick.yaml", *PACKED, "--on", "tpu", *V5E, "--yes")
    run.until(lambda: "waiting until it answers" in run.said)  # lost while it is set up
    fake.preempt("tpu-me-quickstart")
    run.until(stored(fake, r"runs/baseline/0-\w+/metrics/0-40\.json"))  # between two checkpoints, at once
    run.until(stored(fake, r"packs/[^/]+/40/\.files\.json"))
    fake.preempt("tpu-me-quickstart")
    first = packs(fake)
    run.until(lambda: packs(fake) - first)  # in a later pack, with notice
    fake.preempt("tpu-me-quickstart", notice=30)
    assert run.end() == 0, run.said
    said = run.said
    assert said.count("is lost: ") == 3
    assert "tpu-me-quickstart was lost while it was set up: it is SUSPENDED by SERVICE" in said
    assert "is lost: it is SUSPENDED by SERVICE" in said
    assert "is lost: it is being preempted, and the study was told so" in said
    resumed = [int(step) for step in re.findall(r"going on from step (\d+)", said)]
    assert len(resumed) == 2, said
    assert resumed[0] == 40
    assert resumed[1] >= 40
    same(local, fake, place)


@pytest.mark.slow
def test_left_killed_and_cut_off_it_is_come_back_to(fake: FakeCloud, place: Path, local: Path):
    """Ctrl-C, a laptop that dies, a checkpoint that is cut off: the same command goes on each time."""
    words = ("run", "quick.yaml", *PACKED, "--on", "tpu", *V6E, "--yes")
    first = Command(place, *words)
    first.until(stored(fake, r"packs/[^/]+/40/\.files\.json"))
    os.killpg(first.process.pid, signal.SIGINT)  # as a terminal does: ssh, too, hears it
    assert first.end() == 130
    (left,) = [line for line in first.said.splitlines() if line.startswith("detached: ")]
    assert left == (
        "detached: quickstart goes on. To come back: the same command; to look: "
        f"`taetpu tpu logs -f --tpu tpu-me-quickstart` or `taetpu status gs://{BUCKET}/studies/quickstart`; "
        "to end it: `taetpu tpu down tpu-me-quickstart`"
    )
    assert "interrupted" not in first.said
    goes_on = stored(fake, r"packs/[^/]+/80/\.files\.json")

    second = Command(place, *words)
    second.until(lambda: "quickstart runs there already" in second.said)
    second.until(goes_on)
    second.process.kill()
    second.end()
    (machine,) = fake.hosts.vms.values()

    third = Command(place, *words)
    third.until(lambda: third.said.count("quickstart runs there already") == 1)
    assert list(fake.hosts.vms.values()) == [machine]
    cut: list[int] = []
    third.until(lambda: cut.extend(filter(None, [cut_off(fake)])) or cut)
    assert third.end() == 0, third.said
    assert third.said.count("is lost: ") == 1
    assert re.findall(r"going on from step (\d+)", third.said) == [str(cut[0] - 40)], "the one before is whole"
    same(local, fake, place)

    again = Command(place, *words)
    assert again.end() == 0
    assert "nothing of quickstart is left to train: no TPU is made" in again.said
    nothing_left(fake)


def cut_off(fake: FakeCloud) -> int | None:
    """Preempt the machine if it is in the middle of storing a later checkpoint of a later pack: of which step.

    Nothing more is stored meanwhile.
    """
    with fake.world.lock:
        there = names(fake)
        states = {found[0] for name in there if (found := re.match(r"packs/[^/]+/(\d+)(?=/)", name))}
        whole = {state for state in states if f"{state}/.files.json" in there}
        later = {state for state in states - whole if any(state.startswith(one.rpartition("/")[0]) for one in whole)}
        if not later or not any(name.endswith("/result.json") for name in there):
            return None
        fake.preempt("tpu-me-quickstart")
        return int(later.pop().rpartition("/")[2])


@pytest.mark.slow
def test_machines_that_never_get_anywhere_are_given_up_and_removed(fake: FakeCloud, place: Path):
    run = Command(place, "run", "quick.yaml", *PACKED, "--on", "tpu", *V5E, "--yes")
    for number in range(1, 4):
        run.until(lambda number=number: fake.hosts.vms and run.said.count("is ready in") == number)
        fake.preempt("tpu-me-quickstart")
        run.until(lambda number=number: run.said.count("is lost: ") == number or number == 3)
    assert run.end() == 3
    told = "error: given up: 3 machines in a row were lost before anything was added to the results; the last: "
    assert f"{told}tpu-me-quickstart was" in run.said
    assert (
        "  remedy: let it store more often (train.checkpoint), or take it on demand; the same command goes on"
        in run.said
    )
    assert "Traceback" not in run.said
    nothing_left(fake)


PLUGIN = """
import inspect
import os

import jax
from taetpu.plugin import Hook, register

if "TAETPU_JOB" in os.environ:
    {there}


@register("hook", "mine")
class Mine(Hook):
    def updates(self, updates, params, now):
        {step}
        return jax.tree.map(lambda update: update / 2, updates)
"""


def with_plugin(place: Path, **parts: str) -> None:
    """The study with an arm of a plug-in in place of `one-head`; on a machine it does something else than here."""
    (place / "mine.py").write_text(PLUGIN.format(**{"there": "pass", "step": "pass"} | parts))
    text = re.sub(r"one-head: .*", "mine: {train.hooks: [mine]}", shortened())
    (place / "quick.yaml").write_text(text + "\nplugins: [mine.py]\n")


@pytest.mark.slow
def test_a_study_that_fails_there_is_not_tried_on_other_machines(fake: FakeCloud, place: Path):
    with_plugin(place, there='raise RuntimeError("not on a TPU")')
    run = Command(place, "run", "quick.yaml", *PACKED, "--on", "tpu", *V5E, "--yes")
    assert run.end() == 2, run.said
    assert "not on a TPU" in run.said
    assert "mine.py" in run.said
    assert "quickstart ended with exit code 2, for the reason above" in run.said
    assert "is lost: " not in run.said
    assert [call.name for call in fake.world.changes()].count("CreateQueuedResource") == 1
    nothing_left(fake)


@pytest.mark.slow
def test_an_arm_that_fails_there_leaves_the_others_and_their_report(fake: FakeCloud, place: Path):
    trains = 'any(frame.function == "train_missing" for frame in inspect.stack())'  # not when it is proved
    with_plugin(place, step=f'assert "TAETPU_JOB" not in os.environ or not {trains}, "this arm cannot"')
    run = Command(
        place, "run", "quick.yaml", *PACKED, "--set", "train.steps=80", "--on", "tpu", *V6E, "--yes", "--json"
    )
    assert run.end() == 3, run.said
    assert "this arm cannot" in run.said
    assert "2 runs failed, for the reason above" in run.said
    assert "quickstart ended with exit code 3, for the reason above" in run.said
    assert (place / "cloud/quickstart/report/index.html").stat().st_size
    assert '"noise_floor"' in run.said, "the results, as JSON"
    nothing_left(fake)


@pytest.mark.nightly
def test_two_hosts_train_together_and_again_where_one_is_taken_away(fake: FakeCloud, place: Path):
    """As one process does on as many devices; neither host sees the other's disk."""
    programs, devices = {"JAX_COMPILATION_CACHE_DIR": str(PROGRAMS)}, "--xla_force_host_platform_device_count="
    fake.hosts.troubles["*"] = Trouble(environment={"XLA_FLAGS": f"{devices}1", **programs})
    here = Command(place, "run", "quick.yaml", *PACKED, "--root", "local", XLA_FLAGS=f"{devices}2", **programs)
    assert here.end() == 0, here.said
    run = Command(
        place, "run", "quick.yaml", *PACKED, "--on", "tpu", "--type", "v4-16", "--zone", "us-central2-b", "--yes"
    )
    run.until(stored(fake, r"packs/[^/]+/40/\.files\.json"))
    fake.preempt("tpu-me-quickstart")
    assert run.end() == 0, run.said
    assert "[0] " in run.said
    assert "going on from step" in run.said
    same(place / "local" / "quickstart", fake, place)


@pytest.mark.nightly
def test_a_machine_of_its_user_is_used_and_kept(fake: FakeCloud, place: Path):
    made = Command(place, "tpu", "up", "lab", *V6E, "--max-hours", "2", "--yes")
    assert made.end() == 0, made.said
    (machine,) = fake.hosts.vms.values()
    words = ("run", "quick.yaml", *PACKED, "--set", "train.steps=80", "--on", "tpu", "--tpu", "lab", *V6E, "--yes")
    run = Command(place, *words)
    assert run.end() == 0, run.said
    assert "is there already, in us-east5-b" in run.said
    assert "lab is kept for the rest of its time: `taetpu tpu down lab` removes it" in run.said
    assert list(fake.hosts.vms.values()) == [machine]
    assert (place / "cloud/quickstart/report/index.html").stat().st_size
    again = Command(place, *words)
    assert again.end() == 0
    assert "nothing of quickstart is left to train" in again.said
    assert Command(place, "tpu", "down", "lab", "--yes").end() == 0
    nothing_left(fake)
