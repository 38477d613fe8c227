"""A page that folds the messages of a feed has all stored values, also after interruptions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ui.conftest import Growing

from taetpu.report.verdict_style import MARKS, VERDICTS
from taetpu.ui.feed import MAX_MESSAGES, MAX_POINTS, Feed, thin_series


class Page:
    """The browser's page, as `fold` in live.js."""

    def __init__(self):
        self.cursor, self.state, self.doubled = None, {"runs": {}, "effects": {}, "study": {}}, 0

    def take(self, feed: Feed) -> list[str]:
        messages = feed.since(self.cursor)
        for message in messages:
            self.fold(message.kind, message.data)
            self.cursor = feed.cursor(message)
        return [message.kind for message in messages]

    def fold(self, kind, data) -> None:
        if kind == "state":
            self.state = {
                **data,
                "runs": {key: {**run, "series": _copy(run["series"])} for key, run in data["runs"].items()},
            }
            return
        if kind in ("study", "effects"):
            self.state[kind] = data
            return
        run = self.state["runs"].setdefault(data.get("run"), {"series": {}})
        if kind == "run":
            run.update({name: data[name] for name in ("arm", "seed", "status")})
        for name, (steps, values) in data.get("series", {}).items():
            own = run["series"].setdefault(name, ([], []))
            own[0].extend(steps)
            own[1].extend(values)
        if kind == "cut":
            for steps, values in run["series"].values():
                keep = sum(step <= data["step"] for step in steps)
                del steps[keep:], values[keep:]

    def steps(self, arm: str, seed: int) -> list[int]:
        return self.state["runs"][f"runs/{arm}/{seed}-{seed:08x}"]["series"]["train/loss"][0]


def _copy(series):
    return {name: (list(steps), list(values)) for name, (steps, values) in series.items()}


def test_stored_points_are_sent_once(growing: Growing) -> None:
    feed, page = Feed(growing.folder), Page()
    growing.train("baseline", 0, 0, 20)
    feed.poll()
    assert page.take(feed) == ["state"]
    assert page.steps("baseline", 0) == [10, 20]
    assert feed.poll() == 0
    assert page.take(feed) == []
    growing.train("baseline", 0, 20, 40)
    growing.train("other", 1, 0, 10)
    feed.poll()
    assert page.take(feed) == ["points", "run", "points"]
    assert (page.steps("baseline", 0), page.steps("other", 1)) == ([10, 20, 30, 40], [10])


def test_device_usage_is_sent_when_it_changes(growing: Growing) -> None:
    feed, page = Feed(growing.folder), Page()
    noted = {"seconds": 1.0, "utilisation": 0.413, "memory_bytes": 3 * 2**30, "memory_limit": 16 * 2**30}
    growing.train("baseline", 0, 0, 20, **noted)
    growing.train("other", 1, 0, 20, seconds=1.0)  # of a machine that tells nothing
    feed.poll()
    page.take(feed)
    key = "runs/baseline/0-00000000"
    assert page.state["using"] == key
    assert [run["use"] for run in page.state["runs"].values()] == ["41% of peak, memory 3.0 of 16.0 GiB", ""]
    growing.train("baseline", 0, 20, 40, **noted)
    feed.poll()
    assert page.take(feed) == ["points"]
    growing.train("baseline", 0, 40, 60, seconds=2.0, memory_bytes=2.0**30)
    feed.poll()
    assert [(m.kind, m.data.get("use")) for m in feed.messages[-2:]] == [("points", None), ("usage", "memory 1.0 GiB")]


def test_effects_come_when_runs_end_and_verdicts_with_the_last(growing: Growing) -> None:
    feed, page = Feed(growing.folder), Page()
    for seed in (0, 1):
        for arm in ("baseline", "other"):
            growing.train(arm, seed, 0, 20)
    feed.poll()
    page.take(feed)
    for arm, seed, loss in (("baseline", 0, 1.0), ("other", 0, 1.5), ("baseline", 1, 1.1)):
        growing.finish(arm, seed, loss)
    feed.poll()
    page.take(feed)
    other = page.state["effects"]["rows"][1]
    assert (other["effect"], other["verdict"], other["runs"]) == ("+0.5000", "interim", "1/2")
    growing.finish("other", 1, 1.6)
    feed.poll()
    assert page.take(feed) == ["run", "effects"]
    judged = page.state["effects"]["rows"][1]
    assert (other["mark"], judged["mark"]) == ("", MARKS[judged["verdict"]])
    assert judged["verdict"] in VERDICTS
    assert {run["status"] for run in page.state["runs"].values()} == {"finished"}


def test_the_outcome_and_the_runs_that_reached_it_are_sent(tmp_path) -> None:
    growing, page = Growing(tmp_path, solved=1.2), Page()
    for arm, seed, loss in (("baseline", 0, 1.0), ("baseline", 1, 1.3), ("other", 0, 1.5), ("other", 1, 1.6)):
        growing.finish(arm, seed, loss)
    feed = Feed(growing.folder)
    feed.poll()
    page.take(feed)
    effects = page.state["effects"]
    assert "val/loss at most 1.2" in effects["about"]
    assert [row["runs"] for row in effects["rows"]] == ["2/2, 1 solved", "2/2, 0 solved"]


def test_points_lost_by_a_resume_are_removed_from_the_page(growing: Growing) -> None:
    feed, page = Feed(growing.folder), Page()
    growing.train("baseline", 0, 0, 20)
    growing.train("baseline", 0, 20, 40)
    feed.poll()
    page.take(feed)
    growing.run("baseline", 0).truncate(20)
    growing.train("baseline", 0, 20, 30)
    feed.poll()
    assert page.take(feed) == ["cut", "points"]
    assert page.steps("baseline", 0) == [10, 20, 30]
    fresh = Page()
    fresh.take(feed)
    assert fresh.steps("baseline", 0) == [10, 20, 30]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["train", "take", "server", "page", "cut"]), max_size=25))
def test_no_interruption_loses_or_duplicates_points(tmp_path_factory, events: list[str]) -> None:
    growing = Growing(tmp_path_factory.mktemp("study"))
    growing.train("baseline", 0, 0, 10)
    feed, page, reached = Feed(growing.folder), Page(), 10
    for event in events:
        if event == "train":
            growing.train("baseline", 0, reached, reached + 20)
            reached += 20
        elif event == "cut" and reached > 10:
            reached = 10
            growing.run("baseline", 0).truncate(10)
        elif event == "server":
            feed = Feed(growing.folder)
        elif event == "page":
            page = Page()
        feed.poll()
        if event == "take":
            page.take(feed)
    feed.poll()
    page.take(feed)
    assert page.steps("baseline", 0) == list(range(10, reached + 1, 10))


def test_page_with_an_old_cursor_receives_the_whole_state(growing: Growing) -> None:
    feed, page = Feed(growing.folder), Page()
    growing.train("baseline", 0, 0, 10)
    feed.poll()
    page.take(feed)
    for number in range(MAX_MESSAGES + 1):
        feed._send("problem", {"text": str(number)})
    growing.train("baseline", 0, 10, 20)
    feed.poll()
    assert page.take(feed) == ["state"]
    assert page.steps("baseline", 0) == [10, 20]


def test_damaged_segment_is_reported_and_read_again_once_repaired(growing: Growing) -> None:
    feed, page = Feed(growing.folder), Page()
    growing.train("baseline", 0, 0, 10)
    feed.poll()
    page.take(feed)
    key = f"{growing.run('baseline', 0).key}/metrics/10-20.json"
    growing.folder.store.write(key, b"half a li")
    feed.poll()
    (message,) = feed.since(page.cursor)
    assert message.kind == "problem"
    assert "damaged" in message.data["text"]
    growing.folder.store.delete(key)
    growing.train("baseline", 0, 10, 20)
    feed.poll()
    page.take(feed)
    assert page.steps("baseline", 0) == [10, 20]


@pytest.mark.parametrize("length", [1, MAX_POINTS, MAX_POINTS + 1, 25_000])
def test_thinning_keeps_ends_extremes_and_order(length: int) -> None:
    values = np.random.default_rng(length).normal(size=length)
    steps, kept = thin_series(list(range(length)), values.tolist())
    assert len(steps) <= MAX_POINTS
    assert (steps[0], steps[-1]) == (0, length - 1)
    assert steps == sorted(set(steps))
    assert (min(kept), max(kept)) == (values.min(), values.max())
    assert kept == values[steps].tolist()


def test_thinning_omits_missing_values() -> None:
    values: list[float | None] = [None] * 5000
    values[2500] = 3.0
    steps, kept = thin_series(list(range(5000)), values)
    assert 3.0 in kept
    assert len(steps) <= 3


def test_damaged_run_does_not_hide_other_runs(growing) -> None:
    """Every poll reports the damaged run and sends the others. Once repaired, the run is sent too."""
    feed = Feed(growing.folder)
    for seed in (0, 1):
        growing.train("baseline", seed, 0, 100)
    run = growing.run("baseline", 0)
    segment = Path(run.where) / "metrics" / Path(run.store.list(f"{run.key}/metrics")[0]).name
    whole = segment.read_bytes()
    segment.write_bytes(b"not a segment")
    for _ in range(2):
        feed.poll()
        assert str(segment) in feed.state()["problem"]
    held = {key: state.series.get("train/loss", ([], []))[0] for key, state in feed.runs.items()}
    assert sorted(map(len, held.values())) == [0, 10]
    segment.write_bytes(whole)
    feed.poll()
    assert feed.state()["problem"] == ""
    assert [len(state.series["train/loss"][0]) for state in feed.runs.values()] == [10, 10]


def test_shown_metric_follows_the_recorded_series(growing) -> None:
    """While runs train, the sampled metric is shown, and at the end the primary metric."""
    study = growing.folder.read_study()
    growing.folder.write_study({**study, "measure": {"primary": "val/accuracy"}}, replace=True)
    feed = Feed(growing.folder)
    feed.poll()
    assert feed.study["shown"] == "val/accuracy"
    sampled = {name: ([10], [0.5]) for name in ("train/loss", "val_sample/loss", "val_sample/accuracy")}
    growing.run("other", 0).append(0, 10, sampled)
    feed.poll()
    assert (feed.study["shown"], feed.study["curve"]) == ("val_sample/accuracy", "val_sample/accuracy")
    told = [message.data["shown"] for message in feed.messages if message.kind == "study" and "shown" in message.data]
    assert told[-1] == "val_sample/accuracy"
    growing.run("other", 0).append(10, 20, {"val/accuracy": ([20], [0.6])})
    feed.poll()
    assert (feed.study["shown"], feed.study["curve"]) == ("val/accuracy", "val_sample/accuracy")
