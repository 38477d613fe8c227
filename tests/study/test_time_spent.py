"""Where the time of a study went: what packs store, and what status, costs and the report say about it."""

import shutil
import time
from pathlib import Path

import pytest
from tests.cli.conftest import call_main as taetpu
from tests.small import TINY
from tests.study.conftest import Interrupting
from tests.study.test_earlier import copy_stored

from taetpu.report.time_spent import describe_parts, parts_by_arm, total_parts
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.pack_times import PARTS
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import stored_plans
from taetpu.study.run import run_study
from taetpu.train.callbacks import Callback
from taetpu.train.data_feed import DataFeed
from taetpu.train.evaluator import Evaluator
from taetpu.train.result_writer import ResultWriter

STUDY = TINY.replace("eval_every: 6", "eval_every: 2, checkpoint: eval") + (
    "seeds: 2\narms:\n  low: {train.optimizer.lr: 1e-4}\n  relu: {model.ffn: relu}\n"
)
ROUNDING = 0.0005 * (len(PARTS) + 1)  # times are stored in milliseconds


class Timing(Callback):
    """Measures the wall time of each pack, from its begin to its end, and of all of them."""

    def __init__(self):
        self.walls = list[float]()

    def on_pack_begin(self, number, total, runs):
        self.began = time.monotonic()

    def on_pack_end(self, runs):
        self.walls.append(time.monotonic() - self.began)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study of two packs: the wall times of the packs, and the study's folder."""
    root = tmp_path_factory.mktemp("spent")
    (root / "study.yaml").write_text(STUDY)
    loaded, timing = load_study(root / "study.yaml"), Timing()
    folder = StudyFolder(open_store(root / "root"), loaded.name)
    run_study(loaded, folder, timing)
    return timing.walls, folder


@pytest.mark.slow
def test_parts_of_each_pack_add_up_to_its_wall_time(whole):
    walls, folder = whole
    times = folder.read_pack_times()
    assert len(times) == 2
    for plan, wall in zip(stored_plans(folder), walls, strict=True):
        stored = times[plan.id]
        assert set(stored["parts"]) == set(PARTS)
        assert min(stored["parts"].values()) >= 0
        assert all(stored["parts"][part] > 0 for part in PARTS if part != "waited")
        assert stored["parts"]["waited"] == 0
        assert sum(stored["parts"].values()) == pytest.approx(stored["seconds"], abs=ROUNDING)
        # Between the callbacks, the clock excludes its own file and the remembered step time alone.
        assert wall - 0.5 <= stored["seconds"] <= wall + ROUNDING


@pytest.mark.slow
def test_an_arm_has_the_share_of_its_runs_in_the_time_of_its_packs(whole):
    _, folder = whole
    times = folder.read_pack_times()
    by_arm = parts_by_arm(times.values())
    assert set(by_arm) == {"baseline", "low", "relu"}
    assert by_arm["baseline"] == by_arm["low"]  # they share a pack, with as many runs
    alone = next(stored for stored in times.values() if stored["arms"] == {"relu": 2})
    assert by_arm["relu"] == alone["parts"]
    total = total_parts(times.values())
    for part in PARTS:
        assert sum(parts[part] for parts in by_arm.values()) == pytest.approx(total[part])


@pytest.mark.slow
def test_status_costs_and_report_show_the_time(whole):
    _, folder = whole
    spent = describe_parts(total := total_parts(folder.read_pack_times().values()))
    assert spent.split()[0] == f"{total[spent.split()[2].rstrip(',')] / sum(total.values()):.0%}"[:-1]
    shown = taetpu("status", folder.where).out.splitlines()
    assert max(map(len, shown)) <= 80
    assert spent in " ".join(line.strip() for line in shown)
    rows = taetpu("status", folder.where, "--json").json()[folder.name]
    by_arm = parts_by_arm(folder.read_pack_times().values())
    assert {row["arm"]: row["time"] for row in rows} == by_arm
    assert taetpu("costs", folder.where, "--json").json()["time"] == by_arm
    report = Path(folder.where, "report/report.md").read_text()
    costs = report.partition("## Costs")[2].partition("\n## ")[0]
    assert spent in costs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "owner", "method"),
    [
        ("trained", DataFeed, "read"), ("evaluated", Evaluator, "evaluate"), ("written", ResultWriter, "append"),
        ("other", Callback, "on_save"),
    ],
)  # fmt: skip
def test_what_is_slow_is_counted_under_its_name(part, owner, method, study, monkeypatch):
    usual, calls = getattr(owner, method), list[int]()

    def slow(*args, **kwargs):
        calls.append(1)
        time.sleep(0.5)
        return usual(*args, **kwargs)

    monkeypatch.setattr(owner, method, slow)
    _, folder = study(TINY.replace("eval_every: 6", "eval_every: 3"))
    parts = total_parts(folder.read_pack_times().values())
    assert len(calls) >= 2
    assert parts[part] >= 0.5 * len(calls)


@pytest.mark.slow
def test_a_resumed_study_adds_its_time(study, tmp_path):
    text, interrupting = STUDY.partition("arms:")[0], Interrupting("on_steps", 4)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        study(text, callback=interrupting)
    folder = StudyFolder(open_store(tmp_path / "root"), "tiny")
    first, middle = total_parts(folder.read_pack_times().values()), time.monotonic()
    assert 0 < first["trained"] < sum(first.values()) < middle - began
    outcome, _ = study(text)
    second, wall = total_parts(folder.read_pack_times().values()), time.monotonic() - middle
    assert not outcome.failed
    assert all(second[part] >= first[part] for part in PARTS)
    assert second["trained"] > first["trained"]
    assert 0 < sum(second.values()) - sum(first.values()) < wall


@pytest.mark.slow
def test_a_study_of_an_earlier_version_shows_no_time(tmp_path):
    folder = copy_stored("schema4", tmp_path, "schema4")
    for name, seconds in (("p0", 2.5), ("p1", 3.5)):  # as earlier versions stored them
        folder.write_pack_time(name, {"seconds": seconds, "runs": 2})
    assert total_parts(folder.read_pack_times().values()) == {}
    assert "went" not in taetpu("status", folder.where).out
    assert all("time" not in row for row in taetpu("status", folder.where, "--json").json()["schema4"])
    assert taetpu("costs", folder.where, "--json").json()["time"] == {}
    assert "6 s" in taetpu("report", folder.where).out + Path(folder.where, "report/report.md").read_text()
    assert "went" not in Path(folder.where, "report/report.md").read_text()


@pytest.mark.slow
def test_a_damaged_time_hides_the_line_and_stops_no_status(whole, tmp_path):
    _, folder = whole
    copied = tmp_path / folder.name
    shutil.copytree(folder.where, copied)
    file = next(copied.glob("times/*.json"))
    file.write_text(file.read_text().replace("seconds", "secomds"))
    shown = taetpu("status", copied)
    assert shown.code == 0
    assert "compiled" not in shown.out
