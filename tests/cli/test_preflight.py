"""What `plan --tpu` prints of what the compiler said."""

import pytest

from taetpu.cli.preflight import _bill, _pace, _percent, _small, _usd


def program(intensity: float | None) -> dict[str, float | None]:
    return {"intensity": intensity, "balance": 240.0}


@pytest.mark.parametrize(
    ("intensities", "said"),
    [
        ((12.0, 35.0), "12-35 FLOPs a byte, where a device balances at 240: memory traffic bounds the roofline"),
        ((300.0, 500.0), "300-500 FLOPs a byte, where a device balances at 240: products bound the roofline"),
        (
            (100.0, 300.0, None),
            "100-300 FLOPs a byte, where a device balances at 240: memory traffic or products bound",
        ),
        ((1e5,), "next to no traffic with the device's memory"),
        ((None,), ""),
        ((), ""),
    ],
)
def test_what_bounds_the_roofline_is_said_where_it_is_known(intensities: tuple[float | None, ...], said: str) -> None:
    told = _pace([program(one) for one in intensities])
    assert told.startswith(said)
    assert bool(told) == bool(said)


def test_steps_and_compiling_have_dollars_of_their_own() -> None:
    told = _bill({
        "hours": [1.0, 2.0], "usd_on_demand": [1.2, 2.4], "usd_spot": None,
        "compile_seconds": 30.0, "usd_compiling": [0.003, None],
    })  # fmt: skip
    assert "of steps; $1.20-$2.40 on demand. Compiling once took 30s of this machine's processors; " in told
    assert "as long on the slice: <$0.01 on demand." in told


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
