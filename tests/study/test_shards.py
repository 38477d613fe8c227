"""Several processes train one study: no pack is lost or trained twice, and the results are those of one process."""

import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.store.backend import open_store
from taetpu.store.errors import CLAIM_PATIENCE, ClaimHeld
from taetpu.store.study import StudyFolder
from taetpu.study import claiming, executor, shards, shares
from taetpu.study.claiming import is_free
from taetpu.study.outcome import Failure
from taetpu.study.pack_store import PackStore, stored_plans
from taetpu.study.run_file import run
from taetpu.study.shares import WAITING_EXIT_CODE, Shard, SharesLeft, parse_shard
from taetpu.train.callbacks import Callback

STUDY = """\
study: many
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 20, batch_size: 8, eval_every: 10, checkpoint: eval, sample: none}
seeds: 2
arms:
  low: {train.optimizer.lr: 1e-4}
  high: {train.optimizer.lr: 1e-2}
"""
TUNED = STUDY + "tune: {train.optimizer.lr: [1e-3, 3e-3], seeds: [100]}\n"
LOOKS = STUDY + "measure: {looks: [2, 4]}\n"

CLAIMS = """
import sys, time
from taetpu.store.backend import open_store
from taetpu.store.errors import CLAIM_PATIENCE, ClaimHeld
from taetpu.store.errors import CLAIM_PATIENCE, ClaimHeld
from taetpu.store.study import StudyFolder
folder = StudyFolder(open_store(sys.argv[1]), "s")
for pack in map(str, range(12)):
    try:
        with folder.claim_pack(pack):
            if not folder.store.exists(f"s/done/{pack}"):
                print(pack, flush=True)
                time.sleep(0.02)
                folder.store.write(f"s/done/{pack}", b"")
    except ClaimHeld:
        pass
"""


def command(root: Path | str, *options: str) -> list[str]:
    return [sys.executable, "-m", "taetpu", "run", "s.yaml", "--pack", "2", "--root", str(root), *options]


def start(folder: Path, root: Path | str, *options: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command(root, *options), cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    with process:
        said = process.communicate(timeout=500)[0]
    return process.returncode, said


def results(root: Path, name: str = "many") -> bytes:
    return (root / name / "results.json").read_bytes()


def alone(folder: Path, **options: bool) -> bytes:
    """Return the results of this process, which trains all packs."""
    run(folder / "s.yaml", root=str(folder / "alone"), pack=2, **options)
    return results(folder / "alone")


@pytest.mark.parametrize("text", ["", "1", "1/", "/2", "x/2", "-1/2", "2/2", "3/2", "0/0", "1/2/3", "0.5/2", "²/3"])
def test_invalid_shards_are_refused(text: str):
    with pytest.raises(UserError) as caught:
        parse_shard(text)
    assert caught.value.path == ("--shard",)
    assert "I/N" in (caught.value.remedy or "")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_every_pack_is_in_exactly_one_shard(count: int):
    packs = list(range(13))
    shares = [Shard(index, count).select(packs) for index in range(count)]  # pyright: ignore[reportArgumentType]
    assert sorted(pack for share in shares for pack in share) == packs  # pyright: ignore[reportArgumentType]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("place", by_default(["disk", "bucket"], "disk"))
def test_several_processes_train_each_pack_once(place: str, tmp_path: Path, request: pytest.FixtureRequest):
    root = str(tmp_path / "root") if place == "disk" else request.getfixturevalue("gs_root")
    words = [sys.executable, "-c", CLAIMS, root]
    workers = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(4 if place == "disk" else 2)]
    trained = Counter(pack for worker in workers for pack in worker.communicate(timeout=120)[0].split())
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    assert set(trained.values()) == {1}
    missed = {str(pack) for pack in range(12)} - set(trained)
    assert not missed, "a pack that every process found held would wait for the next command"


class ReleasesClaim(Callback):
    """Releases a claim as soon as another process waits for it."""

    def __init__(self, claim: ExitStack):
        self.claim, self.reasons = claim, []

    def on_wait(self, reason: str) -> None:
        self.reasons.append(reason)
        self.claim.close()


def test_run_waits_for_a_claim_if_the_environment_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claiming, "POLL_SECONDS", 0.01)
    folder, claim = StudyFolder(open_store(tmp_path), "many"), ExitStack()
    claim.enter_context(folder.claim_pack("0"))
    callback = ReleasesClaim(claim)
    with pytest.raises(ClaimHeld, match="is training pack 0"), executor.Executor(folder).claim(callback):
        pass
    monkeypatch.setenv(CLAIM_PATIENCE, "60")
    with executor.Executor(folder).claim(callback):
        pass
    assert ["pack" in reason for reason in callback.reasons] == [True, False]
    assert callback.reasons[1] == ""


@pytest.mark.slow
def test_shards_give_the_results_of_one_process_if_one_is_killed(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(STUDY)
    expected, root = alone(tmp_path), tmp_path / "root"
    workers = [start(tmp_path, root, "--shard", f"{index}/2") for index in range(2)]
    while not list(root.glob("many/claims/*")) and workers[1].poll() is None:
        time.sleep(0.01)
    workers[1].send_signal(signal.SIGKILL)
    ended = [end(worker) for worker in workers]
    assert ended[0][0] == 0, ended
    run_shard(tmp_path, root, "1/2")
    assert results(root) == expected
    assert (root / "many/report/index.html").is_file()
    assert not list(root.glob("many/packs/*"))
    assert not list(root.glob("many/claims/*"))


@pytest.mark.slow
def test_repeated_command_trains_packs_that_no_process_has_begun(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(STUDY)
    expected, root = alone(tmp_path), tmp_path / "root"
    with pytest.raises(SharesLeft, match="other processes: 2 packs") as left:
        run_shard(tmp_path, root, "0/3")
    assert left.value.exit_code == 0
    assert not (root / "many/results.json").exists()
    run_shard(tmp_path, root, "0/3")
    assert results(root) == expected


def run_shard(folder: Path, root: Path, shard: str | None, *, wait: bool = True) -> None:
    """Train a shard in this process."""
    run(folder / "s.yaml", root=str(root), pack=2, shard=shard, wait=wait)


@pytest.mark.nightly
def test_staged_shard_trains_packs_of_a_shard_that_never_starts(tmp_path: Path, monkeypatch):
    (tmp_path / "s.yaml").write_text(TUNED)
    monkeypatch.setattr(shares, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(shares, "ABANDONED_SECONDS", 0.05)
    run_shard(tmp_path, tmp_path / "alone", None)
    run_shard(tmp_path, tmp_path / "root", "0/2")
    assert results(tmp_path / "root") == results(tmp_path / "alone")


@pytest.mark.slow
def test_no_wait_ends_while_other_processes_train(tmp_path: Path, monkeypatch):
    """This share is trained, and the other packs are held by another process."""
    (tmp_path / "s.yaml").write_text(TUNED)
    monkeypatch.setattr(shares, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(shares, "ABANDONED_SECONDS", 0.05)
    folder, claim = StudyFolder(open_store(str(tmp_path / "root")), "many"), ExitStack()
    train = shards.train_packs

    def hold_others(packs: PackStore, *rest: Any) -> list[Failure]:
        for plan in Shard(1, 2).select(stored_plans(packs.folder)):
            claim.enter_context(packs.folder.claim_pack(plan.id))
        return train(packs, *rest)

    monkeypatch.setattr(shards, "train_packs", hold_others)
    with pytest.raises(SharesLeft, match="other processes") as left, claim:
        run_shard(tmp_path, tmp_path / "root", "0/2", wait=False)
    assert left.value.exit_code == WAITING_EXIT_CODE == 75
    assert all(is_free(folder, plan.id) for plan in stored_plans(folder))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("text", "options"),
    [(TUNED, {}), (LOOKS, {"until_resolved": True})],
    ids=["tune", "looks"],
)
def test_stages_end_when_all_shards_are_done(tmp_path: Path, text: str, options: dict[str, bool]):
    (tmp_path / "s.yaml").write_text(text)
    expected, root = alone(tmp_path, **options), tmp_path / "root"
    flags = ["--until-resolved"] if options else []
    workers = [start(tmp_path, root, "--shard", f"{index}/2", *flags) for index in (1, 0)]
    assert [code for code, _ in map(end, workers)] == [0, 0]
    assert results(root) == expected


@pytest.mark.slow
def test_plain_run_refuses_a_study_that_a_shard_trains(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(STUDY.replace("steps: 20", "steps: 4000"))
    root = tmp_path / "root"
    worker = start(tmp_path, root, "--shard", "0/1")
    while not list(root.glob("many/claims/*")):
        assert worker.poll() is None, end(worker)
        time.sleep(0.01)
    worker.send_signal(signal.SIGSTOP)  # otherwise it may end before the signal
    with pytest.raises(ClaimHeld, match=f"pid {worker.pid} "):
        run_shard(tmp_path, root, None)
    worker.send_signal(signal.SIGINT)
    worker.send_signal(signal.SIGCONT)
    assert end(worker)[0] == 130
