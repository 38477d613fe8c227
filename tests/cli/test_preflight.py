"""What `plan --tpu` prints of what the compiler said."""

import json
from typing import Any

import pytest
from tests.small import TINY
from tests.tpu.conftest import NEEDS_LIBTPU

from taetpu.cli import plan
from taetpu.cli.preflight import _bill, _bound, _percent, _price, _remark, _small, _too_small, _usd, print_slices
from taetpu.core.chips import parse_slice


def program(intensity: float | None) -> dict[str, float | None]:
    return {"intensity": intensity, "balance": 240.0}


@pytest.mark.parametrize(
    ("intensities", "span", "bound"),
    [
        ((12.0, 35.0), "12-35", "240: memory traffic bounds"),
        ((300.0, 500.0), "300-500", "240: matmuls bound"),
        ((100.0, 300.0, None), "100-300", "240: memory traffic or matmuls bound"),
        ((1e5,), "", "almost no memory traffic"),
        ((None,), "", ""),
        ((), "", ""),
    ],
)
def test_bound_of_the_roofline(intensities: tuple[float | None, ...], span: str, bound: str) -> None:
    shown = _bound([program(one) for one in intensities])
    assert shown.startswith(span)
    assert bound in shown
    assert bool(shown) == bool(bound)


def test_the_bill_has_the_price_of_all_steps_and_the_time_of_compiling() -> None:
    bill = _bill({"hours": [1.0, 2.0], "usd_on_demand": [1.2, 2.4], "usd_spot": None, "compile_seconds": 30.0})
    assert "of steps; $1.20-$2.40 on demand. Compiling took 30s" in bill


@pytest.mark.parametrize(("amount", "said"), [(0.0, "$0.00"), (1e-9, "<$0.01"), (0.006, "$0.01"), (1234.5, "$1234.50")])
def test_what_costs_something_is_not_told_as_nothing(amount: float, said: str) -> None:
    assert _usd(amount) == said


@pytest.mark.parametrize(("amount", "said"), [(1e-7, "<0.01%"), (0.034, "0.034%"), (9.97, "10%"), (100.0, "100%")])
def test_a_percentage_has_no_exponent(amount: float, said: str) -> None:
    assert _percent(amount) == said


def test_a_study_that_uses_next_to_nothing_is_told() -> None:
    def programs(*used: float) -> list[dict[str, tuple[None, float]]]:
        return [{"utilisation": (None, one)} for one in used]

    assert _small(programs(0.009, 0.001))
    assert not _small(programs(0.009, 0.02))
    assert not _small([])


SETTINGS = ("train.compute.mesh={data: 4, model: 2}", "train.compute.attention=splash")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_slice_may_have_what_this_machine_has_not(taetpu, here, monkeypatch, setting):
    """A setting that a plan's own remedies hand out: refused for the laptop, not for the slice."""
    (here / "s.yaml").write_text(TINY)
    monkeypatch.setattr(plan, "compile_for", lambda *_: [{"tpu": "v5litepod-8", "programs": []}])
    planned = taetpu("plan", "s.yaml", "--tpu", "v5e-8", "--set", setting, "--json").json()
    assert planned["packs"] == [], "of this machine"
    assert planned["tokens"] > 0
    refused = taetpu("plan", "s.yaml", "--set", setting)
    assert refused.code == 2
    assert "this machine has 2" in refused.err or "this device is a cpu" in refused.err


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.compute.mesh={data: 4}", "over 4 devices; v5litepod-1 has 1"),
        ("train.compute.attention=cudnn", "needs an NVIDIA GPU, Ampere or later; a device of v5litepod-1 is a tpu"),
    ],
)
def test_what_the_slice_has_not_is_refused_for_it(taetpu, here, setting, said):
    (here / "s.yaml").write_text(TINY)
    done = taetpu("plan", "s.yaml", "--tpu", "v5e-1", "--set", setting)
    assert done.code == 2
    assert said in done.err
    assert f"--set {setting.split('=')[0]}" in done.err


@pytest.mark.slow
@NEEDS_LIBTPU
def test_a_plan_for_a_tpu_needs_none_whatever_jax_is_told_to_use(process, here, tmp_path):
    (here / "s.yaml").write_text(TINY)
    asked = ("plan", "s.yaml", "--tpu", "v5e-8", "--json", "--set", SETTINGS[0])
    kept = {"TAETPU_CACHE": str(tmp_path / "cache")}
    for told in ({"JAX_PLATFORMS": "tpu"}, {"XLA_FLAGS": "--xla_disable_hlo_passes=algsimp"}):
        done = process(*asked, **kept, **told)
        assert done.code == 0, done.err
        (program,) = json.loads(done.out)["tpu"][0]["programs"]
        assert (program["data"], program["model"]) == (4, 2)
    assert len(list((tmp_path / "cache/preflight").iterdir())) == 2, "other flags, another program"
    done = process(*asked, **kept, LIBTPU_INIT_ARGS="--xla_tpu_no_such=1")
    assert done.code == 2
    assert "has no flag --xla_tpu_no_such=1" in done.err


def test_two_questions_at_once_are_refused(taetpu):
    done = taetpu("plan", "s.yaml", "--tpu", "v5e-8", "--diff", "low-lr")
    assert done.code == 2
    assert "--tpu and --diff exclude each other" in done.err


@pytest.mark.parametrize("name", ["v9-8", "v5e-5"])
def test_a_wrong_slice_is_told_that_all_can_be_asked_for(taetpu, name):
    done = taetpu("plan", "s.yaml", "--tpu", name)
    assert done.code == 2
    assert "; `all` compares the generations" in done.err


def slice_of(name: str, **facts: Any) -> dict[str, Any]:
    return {**_too_small(parse_slice(name), "too few"), "programs": [{}], **facts}


def test_a_row_says_why_it_has_no_upper_end_and_no_price(capsys):
    known, unknown, lost = (
        slice_of("v5e-8", hours=[1.0, 2.0], usd_spot=[1.0, 2.0]),
        slice_of("tpu7x-8", hours=[1.0, None]),
        slice_of("v5e-8", hours=None),
    )
    for one in (known, unknown, lost):
        del one["refused"]
    assert [_remark(one) for one in (known, unknown, lost)] == ["", "clock not published", "does not compile"]
    assert [_price(one, "spot") for one in (known, unknown, lost)] == ["$1.00-$2.00", "no rate", "-"]
    few = _too_small(parse_slice("v4-8"), "data=8 and model=1 divide a run over 8 devices, and v4-8 has 4")
    print_slices([few, few])
    shown = capsys.readouterr().out
    assert "too few" in shown
    assert "v4-8: data=8 and model=1 divide" in shown
