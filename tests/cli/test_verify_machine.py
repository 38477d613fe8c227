"""`taetpu verify` and `taetpu --device`: what they print, and their exit codes."""

import json
import sys

import pytest

from taetpu.tpu.verifying.checks import CHECKS

SCHEMA = {
    "check": str,
    "about": str,
    "status": str,
    "figure": str,
    "values": dict,
    "seconds": float,
    "remedy": str | None,
    "page": str,
}


def fits(found):
    """Check the schema of `--json`."""
    assert found.keys() == {"checks", "failed", "slow"}
    for one in found["checks"]:
        assert one.keys() == SCHEMA.keys()
        assert all(isinstance(one[key], kind) for key, kind in SCHEMA.items())
        assert one["status"] in ("ok", "slow", "FAILED", "skipped")
        assert (one["remedy"] is not None) == (one["status"] in ("slow", "FAILED"))
        assert one["page"] == f"docs/verify.md#{one['check']}"
    for status, key in (("FAILED", "failed"), ("slow", "slow")):
        assert found[key] == [one["check"] for one in found["checks"] if one["status"] == status]


@pytest.mark.slow
def test_missing_accelerator_fails_and_other_checks_are_skipped(process):
    done = process("verify", "matmul", "--json", JAX_PLATFORMS="tpu")
    assert done.code == 3
    found = json.loads(done.out)
    fits(found)
    assert [one["status"] for one in found["checks"]] == ["FAILED", "skipped"]
    assert done.err.endswith("1 of 2 checks failed: devices\n")


def test_an_unknown_check_is_refused(taetpu):
    done = taetpu("verify", "matmull")
    assert done.code == 2
    assert "no check 'matmull'" in done.err
    assert "Did you mean 'matmul'?" in done.err


def test_missing_device_is_refused_before_anything_is_stored(taetpu, here):
    done = taetpu("--device", "1000", "run", "s.yaml", "--root", "root")
    assert done.code == 2
    assert "no device 1000" in done.err
    assert not (here / "root").exists()


def test_device_after_the_command_is_refused(taetpu):
    done = taetpu("run", "s.yaml", "--device", "0")
    assert done.code == 2
    assert "--device must precede" in done.err


def test_torch_is_refused_without_its_packages_and_python_without_torch(taetpu):
    done = taetpu("verify", "--torch", "--python", sys._base_executable)  # the system's, without libraries
    assert (done.code, done.out) == (2, "")
    assert "torch_tpu or torch_xla" in done.err
    assert "remedy" in done.err
    assert taetpu("verify", "--python", sys.executable).code == 2
    assert "'torch-matmul'" in taetpu("verify", "--torch", "torch-matmull").err


@pytest.mark.slow
def test_working_machine_passes_every_check(process):
    done = process("--device", "cpu", "verify", "--json", XLA_FLAGS="--xla_force_host_platform_device_count=3")
    found = done.json()
    fits(found)
    assert [one["check"] for one in found["checks"]] == [check.name for check in CHECKS]
    by_name = {one["check"]: one for one in found["checks"]}
    assert by_name["collectives"]["values"]["devices"] == 3
    assert by_name["training"]["status"] == by_name["matmul"]["status"] == by_name["flops"]["status"] == "ok"


@pytest.mark.slow
def test_verify_output_fits_a_terminal_and_names_a_remedy(process):
    done = process("verify", "devices", "matmul", JAX_PLATFORMS="tpu", COLUMNS="80")
    assert done.code == 3
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert "devices: " in done.out
    assert "see docs/verify.md#devices" in done.out
