"""Plug-ins on the command line: the template of `taetpu new`, faulty plug-ins, edited plug-ins."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.plugins import load_plugins
from taetpu.core.registry import kinds
from taetpu.lens.opening import open_run
from taetpu.spec.loading import load_study
from taetpu.spec.train_config import TrainConfig
from taetpu.store.documents import from_yaml, to_yaml
from taetpu.testing import check_component

SMALL = [
    word
    for change in (
        "task.seq_len=16",
        "model.dim=16",
        "task.val=0.01",
        "model.num_layers=1",
        "train.steps=6",
        "train.eval_every=6",
        "train.sample=none",
        "train.schedule.warmup=2",
        "train.batch_size=4",
        "train.metrics.gradient-norm.every=3",
    )
    for word in ("--set", change)
]

STUDY = """\
study: own
plugins: [own.py]
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 4, batch_size: 4, sample: none}
seeds: 1
arms:
"""
AFTER = """\
import equinox as eqx
from taetpu.plugin import Component, Hook, Metric, register


@register("after", "own")
class Own(Component):
    def init(self, dims, *, key):
        return OwnAfter()


class OwnAfter(eqx.Module):
    def __call__(self, x, ctx):
        return 2 * x
"""
HOOK = """

@register("hook", "own")
class OwnHook(Hook):
    def updates(self, updates, params, now):
        return updates
"""
METRIC = """

@register("metric", "own")
class OwnMetric(Metric):
    def measure(self, seen):
        return seen.loss
"""
ON_AFTER = "  own: {model.after: own}\n"
ON_HOOK = "  hooked: {train.hooks: [own]}\n"
LR = "  lr: {train.optimizer.lr: 1e-2}\n"


@pytest.fixture
def own(here: Path):
    """`own(source, arms, train)`: write the study `own.yaml` with these arms, and its plug-in `own.py`."""

    def write(source: str, arms: str, train: str = "") -> Path:
        (here / "own.py").write_text(source)
        (here / "own.yaml").write_text(STUDY.replace("steps: 4", f"steps: 4{train}") + arms)
        return here / "own.yaml"

    return write


# --- the template ----------------------------------------------------------------------------------------------------


def test_new_overwrites_nothing(taetpu, here):
    (here / "taken.py").write_text("mine")
    code, _, err = taetpu("new", "taken")
    assert (code, err.splitlines()[:2]) == (2, ["error: file exists", "  where:  taken.py"])
    assert (here / "taken.py").read_text() == "mine"
    assert not (here / "taken.yaml").exists()


def keep_arms(file: Path, *names: str) -> None:
    """Remove all other arms from a study's file, and set two seeds."""
    data = from_yaml(file.read_bytes(), str(file))
    data["arms"] = {name: change for name, change in data["arms"].items() if name in names}
    file.write_bytes(to_yaml({**data, "seeds": 2}))


@pytest.mark.slow
def test_the_template_from_new_to_a_report(taetpu, here, contents):
    """Planning writes nothing, and the two arms of the plug-in are trained in one program."""
    assert taetpu("new", "my-idea").code == 0
    before = contents(here)
    done = taetpu("plan", "my-idea.yaml")
    assert (done.code, done.err) == (0, "")
    assert "my-idea: 8 arms x 3 seeds, 300 steps" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert contents(here) == before
    keep_arms(here / "my-idea.yaml", "mine", "leaky")
    plan = taetpu("plan", "my-idea.yaml", *SMALL, "--json").json()
    assert {arm["name"] for arm in plan["arms"]} == {"baseline", "mine", "leaky"}
    assert {"mine", "leaky"} in [set(pack["arms"]) for pack in plan["packs"]]
    done = taetpu("run", "my-idea.yaml", *SMALL, "--pack", 9)
    assert done.code == 0, done.err
    rows = {line.split()[0] for line in done.out.splitlines() if line.endswith(("worse", "better", "inconclusive"))}
    assert rows == {arm["name"] for arm in plan["arms"]} - {"baseline"}
    report = (here / "runs/my-idea/report/index.html").read_text()
    assert "leaky" in report
    assert "squared-relu" in report


@pytest.mark.slow
def test_the_plug_in_of_the_template_passes_its_checks(taetpu, here):
    taetpu("new", "my-idea")
    report = check_component("ffn", "squared-relu", plugin="my-idea.py", slope=0.1)
    assert {finding.outcome for finding in report.findings} == {"passed"}


# --- faulty ones -----------------------------------------------------------------------------------------------------

IMPORTS = AFTER.partition("\n\n")[0]
REPLACING = f"{AFTER}\n\nimport taetpu.nn.norm\n\ntaetpu.nn.norm.RMSNorm.__call__ = lambda self, x: x\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "arms", "train", "problem", "line"),
    [
        (f"{AFTER}\n1 / 0\n", ON_AFTER, "", "raised ZeroDivisionError: division by zero", "1 / 0"),
        (f"{AFTER}\ndef f(:\n", ON_AFTER, "", "not valid Python: invalid syntax", "def f(:"),
        (IMPORTS, ON_AFTER, "", "registers no kind", None),
        (REPLACING, ON_AFTER, "", "replaces taetpu.nn.norm.RMSNorm.__call__", None),
        (AFTER.replace('"after", "own"', '"ffn", "swiglu"'), ON_AFTER, "", "ffn 'swiglu' is already", "@register"),
        (AFTER.replace("OwnAfter()", "Nothing()"), ON_AFTER, "", "NameError in init: ", "return Nothing"),
        (AFTER.replace("2 * x", "x * two"), ON_AFTER, "", "raised NameError in __call__: name 'two'", "x * two"),
        (IMPORTS + HOOK.replace("return updates", "return updates.no"), ON_HOOK, "", "in updates: ", "updates.no"),
        (IMPORTS + METRIC.replace("seen.loss", "seen.los"), LR, ", metrics: [own]", "in measure: ", "seen.los"),
    ],
    ids=["import", "syntax", "nothing", "replaces", "built-in", "init", "call", "hook", "metric"],
)
def test_faulty_plug_in_is_reported_with_its_line_and_nothing_is_stored(
    taetpu, own, here, source, arms, train, problem, line
):
    own(source, arms, train)
    code, out, err = taetpu("run", "own.yaml")
    told = " ".join(err.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert problem in told
    number = next((f":{i}" for i, text in enumerate(source.splitlines(), 1) if line and line in text), "")
    assert f"where: {here / 'own.py'}{number}" in told
    assert not (here / "runs").exists()


def test_faulty_plug_in_is_reported_by_catalog_too(taetpu, here):
    (here / "own.py").write_text("1 / 0\n")
    code, _, err = taetpu("catalog", "after", "--plugin", "own.py")
    assert code == 2
    assert f"where:  {here / 'own.py'}:1" in err


def test_replacements_of_a_refused_plug_in_are_undone(own, here):
    from taetpu.nn.norm import RMSNorm

    before = vars(RMSNorm)["__call__"]
    for source in (REPLACING, f"{REPLACING}\n1 / 0\n"):
        with pytest.raises(UserError):
            load_study(own(source, ON_AFTER))
        assert vars(RMSNorm)["__call__"] is before


@pytest.mark.parametrize(
    ("plugins", "problem", "remedy"),
    [
        ("[own.py, other.py]", "after 'own' is already", "Rename one"),
        ("[own.py, own.py]", "listed twice", "once"),
        ("[onw.py]", "no plug-in 'onw.py'", "Did you mean 'own.py'?"),
    ],
)
def test_conflicting_plug_ins_are_refused(own, here, plugins, problem, remedy):
    file = own(AFTER, ON_AFTER)
    (here / "other.py").write_text(f"{AFTER}\n")
    file.write_text(file.read_text().replace("[own.py]", plugins))
    with pytest.raises(UserError, match=problem) as caught:
        load_study(file)
    assert remedy in str(caught.value)


def test_schedule_without_warmup_can_have_any_length(here):
    (here / "own.py").write_text(
        "from taetpu.plugin import Component, register\n\n\n"
        '@register("schedule", "flat")\nclass Flat(Component):\n    def lr(self, step, steps, peak):\n'
        "        return peak + 0.0 * step\n"
    )
    load_plugins([here / "own.py"])
    assert load_config(TrainConfig, {"steps": 1, "schedule": "flat"}).total_steps(None) == 1


# --- edited ones -----------------------------------------------------------------------------------------------------


def test_editing_a_plug_in_changes_only_ids_of_runs_that_use_it(own):
    def ids(source):
        return {run.arm: run.id for run in load_study(own(source, ON_AFTER + LR)).runs()}

    first, edited = ids(AFTER), ids(AFTER.replace("2 * x", "3 * x"))
    assert {arm for arm in first if first[arm] != edited[arm]} == {"own"}
    assert ids(AFTER) == first


def test_edited_plug_in_is_never_run_from_bytecode(here, monkeypatch):
    """The edit changes neither the file's time nor its size, by which Python validates bytecode."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = here / "own.py"
    for factor in (2, 3):
        file.write_text(AFTER.replace("2 * x", f"{factor} * x"))
        os.utime(file, (10**9, 10**9))
        load_plugins([file])
        own: Any = kinds("after")["own"]()
        assert own.init(None, key=None)(1.0, None) == factor
    assert list(here.glob("**/*.pyc")) == []


@pytest.mark.nightly
def test_trained_arm_keeps_a_copy_of_its_plug_in(taetpu, own, here, contents):
    """An edited plug-in is refused with the path of the copy, which opens the model."""
    file = own(AFTER, ON_AFTER, ", metrics: []")
    assert taetpu("run", "own.yaml").code == 0
    (copy,) = (here / "runs/own/plugins").iterdir()
    assert copy.read_text() == AFTER
    before = contents(here / "runs/own/runs")
    own(AFTER.replace("2 * x", "3 * x"), ON_AFTER, ", metrics: []")
    code, _, err = taetpu("run", "own.yaml")
    assert code == 2
    assert "arm 'own' was trained" in err
    assert "in own/plugins)" in " ".join(err.split())
    assert contents(here / "runs/own/runs") == before

    (run,) = (here / "runs/own/runs/own").iterdir()
    with pytest.raises(UserError, match="not loaded") as caught:
        open_run(run, plugins=["own.py"])  # the edited one
    assert copy.name.rpartition("-")[2] in str(caught.value.remedy)
    opened = open_run(run, plugins=[copy])
    assert opened.config.layers[0].after.kind == "own"
    shutil.copy(copy, file.with_suffix(".py"))
    assert taetpu("run", "own.yaml").code == 0
