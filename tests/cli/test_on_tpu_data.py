"""`taetpu run --on tpu` with data of a bucket, which the machine of the fake cloud copies itself."""

import os
from pathlib import Path

import pytest
from tests.cli.test_on_tpu import V5E, Command, check_nothing_left, folder  # noqa: F401 # a fixture
from tests.fake_google.cloud import FakeGoogle
from tests.fake_google.fixtures import BUCKET

from taetpu.store import gcs_client

STUDY = """\
study: tiny
base:
  task: {kind: text, source: 'gs://studies/data/*.txt', val_source: val.txt, seq_len: 8, tokenizer: {kind: byte}}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 4, batch_size: 4, sample: none}
arms: {no-ffn: {model.ffn: none}}
measure: {primary: val/loss}
"""


@pytest.fixture
def study(google: FakeGoogle, folder: Path) -> Path:  # noqa: F811
    """A folder with a study whose training text is in the bucket."""
    (folder / "tiny.yaml").write_text(STUDY)
    (folder / "val.txt").write_text("few words, " * 30)
    text = "".join(f"line {i} of {i * 7919 % 1000}\n" for i in range(100))
    gcs_client.storage_client().bucket(BUCKET).blob("data/a.txt").upload_from_string(text.encode())
    google.world.calls.clear()
    return folder


def check_told(printed: str) -> None:
    copied, fetched = [line.strip() for line in printed.splitlines() if line.strip().startswith("data: ")][:2]
    assert "330 bytes in 1 file " in copied
    assert "gs://studies/data/*.txt" in fetched


@pytest.mark.slow
def test_what_travels_is_said_before_a_machine_is_created(google: FakeGoogle, study: Path):
    shown = Command(study, *V5E[:-1], "--dry-run")
    assert shown.end() == 0, shown.printed
    check_told(shown.printed)
    assert google.world.changes() == []
    assert not (Path(os.environ["TAETPU_CACHE"]) / "buckets").exists()


@pytest.mark.slow
def test_the_machine_copies_the_data_itself(google: FakeGoogle, study: Path):
    google.hosts.environment["TAETPU_CACHE"] = str(study / "machine")
    run = Command(study, *V5E)
    assert run.end() == 0, run.printed
    check_told(run.printed)
    assert (study / "machine" / "buckets" / BUCKET / "objects" / "data" / "a.txt").is_file()
    assert not (Path(os.environ["TAETPU_CACHE"]) / "buckets").exists()
    assert (study / "cloud/tiny/report/index.html").is_file()
    check_nothing_left(google)
