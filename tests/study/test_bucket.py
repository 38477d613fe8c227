"""A study whose root is a bucket: `taetpu run` in a process that is killed, compared with a study on a disk."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import call_main
from tests.fake_google.fixtures import BUCKET
from tests.fake_google.world import World

import taetpu
from taetpu.lens.opening import open_run
from taetpu.store.addresses import find_study
from taetpu.store.index import list_studies
from taetpu.store.lease import LEASE_SECONDS

STUDY = """
study: killed
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 60, batch_size: 8, eval_every: 20, checkpoint: eval, sample: none}
seeds: 2
arms:
  no-ffn: {model.ffn: none}
"""


def start(folder: Path, root: str, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "taetpu", "run", "study.yaml", "--root", root, "--pack", "2", *args]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    with process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out + err


def names(world: World) -> list[str]:
    with world.lock:
        return sorted(name.removeprefix(f"{BUCKET}/root/") for name in world.table("storage.objects"))


@pytest.mark.nightly
def test_killed_run_on_a_bucket_ends_with_the_results_of_a_run_on_a_disk(
    tmp_path: Path, world: World, gs_root: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "study.yaml").write_text(STUDY)
    taetpu.run(tmp_path / "study.yaml", root=str(tmp_path / "local"), pack=2)

    process = start(tmp_path, gs_root)
    while not any(name.endswith("/metrics/20-40.json") for name in names(world)):  # the checkpoint of step 20 is stored
        assert process.poll() is None, end(process)
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    end(process)
    assert "killed/results.json" not in names(world)
    world.skew += LEASE_SECONDS + 1  # the claims of the killed process expire
    code, said = end(start(tmp_path, gs_root))
    assert code == 0, said
    assert "resuming from step" in said
    assert f"report: {gs_root}/killed/report/index.html" in said

    local, bucket = find_study(tmp_path / "local"), find_study(gs_root)
    kinds = ("results.json", "/result.json", "/config.json", "evaluation.json", ".safetensors")
    for key in local.store.list("killed"):
        if key.endswith(kinds) or "/metrics/" in key:
            assert bucket.store.read(key) == local.store.read(key), key
    assert bucket.store.list("killed/packs") == []
    assert "killed/lock" not in names(world)
    (entry,) = list_studies(gs_root)
    assert (entry.done, entry.total, entry.problem) == (4, 4, None)
    monkeypatch.chdir(tmp_path)
    check_commands(tmp_path, f"{gs_root}/killed")


def check_commands(folder: Path, study: str) -> None:
    """Check that every command accepts an address in a bucket."""
    (folder / "claims.yaml").write_text(f"study: {study}\nclaims: [no-ffn is worse]\n")
    for command, said in {
        ("list", "--root", study): "4/4",
        ("status", study): "baseline",
        ("status", study, "--watch"): "4/4",
        ("report", study, "--verify"): "agrees with the raw metrics of 4 runs",
        ("report", study): f"report: {study}/report/index.html",
        ("plot", study, "--metric", "val/loss", "-o", "loss.svg"): "wrote loss.svg",
        ("check", "claims.yaml"): "no-ffn is worse",
        ("run", "study.yaml", "--root", "other", "--reuse", study, "--audit", "0"): "baseline",
    }.items():
        done = call_main(*command)
        assert done.code in (0, 3), done.err
        assert said in done.out, (command, done)
    (run,) = [run for run in find_study(study).runs() if (run.arm, run.seed) == ("baseline", 0)]
    opened = open_run(run.where)
    assert opened.config.dim == 16
