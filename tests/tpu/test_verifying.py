"""Checks of `taetpu verify`: each passes here and fails on an injected fault."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import psutil
import pytest

from taetpu.core.accelerators import Accelerators
from taetpu.core.chips import find_peak
from taetpu.core.errors import UserError
from taetpu.tpu.verifying import checks, machine, rates, training
from taetpu.tpu.verifying.checks import Check
from taetpu.tpu.verifying.devices import REFERENCES, collectives, devices
from taetpu.tpu.verifying.numerics import BOUNDS, matmul
from taetpu.tpu.verifying.runner import run_in_children

PAGE = Path(__file__).parents[2] / "docs/verify.md"
HOLD = """
import sys, time
file = open(sys.argv[1], "r+")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holding():
    """Return `hold(file)`, which starts a process that has a file open until the test ends."""
    started = []

    def hold(file):
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_jax_that_does_not_start_fails_naming_the_platform(monkeypatch):
    def start():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", start)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    found = devices()
    assert found.status == "FAILED"
    assert "JAX_PLATFORMS=cuda" in found.figure
    assert "Unset JAX_PLATFORMS" in (found.remedy or "")


def test_matmul_is_within_bounds_at_every_precision():
    found = matmul()
    assert found.status == "ok"
    assert all(error <= BOUNDS[name] for name, error in found.values["errors"].items())


def test_matmul_with_a_relative_error_of_1e_3_fails():
    found = matmul(lambda a, b: 1.001 * np.matmul(a, b))
    assert found.status == "FAILED"
    assert re.search(r"1\.0e-03 at high\w* precision, .* 1e-\d+$", found.figure)


def test_one_wrong_element_fails():
    def broken(a, b):
        product = np.matmul(a, b)
        product[7, 9] += 1.0
        return product

    assert matmul(broken).status == "FAILED"


def test_collectives_over_two_devices_pass():
    found = collectives()
    assert found.status == "ok"
    assert found.values["devices"] == 2
    assert min(found.values["psum"], found.values["all_gather"]) > 0


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_collective_with_one_wrong_value_names_the_devices(kind):
    def spoiled(parts):
        right = REFERENCES[kind](parts).copy()
        right[3] += 1
        return right

    found = collectives(REFERENCES | {kind: spoiled})
    assert found.status == "FAILED"
    assert re.fullmatch(rf"{kind} .*2 devices .*wrong.* 0, 1", found.figure)


@pytest.mark.slow
@pytest.mark.parametrize("precision", training.TOLERANCE)
def test_losses_match_the_stored_ones(precision):
    losses = training.train(precision)
    assert training.compare_losses(losses, np.array(training.load_expected()[precision]), precision).status == "ok"
    assert losses[-1] < losses[0] - 0.5, "it learns"


def test_rounding_changes_losses_far_less_than_the_tolerance():
    full, half = (np.array(training.load_expected()[precision]) for precision in ("float32", "bfloat16"))
    assert np.abs(full - half).max() < training.TOLERANCE["bfloat16"] / 10


@pytest.mark.parametrize("precision", training.TOLERANCE)
@pytest.mark.parametrize("wrong", [2.0, np.nan])
def test_a_wrong_loss_is_named_by_its_step(precision, wrong):
    expected = np.array(training.load_expected()[precision])
    losses = expected.copy()
    losses[20] += training.TOLERANCE[precision] / 2
    assert training.compare_losses(losses, expected, precision).status == "ok"
    losses[30] += training.TOLERANCE[precision] * wrong
    found = training.compare_losses(losses, expected, precision)
    assert found.status == "FAILED"
    assert found.figure.startswith(f"step 31 has loss {losses[30]:.4f}, expected {expected[30]:.4f}")


def test_rates_are_compared_with_the_published_peak():
    h100, t4 = find_peak("NVIDIA H100 80GB HBM3"), find_peak("Tesla T4")
    assert h100 is not None
    assert t4 is not None
    assert rates.compare_rates([700e12], h100.bf16_flops, h100) == ("ok", ", 71% of H100's peak")
    assert rates.compare_rates([300e12], h100.bf16_flops, h100) == ("slow", ", 30% of H100's peak")
    assert rates.compare_rates([30e12], t4.bf16_flops, t4) == ("ok", " (no published peak)")
    status, text = rates.compare_rates([700e12, 500e12, 710e12], h100.bf16_flops, h100)
    assert (status, text) == ("slow", ", 51% of H100's peak; device 1 reaches 70% of the fastest")


def test_memory_below_the_peak_is_slow(monkeypatch):
    """Compare this machine with an H100."""
    monkeypatch.setattr(rates, "MEBI", 2**14)
    found = rates.memory(find_peak("NVIDIA H100 80GB HBM3"))
    assert found.status == "slow"
    assert "% of H100's peak" in found.figure


@pytest.mark.slow
def test_matmul_below_the_peak_is_slow():
    found = rates.flops(find_peak("NVIDIA H100 80GB HBM3"))
    assert found.status == "slow"
    assert found.values["bfloat16"][0] < found.values["peak_bfloat16"] / 2


@pytest.mark.parametrize(("kind", "status"), [("TPU", "FAILED"), ("NVIDIA GPU", "ok")])
def test_busy_names_the_process_that_has_an_accelerator_open(tmp_path, holding, kind, status):
    """A TPU serves one process; a GPU can be shared."""
    files = tmp_path / "accel0", tmp_path / "accel1"
    for file in files:
        file.touch()
    there, lock = [Accelerators(kind, files)], tmp_path / "libtpu_lockfile"
    assert machine.busy(there, lock).status == "ok"
    process = holding(files[1])
    found = machine.busy(there, lock)
    assert found.status == status
    assert f"{files[1]} " in found.figure
    assert f" process {process.pid} (" in found.figure
    assert found.values["held_by"] == {str(files[1]): [process.pid]}


def test_busy_names_the_process_that_holds_the_lock_of_a_tpu(tmp_path, holding):
    file, there = tmp_path / "libtpu_lockfile", [Accelerators("TPU", ())]
    file.touch()
    assert machine.busy(there, file).status == "ok"
    process = holding(file)
    found = machine.busy(there, file)
    assert (found.status, found.values["held_by"]) == ("FAILED", {str(file): [process.pid]})
    assert machine.busy([Accelerators("NVIDIA GPU", ())], file).status == "ok"


def test_a_missing_package_of_an_accelerator_fails():
    assert machine.versions([]).status == "ok"
    found = machine.versions([Accelerators("NVIDIA GPU", (Path("/dev/nvidia0"),))])
    assert (found.status, found.remedy) == ("FAILED", "pip install 'taetpu[cuda]'")


def test_jax_on_the_cpu_of_a_machine_with_an_accelerator_fails(monkeypatch):
    assert devices([]).status == "ok"
    there = [Accelerators("TPU", (Path("/dev/accel0"),))]
    assert devices(there).status == "ok", "asked for, by JAX_PLATFORMS"
    monkeypatch.delenv("JAX_PLATFORMS")
    found = devices(there)
    assert found.status == "FAILED"
    assert "CPU" in found.figure
    assert "TPU" in found.figure


def test_a_check_that_raises_fails_with_its_reason():
    found = Check("boom", "", "rates.no_such_function", 1, "").run()
    assert found.status == "FAILED"
    assert found.figure.startswith("AttributeError: ")
    assert "Traceback" in found.values["traceback"]


def test_selected_checks_include_devices_where_jax_is_needed():
    assert [check.name for check in checks.select_checks([])] == [check.name for check in checks.CHECKS]
    assert [check.name for check in checks.select_checks(["training", "matmul"])] == ["devices", "matmul", "training"]
    assert [check.name for check in checks.select_checks(["busy"])] == ["busy"]
    with pytest.raises(UserError, match=r"no check 'mat'"):
        checks.select_checks(["mat"])


def test_the_page_has_a_section_for_every_check_in_order():
    sections = re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert sections == [check.name for check in (*checks.CHECKS, *checks.TORCH_CHECKS)]


@pytest.mark.slow
def test_a_check_that_hangs_is_killed_and_the_next_runs():
    by_name = {check.name: check for check in checks.CHECKS}
    slow = replace(by_name["training"], seconds=0.01)
    found = run_in_children([slow, by_name["devices"]], lambda name: None)
    assert [one.finding.status for one in found] == ["FAILED", "ok"]
    assert found[0].finding.figure.startswith("no result within 0.01 s")


@pytest.mark.slow
def test_a_killed_process_fails_one_check_only():
    before = {*psutil.Process().children()}  # of other tests in this process

    def begins(name):
        if name == "matmul":
            (child,) = {*psutil.Process().children()} - before
            child.kill()

    chosen = [check for check in checks.CHECKS if check.name in ("devices", "matmul", "collectives")]
    found = run_in_children(chosen, begins)
    assert [one.finding.status for one in found] == ["ok", "FAILED", "ok"]
    assert "killed by SIGKILL" in found[1].finding.figure


@pytest.mark.slow
def test_a_process_that_aborts_is_reported_with_its_last_line(monkeypatch):
    """XLA aborts at an unknown flag."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1 --xla_force_host_platform_device_count=2")
    found = run_in_children(checks.select_checks(["matmul"]), lambda name: None)
    assert [one.finding.status for one in found] == ["FAILED", "skipped"]
    assert re.match(
        r"the process (was killed by|ended with) .*Unknown flag in XLA_FLAGS: --xla_no_such_flag",
        found[0].finding.figure,
    )


@pytest.mark.slow
def test_stored_losses_are_reproduced_by_their_module():
    command = [sys.executable, "-m", "taetpu.tpu.verifying.training"]
    printed = json.loads(subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True).stdout)
    for precision, values in training.load_expected().items():
        np.testing.assert_allclose(printed[precision], values, atol=1e-5 if precision == "float32" else 1e-3)
