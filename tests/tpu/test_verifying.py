"""Each check of a machine: right where all is well, and FAILED where something is made wrong for it."""

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

from taetpu.core.chips import peak
from taetpu.core.devices import Accelerators
from taetpu.core.errors import UserError
from taetpu.tpu.verifying import checks, machine, pytorch, rates, training
from taetpu.tpu.verifying.checks import Check
from taetpu.tpu.verifying.devices import RIGHT, collectives, devices
from taetpu.tpu.verifying.numerics import BOUNDS, matmul
from taetpu.tpu.verifying.runner import in_children

PAGE = Path(__file__).parents[2] / "docs/verify.md"
HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "r+")
if sys.argv[2] == "lock":
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holding():
    """`holding(file, "lock" | "open")`: a process that holds a file, as long as the test goes on."""
    started = []

    def hold(file, how):
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(file), how], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_jax_that_does_not_start_is_told_with_what_it_was_told_to_use(monkeypatch):
    def start():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", start)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    found = devices()
    assert (found.status, found.figure) == (
        "FAILED",
        "jax does not start with JAX_PLATFORMS=cuda: it finds no such device",
    )
    assert "unset JAX_PLATFORMS" in (found.remedy or "")


def test_a_product_is_right_at_every_precision():
    found = matmul()
    assert found.status == "ok"
    assert all(error <= BOUNDS[name] for name, error in found.values["errors"].items())


def test_a_product_that_is_off_by_a_tenth_of_a_percent_is_wrong():
    found = matmul(lambda a, b: 1.001 * np.matmul(a, b))
    assert found.status == "FAILED"
    assert re.fullmatch(r"high\w* precision is off by 1\.0e-03; at most 1e-\d+ is right", found.figure)


def test_one_wrong_element_is_enough():
    def broken(a, b):
        product = np.matmul(a, b)
        product[7, 9] += 1.0
        return product

    assert matmul(broken).status == "FAILED"


def test_collectives_are_right_over_two_devices():
    found = collectives()
    assert found.status == "ok"
    assert found.values["devices"] == 2
    assert min(found.values["psum"], found.values["all_gather"]) > 0


@pytest.mark.parametrize("kind", RIGHT)
def test_a_collective_that_differs_in_one_number_names_the_devices(kind):
    def spoiled(parts):
        right = RIGHT[kind](parts).copy()
        right[3] += 1
        return right

    found = collectives(RIGHT | {kind: spoiled})
    assert (found.status, found.figure) == ("FAILED", f"{kind} over 2 devices is wrong on device 0, 1")


@pytest.mark.slow
@pytest.mark.parametrize("precision", training.TOLERANCE)
def test_losses_are_those_that_are_stored(precision):
    losses = training.trained(precision)
    assert training.judged(losses, np.array(training.stored()[precision]), precision).status == "ok"
    assert losses[-1] < losses[0] - 0.5, "it learns"


def test_what_rounding_does_to_losses_is_far_from_what_counts_as_a_fault():
    full, half = (np.array(training.stored()[precision]) for precision in ("float32", "bfloat16"))
    assert np.abs(full - half).max() < training.TOLERANCE["bfloat16"] / 10


@pytest.mark.parametrize("precision", training.TOLERANCE)
@pytest.mark.parametrize("wrong", [2.0, np.nan])
def test_one_loss_that_is_off_is_named_by_its_step(precision, wrong):
    expected = np.array(training.stored()[precision])
    losses = expected.copy()
    losses[20] += training.TOLERANCE[precision] / 2
    assert training.judged(losses, expected, precision).status == "ok"
    losses[30] += training.TOLERANCE[precision] * wrong
    found = training.judged(losses, expected, precision)
    assert found.status == "FAILED"
    assert found.figure.startswith(f"step 31 has loss {losses[30]:.4f}, not {expected[30]:.4f}")


def test_a_rate_is_told_against_what_is_published():
    h100, t4 = peak("NVIDIA H100 80GB HBM3"), peak("Tesla T4")
    assert h100 is not None
    assert t4 is not None
    assert rates.compared([700e12], h100.bf16_flops, h100) == ("ok", ", 71% of H100's peak")
    assert rates.compared([300e12], h100.bf16_flops, h100) == ("slow", ", 30% of H100's peak")
    assert rates.compared([30e12], t4.bf16_flops, t4) == ("ok", " (no published peak to compare with)")
    status, text = rates.compared([700e12, 500e12, 710e12], h100.bf16_flops, h100)
    assert (status, text) == ("slow", ", 51% of H100's peak; device 1 has 70% of the fastest's")


def test_a_slow_memory_is_slow(monkeypatch):
    """This machine, against an H100's bandwidth."""
    monkeypatch.setattr(rates, "MEBI", 2**14)
    found = rates.memory(peak("NVIDIA H100 80GB HBM3"))
    assert found.status == "slow"
    assert "% of H100's peak" in found.figure


@pytest.mark.slow
def test_products_that_are_slow_are_slow():
    found = rates.flops(peak("NVIDIA H100 80GB HBM3"))
    assert found.status == "slow"
    assert found.values["bfloat16"][0] < found.values["peak_bfloat16"] / 2


def test_bytes_that_change_on_the_way_are_counted():
    def spoiled(array):
        back = np.array(array)
        back[[3, 5]] ^= 1
        return back

    (device, *_) = jax.local_devices()
    assert rates.transferred(device, 2**16).status == "ok"
    found = rates.transferred(device, 2**16, spoiled)
    assert (found.status, found.figure) == ("FAILED", "2 of 16384 numbers came back changed")


def test_a_lock_that_a_process_holds_names_it(tmp_path, holding):
    file = tmp_path / "libtpu_lockfile"
    assert machine.lock(file).status == "ok"
    file.touch()
    assert machine.lock(file).figure == f"{file} was left behind, held by nobody: harmless"
    process = holding(file, "lock")
    found = machine.lock(file)
    assert found.status == "FAILED"
    assert found.figure.startswith(f"{file} is held by process {process.pid} ({sys.executable}"[:90])
    assert found.values["held_by"] == [process.pid]
    process.kill()
    process.wait()
    assert machine.lock(file).status == "ok"
    assert file.exists(), "nothing is ever deleted"


def test_a_lock_file_that_cannot_be_opened_is_told_with_what_to_do(tmp_path):
    folder = tmp_path / "libtpu_lockfile"  # root may open any file, but nobody a folder
    folder.mkdir()
    found = machine.lock(folder)
    assert (found.status, found.remedy) == ("FAILED", f"sudo rm {folder}, once nobody uses the TPU")


@pytest.mark.parametrize(("kind", "status"), [("TPU", "FAILED"), ("NVIDIA GPU", "ok")])
def test_a_process_that_has_an_accelerator_open_is_named(tmp_path, holding, kind, status):
    """A TPU is one process's alone; a GPU may be shared."""
    files = tmp_path / "accel0", tmp_path / "accel1"
    for file in files:
        file.touch()
    there = [Accelerators(kind, files)]
    assert machine.busy(there).status == "ok"
    process = holding(files[1], "open")
    found = machine.busy(there)
    assert found.status == status
    assert f"{files[1]} is open in process {process.pid} (" in found.figure
    assert found.values["held_by"] == {str(files[1]): [process.pid]}


def test_what_an_accelerator_needs_is_missed():
    assert machine.versions([]).status == "ok"
    found = machine.versions([Accelerators("NVIDIA GPU", (Path("/dev/nvidia0"),))])
    assert (found.status, found.remedy) == ("FAILED", "pip install 'taetpu[cuda]'")


def test_a_driver_is_read(tmp_path):
    file = tmp_path / "version"
    assert machine.driver(file) is None
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 16 2025\nGCC version: 12\n")
    assert machine.driver(file) == "570.86.15"


def test_jax_on_the_cpu_of_a_machine_with_an_accelerator_is_a_failure(monkeypatch):
    assert devices([]).status == "ok"
    there = [Accelerators("TPU", (Path("/dev/accel0"),))]
    assert devices(there).status == "ok", "asked for, by JAX_PLATFORMS"
    monkeypatch.delenv("JAX_PLATFORMS")
    assert devices(there).figure == "jax runs on the CPU, though this machine has a TPU"


@pytest.mark.slow
def test_pytorch_is_compared_with_itself_on_the_cpu():
    assert pytorch.compared("cpu", 1, lambda: None).status == "ok"
    wrong = {name: 1.05 * value for name, value in pytorch.results("cpu").items()}
    found = pytorch.compared("cpu", 1, lambda: None, wrong)
    assert (found.status, found.figure) == ("FAILED", "the product on cpu is off by 5e-02")
    assert pytorch.pytorch().figure == "torch_xla and torch_tpu are not installed"


def test_a_check_that_raises_fails_with_its_reason():
    found = Check("boom", "", "rates.no_such_function", 1, "").make()
    assert found.status == "FAILED"
    assert found.figure.startswith("AttributeError: ")
    assert "Traceback" in found.values["traceback"]


def test_the_checks_that_are_asked_for_come_with_what_they_need():
    assert [check.name for check in checks.chosen([])] == [check.name for check in checks.CHECKS]
    assert [check.name for check in checks.chosen(["training", "matmul"])] == ["devices", "matmul", "training"]
    assert [check.name for check in checks.chosen(["lock"])] == ["lock"]
    with pytest.raises(UserError, match=r"there is no check 'mat'"):
        checks.chosen(["mat"])


def test_the_page_has_a_section_for_every_check_in_their_order():
    sections = re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert sections == [check.name for check in checks.CHECKS]


@pytest.mark.slow
def test_a_check_that_hangs_is_ended_and_the_next_is_made():
    by_name = {check.name: check for check in checks.CHECKS}
    slow = replace(by_name["training"], seconds=0.01)
    found = in_children([slow, by_name["devices"]], lambda name: None)
    assert [one.finding.status for one in found] == ["FAILED", "ok"]
    assert found[0].finding.figure.startswith("no answer within 0.01 s")


@pytest.mark.slow
def test_a_process_that_is_killed_in_a_check_takes_no_other_check_with_it():
    before = {*psutil.Process().children()}  # of other tests in this process

    def begins(name):
        if name == "matmul":
            (child,) = {*psutil.Process().children()} - before
            child.kill()

    chosen = [check for check in checks.CHECKS if check.name in ("devices", "matmul", "collectives")]
    found = in_children(chosen, begins)
    assert [one.finding.status for one in found] == ["ok", "FAILED", "ok"]
    assert found[1].finding.figure.startswith("the process was ended by SIGKILL")


@pytest.mark.slow
def test_a_process_that_ends_itself_is_told_with_its_last_words(monkeypatch):
    """XLA does so at a flag that it does not know."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1 --xla_force_host_platform_device_count=2")
    found = in_children(checks.chosen(["matmul"]), lambda name: None)
    assert [one.finding.status for one in found] == ["FAILED", "skipped"]
    assert re.match(
        r"the process was ended by .*Unknown flag in XLA_FLAGS: --xla_no_such_flag", found[0].finding.figure
    )


@pytest.mark.slow
def test_the_stored_losses_are_what_their_module_prints():
    command = [sys.executable, "-m", "taetpu.tpu.verifying.training"]
    printed = json.loads(subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True).stdout)
    for precision, values in training.stored().items():
        np.testing.assert_allclose(printed[precision], values, atol=1e-5 if precision == "float32" else 1e-3)
