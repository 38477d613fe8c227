"""Studies with post-hoc ablation tables: what is computed, when, and what survives."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.small import STUDY, TINY
from tests.suites import first_by_default

import taetpu
from taetpu.cli.plan import _tables
from taetpu.core.errors import UserError
from taetpu.lens.ablation import sweep
from taetpu.lens.ablation.documents import split_documents
from taetpu.lens.losses import find_split
from taetpu.report.build import build_report
from taetpu.spec.loading import load_study
from taetpu.stats.analyse import analyse
from taetpu.stats.post_hoc import EFFECTIVE
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.digests import Damaged
from taetpu.store.study import StudyFolder
from taetpu.study import post_hoc
from taetpu.study.preview import prepare_study, preview
from taetpu.study.run_file import run
from taetpu.train.callbacks import Callback

ARMS = "seeds: 2\narms:\n  dropped: {model.mixer.drop_heads: [1]}\n  none: {model.mixer: none}\n"
PLAIN = TINY + ARMS
MEASURE = "measure: {post_hoc: [{knockout: heads}, {knockout: ffns, how: zero, documents: 4}]}\n"
HEADS, FFNS = "heads-mean", "ffns-zero-documents=4"


class Events(Callback):
    """Counts training steps and tables. `stop` raises `KeyboardInterrupt` after so many tables."""

    def __init__(self, stop=None):
        self.stop, self.steps, self.tables, self.damaged, self.failed = stop, 0, [], [], []

    def on_steps(self, step, loss):
        self.steps += 1

    def on_tables(self, done, total):
        self.tables.append((done, total))
        if done == self.stop:
            raise KeyboardInterrupt

    def on_damage(self, where, problem, moved):
        self.damaged.append((where, moved))

    def on_table_failed(self, where, name, error):
        self.failed.append((name, error))


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Return the root, the first outcome and the events of a study that was run without tables, then with them."""
    place = tmp_path_factory.mktemp("computed")
    (place / "s.yaml").write_text(PLAIN)
    run(place / "s.yaml", root=str(place / "root"))
    shutil.copytree(place / "root", place / "plain")
    (place / "s.yaml").write_text(PLAIN + MEASURE)
    events = Events()
    return place, run(place / "s.yaml", root=str(place / "root"), callback=events), events


@pytest.fixture
def again(computed, tmp_path):
    """Return `again(callback, text=..., root="root")`, which runs a copy of the study, and the copy's folder."""
    place = computed[0]
    for name in ("root", "plain"):
        shutil.copytree(place / name, tmp_path / name)

    def call(callback, text=PLAIN + MEASURE, root="root"):
        (tmp_path / "s.yaml").write_text(text)
        return run(tmp_path / "s.yaml", root=str(tmp_path / root), callback=callback)

    return call, StudyFolder(open_store(tmp_path / "root"), "tiny")


def files(folder):
    """Return the contents of all tables by run and name."""
    return {
        (run.arm, run.seed, name): run.store.read(run.post_hoc_key(name))
        for run in folder.runs()
        for name in run.post_hoc_tables()
    }


def assert_effects(model, documents):
    """Check the table of the heads of a run against a knock-out of its model, and return it."""
    expected = taetpu.knockout(model, split_documents(find_split(model, "val"), 64), "heads", controls=False)
    found = model.run.read_post_hoc(HEADS)
    np.testing.assert_allclose(found["effects"], expected.effect.estimate, atol=1e-7)
    assert found["loss"] == pytest.approx(expected.intact[0])
    assert found["components"] == [component.name for component in expected.components.each]
    assert found["documents"] == expected.effect.documents == documents


def test_tables_of_a_finished_study_have_the_effects_of_a_knockout(trained, tmp_path):
    shutil.copytree(trained[1], tmp_path / "root")
    (tmp_path / "s.yaml").write_text(STUDY + "measure: {post_hoc: [{knockout: heads}]}\n")
    events = Events()
    outcome = run(tmp_path / "s.yaml", root=str(tmp_path / "root"), callback=events)
    assert (events.steps, events.tables) == (0, [(i, 4) for i in range(5)])
    (table,) = outcome.results["post_hoc"]
    assert (table["name"], table["planned"], table["final"]) == (HEADS, False, True)
    assert [arm["tables"] for arm in table["arms"]] == [2, 2]
    assert_effects(taetpu.open_run("small/low-lr/1", root=tmp_path / "root"), documents=32)


@pytest.mark.slow
def test_tables_that_are_added_later_are_computed_without_training(computed):
    _, outcome, events = computed
    assert events.steps == 0
    assert events.tables == [(i, 12) for i in range(13)]
    found = {one["name"]: one for one in outcome.results["post_hoc"]}
    assert list(found) == [HEADS, FFNS]
    for one in found.values():
        assert (one["planned"], one["final"]) == (False, True)
    assert [arm["tables"] for arm in found[FFNS]["arms"]] == [2, 2, 2]
    assert outcome.results["departures"] == []
    assert outcome.failed_tables == []


@pytest.mark.slow
def test_a_table_has_the_effects_of_a_knockout(computed):
    place = computed[0]
    for arm in ("baseline", "dropped"):
        assert_effects(taetpu.open_run(f"tiny/{arm}/1", root=place / "root"), documents=8)


@pytest.mark.slow
def test_a_head_that_is_not_used_has_no_effect(computed):
    place, outcome, _ = computed
    folder = StudyFolder(open_store(place / "root"), "tiny")
    for one in (one for one in folder.runs() if one.arm == "dropped"):
        table = one.read_post_hoc(HEADS)
        assert table is not None
        effects = table["effects"]
        assert effects[1] == 0
        assert effects[0] != 0
    heads = outcome.results["post_hoc"][0]
    arms = {arm["name"]: arm for arm in heads["arms"]}
    if (value := arms["dropped"]["values"][EFFECTIVE]["mean"]) is not None:
        assert value == 1
    assert "no heads" in arms["none"]["absent"]


@pytest.mark.slow
def test_a_report_and_a_verification_have_the_results_of_the_run(again, computed):
    folder = again[1]
    before = folder.read_results()
    assert analyse(folder) == json.loads(json.dumps(computed[1].results)) == before
    assert verify(folder) == []
    page = build_report(folder)
    for text in (Path(page[kind]).read_text() for kind in ("html", "markdown")):
        assert "Post-hoc ablation: heads" in text
        assert "was added after" in text


@pytest.mark.slow
def test_interrupted_tables_are_continued_and_seeds_share_programs(again, monkeypatch):
    call, folder = again
    build, built = sweep._build, []
    monkeypatch.setattr(sweep, "_build", lambda opened, *rest: built.append(opened.name) or build(opened, *rest))
    whole = files(folder)
    results = folder.read_results()
    for one in folder.runs():
        one.store.delete(f"{one.key}/post_hoc")
    with pytest.raises(KeyboardInterrupt):
        call(Events(stop=5))
    part = files(folder)
    assert len(part) == 5
    events = Events()
    call(events)
    assert events.tables[0] == (0, 12 - 5)
    first = ["tiny/baseline/0", "tiny/baseline/0", "tiny/dropped/0"]
    assert built == [*first, "tiny/dropped/0", "tiny/dropped/1", "tiny/none/0"]
    assert files(folder) == whole
    assert folder.read_results() == results


@pytest.mark.slow
def test_a_finished_study_computes_nothing_again(again):
    call, folder = again
    before, events = files(folder), Events()
    call(events)
    assert (events.steps, events.tables) == (0, [])
    assert files(folder) == before


@pytest.mark.slow
def test_a_damaged_table_is_reported_and_computed_again(again):
    call, folder = again
    whole = files(folder)
    one = folder.runs()[0]
    data = one.store.read(one.post_hoc_key(HEADS))
    one.store.write(one.post_hoc_key(HEADS), data.replace(b'"loss": ', b'"loss": 1'), replace=True)
    assert one.find_damage() == []
    with pytest.raises(Damaged) as caught:
        analyse(folder)
    assert str(caught.value.file).endswith(f"knockout-{HEADS}.json")
    events = Events()
    call(events)
    assert events.tables == [(0, 1), (1, 1)]
    ((where, moved),) = events.damaged
    assert where.endswith(f"knockout-{HEADS}.json")
    assert "damaged" in moved
    assert files(folder) == whole


@pytest.mark.slow
def test_a_table_with_other_settings_than_its_name_is_computed_again(again):
    call, folder = again
    whole, one = files(folder), folder.runs()[0]
    table = one.read_post_hoc(HEADS)
    one.write_post_hoc(HEADS, {**table, "settings": {**table["settings"], "documents": 2}, "effects": [9.0, 9.0]})
    assert analyse(folder)["post_hoc"][0]["arms"][0]["tables"] == 1  # it is not used
    events = Events()
    call(events)
    assert events.tables[-1] == (1, 1)
    assert files(folder) == whole


@pytest.mark.slow
def test_a_failure_does_not_lose_the_other_tables_or_the_results(again, monkeypatch):
    call, folder = again
    for one in folder.runs():
        one.store.delete(f"{one.key}/post_hoc")
    compute = post_hoc.mean_effects

    def broken(opened, *rest):
        if opened.name == "tiny/dropped/1":
            raise MemoryError("no memory is left")
        return compute(opened, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(post_hoc, "mean_effects", broken)
        events = Events()
        outcome = call(events)
    assert [name for name, _ in events.failed] == [one.name for one in outcome.failed_tables] == [HEADS, FFNS]
    heads = outcome.results["post_hoc"][0]
    assert not heads["final"]
    assert [arm["tables"] for arm in heads["arms"]] == [2, 1, 0]
    assert [arm["verdict"] for arm in outcome.results["arms"][1:]] != [None, None]
    assert call(Events()).results["post_hoc"][0]["final"]


@pytest.mark.slow
def test_a_copied_run_keeps_its_tables(computed, tmp_path):
    place, events = computed[0], Events()
    (tmp_path / "s.yaml").write_text((PLAIN + MEASURE).replace("study: tiny", "study: other"))
    outcome = run(tmp_path / "s.yaml", root=str(tmp_path / "root"), reuse=[str(place / "root")], callback=events)
    assert (events.steps, events.tables) == (0, [])
    assert all(one["planned"] for one in outcome.results["post_hoc"])
    here, there = outcome.results["post_hoc"], computed[1].results["post_hoc"]
    assert [one["arms"] for one in here] == [one["arms"] for one in there]


@pytest.mark.slow
def test_a_table_that_is_removed_from_the_study_file_stays_if_it_was_computed(again):
    call, folder = again
    events = Events()
    outcome = call(events, PLAIN)
    assert events.tables == []
    assert [one["name"] for one in outcome.results["post_hoc"]] == [HEADS, FFNS]
    for one in folder.runs():
        one.store.delete(one.post_hoc_key(FFNS))
    assert [one["name"] for one in call(Events(), PLAIN).results["post_hoc"]] == [HEADS]


@pytest.mark.parametrize(
    ("table", "problem", "remedy", "place"),
    first_by_default(
        [
            ("{knockout: haeds}", "no components 'haeds'", "Did you mean 'heads'?", "knockout"),
            ("{knockout: mixer.scores}", "axis of positions", "zero", "how"),
            ("{knockout: heads, split: valid}", "no evaluation set 'valid'", "Did you mean 'val'?", "split"),
            ("{knockout: experts}", "no experts: ", "mixers, ffns, neurons.", "knockout"),
            ("{knockout: states}", "no states", "heads", "knockout"),
            ("{knockout: logits}", "logits cannot be", "mixers", "knockout"),
        ],
        3,
    ),
)
def test_a_table_that_the_baseline_cannot_have_is_refused_before_anything_is_stored(
    tmp_path, table, problem, remedy, place
):
    file = tmp_path / "s.yaml"
    file.write_text(f"{PLAIN}measure:\n  post_hoc: [{{knockout: heads}}, {table}]\n")
    with pytest.raises(UserError) as caught:
        run(file, root=str(tmp_path / "root"))
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert caught.value.path == ("measure", "post_hoc", 1, place)
    assert (caught.value.file, caught.value.line) == (file, PLAIN.count("\n") + 2)
    assert not (tmp_path / "root" / "tiny").exists()


@pytest.mark.slow
def test_a_plan_shows_the_number_of_tables_and_parts(again, tmp_path, wording):
    folder = StudyFolder(open_store(tmp_path / "plain"), "tiny")
    (tmp_path / "s.yaml").write_text(PLAIN + MEASURE)
    study = load_study(tmp_path / "s.yaml")
    ready = prepare_study(study, folder)
    found = preview(ready, folder)["post_hoc"]
    assert found[HEADS] == {"runs": 6, "done": 0, "parts": {"baseline": 2, "dropped": 2, "none": 0}}
    wording(_tables(found[HEADS]))
    done = preview(ready, again[1])["post_hoc"][FFNS]
    assert done["done"] == 6
    wording(_tables(done))
