"""The time of training before it is measured: a range that follows from what is known of the machine."""

import subprocess
import sys

import pytest
from tests.small import STUDY

from taetpu.spec.evaluation import Sample
from taetpu.spec.loading import load_study
from taetpu.study import forecast as forecasting
from taetpu.study.forecast import forecast
from taetpu.study.progress import Pace
from taetpu.train.callbacks import Forecast, Span
from taetpu.train.layout import RunGroup, Workload
from taetpu.train.pack_plan import plan_packs
from taetpu.train.step_time import efficiency_bounds, matmul_rate, remember_step


@pytest.fixture
def expected(tmp_path, monkeypatch):
    """`expected(text=STUDY, taken=0) -> Forecast` of all its runs, in a cache folder of its own, on a quiet machine."""
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(forecasting, "matmul_rate", lambda: 1e10)
    monkeypatch.setattr(forecasting, "cpu_contention", lambda: 1.0)

    def found(text: str = STUDY, taken: int = 0) -> Forecast:
        (tmp_path / "study.yaml").write_text(text)
        study = load_study(tmp_path / "study.yaml")
        runs = study.runs()
        by_id = {run.id: run for run in runs}
        plans = plan_packs(runs, [study.sources.prepare(run.config) for run in runs])
        packs = [(plan, [by_id[names[2]] for names in plan.runs], taken) for plan in plans]
        sample = Sample.from_config(study.arms[0].config, study.source(study.arms[0]))
        known = forecast(packs, study.sources, sample)
        assert known is not None
        return known

    return found


def test_a_range_follows_work_and_rate(expected, monkeypatch):
    one, twice = expected(), expected(STUDY.replace("steps: 20", "steps: 40"))
    assert 0 < one.steps.low < one.steps.high
    assert twice.steps.low == pytest.approx(2 * one.steps.low)
    assert twice.run_steps == 2 * one.run_steps == 160
    monkeypatch.setattr(forecasting, "matmul_rate", lambda: 2e10)
    assert expected().steps.low == pytest.approx(one.steps.low / 2)
    assert "20 GFLOP/s" in expected().source


def test_what_was_trained_costs_nothing_more(expected):
    whole, half = expected(), expected(taken=10)
    assert half.steps.high == pytest.approx(whole.steps.high / 2)
    assert half.evaluating.high < whole.evaluating.high


def test_evaluation_counts_the_sample_and_the_whole_split(expected):
    text = STUDY.replace("eval_size: 32", "eval_size: 3200").replace("eval_every: 10", "eval_every: 1")
    few, every = expected(text), expected(text.replace("log_every: 4,", "log_every: 4, eval_windows: all,"))
    assert every.evaluating.high > 10 * few.evaluating.high
    assert every.steps == few.steps


def test_a_measured_step_narrows_the_range(expected, tmp_path):
    before = expected()
    study = load_study(tmp_path / "study.yaml")
    runs = tuple(study.runs())
    (plan,) = plan_packs(runs, [study.sources.prepare(run.config) for run in runs])
    work = Workload(
        RunGroup(frozenset(plan.live), runs), study.sources.prepare(runs[0].config), plan.precision, plan.compute
    )
    remember_step(work, plan.layout, 0.5)
    after = expected()
    assert after.steps.low < 0.5 * 20 < after.steps.high
    assert after.steps.high / after.steps.low < before.steps.high / before.steps.low
    assert after.source == forecasting.BEFORE
    assert after.compiling.high < before.compiling.high  # the programs are in the compile cache


def test_shares_grow_with_the_width_and_stay_shares():
    found = [efficiency_bounds(dim) for dim in (4, 8, 24, 32, 64, 256, 768, 4096)]
    assert all(0 < least < most < 1 for least, most in found)
    assert found == sorted(found)


def test_matmul_rate_is_measured_once():
    assert matmul_rate() == matmul_rate() > 1e8


def test_the_forecast_holds_until_steps_are_timed(monkeypatch):
    pace = Pace()
    now = [pace.clock]
    monkeypatch.setattr("taetpu.study.progress.time.monotonic", lambda: now[0])
    zero = Span(0.0, 0.0)
    pace.forecast = Forecast(Span(50, 200), Span(10, 40), zero, Span(8, 8), 100, 1, "a test", Span(2, 2))
    pace.pack(left=0)
    now[0] += 10
    assert pace.left(100) is None
    assert pace.expected() == Span(60, 240)
    pace.trained(1)  # compiles
    now[0] += 20
    pace.trained(10)
    assert pace.left(90) == pytest.approx(90 * 2 * 1.2)  # evaluations are a fifth of the steps, as forecast
    now[0] += 1
    pace.lap("evaluated")  # compiles
    now[0] += 1
    pace.lap("evaluated")
    assert pace.left(90) == pytest.approx(90 * 21 / 10)  # as measured


PLAN = """
import sys
import jax
compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda name, _, **about: compiled.append(about.get("fun_name"))
                                                     if "backend_compile" in name else None)
from taetpu.cli.main import main
sys.argv = ["taetpu", "plan", "study.yaml", "--root", "root"]
try:
    main()
except SystemExit:
    pass
print("compiled:", compiled)
"""


@pytest.mark.slow
def test_plan_states_the_range_and_compiles_no_program_of_the_study(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    done = subprocess.run([sys.executable, "-c", PLAN], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "time: " in done.stdout
    assert "measured at run" not in done.stdout
    compiled = done.stdout.rpartition("compiled: ")[2]
    assert not any(name in compiled for name in ("advance", "evaluate", "init", "observe", "sample"))
