"""A study as tasks of a Ray cluster of three nodes on this machine, with killed nodes, workers and drivers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.study.ray_nodes import Nodes, started_nodes
from tests.study.test_shards import end, results

from taetpu.core.errors import UserError
from taetpu.study.on_ray import check_nodes, resources, shared_root, whole_node

pytest.importorskip("ray")

STUDY = """\
study: many
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 60, batch_size: 8, eval_every: 20, checkpoint: eval, sample: none}
seeds: 4
arms:
  low: {train.optimizer.lr: 1e-4}
  high: {train.optimizer.lr: 1e-2}
"""


ONE_DEVICE = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
DRIVER = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cuda"}
"""This driver would plan packs of two devices, and would fail if it used an accelerator, because there is none."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with started_nodes(environment=ONE_DEVICE) as nodes:
        yield nodes


def start(folder: Path, root: Path, *options: str, environment: dict[str, str] = DRIVER) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "taetpu", "run", "s.yaml", "--pack", "2", "--root", str(root), *options]
    pipe, environment = subprocess.PIPE, os.environ | environment
    return subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment)


def reached(root: Path, runs: int, driver: subprocess.Popen[str]) -> None:
    """Wait until this number of runs is done."""
    while len(list(root.glob("many/runs/*/*/result.json"))) < runs:
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.01)


def workers() -> list[psutil.Process]:
    """Return Ray's processes that train a pack."""
    return [
        one for one in psutil.process_iter(["cmdline"]) if any("taetpu many" in w for w in one.info["cmdline"] or ())
    ]


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("cpu", {"num_cpus": 4}),
        ("gpu", {"num_cpus": 1, "num_gpus": 4}),
        ("tpu", {"num_cpus": 1, "resources": {"TPU": 4}}),
    ],
)
def test_task_requests_the_devices_of_its_plan(backend: str, expected: dict):
    assert resources(backend, 4) == expected


def test_pack_that_no_node_can_train_is_refused():
    nodes = [{"CPU": 2.0}, {"CPU": 1.0, "GPU": 4.0}]
    check_nodes({"num_cpus": 2}, nodes)
    check_nodes({"num_cpus": 1, "num_gpus": 4}, nodes)
    with pytest.raises(UserError, match="2 CPU, 1 GPU") as caught:
        check_nodes({"num_cpus": 2, "num_gpus": 1}, nodes)
    assert "Add a node" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([{"CPU": 2.0}, {"CPU": 8.0}], ("cpu", {"num_cpus": 8})),
        ([{"CPU": 96.0}, {"CPU": 8.0, "GPU": 4.0}], ("gpu", {"num_cpus": 1, "num_gpus": 4})),
        ([{"CPU": 96.0, "GPU": 8.0}, {"CPU": 8.0, "TPU": 4.0}], ("tpu", {"num_cpus": 1, "resources": {"TPU": 4}})),
    ],
)
def test_packs_are_planned_on_a_whole_node_with_accelerators_if_there_are_any(nodes: list[dict], expected: tuple):
    assert whole_node(nodes) == expected
    check_nodes(expected[1], nodes)


def test_nodes_get_an_absolute_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert shared_root("runs") == str(tmp_path / "runs")
    assert shared_root("gs://bucket/runs") == "gs://bucket/runs"


@pytest.mark.slow
def test_ctrl_c_cancels_the_tasks(tmp_path: Path, nodes: Nodes):
    (tmp_path / "s.yaml").write_text(STUDY.replace("steps: 60", "steps: 6000"))
    root = tmp_path / "root"
    driver = start(tmp_path, root, "--on", "ray", "--address", nodes.address)
    while not list(root.glob("many/claims/*")):
        assert driver.poll() is None, end(driver)
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    code, said = end(driver)
    assert code == 130, said
    until = time.monotonic() + 30
    while workers() and time.monotonic() < until:
        time.sleep(0.1)
    assert not workers()


@pytest.mark.nightly
def test_killed_node_worker_and_driver_change_no_result(tmp_path: Path, nodes: Nodes):
    (tmp_path / "s.yaml").write_text(STUDY)
    code, said = end(start(tmp_path, tmp_path / "alone", environment=ONE_DEVICE))
    assert code == 0, said
    root = tmp_path / "root"
    driver = start(tmp_path, root, "--on", "ray", "--address", nodes.address)
    reached(root, 2, driver)
    nodes.kill(0)
    reached(root, 4, driver)
    if training := workers():
        training[0].kill()
    reached(root, 6, driver)
    driver.send_signal(signal.SIGKILL)
    end(driver)
    kept = {path: path.read_bytes() for path in root.glob("many/runs/*/*/result.json")}
    code, said = end(start(tmp_path, root, "--on", "ray", "--address", nodes.address))
    assert code == 0, said
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert len(list(root.glob("many/runs/*/*/result.json"))) == 12
    assert results(root) == results(tmp_path / "alone")
    packs = json.loads((root / "many/plan.json").read_text())["packs"]
    assert {(pack["devices"], pack["platform"]) for pack in packs} == {(1, "cpu")}, "planned by the driver"


@pytest.mark.nightly
def test_unreachable_cluster_is_refused(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(STUDY)
    code, said = end(start(tmp_path, tmp_path / "root", "--on", "ray", "--address", "127.0.0.1:1"))
    assert code == 2
    assert "127.0.0.1:1" in said
    assert "ray start --head" in said
    assert "Traceback" not in said
