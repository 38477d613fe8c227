"""Studies of labelled rows: packed equals solo, resumed equals undisturbed, both feeds, and what the report says."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr
from tests.labelled_files import labelled_rows, write_json_lines
from tests.study.test_feed import trained

import taetpu
from taetpu.core.errors import UserError
from taetpu.lens.check_run import check_losses
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

pytestmark = pytest.mark.slow

STUDY = """\
study: KIND
base:
  task: {kind: KIND, source: rows.jsonl, seq_len: 32, val: 0.3, MORE}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2, mask: full}, embedding: untied}
  train:
    steps: 20
    batch_size: 8
    eval_every: 10
    checkpoint: 10
    log_every: 4
    eval_metrics: METRICS
    compute: {feed: resident}
seeds: 2
arms:
  low-lr: {train.optimizer.lr: 1e-5}
measure: {primary: val/PRIMARY}
"""
KINDS = {
    "classification": ("second_text: second_text, pooling: first, class_weights: balanced, seq_len: 64",
                       "[weighted_f1, matthews, balanced_accuracy]", "weighted_f1"),
    "regression": ("label: score, pooling: mean", "[pearson, spearman]", "spearman"),
    "token-classification": ("scored: last", "[macro_f1, exact_match]", "macro_f1"),
    "pairs": ("size: 8, candidates: 6", "[recall_at_1, mean_reciprocal_rank]", "mean_reciprocal_rank"),
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    write_json_lines(tmp_path / "rows.jsonl", labelled_rows(60))

    def write(kind: str) -> str:
        more, metrics, primary = KINDS[kind]
        text = STUDY.replace("KIND", kind).replace("METRICS", metrics).replace("PRIMARY", primary)
        return (text.replace("seq_len: 32, ", "") if "seq_len" in more else text).replace("MORE", more)

    return write


def opened_run(kind, folder):
    """Return the baseline of a finished study; its data are in the folder."""
    return replace(taetpu.open_run(f"{kind}/baseline/0", root=folder / "root"), data_folder=folder)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_solo_resumed_and_fed_studies_have_the_same_runs(kind, written, study, interrupting, tmp_path):
    text = written(kind)
    outcome, packed = study(text, root="packed")
    metrics = {name.split("/")[1] for name in packed.runs()[0].result()["metrics"] if name.startswith("val/")}
    assert metrics >= set(KINDS[kind][1].strip("[]").split(", ")) | {"loss"}
    assert {run["outcome"] for arm in outcome.results["arms"] for run in arm["runs"]} == {"finished"}
    expected = trained(packed)
    _, solo = study(text, root="solo", pack=1)
    for first, second in zip(packed.runs(), solo.runs(), strict=True):  # other programs round differently
        assert first.id == second.id
        assert first.result()["metrics"] == pytest.approx(second.result()["metrics"], rel=1e-3, abs=1e-4)
    with pytest.raises(KeyboardInterrupt):
        study(text.replace("resident", "host"), root="host", callback=interrupting("on_steps", 12))
    _, host = study(text.replace("resident", "host"), root="host")
    assert trained(host) == expected
    page = next((tmp_path / "packed").rglob("report.md")).read_text()
    assert ("Classes of" in page) == (kind in ("classification", "token-classification"))


def test_opened_models_name_their_classes_and_keep_the_results_of_rows(written, study, tmp_path):
    study(written("regression"), root="root")
    opened = opened_run("regression", tmp_path)
    split = opened.data.evaluation("val")
    inside = np.arange(split.tokens.shape[1]) < split.lengths[:, None]
    (folder,) = [r for r in StudyFolder(open_store(tmp_path / "root"), "regression").runs()
                 if (r.arm, r.seed) == ("baseline", 0)]  # fmt: skip
    stored = folder.evaluation()
    targets = split.targets[:, 0]
    np.testing.assert_allclose(stored["val/spearman.target"], targets)
    outputs = stored["val/spearman.output"]
    assert inside.any()
    assert folder.result()["metrics"]["val/spearman"] == pytest.approx(spearmanr(outputs, targets).statistic, abs=1e-6)
    assert folder.result()["metrics"]["val/loss"] == pytest.approx(np.mean((outputs - targets) ** 2), abs=1e-5)
    assert all(checked.agrees for checked in check_losses(opened))


def test_opened_classifiers_have_the_names_of_classes(written, study, tmp_path):
    study(written("classification"), root="root")
    opened = opened_run("classification", tmp_path)
    assert opened.interface.labels == ("even", "neg", "pos")
    assert all(checked.agrees for checked in check_losses(opened))
    study(written("pairs"), root="root")
    with pytest.raises(UserError) as caught:
        check_losses(opened_run("pairs", tmp_path))
    assert caught.value.remedy
