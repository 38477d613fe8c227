"""Studies of initialisation: what their pages show, and commands and settings that need no training, or refuse."""

import re
import shutil

import pytest

import taetpu
from taetpu.core.errors import UserError
from taetpu.lens.norms import residual_norms
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.costs import TurnTimer, measure_memory, open_arms

pytestmark = pytest.mark.slow
STUDY = """\
study: initial
base:
  task: {kind: copy, seq_len: 16, symbols: 8, min_length: 2, max_length: 6, eval_size: 8}
  model: {dim: 16, num_layers: 2, mixer: {kind: attention, num_heads: 2}, ffn: relu}
  train: {steps: 0, batch_size: 8, eval_metrics: [rank_one_residual]}
seeds: 2
arms:
  no-skips: {model.residual: none}
  no-ffns: {model.ffn: none}
measure: {primary: val/rank_one_residual.layers.1}
"""
PRIMARY = "measure: {primary: val/rank_one_residual.layers.1}\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder of the study's file, whose subfolder `root` has its runs."""
    folder = tmp_path_factory.mktemp("untrained")
    (folder / "study.yaml").write_text(STUDY)
    taetpu.run(folder / "study.yaml", root=folder / "root")
    return folder


def folder_in(root):
    return StudyFolder(open_store(root / "root"), "initial")


def test_the_page_has_nothing_of_training(root):
    page = (root / "root/initial/report/report.md").read_text()
    html = (root / "root/initial/report/index.html").read_text()
    costs = page.partition("## Costs")[2].partition("\n## ")[0]
    header = next(line for line in costs.splitlines() if line.startswith("| arm"))
    assert {"params", "KV cache"} <= {*map(str.strip, header.split("|"))}
    assert not {"FLOPs", "tokens", "train memory", "train time"} & {*map(str.strip, header.split("|"))}
    for word in ("--time", "learning rate", "batch size", "adamw", "`tune`", "match: params", "longer training"):
        assert word not in page, word
    assert 'id="curves-' not in html
    assert "over training" not in re.sub("<script.*?</script>", "", html, flags=re.DOTALL)
    assert "Nothing was trained" in page
    assert verify(folder_in(root)) == []


def test_decoding_is_timed_and_train_steps_are_not(root, tmp_path):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    folder = folder_in(tmp_path)
    arms = open_arms(folder, folder.read_results(), ("no-ffns",))
    measure_memory(folder, arms)
    TurnTimer(1, 0.01).measure(folder, arms)
    (stored,) = folder.read_costs().values()
    timing = stored["timings"]["no-ffns"]
    assert (stored["compiled"], timing["step"], len(timing["decode"]), timing["missing"]) == ({}, [], 1, {})


def test_parts_on_which_no_model_relies_are_refused(root):
    with pytest.raises(UserError) as caught:
        taetpu.components(root / "study.yaml", root=root / "root")
    assert caught.value.path == ("base", "train", "steps")
    assert "leave_one_out" in caught.value.remedy


def test_models_before_training_are_opened(root):
    opened = {arm: taetpu.open_run(f"initial/{arm}/0", root=root / "root") for arm in ("baseline", "no-ffns")}
    norms = {arm: residual_norms(model, [[1, 2, 3]])[0].norms for arm, model in opened.items()}
    assert norms["baseline"].shape == (3, 3)  # before the first block and after each
    assert (norms["baseline"][-1] != norms["no-ffns"][-1]).any()


@pytest.mark.parametrize(("measured", "key"), [
    (PRIMARY[:-2] + ", solved: 0.45}\n", "outcome"),
    (PRIMARY + "goal: {at_least: 0.45, minimise: params}\n", "goal"),
])  # fmt: skip
def test_shares_and_goals_need_no_training(tmp_path, measured, key):
    (tmp_path / "study.yaml").write_text(STUDY.replace(PRIMARY, measured))
    results = taetpu.run(tmp_path / "study.yaml", root=tmp_path / "root").results
    values = {arm["name"]: arm["metrics"]["val/rank_one_residual.layers.1"] for arm in results["arms"]}
    assert values["no-skips"] < 0.45 < values["baseline"]
    if key == "goal":
        assert {each["name"] for each in results["goal"]["candidates"]} == {*values}
    else:
        assert {arm["name"]: arm["reached"] for arm in results["arms"]} == {"baseline": 2, "no-skips": 0, "no-ffns": 2}
