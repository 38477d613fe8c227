"""What a metric is follows from what its task or its component declares, and in earlier plans from its name."""

from dataclasses import replace

import pytest
from rich.console import Console
from tests.small import TINY

import taetpu
from taetpu.cli.status import render
from taetpu.cli.status_model import StudyMonitor
from taetpu.core.errors import UserError
from taetpu.core.metric_spec import UNBOUNDED, MetricSpec
from taetpu.report.metric_charts import plot
from taetpu.spec.loading import load_study
from taetpu.stats.analyse import compute_results
from taetpu.stats.plan import Plan, describe_metric, read_plan
from taetpu.stats.verify import find_contradictions, verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.freeze import analysis_plan
from taetpu.ui.page_data import Root

PLUGIN = '''\
from taetpu.plugin import EvalMetric, Metric, register


@register("eval_metric", "skill")
class Skill(EvalMetric):
    """Share of correct tokens above one half."""

    better, bounds, unit, label = "max", (-0.5, 0.5), "excess share", "skill score"
    mean_of = ("gain", "scored")

    def sums(self, seen):
        return {"gain": (seen.correct - 0.5 * seen.weight).sum(-1), "scored": seen.weight.sum(-1)}


@register("metric", "push")
class Push(Metric):
    """The loss of the measured step."""

    unit, label = "nats", "pushed loss"

    def measure(self, seen):
        return seen.loss
'''
EARLY = "{kind: in_context_score, early: 1, late: 4}"
NAMED = f"{{em: {{kind: exact_match}}, exact_match: {EARLY}, my_accuracy: {EARLY}, a_accuracy: {{kind: skill}}}}"
METRICS = f"eval_metrics: {NAMED}, metrics: {{a: {{kind: push, every: 2}}}}"
STUDY = TINY.replace("sample: none", f"sample: none, {METRICS}").replace(
    "study: tiny", "study: tiny\nplugins: [own.py]"
)
ARMS = "seeds: 2\narms: {low-lr: {train.optimizer.lr: 1e-4}}\n"


@pytest.fixture
def written(tmp_path):
    """Return a function that writes the study with a measure, and returns its file."""
    (tmp_path / "own.py").write_text(PLUGIN)

    def write(measure: str):
        (tmp_path / "study.yaml").write_text(f"{STUDY}{ARMS}measure: {measure}\n")
        return tmp_path / "study.yaml"

    return write


def test_facts_of_a_metric_are_those_of_its_kind_in_new_plans_and_of_its_name_in_earlier_ones(written) -> None:
    plan = analysis_plan(load_study(written("{primary: val/em}")))
    earlier = replace(plan, metrics={})
    shares = {"val/em": True, "val/exact_match": False, "val/my_accuracy": False, "val@64/accuracy": True}
    assert {name: plan.metric(name).bounds == (0, 1) for name in shares} == shares
    assert {name for name in shares if earlier.metric(name).bounds == (0, 1)} == {"val/exact_match", "val@64/accuracy"}
    assert plan.metric("val/my_accuracy").bounds == earlier.metric("val/em").bounds == UNBOUNDED
    assert (plan.metric("val/em").mean_of, plan.metric("val/exact_match").mean_of) == (
        ("val/em.right", "val/em.answers"),
        (),
    )
    assert earlier.metric("val/exact_match").mean_of == ("val/exact_match.right", "val/exact_match.answers")
    assert plan.metric("val/exact_match").unit == "nats per token"
    assert earlier.metric("val/exact_match").unit == "share of answers"
    assert (plan.bounds, earlier.bounds, plan.direction) == ((0, 1), UNBOUNDED, "max")
    assert plan.metric("train/loss") == replace(
        plan.metric("val/loss"), label="train/loss", mean_of=("train/nll", "train/weight")
    )
    assert read_plan({"plan": plan.frozen()}, "") == plan


@pytest.mark.parametrize(
    ("metric", "margin"), [("my_accuracy", None), ("em", "1"), ("a_accuracy", "1"), ("accuracy", "1")]
)
def test_a_margin_must_be_below_the_width_of_the_declared_bounds(metric, margin, written) -> None:
    file = written(f"{{primary: val/{metric}, equivalence: 1}}")
    if margin is None:
        assert load_study(file).measure.equivalence == 1
        return
    with pytest.raises(UserError) as error:
        load_study(file)
    assert (error.value.path, error.value.remedy) == (("measure", "equivalence"), "Use e.g. 0.01.")
    assert margin in error.value.problem.split()


def test_intervals_are_clipped_to_declared_bounds(written, tmp_path) -> None:
    """The stored values of both arms have the largest possible noise."""
    study = load_study(written("{primary: val/a_accuracy}"))
    assert study.measure.direction == "max"
    plan = analysis_plan(study)
    ends = {}
    for name, each in (("new", plan), ("earlier", replace(plan, metrics={}))):
        folder = StudyFolder(open_store(tmp_path / name), "tiny")
        folder.write_study({"study": "tiny", "base": {}, "arms": {"baseline": {}, "low-lr": {}}, "seeds": [0, 1],
                            "plan": each.frozen()})  # fmt: skip
        for arm, values in (("baseline", (-0.4, 0.2)), ("low-lr", (0.3, -0.5))):
            for seed, value in enumerate(values):
                run = folder.run(arm, seed, f"{seed:08x}")
                run.start({"arm": arm, "seed": seed})
                run.finish({"outcome": "finished", "steps": 1, "metrics": {"val/a_accuracy": value}})
        ends[name] = compute_results(folder)["arms"][1]
    assert ends["new"]["ci95"] == [-1.0, 1.0]
    assert ends["new"]["evidence"].startswith("val/skill score ")
    assert ends["earlier"]["ci95"][0] < -1 < 1 < ends["earlier"]["ci95"][1]
    assert ends["new"]["p"] == ends["earlier"]["p"]


@pytest.mark.slow
def test_report_live_page_and_terminal_show_the_declared_label_and_unit(written, tmp_path) -> None:
    outcome = taetpu.run(written("{primary: val/a_accuracy}"), root=str(tmp_path / "root"))
    folder, results = StudyFolder(open_store(tmp_path / "root"), "tiny"), outcome.results
    stored = results["plan"]["metrics"]["a_accuracy"]
    assert stored == {
        "better": "max", "bounds": [-0.5, 0.5], "unit": "excess share", "label": "skill score",
        "mean_of": ["a_accuracy.gain", "a_accuracy.scored"],
    }  # fmt: skip
    title, step = "val/skill score (excess share)", "pushed loss (nats)"
    assert title in (tmp_path / "root/tiny/report/report.md").read_text()
    page = (tmp_path / "root/tiny/report/index.html").read_text()
    assert {name for name in (f"<p>{title}, higher", "val_sample/skill score (excess share)") if name in page} == {
        f"<p>{title}, higher", "val_sample/skill score (excess share)",
    }  # fmt: skip
    assert step in str(plot([folder], "a").to_dict())
    assert results["arms"][1]["evaluation_noise"]["blocks"] > 1
    assert verify(folder) == []
    (study,) = (monitor := StudyMonitor(str(tmp_path / "root"))).update()
    assert study.feed.study["names"]["val/a_accuracy"] == ("val/skill score", title)
    assert study.feed.study["names"]["a"] == ("pushed loss", step)
    console = Console(width=200)
    with console.capture() as shown:
        console.print(render(monitor.update(), console))
    assert "val/skill score" in shown.get()
    assert "val/a_accuracy" in study.arms()[0]
    run = folder.runs()[0]
    page = Root(str(tmp_path / "root")).run("tiny", run.arm, f"{run.seed}-{run.id}")
    assert page["names"]["a"] == ("pushed loss", step)
    swapped = {**results["plan"], "metrics": {"a_accuracy": {**stored, "mean_of": ["a_accuracy.scored"] * 2}}}
    assert any("val/a_accuracy" in problem for problem in find_contradictions(run, swapped))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"max", (-0.5, 0.5)', '"maximum", (-0.5, 0.5)', "'maximum'"),
        ("(-0.5, 0.5)", "(0.5, -0.5)", "(0.5, -0.5)"),
        ('("gain", "scored")', '("gain",)', "('gain',)"),
    ],
)
def test_invalid_declarations_are_refused_where_the_metric_is_used(old, new, named, written, tmp_path) -> None:
    file = written("{primary: val/loss}")
    assert old in PLUGIN
    (tmp_path / "own.py").write_text(PLUGIN.replace(old, new))
    with pytest.raises(UserError) as error:
        load_study(file)
    assert named in error.value.problem
    assert error.value.path[:4] == ("base", "train", "eval_metrics", "a_accuracy")


def test_a_spec_with_fields_of_a_newer_version_asks_for_an_update() -> None:
    plan = Plan("val/loss", "min", ("baseline",), (0,), (1,), metrics={"loss": {"scale": "log"}})
    with pytest.raises(UserError) as error:
        read_plan({"plan": plan.frozen()}, "")
    assert (error.value.path, error.value.remedy) == (("plan", "metrics"), "Update taetpu.")


def test_series_of_training_steps_and_of_judged_tables() -> None:
    plan = {"primary": "acc,none", "metrics": {"acc,none": {"better": "max"}, "norm/": {"label": "size", "unit": "m"}}}
    assert describe_metric(plan) == MetricSpec("max", label="acc,none")
    assert describe_metric(plan, "norm/layers.0").title == "size/layers.0 (m)"
    assert describe_metric(plan, "val/norm") == MetricSpec(label="val/norm")
    earlier = {"primary": "val/loss", "known_metric": False}
    assert describe_metric(earlier) == MetricSpec(label="val/loss", mean_of=("val/nll", "val/weight"))
    assert describe_metric({**earlier, "primary": "a/b/loss"}).mean_of == ()
