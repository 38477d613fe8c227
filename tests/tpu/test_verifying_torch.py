"""`taetpu verify --torch`: its checks pass with PyTorch on a CPU and fail on injected faults.

The whole command runs with a stand-in for torch_xla whose device is the CPU, because no build of torch_tpu or torch_xla
runs without a TPU next to the version of torch that is installed here (see tests/SKIPPED.md).
"""

import sys

import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.tpu.verifying import runner, torch_script
from taetpu.tpu.verifying.checks import TORCH_CHECKS, select_checks
from taetpu.tpu.verifying.torch_script import Backend, check_device, check_matmul, check_training

NAMES = [check.name for check in TORCH_CHECKS]
STAND_IN = """
import torch
__version__ = "2.9.0"
def device(): return torch.device("cpu")
def device_count(): return 1
def sync(): print("a library prints")
"""


@pytest.fixture
def cpu():
    return pytest.importorskip("torch").device("cpu")


@pytest.fixture
def xla(tmp_path, monkeypatch):
    """A folder on the path of child processes with a stand-in for torch_xla."""
    pytest.importorskip("torch")
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla/__init__.py").write_text(STAND_IN)
    (tmp_path / "torch_xla/runtime.py").write_text("def device_type(): return 'CPU'\n")
    (tmp_path / "torch_xla-2.9.0.dist-info").mkdir()
    (tmp_path / "torch_xla-2.9.0.dist-info/METADATA").write_text("Name: torch_xla\nVersion: 2.9.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "torch_xla"


def no_wait():
    pass


@pytest.mark.slow
def test_products_and_losses_agree_with_numpy(cpu):
    product = check_matmul(cpu, no_wait)
    assert product["status"] == "ok"
    assert product["values"]["errors"]["float32"] < 1e-5
    training = check_training(cpu, no_wait, "CPU")
    assert training["status"] == "ok"
    losses = training["values"]["losses"]
    assert losses[-1] < losses[0] / 2


def test_a_product_with_a_relative_error_of_3_percent_fails(cpu):
    found = check_matmul(cpu, no_wait, lambda a, b: 1.03 * np.matmul(a, b))
    assert (found["status"], "2.9e-02 in float32" in found["figure"]) == ("FAILED", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(torch_script.BOUNDS, "float32", 1.0)
        assert "in bfloat16" in check_matmul(cpu, no_wait, lambda a, b: 1.03 * np.matmul(a, b))["figure"]


@pytest.mark.parametrize(("kind", "rate"), [("CPU", 0.101), ("TPU", 0.2), ("CPU", float("nan"))])
def test_another_loss_is_named_by_its_step(cpu, kind, rate):
    found = check_training(cpu, no_wait, kind, rate)
    assert found["status"] == "FAILED"
    assert found["figure"].startswith("step ")


@pytest.mark.slow
def test_rounding_to_bfloat16_is_no_failure_on_a_tpu(cpu, monkeypatch):
    """The inputs of all products are rounded, as a TPU does by default."""
    torch = pytest.importorskip("torch")
    multiply = torch.Tensor.__matmul__
    rounded = lambda a, b: multiply(a.bfloat16().float(), b.bfloat16().float())  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert check_matmul(cpu, no_wait)["status"] == "ok"
    assert check_training(cpu, no_wait, "TPU")["status"] == "ok"
    assert check_training(cpu, no_wait, "CPU")["status"] == "FAILED"


@pytest.mark.parametrize("file", ["accel0", "vfio/0"])
def test_the_cpu_of_a_machine_with_a_tpu_fails(cpu, tmp_path, file):
    backend = Backend("torch", "CPU", 1, cpu, no_wait)
    assert check_device(backend, tmp_path)["status"] == "ok"
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    found = check_device(backend, tmp_path)
    assert (found["status"], "CPU" in found["figure"], "TPU" in found["figure"]) == ("FAILED", True, True)
    assert check_device(backend._replace(kind="TPU"), tmp_path)["status"] == "ok"


def test_selected_checks_include_the_one_that_opens_the_device():
    assert [check.name for check in select_checks([], TORCH_CHECKS)] == NAMES
    assert [check.name for check in select_checks(["torch-matmul"], TORCH_CHECKS)] == NAMES[:2]
    with pytest.raises(UserError, match="'matmul'"):
        select_checks(["matmul"], TORCH_CHECKS)


@pytest.mark.slow
def test_all_checks_run_in_a_child_process(xla):
    outcomes = runner.verify_torch(sys.executable)
    assert [(outcome.check.name, outcome.finding.status) for outcome in outcomes] == [(name, "ok") for name in NAMES]
    assert outcomes[0].finding.values["torch_xla"] == "2.9.0"
    assert "1 x CPU" in outcomes[0].finding.figure


@pytest.mark.slow
def test_without_a_device_the_other_checks_are_skipped(xla):
    (xla / "runtime.py").write_text("def device_type(): raise RuntimeError('no such thing')\n")
    first, *others = runner.verify_torch(sys.executable)
    assert (first.finding.status, first.finding.figure) == ("FAILED", "RuntimeError: no such thing")
    assert {outcome.finding.status for outcome in others} == {"skipped"}
    assert "taetpu verify busy" in (first.remedy or "")


def test_a_python_without_the_packages_is_refused(tmp_path):
    with pytest.raises(UserError) as error:
        runner.verify_torch(sys._base_executable)  # the system's, without libraries
    assert "torch_tpu or torch_xla" in error.value.problem
    assert "install -p ~/torch torch torch_tpu" in (error.value.remedy or "")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho broken >&2\nexit 7\n")
    broken.chmod(0o755)
    for python, what in ((str(tmp_path / "absent"), "absent"), (str(broken), "code 7: broken")):
        with pytest.raises(UserError) as error:
            runner.verify_torch(python)
        assert what in error.value.problem
        assert error.value.path == ("--python",)
