"""Frozen studies: new arms and seeds are added, and a changed baseline or measure is refused."""

import pytest

from taetpu.core.errors import UserError
from taetpu.spec.frozen import check_frozen, frozen_data
from taetpu.store.documents import from_yaml, to_yaml

PARTS = "seeds: 2\narms:\n  nope: {model.position: none}\n  heads: {model.mixer.num_heads: [1, 2]}\n"


@pytest.fixture
def stored(study):
    return from_yaml(to_yaml(frozen_data(study(PARTS))), "study.yaml")


def test_the_same_study_changes_nothing(study, stored):
    assert check_frozen(stored, study(PARTS)) == stored == frozen_data(study(PARTS))


def test_the_baseline_is_stored_first_and_with_its_defaults(stored):
    assert list(stored["arms"]) == ["baseline", "nope", "heads=1", "heads=2"]
    assert stored["base"]["train"]["batch_size"] == 32
    usual = {"primary": "val/loss", "direction": "min", "equivalence": None, "alpha": 0.05, "looks": []}
    usual |= {"contrasts": {}}
    assert stored["measure"] == usual


def test_new_arms_and_seeds_are_added_and_missing_ones_remain(study, stored):
    merged = check_frozen(
        stored, study("seeds: [1, 7]\narms:\n  nope: {model.position: none}\n  new: {model.dim: 32}\n")
    )
    assert merged["seeds"] == [0, 1, 7]
    assert merged["arms"] == {**stored["arms"], "new": {"model.dim": 32}}
    assert {k: v for k, v in merged.items() if k not in ("seeds", "arms")} == {
        k: v for k, v in stored.items() if k not in ("seeds", "arms")
    }


def test_an_equivalent_study_file_changes_nothing(study, stored):
    again = study(
        PARTS.replace("model.position: none", "model.position: {kind: none}"),
        (),
        ("steps: 10", "steps: 10, batch_size: 32"),
    )
    assert check_frozen(stored, again) == stored


@pytest.mark.parametrize(
    "watched", ["log_every: 1, checkpoint: end, eval_every: 2", "sample: none", "sample: {tokens: 3}"]
)
def test_observation_settings_may_change_without_changing_the_stored_data(watched, study, stored):
    assert check_frozen(stored, study(PARTS, (), ("steps: 10", f"steps: 10, {watched}"))) == stored


def test_the_evaluation_sample_of_the_first_run_is_kept(folder, study):
    """`eval_every` may change, and with it the size of `auto`, but all runs are compared on one sample."""
    (folder / "text.txt").write_text("hello world. " * 4000)
    stored = frozen_data(study(PARTS))
    again = study(PARTS, (), ("steps: 10", "steps: 10, eval_every: 5"))
    assert frozen_data(again)["evaluation"] != stored["evaluation"]
    assert check_frozen(stored, again)["evaluation"] == stored["evaluation"]


def test_another_sample_is_refused(study, stored):
    text = refused(stored, study(PARTS, (), ("steps: 10", "steps: 10, eval_windows: 3")))
    assert "eval_windows was auto " in text
    assert "is 3 now" in text
    assert "5 at base.train.eval_windows" in text
    assert "Restore the stored" in text


def test_a_folder_of_an_earlier_version_gets_a_sample(study, stored):
    before = {name: value for name, value in stored.items() if name != "evaluation"}
    assert check_frozen(before, study(PARTS)) == stored


def refused(stored, study) -> str:
    with pytest.raises(UserError) as caught:
        check_frozen(stored, study)
    return str(caught.value).replace(f"{study.folder}/", "")


OTHER = "use another study name or --root."


@pytest.mark.parametrize(
    ("old", "new", "change", "line"),
    [
        ("steps: 10", "steps: 20", "base.train.steps was 10, and is 20", 5),
        ("lr: 1e-2", "lr: 1e-3", "base.train.optimizer.lr was 0.01, and is 0.001", 5),
        ("num_layers: 4", "num_layers: 4, norm: layer", "base.model.norm was rms, and is layer", 4),
        ("num_layers: 4", "num_layers: 4, layers: {0: {ffn: none}}",
         "base.model.layers.0 was none, and is {ffn: none}", 4),
    ],
)  # fmt: skip
def test_a_changed_baseline_is_refused(old, new, change, line, study, stored):
    text = refused(stored, study(PARTS, (), (old, new)))
    place = f"  where:  s.yaml:{line} at {change.split()[0]}\n"
    assert text.startswith("the baseline ")
    assert f" study 's' in this folder: {change} now\n{place}  remedy: " in text
    assert text.endswith(OTHER)


def test_a_baseline_changed_by_set_is_refused_at_that_option(study, stored):
    assert "was 10, and is 20 now\n  where:  --set train.steps=20\n" in refused(
        stored, study(PARTS, ("train.steps=20",))
    )


def test_a_changed_measure_is_refused(study, stored):
    text = refused(stored, study(PARTS + "measure: {primary: val/accuracy}\n"))
    assert text.startswith("`measure`")
    assert " study 's' in this folder: measure." in text
    assert "val/accuracy" in text


def test_changed_data_is_refused_and_moved_data_is_not(study, stored, folder):
    (folder / "moved.txt").write_bytes((folder / "text.txt").read_bytes())
    assert check_frozen(stored, study(PARTS, (), ("text.txt", "moved.txt"))) == stored
    (folder / "text.txt").write_text("hello there. " * 40)
    text = refused(stored, study(PARTS))
    assert text.startswith("the task's data")
    assert [value for value in ("'s'", "text.txt", "s.yaml:3 at base.task") if value not in text] == []
    assert text.endswith(OTHER)


def test_a_changed_arm_is_refused(study, stored):
    text = refused(stored, study(PARTS.replace("model.position: none", "model.position: learned")))
    assert "'nope' was {model.position: none}" in text
    assert "is {model.position: learned} now\n  where:  s.yaml:8 at arms.nope\n  remedy: " in text
    assert text.endswith(OTHER)
