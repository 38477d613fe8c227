"""`taetpu run --on tpu` on preempted machines of the fake cloud gives the results of a local run."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fake_google.cloud import FakeGoogle
from tests.fake_google.fixtures import BUCKET
from tests.fake_google.world import Fault, Refused, stockout

PROGRAMS = Path(__file__).parents[2] / ".pytest_cache" / "programs"
NAME = "tpu-me-tiny"
STUDY = """\
study: tiny
base:
  task: {kind: copy, seq_len: 8}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 240, batch_size: 8, eval_every: 80, checkpoint: 80, sample: none}
seeds: 2
arms:
  no-ffn: {model.ffn: none}
  one-head: {model.mixer.num_heads: 1}
measure: {primary: val/loss}
"""
PACKED = ("--pack", "2")
V5E = ("run", "tiny.yaml", *PACKED, "--on", "tpu", "--type", "v5e-8", "--zone", "us-west4-a", "--spot", "--yes")
V6E = ("run", "tiny.yaml", *PACKED, "--on", "tpu", "--type", "v6e-8", "--zone", "us-east5-b", "--spot", "--yes")
SAVED = r"packs/[^/]+/\d+/complete"


class Command:
    """A `taetpu` process."""

    def __init__(self, folder: Path, *words: str):
        self.log = folder / f"log-{time.monotonic_ns()}"
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "taetpu", *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment | {"JAX_COMPILATION_CACHE_DIR": str(PROGRAMS)}, start_new_session=True,
            )  # fmt: skip

    @property
    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, holds: Callable[[], object], seconds: float = 120.0) -> None:
        """Wait until a condition holds while the command runs."""
        end = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, self.printed
            assert time.monotonic() < end, self.printed
            time.sleep(0.002)

    def end(self, seconds: float = 240.0) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def folder(google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the study. Machines share compiled programs."""
    google.hosts.environment["JAX_COMPILATION_CACHE_DIR"] = str(PROGRAMS)
    monkeypatch.setenv("TAETPU_BUCKET", BUCKET)
    monkeypatch.setenv("TAETPU_READY_MINUTES", "2")
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(STUDY)
    return folder


def train_here(folder: Path) -> bytes:
    """The results of the study trained on this machine."""
    run = Command(folder, "run", "tiny.yaml", *PACKED, "--root", "local")
    assert run.end() == 0, run.printed
    return (folder / "local" / "tiny" / "results.json").read_bytes()


def keys(google: FakeGoogle) -> set[str]:
    """The keys below the study's folder in the bucket."""
    start = f"{BUCKET}/studies/tiny/"
    with google.world.lock:
        names = google.world.table("storage.objects")
        return {name.removeprefix(start) for name in names if name.startswith(start)}


def saved(google: FakeGoogle) -> set[str]:
    """The packs that have a complete checkpoint."""
    return {name.split("/")[1] for name in keys(google) if re.fullmatch(SAVED, name)}


def check_results(google: FakeGoogle, folder: Path, expected: bytes) -> None:
    """Check the results in the bucket and their local copy, and that no machine is left."""
    assert google.world.table("storage.objects")[f"{BUCKET}/studies/tiny/results.json"].data == expected
    assert (folder / "cloud/tiny/results.json").read_bytes() == expected
    assert (folder / "cloud/tiny/report/index.html").stat().st_size
    check_nothing_left(google)


def check_nothing_left(google: FakeGoogle) -> None:
    assert google.left() == []
    assert google.hosts.vms == {}


@pytest.mark.slow
def test_run_preempted_three_times_gives_the_same_results(google: FakeGoogle, folder: Path):
    run = Command(folder, *V5E)
    run.until(lambda: "installing Python packages" in run.printed)  # while it is set up
    google.preempt(NAME)
    run.until(lambda: saved(google))  # after the first checkpoint
    google.preempt(NAME)
    first = saved(google)
    run.until(lambda: saved(google) - first)  # in a later pack
    google.preempt(NAME)
    expected = train_here(folder)
    assert run.end() == 0, run.printed
    assert run.printed.count("is lost: ") == 3, run.printed
    assert "damaged" not in run.printed
    assert [call.name for call in google.world.changes()].count("queuedResources.create") == 4
    check_results(google, folder, expected)


@pytest.mark.nightly
def test_interrupted_and_killed_command_resumes(google: FakeGoogle, folder: Path):
    """After Ctrl-C and SIGKILL the machine continues to train, and the repeated command follows it."""
    first = Command(folder, *V6E)
    first.until(lambda: saved(google))
    os.killpg(first.process.pid, signal.SIGINT)  # as a terminal does: ssh, too, receives it
    assert first.end() == 130, first.printed
    for part in (NAME, "costs money", "taetpu tpu down", "Repeat the command"):
        assert part in first.printed.splitlines()[-1]
    (machine,) = google.hosts.vms.values()

    second = Command(folder, *V6E)
    second.until(lambda: "already running there" in second.printed or "step 240" in second.printed)
    second.process.kill()
    second.end()
    assert list(google.hosts.vms.values()) == [machine]

    third = Command(folder, *V6E)
    assert third.end() == 0, third.printed
    assert [call.name for call in google.world.changes()].count("instances.insert") == 1
    check_results(google, folder, train_here(folder))

    again = Command(folder, *V6E)
    assert again.end() == 0, again.printed
    assert [call.name for call in google.world.changes()].count("instances.insert") == 1


@pytest.mark.nightly
def test_zone_without_capacity_is_skipped(google: FakeGoogle, folder: Path):
    google.world.faults.append(Fault("queuedResources.create", stockout("us-west4-a"), zone="us-west4-a", times=9))
    run = Command(folder, *V5E, "--zone", "us-central1-a", "--set", "train.steps=80", "--keep")
    assert run.end() == 0, run.printed
    assert "no more capacity" in run.printed
    (left,) = {line.split("/locations/")[1].split("/")[0] for line in google.left()}
    assert left == "us-central1-a"
    assert Command(folder, "tpu", "down", NAME, "--yes").end() == 0
    check_nothing_left(google)


@pytest.mark.slow
def test_cost_and_time_limits_are_enforced(google: FakeGoogle, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Limits are checked before a machine is created; lost machines count towards the hours."""
    for option, value in (("--max-usd", "1"), ("--max-hours", "0.01"), ("--max-hours", "1000")):
        refused = Command(folder, *V5E, option, value)
        assert refused.end() == 2, refused.printed
        assert option in refused.printed
    assert google.world.changes() == []
    run = Command(folder, *V5E, "--max-hours", "0.102")
    run.until(lambda: "installing Python packages" in run.printed)
    asked = [one["queueingPolicy"] for one in google.world.table("tpu.queuedResources").values()]
    time.sleep(8)  # of the 367 seconds, more than the 7 that make another machine worth while
    google.preempt(NAME)
    assert run.end() == 3, run.printed
    assert "0.102 h" in run.printed
    assert asked == [{"validUntilDuration": "367s"}]
    check_nothing_left(google)


@pytest.mark.nightly
def test_machine_created_for_another_purpose_is_kept(google: FakeGoogle, folder: Path):
    up = Command(folder, "tpu", "up", "mine", "--type", "v6e-8", "--zone", "us-east5-b", "--spot", "--yes")
    assert up.end() == 0, up.printed
    (machine,) = google.hosts.vms.values()
    run = Command(folder, *V6E, "--tpu", "mine", "--set", "train.steps=80")
    assert run.end() == 0, run.printed
    assert "at most $" in run.printed, "it may be made again"
    assert "mine is kept" in run.printed
    assert list(google.hosts.vms.values()) == [machine]


@pytest.mark.nightly
def test_stop_and_down_end_the_followed_run(google: FakeGoogle, folder: Path):
    """No machine replaces one that the user stopped or deleted."""
    run = Command(folder, *V6E)
    run.until(lambda: saved(google))
    assert Command(folder, "tpu", "stop", "--tpu", NAME).end() == 0
    assert run.end() == 143, run.printed
    assert f"{NAME} is kept" in run.printed
    again = Command(folder, *V6E)
    again.until(lambda: "resuming from step" in again.printed or "pack 2" in again.printed)
    assert Command(folder, "tpu", "down", NAME, "--yes").end() == 0
    assert again.end() == 2, again.printed
    assert "was deleted by `taetpu tpu down`" in again.printed
    assert [call.name for call in google.world.changes()].count("instances.insert") == 1
    check_nothing_left(google)


@pytest.mark.nightly
def test_failure_at_the_end_leaves_no_machine_running(google: FakeGoogle, folder: Path):
    (folder / "cloud").write_text("where the report would be copied to")
    run = Command(folder, *V6E, "--set", "train.steps=80")
    assert run.end() == 2, run.printed
    assert "cloud" in run.printed.splitlines()[-2]
    check_nothing_left(google)


@pytest.mark.nightly
def test_machine_that_cannot_be_prepared_is_reported_to_cost_money(google: FakeGoogle, folder: Path):
    google.world.faults.append(Fault("nodes.getGuestAttributes", Refused(7, "Permission denied"), times=10**6))
    run = Command(folder, *V5E)
    assert run.end() == 2, run.printed
    assert "Permission denied" in run.printed
    assert re.search(rf"{NAME} in us-west4-a .* costs money; .*`taetpu tpu down {NAME}`", run.printed)
    assert Command(folder, "tpu", "down", NAME, "--yes").end() == 0
    check_nothing_left(google)
