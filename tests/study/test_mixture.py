"""Runs of a mixture do not depend on feed, pack or interruption, and plan and report say what they read."""

import pytest
from tests.study.test_feed import trained

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study

STUDY = """\
study: mixed
base:
  task: {kind: text, source: {a.txt: 3, b.txt: 1}, seq_len: 8}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 200, batch_size: 8, eval_every: 100, checkpoint: 100, sample: none, compute: {feed: resident}}
seeds: 2
arms:
  low-lr: {train.optimizer.lr: 1e-4}
  even: {task.source: {a.txt: 1, b.txt: 1}}
"""


@pytest.fixture(autouse=True)
def texts(tmp_path):
    for name, word in (("a.txt", "cat"), ("b.txt", "mat")):
        (tmp_path / name).write_text(" ".join(f"{word} {i * i % 97} {i}" for i in range(400)))


@pytest.mark.slow
def test_runs_do_not_depend_on_feed_interruption_and_pack(study, interrupting, tmp_path):
    outcome, resident = study(STUDY, root="resident")
    host = STUDY.replace("resident", "host")
    with pytest.raises(KeyboardInterrupt):
        study(host, root="host", callback=interrupting("on_steps", 150))
    _, resumed = study(host, root="host")
    assert trained(resumed) == trained(resident)
    _, solo = study(STUDY, root="solo", pack=1)
    for alone, packed in zip(solo.runs(), resident.runs(), strict=True):
        assert alone.key == packed.key
        assert alone.result()["metrics"] == pytest.approx(packed.result()["metrics"], rel=1e-5)
    for run in resident.runs():
        mixture = run.result()["environment"]["data"]["mixture"]
        weight = 0.5 if run.arm == "even" else 0.75
        assert mixture["a.txt"]["weight"] == weight
        assert mixture["a.txt"]["share"] == pytest.approx(weight, abs=0.03)
        windows = mixture["a.txt"]["epochs"] * mixture["a.txt"]["windows"]
        assert windows == pytest.approx(1600 * mixture["a.txt"]["share"])
    report = next((tmp_path / "resident").rglob("report.md")).read_text()
    assert "even: Shares" in report
    assert outcome.results["arms"][0]["name"] == "baseline"


@pytest.mark.parametrize("path", ["task.source.a", "task.source.a.txt"])
def test_an_arm_names_all_weights(tmp_path, path):
    (tmp_path / "s.yaml").write_text(STUDY.replace("task.source: {a.txt: 1, b.txt: 1}", f"{path}: 1"))
    with pytest.raises(UserError) as caught:
        load_study(tmp_path / "s.yaml")
    assert path in str(caught.value)
    assert "task.source" in str(caught.value.remedy)
