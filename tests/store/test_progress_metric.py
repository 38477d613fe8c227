"""The series that shows the progress of the primary metric."""

import pytest

from taetpu.store.metrics import progress_metric

EVERY = {"train/loss", "val/loss", "val/accuracy"}  # at each evaluation
SAMPLED = {"train/loss", "val_sample/loss", "val_sample/accuracy"}
ENDED = SAMPLED | EVERY


@pytest.mark.parametrize(
    ("primary", "recorded", "shown", "curve"),
    [
        ("val/accuracy", [EVERY, EVERY], "val/accuracy", "val/accuracy"),
        ("val/accuracy", [SAMPLED, ENDED], "val_sample/accuracy", "val_sample/accuracy"),  # one still trains
        ("val/accuracy", [ENDED, ENDED], "val/accuracy", "val_sample/accuracy"),
        ("test/accuracy", [SAMPLED, ENDED], "val_sample/accuracy", "val_sample/accuracy"),
        ("test/accuracy", [EVERY, {"train/loss"}], "val/accuracy", "val/accuracy"),  # one was not evaluated yet
        ("val/bits_per_byte", [EVERY], "val/loss", "val/loss"),
        ("val/accuracy", [], "val/accuracy", "val/accuracy"),
        ("val/accuracy", [{"train/loss"}], "val/accuracy", "val/accuracy"),
    ],
)
def test_series_that_shows_the_progress(primary, recorded, shown, curve) -> None:
    assert progress_metric(primary, recorded) == shown
    assert progress_metric(primary, iter(recorded), curve=True) == curve
