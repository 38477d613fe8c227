"""The folder of a study and its runs: files that are written once or replaced, resuming, and listing."""

import json
import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA
from taetpu.store.backend import open_store
from taetpu.store.digests import Damaged, seal
from taetpu.store.errors import NotStored
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

STUDY = {
    "study": "what-matters",
    "arms": {"baseline": {}, "a": {"model.dim": 8}},
    "seeds": [3, 1],
    "base": {"lr": 1e-3},
}


def train(run: RunFolder, start: int, stop: int, every: int = 10) -> None:
    """Write segments as a trainer does: a loss for each step, and an evaluation at the end of each segment."""
    for first in range(start, stop, every):
        last = first + every
        steps = np.arange(first + 1, last + 1)
        losses = np.float32(4) / np.sqrt(steps.astype(np.float32))
        run.append(
            first, last, {"train/loss": (steps, losses), "val/loss": ([last], [losses[-1]])}, {"wall": ([last], [0.5])}
        )
        run.write_sample(last, f"sample {last}")
        run.write_checkpoint(last, {"model.safetensors": b"%d" % last})


def content(study: StudyFolder) -> dict[str, bytes]:
    return {key: study.store.read(key) for key in study.store.list(study.name)}


def test_study_is_frozen(study: StudyFolder):
    assert not study.exists()
    with pytest.raises(NotStored, match="no study") as caught:
        study.read_study()
    assert study.where in str(caught.value)
    assert "--root" in str(caught.value)
    study.write_study(STUDY)
    study.write_study(STUDY)
    assert study.exists()
    assert repr(study.read_study()) == repr(STUDY)  # the arms in their order too
    with pytest.raises(UserError, match="not be overwritten"):
        study.write_study({**STUDY, "seeds": [3, 1, 2]})
    assert study.read_study()["seeds"] == [3, 1]
    study.write_study({**STUDY, "seeds": [3, 1, 2]}, replace=True)
    assert study.read_study()["seeds"] == [3, 1, 2]


def test_plan_results_times_and_report_are_replaced(study: StudyFolder):
    assert (study.read_plan(), study.read_results(), study.read_pack_times()) == (None, None, {})
    for value in (1, 2):
        study.write_plan({"packs": [value]})
        study.write_results({"mean": value, "effect": float("nan")})
        study.write_pack_time("p0", {"seconds": value})
        place = study.write_report("index.html", b"<p>%d" % value)
        assert place == f"{study.where}/report/index.html"
    assert study.read_plan() == {"packs": [2]}
    assert study.read_results() == {"mean": 2, "effect": None}
    study.write_pack_time("p1", {"seconds": 3})
    assert study.read_pack_times() == {"p0": {"seconds": 2}, "p1": {"seconds": 3}}
    assert study.store.read(f"{study.name}/report/index.html") == b"<p>2"


def test_waits_add_up_and_a_damaged_one_is_replaced(study: StudyFolder):
    study.add_wait("idle", 1.5)
    study.add_wait("idle", 2.0)
    assert study.read_pack_times() == {"idle": {"parts": {"waited": 3.5}}}
    study.store.write(f"{study.name}/times/idle.json", b"{", replace=True)
    assert study.read_pack_time("idle") == {}
    study.add_wait("idle", 2.0)
    assert study.read_pack_time("idle") == {"parts": {"waited": 2.0}}


def test_pack_state_is_a_folder_until_deleted(study: StudyFolder):
    folder = study.pack("p0").folder()
    (folder / "deep").mkdir()
    (folder / "deep" / "array").write_bytes(b"x")
    study.delete_pack("p0")
    study.delete_pack("p0")
    assert not folder.exists()
    assert list(study.pack("p0").folder().iterdir()) == []


@pytest.mark.parametrize("name", ["a/b", "", "..", ".git"])
def test_names_that_are_invalid_as_folders_are_refused(study: StudyFolder, name: str):
    with pytest.raises(UserError) as caught:
        study.run(name, 0, "0" * 8)
    assert caught.value.path == ("arms", name)
    with pytest.raises(UserError) as caught:
        StudyFolder(study.store, name)
    assert caught.value.path == ("study",)


def test_run_goes_from_absent_to_done(run: RunFolder):
    assert (run.status(), run.result(), run.metrics(), run.samples(), run.checkpoints()) == ("absent", None, {}, {}, [])
    with pytest.raises(NotStored):
        run.config()
    run.start({"lr": 0.1, "arm": "heads=8"})
    run.start({"arm": "heads=8", "lr": 0.1})
    assert (run.status(), run.result()) == ("started", None)
    with pytest.raises(UserError, match="not be overwritten"):
        run.start({"lr": 0.2})
    assert run.config() == {"lr": 0.1, "arm": "heads=8"}
    run.write_model({"model.safetensors": b"weights", "config.json": b"{}"})
    run.finish({"outcome": "diverged", "metrics": {"val/loss": float("inf")}})
    run.finish({"outcome": "diverged", "metrics": {"val/loss": float("inf")}})
    assert (run.status(), run.result()) == ("done", {"outcome": "diverged", "metrics": {"val/loss": None}})
    with pytest.raises(UserError, match="not be overwritten"):
        run.finish({"outcome": "finished"})
    assert run.read_model() == {"model.safetensors": b"weights", "config.json": b"{}"}


def test_metrics_samples_and_checkpoints_are_in_step_order(run: RunFolder):
    train(run, 0, 120)
    found = run.metrics()
    assert_array_equal(found["train/loss"].step, np.arange(1, 121))
    assert_array_equal(found["train/loss"].value[99], np.float32(4) / np.float32(10))
    assert_array_equal(found["val/loss"].step, np.arange(10, 121, 10))
    assert_array_equal(run.times()["wall"].step, np.arange(10, 121, 10))
    assert "wall" not in found
    assert list(run.samples().items()) == [(step, f"sample {step}") for step in range(10, 121, 10)]
    assert run.checkpoints() == list(range(10, 121, 10))
    assert run.read_checkpoint(100) == {"model.safetensors": b"100"}


@pytest.mark.parametrize("step", [0, 20, 40])
def test_resumed_run_equals_an_uninterrupted_run(study: StudyFolder, run: RunFolder, step: int):
    train(run, 0, 60)
    undisturbed = content(study)
    study.store.delete(study.name)
    train(run, 0, 50)
    run.truncate(step)
    assert all(run.metrics()[name].step.max() <= step for name in run.metrics())
    assert [last for last in (*run.samples(), *run.checkpoints()) if last > step] == []
    assert len(run.metrics().get("val/loss", ((), ()))[0]) == step // 10
    train(run, step, 60)
    assert content(study) == undisturbed


def test_different_values_for_stored_steps_are_refused(run: RunFolder):
    run.append(0, 10, {"x": ([10], [1.0])}, {"wall": ([10], [1.0])})
    run.append(0, 10, {"x": ([10], [1.0])}, {"wall": ([10], [9.0])})
    assert run.times()["wall"].value == [9.0]
    with pytest.raises(UserError, match="not be overwritten"):
        run.append(0, 10, {"x": ([10], [2.0])})
    run.append(5, 15, {"x": ([15], [1.0])})
    with pytest.raises(UserError, match="overlaps") as caught:
        run.metrics()
    assert f"{run.where}/metrics/5-15.json" in str(caught.value)


def test_damaged_files_are_reported_and_never_read(study: StudyFolder, run: RunFolder):
    study.write_study(STUDY)
    run.start({"lr": 0.1})
    train(run, 0, 30)
    run.finish({"outcome": "finished"})
    for name, read in [
        ("study.yaml", study.read_study),
        (f"runs/heads=8/{run.seed}-{run.id}/metrics/10-20.json", run.metrics),
        (f"runs/heads=8/{run.seed}-{run.id}/result.json", run.result),
        (f"runs/heads=8/{run.seed}-{run.id}/config.json", run.config),
    ]:
        key = f"{study.name}/{name}"
        study.store.write(key, b"{" + study.store.read(key)[:-9], replace=True)
        with pytest.raises(UserError) as caught:
            read()
        assert study.store.where(key) in str(caught.value)


def test_foreign_file_among_samples_is_reported(run: RunFolder):
    run.store.write(f"{run.key}/samples/notes.txt", b"mine")
    with pytest.raises(UserError, match=r"'notes.txt' .*after a step"):
        run.samples()


def test_stored_runs_are_found(study: StudyFolder):
    for arm, seed, identity in [("b", 10, "a" * 64), ("a=1", 2, "b" * 64), ("b", 9, "c" * 64), ("b", 9, "d" * 64)]:
        study.run(arm, seed, identity).start({"arm": arm})
    train(study.run("b", 9, "c" * 64), 0, 20)
    train(study.run("never started", 0, "e" * 64), 0, 20)
    again = StudyFolder(open_store(study.store.where(study.name).rpartition("/")[0]), study.name)
    found = [(run.arm, run.seed, run.id, run.config()) for run in again.runs()]
    assert found == [
        ("a=1", 2, "b" * 8, {"arm": "a=1"}),
        ("b", 9, "c" * 8, {"arm": "b"}),
        ("b", 9, "d" * 8, {"arm": "b"}),
        ("b", 10, "a" * 8, {"arm": "b"}),
    ]
    assert StudyFolder(again.store, "another").runs() == []


def test_copied_run_is_complete_and_names_its_origin(study: StudyFolder, run: RunFolder):
    train(run, 0, 30)
    run.write_model({"model.safetensors": b"weights"})
    run.start({"arm": run.arm})
    run.finish({"outcome": "finished", "steps": 30})
    other = StudyFolder(study.store, "another").run("same", 3, run.id)
    other.start({"arm": "same"})
    train(other, 0, 20, every=20)  # begun here, in other segments
    other.copy_from(run, {"arm": "same"}, source=run.where)
    assert (other.status(), other.config(), other.origin()) == ("done", {"arm": "same"}, run.where)
    assert (run.origin(), other.result()) == (None, run.result())
    assert_array_equal(other.metrics()["train/loss"], run.metrics()["train/loss"])
    assert (other.samples(), other.read_model()) == (run.samples(), run.read_model())

    third = study.run("third", 3, run.id)
    third.copy_from(other, {"arm": "third"})  # within a place: what is known of its origin stays
    assert third.origin() == run.where
    third.copy_from(other, {"arm": "third"}, source="elsewhere")
    assert third.origin() == "elsewhere"


def test_sums_over_evaluation_sets_are_stored(run: RunFolder):
    assert run.evaluation() == {}
    sums = {"val/nll": np.array([1.5, np.nan]), "val/weight": np.array([3.0, 4.0]), "test/nll": np.array([2.0])}
    run.write_evaluation(sums)
    found = run.evaluation()
    assert found.keys() == sums.keys()
    for name, values in sums.items():
        assert_array_equal(found[name], values)
    key = f"{run.key}/evaluation.json"
    run.store.write(key, run.store.read(key).replace(b"1.5", b"1.4"), replace=True)
    with pytest.raises(UserError, match="damaged: checksum mismatch"):
        run.evaluation()
    run.write_evaluation({})
    assert run.evaluation() == {}


def test_wall_times_of_earlier_versions_are_read(study: StudyFolder):
    """Earlier versions stored the times of all packs in one file."""
    study.store.write(f"{study.name}/times.json", seal({"packs": {"p0": {"seconds": 1}, "p1": {"seconds": 2}}}))
    study.write_pack_time("p1", {"seconds": 3})
    assert study.read_pack_times() == {"p0": {"seconds": 1}, "p1": {"seconds": 3}}


# --- digests and owners ----------------------------------------------------------------------------------------------


def finished(study: StudyFolder, arm: str, seed: int, identity: str, schema: int | None = SCHEMA) -> RunFolder:
    run = study.run(arm, seed, identity)
    run.start({"arm": arm} if schema is None else {"arm": arm, "schema": schema})
    run.append(0, 10, {"train/loss": ([10], [float(seed)])})
    run.write_model({"model.safetensors": identity.encode()})
    run.finish({"outcome": "finished"})
    run.write_post_hoc("heads", {"effects": [seed]})
    return run


def copy_files(source: RunFolder, target: RunFolder, *names: str) -> None:
    for key in source.store.list(source.key):
        name = key.removeprefix(f"{source.key}/")
        if name.startswith(names):
            target.store.write(f"{target.key}/{name}", source.store.read(key), replace=True)


def test_table_of_another_run_is_refused(study: StudyFolder):
    runs = [finished(study, "a", 0, "a" * 8), finished(study, "b", 0, "b" * 8), finished(study, "a", 1, "a" * 8)]
    for other, named in ((runs[1], "bbbbbbbb with seed 0"), (runs[2], "aaaaaaaa with seed 1")):
        copy_files(other, runs[0], "post_hoc/")
        with pytest.raises(Damaged, match=named) as error:
            runs[0].read_post_hoc("heads")
        assert error.value.file == runs[0].store.where(runs[0].post_hoc_key("heads"))
        assert "delete the file" in str(error.value.remedy)


def test_result_of_another_run_is_damage_although_its_files_came_along(study: StudyFolder):
    run, other = finished(study, "a", 0, "a" * 8), finished(study, "b", 0, "b" * 8)
    copy_files(other, run, "result.json", "metrics/", "model/")
    (problem,) = run.find_damage()
    assert re.search(r"result\.json: .* bbbbbbbb with seed 0", problem)
    with pytest.raises(Damaged, match="--retrain-damaged"):
        run.result()


def test_only_the_content_tells_metrics_and_samples_of_another_run(study: StudyFolder):
    """Wall times and added files are bound to no run (docs/internals.md)."""
    for name in ("metrics/", "samples/1.txt"):
        run, other = (study.run(arm, len(name), arm * 8) for arm in "ab")
        for each in (run, other):
            each.start({"arm": each.arm, "schema": SCHEMA})
            each.append(0, 10, {"train/loss": ([10], [ord(each.arm)])}, {"seconds": ([10], [ord(each.arm)])})
            each.write_sample(1, each.arm)
            each.finish({"outcome": "finished"})
        other.write_sample(2, "added")
        copy_files(other, run, "times/", "samples/2.txt")
        assert run.find_damage() == []
        copy_files(other, run, name)
        assert run.find_damage(contents=False) == []
        (problem,) = run.find_damage()
        assert name.strip("/") in problem


def test_model_of_another_run_is_not_opened(study: StudyFolder):
    run, other = finished(study, "a", 0, "a" * 8), finished(study, "b", 0, "b" * 8)
    copy_files(other, run, "model/")
    with pytest.raises(Damaged, match="checksum") as error:
        run.read_model()
    assert error.value.file == f"{run.where}/model/model.safetensors"


def without(run: RunFolder, name: str, *keys: str) -> None:
    data = json.loads(run.store.read(f"{run.key}/{name}"))
    left = {key: value for key, value in data.items() if key not in keys}
    run.store.write(f"{run.key}/{name}", json.dumps(left).encode(), replace=True)


@pytest.mark.parametrize("name", ["result.json", "config.json", "post_hoc/knockout-heads.json"])
def test_document_without_its_digest_is_damaged(study: StudyFolder, name: str):
    run = finished(study, "a", 0, "a" * 8)
    without(run, name, "digest")
    read = {"result.json": run.result, "config.json": run.config}.get(name, lambda: run.read_post_hoc("heads"))
    with pytest.raises(Damaged, match="has no checksum") as error:
        read()
    assert error.value.file == f"{run.where}/{name}"
    if "post_hoc" not in name:
        assert run.find_damage() == [f"{run.where}/{name}: {error.value.problem}"]


@pytest.mark.parametrize("schema", [None, 2])
def test_documents_of_earlier_schemas_are_read_without_digest_and_owner(study: StudyFolder, schema: int | None):
    run = finished(study, "a", 0, "a" * 8, schema)
    for name in ("result.json", "config.json"):
        without(run, name, "digest", "run", "files")
    assert (run.result(), run.config()["arm"], run.find_damage()) == ({"outcome": "finished"}, "a", [])


def test_sealed_documents_without_owner_are_read(study: StudyFolder):
    run = finished(study, "a", 0, "a" * 8)
    for name in ("result.json", "post_hoc/knockout-heads.json"):
        without(run, name, "digest", "run")
        data = json.loads(run.store.read(f"{run.key}/{name}"))
        run.store.write(f"{run.key}/{name}", seal(data), replace=True)
    assert (run.result(), run.read_post_hoc("heads")) == ({"outcome": "finished"}, {"effects": [0]})
    assert run.find_damage() == []
