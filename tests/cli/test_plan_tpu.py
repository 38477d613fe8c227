"""The tables of `taetpu plan --tpu`."""

import json
import re
from typing import Any

import pytest
from tests.small import TINY
from tests.tpu.conftest import NEEDS_LIBTPU

from taetpu.cli import plan
from taetpu.cli.plan_tpu import print_slices
from taetpu.core.chips import parse_slice


def program(intensity: float | None = 300.0, used: float = 0.5, **facts: Any) -> dict[str, Any]:
    """The compiler's figures for a program."""
    return {
        "arms": ["baseline"], "runs": 2, "width": 2, "devices": 1, "hbm": {"needed": 1, "available": 4},
        "step_seconds": (1e-3, 2e-3), "tokens_per_second": (1e4, 2e4), "utilisation": (None, used),
        "intensity": intensity, "balance": 240.0, "hazards": [], **facts,
    }  # fmt: skip


def slice_of(name: str, *programs: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """The result of compiling programs for a slice."""
    tpu = parse_slice(name)
    rates = {"on_demand": tpu.usd_per_hour(False), "spot": tpu.usd_per_hour(True)}
    return {
        "tpu": tpu.name, "topology": tpu.topology_name, "chips": tpu.chips, "devices": tpu.devices, "hosts": 1,
        "hbm": tpu.hbm_bytes_per_device, "programs": programs or [program()], "rates": rates, "hours": [1.0, 2.0],
        "usd_on_demand": [1.0, 2.0], "usd_spot": None, "compile_seconds": 30.0, **facts,
    }  # fmt: skip


@pytest.fixture
def printed(capsys):
    """`printed(slice, ...) -> str`: the text that `print_slices` prints, on one line."""

    def call(*found: dict[str, Any]) -> str:
        print_slices(list(found))
        return " ".join(capsys.readouterr().out.split())

    return call


@pytest.mark.parametrize(
    ("intensities", "bound"),
    [
        ((12.0, 35.0), "12-35 FLOPs per byte, .*240, so memory .*bounds"),
        ((300.0, 500.0), "300-500 FLOPs per byte, .*240, so matmuls bound"),
        ((100.0, 300.0, None), "240, so memory traffic .*matmuls bound"),
        ((1e5,), "no memory traffic"),
    ],
)
def test_intensity_decides_the_bound_of_the_roofline(printed, intensities, bound: str) -> None:
    assert re.search(bound, printed(slice_of("v5e-8", *map(program, intensities))))


def test_unknown_intensity_prints_no_bound(printed) -> None:
    assert "bound" not in printed(slice_of("v5e-8", program(None)))


@pytest.mark.parametrize(("usd", "shown"), [(0.0, "$0.00"), (1e-9, "<$0.01"), (0.006, "$0.01"), (1234.5, "$1234.50")])
def test_a_positive_cost_is_never_printed_as_zero(printed, usd: float, shown: str) -> None:
    shown = f"All packs in sequence: 1h-2h of steps; {shown} on demand. Compiling took 30s"
    assert shown in printed(slice_of("v5e-8", usd_on_demand=[usd, usd]))


@pytest.mark.parametrize(("used", "shown"), [(1e-9, "<0.01%"), (3.4e-4, "0.034%"), (0.0997, "10%"), (1.0, "100%")])
def test_utilisation_is_printed_without_exponent(printed, used: float, shown: str) -> None:
    assert f" {shown} " in printed(slice_of("v5e-8", program(utilisation=(used, used))))


@pytest.mark.parametrize(("used", "small"), [((0.009, 0.001), True), ((0.009, 0.02), False)])
def test_a_study_below_1_percent_utilisation_is_too_small(printed, used, small: bool) -> None:
    assert ("too small for" in printed(slice_of("v5e-8", *(program(used=one) for one in used)))) == small


def test_comparison_explains_missing_prices_and_upper_bounds(printed) -> None:
    shown = printed(
        slice_of("v5e-8", usd_spot=[1.0, 2.0]),
        slice_of("tpu7x-8", hours=[1.0, None], usd_on_demand=None),
        slice_of("v6e-8", {"arms": ["x"], "error": "no such operation"}, hours=None),
    )
    for part in ("$1.00-$2.00", "no rate", "no upper", "does not", "v6e-8: x: no such operation"):
        assert part in shown


SETTINGS = ("train.compute.mesh={data: 4, model: 2}", "train.compute.attention=splash")


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_plan_for_a_slice_accepts_settings_that_this_machine_lacks(taetpu, here, monkeypatch, setting):
    """Settings that remedies recommend are refused on this machine only."""
    (here / "s.yaml").write_text(TINY)
    monkeypatch.setattr(plan, "compile_for", lambda *_: [{"tpu": "v5litepod-8", "programs": []}])
    planned = taetpu("plan", "s.yaml", "--tpu", "v5e-8", "--set", setting, "--json").json()
    assert planned["packs"] == [], "of this machine"
    assert planned["tokens"] > 0
    refused = taetpu("plan", "s.yaml", "--set", setting)
    assert refused.code == 2
    assert re.search(r"machine has 2\b|device is a cpu", refused.err)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.compute.mesh={data: 4}", "over 4 devices, but v5litepod-1 has 1"),
        ("train.compute.attention=cudnn", "NVIDIA GPU, .*v5litepod-1 is a tpu"),
    ],
)
def test_settings_that_the_slice_lacks_are_refused(taetpu, here, setting, said):
    (here / "s.yaml").write_text(TINY)
    done = taetpu("plan", "s.yaml", "--tpu", "v5e-1", "--set", setting)
    assert done.code == 2
    assert re.search(said, done.err)
    assert f"--set {setting.split('=')[0]}" in done.err


@pytest.mark.slow
@NEEDS_LIBTPU
def test_plan_for_a_tpu_works_without_one_under_jax_platforms_tpu(process, here, tmp_path):
    (here / "s.yaml").write_text(TINY)
    asked = ("plan", "s.yaml", "--tpu", "v5e-8", "--json", "--set", SETTINGS[0])
    kept = {"TAETPU_CACHE": str(tmp_path / "cache")}
    done = process(*asked, **kept, JAX_PLATFORMS="tpu")
    assert done.code == 0, done.err
    (program,) = json.loads(done.out)["tpu"][0]["programs"]
    assert (program["data"], program["model"]) == (4, 2)
    done = process(*asked, **kept, LIBTPU_INIT_ARGS="--xla_tpu_no_such=1")
    assert done.code == 2
    assert "has no flag --xla_tpu_no_such=1" in done.err


def test_tpu_and_diff_exclude_each_other(taetpu):
    done = taetpu("plan", "s.yaml", "--tpu", "v5e-8", "--diff", "low-lr")
    assert done.code == 2
    assert "--tpu and --diff" in done.err


def test_an_unknown_slice_is_refused_at_its_option(taetpu):
    done = taetpu("plan", "s.yaml", "--tpu", "v9-8")
    assert done.code == 2
    assert "v9-8" in done.err
    assert "where:  --tpu" in done.err
