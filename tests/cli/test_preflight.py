"""What `plan --tpu` prints of what the compiler said."""

import pytest

from taetpu.cli.preflight import _pace


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
