"""Static window masks: a started pack keeps its choice, and the results of both choices agree."""

import pytest

from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import stored_plans
from taetpu.study.preview import prepare_study, preview

TEXT = """\
study: windows
base:
  task: {{kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 16}}
  model: {{dim: 16, num_layers: 1, mixer: {{kind: attention, num_heads: 2, mask: {{kind: window, width: 9}}}}}}
  train: {{steps: 4, batch_size: 4, eval_every: 2, checkpoint: eval, sample: none, compute: {{windows: {windows}}}}}
seeds: 2
arms: {{narrow: {{model.mixer.mask.width: 3}}}}
"""
STATIC, TRACED = (TEXT.format(windows=windows) for windows in ("static", "traced"))


def means(outcome):
    return [arm["mean"] for arm in outcome.results["arms"]]


@pytest.mark.slow
def test_a_pack_that_was_started_with_static_windows_is_resumed_with_them(study, interrupting):
    with pytest.raises(KeyboardInterrupt):
        study(STATIC, callback=interrupting("on_evaluate", step=2))
    resumed, folder = study(TRACED)
    assert {plan.windows for plan in stored_plans(folder)} == {"static"}
    assert [len(plan.runs) for plan in stored_plans(folder)] == [2, 2]
    whole, _ = study(STATIC, root="whole")
    traced, other = study(TRACED, root="traced")
    assert [len(plan.runs) for plan in stored_plans(other)] == [4]
    assert means(resumed) == means(whole)
    assert means(traced) == pytest.approx(means(whole), abs=1e-5)


@pytest.mark.slow
def test_plan_shows_the_cost_of_both_choices(tmp_path):
    (tmp_path / "study.yaml").write_text(TRACED)
    loaded = load_study(tmp_path / "study.yaml")
    folder = StudyFolder(open_store(tmp_path / "root"), loaded.name)
    found = preview(prepare_study(loaded, folder), folder)["windows"]
    assert found["chosen"] == "traced"
    assert (found["traced"]["programs"], found["static"]["programs"]) == (1, 2)
