"""`taetpu new`: names, templates and files."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML
from tests.stats.conftest import made_study
from tests.suites import by_default

from taetpu.cli.schema import FILE
from taetpu.cli.templates import TEMPLATES
from taetpu.contract.check import check_arms
from taetpu.spec.loading import load_study
from taetpu.spec.preset_study import write_pairs
from taetpu.study.run_file import run as run_file


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-idea", "a=b,c", "123", "null"])
def test_new_study_loads_under_its_name(taetpu, here, name):
    code, out, err = taetpu("new", name)
    assert (code, err) == (0, "")
    assert f"wrote {name}.yaml and {name}.py\nnext: taetpu plan {name}.yaml" in out
    assert (here / f"{name}.yaml").read_text().splitlines()[0].endswith(f"$schema={FILE}")
    study = load_study(here / f"{name}.yaml")
    assert study.name == name
    assert len(study.arms) > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "taetpu.yaml"])
def test_new_study_that_shadows_a_module_is_refused(taetpu, here, contents, name):
    before = contents(here)
    code, out, err = taetpu("new", name)
    module = name.removesuffix(".yaml")
    assert (code, out) == (2, "")
    assert f"{module}.py would shadow" in err
    assert f"Python module {module}" in err
    assert f"e.g. {module}-study" in err
    assert contents(here) == before
    assert taetpu("new", f"{module}-study").code == 0


@pytest.mark.parametrize(
    ("name", "instead"),
    [("", "my-study"), (".", "my-study"), ("..", "my-study"), ("*", "my-study"), ("__init__", "init"), ("a/b", "a-b")],
)
def test_invalid_name_is_refused_with_a_valid_one(taetpu, here, contents, name, instead):
    before = contents(here)
    code, out, err = taetpu("new", name)
    assert (code, out) == (2, "")
    assert f"name {name!r}" in err
    assert "where:  the argument NAME" in err
    assert f"e.g. {instead}" in err
    assert contents(here) == before


def test_new_study_may_have_the_name_of_a_folder(taetpu, here):
    (here / "ideas").mkdir()
    (here / "ideas" / "__init__.py").touch()
    assert taetpu("new", "ideas").code == 0


def test_new_study_may_be_named_by_its_file(taetpu, here):
    assert "wrote my-idea.yaml and my-idea.py" in taetpu("new", "my-idea.yaml")[1]
    assert load_study(here / "my-idea.yaml").name == "my-idea"


# --- templates --------------------------------------------------------------------------------------------------------

ARMS = {
    "text": {"no-position", "one-head", "no-ffn-last", "lr=0.001", "lr=0.01"},
    "tokens": {"no-position", "relu", "untied"},
    "tasks": {"no-position", "no-ffn", "one-head"},
    "factorial": {"no-position", "ffn=relu", "placement=post"},
    "ladder": {"no-position", "no-ffn", "layernorm"},
    "goal": {"dim=16,num_layers=1", "dim=64"},
    "classify": {"mean", "no-position", "one-layer"},
    "program": {"momentum", "large-batch", "slow"},
    "plug-in": {"mine", "leaky"},
    "fine-tune": {"from-scratch", "lora", "smaller-lr"},
}
"""Some arms of each template. Those of the repeated ones have the name of a task or a rung besides."""
SHORT = ["train.steps=2", "train.schedule=constant", "train.batch_size=4", "train.sample=none", "train.eval_windows=4"]
OF_TEXT = ("text", "tokens", "factorial", "ladder", "goal", "plug-in")
"""Templates with a large validation split, of which a tenth is enough here."""


def commands_of(out: str) -> list[str]:
    return re.search(r"^next: (.*)$", out, re.MULTILINE)[1].split(", then ")


def prepare(name: str) -> None:
    """Run what a template says to run before its study."""
    if name == "tokens":
        subprocess.run([sys.executable, "tokens.py"], check=True)
    if name == "fine-tune":
        assert not run_file("fine-tune-pretrain.yaml", SHORT).failed


@pytest.mark.nightly
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_runs_in_an_empty_folder_as_it_is(taetpu, here, name):
    """With fewer steps and seeds. The files beside the study are those that it needs."""
    code, out, err = taetpu("new", name, "--template", name)
    assert (code, err) == (0, "")
    (here / "s.yaml").unlink()
    *before, plan, run = commands_of(out)
    assert (plan, run.split()[:3]) == (f"taetpu plan {name}.yaml", ["taetpu", "run", f"{name}.yaml"])
    assert [command.split()[-1] for command in before] == {
        "tokens": ["tokens.py"], "fine-tune": ["fine-tune-pretrain.yaml"],
    }.get(name, [])  # fmt: skip
    prepare(name)
    study = YAML(typ="safe").load((here / f"{name}.yaml").read_text())
    outcome = run_file(
        {**study, "seeds": 2}, [] if name == "program" else SHORT + ["task.val=0.01"] * (name in OF_TEXT)
    )
    assert not outcome.failed
    arms = {arm["name"] for arm in outcome.results["arms"]}
    assert all(any(wanted in arm for arm in arms) for wanted in ARMS[name]), arms


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "tokens", "factorial", "goal", "classify"])
def test_a_template_keeps_the_contract(taetpu, here, name):
    assert taetpu("new", name, "--template", name).code == 0
    prepare(name)
    study = load_study(here / f"{name}.yaml")
    check_arms(study)
    names = {arm.name for arm in study.arms}
    assert all(any(wanted in arm for arm in names) for wanted in ARMS[name]), names


@pytest.mark.parametrize("name", by_default(TEMPLATES, *list(TEMPLATES)[:2]))
def test_a_template_is_accepted_by_the_schema_beside_it(taetpu, here, name):
    assert taetpu("new", "mine-1", "--template", name).code == 0
    schema = Draft7Validator(json.loads((here / FILE).read_text()))
    for file in here.glob("mine-1*.yaml"):
        study = YAML(typ="safe").load(file.read_text())
        assert [error.message for error in schema.iter_errors(study)] == []
        assert study["study"] == file.stem
    assert not re.search(r"\b(NAME|HEADER|START)\b", "".join(f.read_text() for f in here.glob("mine-1*")))


@pytest.mark.parametrize(("given", "remedy"), [
    (("--template", "txt"), "text"),
    (("--template", "text", "--from", "llama3", "--to", "gemma3"), "Remove"),
    (("--template", "goal", "--design", "pairs", "--of", "s.yaml"), "Remove"),
])  # fmt: skip
def test_a_template_that_is_not_one_is_refused(taetpu, here, contents, given, remedy):
    before = contents(here)
    code, _, err = taetpu("new", "x", *given)
    assert code == 2
    assert "where:  --template" in err
    assert remedy in err
    assert contents(here) == before


def test_a_template_without_python_may_have_the_name_of_a_module(taetpu, here):
    assert taetpu("new", "jax", "--template", "text").code == 0
    assert taetpu("new", "json", "--template", "tokens").code == 2


@pytest.mark.slow
def test_the_schema_is_that_of_the_command_and_may_have_kinds_of_plugins(here):
    """In processes of their own, because other tests load plug-ins in this one."""

    def call(*arguments):
        words = [sys.executable, "-m", "taetpu", *arguments]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    call("new", "mine")
    assert (here / FILE).read_text() == call("schema")
    call("schema", "--plugin", "mine.py", "-o", "own.json")
    known, plain = (json.loads((here / name).read_text())["definitions"] for name in ("own.json", FILE))
    assert "squared-relu" in json.dumps(known["study.slot.ffn"])
    assert known.keys() - plain.keys() == {"study.ffn.squared-relu", "plugins.ffn.squared-relu"}


@pytest.mark.parametrize("place", ["schema.yaml", "none/schema.json"])
def test_a_file_that_cannot_hold_the_schema_is_refused(taetpu, here, place):
    code, _, err = taetpu("schema", "-o", place)
    assert code == 2
    assert place in err
    assert "remedy:" in err


# --- from one architecture to another ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "place", "remedy"),
    [
        (["--from", "llama3"], "--to", "--from and --to"),
        (["--design", "both"], "--to", "--from and --to"),
        (["--from", "llama3", "--to", "gemma3", "--design", "sideways"], "--design", "forward"),
        (["--from", "llama3", "--to", "gemma3", "--design", "pairs"], "--of", "forward or both"),
        (["--design", "both", "--of", "s.yaml"], "--of", "--design pairs"),
        (["--design", "pairs", "--of", "s.yaml", "--from", "llama3", "--to", "gemma3"], "--of", "without --from"),
        (["--from", "gpt2", "--to", "bert"], "--to", "llama3"),
        (["--design", "pairs", "--of", "s.yaml"], "s.yaml", "of the two"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(taetpu, here, contents, options, place, remedy):
    before = contents(here)
    code, out, err = taetpu("new", "mine", *options)
    assert (code, out) == (2, "")
    assert place in err
    assert remedy in err
    assert contents(here) == before


def test_designs_differ_in_the_arms_of_the_study(taetpu, here):
    for design, arm in (("forward", "with-ffn"), ("backward", "without-ffn"), ("both", "with-all-but-ffn")):
        code, out, _ = taetpu("new", design, "--from", "llama3", "--to", "gemma3", "--design", design, "--dim", "16")
        assert code == 0
        assert f"wrote {design}.yaml" in out
        arms = [each.name for each in load_study(here / f"{design}.yaml").arms]
        assert arm in arms
        assert ("with-ffn" in arms) == (design != "backward")


PARTS = """\
add_one_in:
  bias: {model.bias: true}
  norm: {model.norm: layer}
  gate: {model.ffn: relu}
  rope: {model.position: none}
"""


@pytest.fixture
def measured(here, text):
    """A study file `s.yaml` with parts of which two matter, and the study's results below `runs`."""
    (here / "s.yaml").write_text(
        text[: text.index("arms:")] + PARTS + "measure: {primary: val/loss, equivalence: 0.5}\n"
    )
    effects = {
        "baseline": 0.0,
        "with-bias": 0.0,
        "with-norm": 0.4,
        "with-gate": -0.6,
        "with-rope": 0.001,
        "with-all": 0.1,
    }
    noise = 0.01 * np.random.default_rng(0).normal(size=(len(effects), 4))
    values = {name: dict(enumerate(effect + row)) for (name, effect), row in zip(effects.items(), noise, strict=True)}
    roles = {name: {"design": "add_one_in", "part": name.removeprefix("with-")} for name in [*effects][1:5]}
    made_study(here / "runs", values, "small", roles | {"with-all": {"design": "add_one_in", "part": None}})
    return here


def test_pairs_cross_the_parts_that_matter_on_other_seeds(taetpu, measured):
    code, out, err = taetpu("new", "pairs", "--design", "pairs", "--of", "s.yaml")
    assert (code, err) == (0, "")
    assert "wrote pairs.yaml" in out
    study, first = load_study(measured / "pairs.yaml"), load_study(measured / "s.yaml")
    assert [arm.name for arm in study.arms] == ["baseline", "norm", "gate", "gate,norm"] or [
        arm.name for arm in study.arms
    ] == ["baseline", "norm", "gate", "norm,gate"]
    assert study.arms[0].config == first.arms[0].config
    assert study.seeds == (4, 5, 6, 7)
    assert study.measure.equivalence == 0.5


def test_five_parts_are_crossed_in_half_of_the_combinations(measured):
    parts = {f"p{i}": {f"model.{path}": value} for i, (path, value) in enumerate(
        {"bias": True, "norm": "layer", "ffn": "relu", "position": "none", "embedding": "tied"}.items())}  # fmt: skip
    (measured / "half.yaml").write_text(write_pairs("half", load_study(measured / "s.yaml"), parts, [7, 8]))
    study = load_study(measured / "half.yaml")
    assert len(study.arms) == 16
    assert study.design["factorial"]["resolution"] == 5


def test_pairs_of_a_study_without_verdicts_are_refused(taetpu, here, text):
    (here / "s.yaml").write_text(text[: text.index("arms:")] + PARTS)
    values = {name: {0: 1.0, 1: 1.1} for name in ("baseline", "with-bias", "with-norm")}
    roles = {name: {"design": "add_one_in", "part": name.removeprefix("with-")} for name in [*values][1:]}
    made_study(here / "runs", values, "small", roles)
    code, _, err = taetpu("new", "pairs", "--design", "pairs", "--of", "s.yaml")
    assert code == 2
    assert "more seeds" in err
    assert not (here / "pairs.yaml").exists()


PATH = ("--from", "llama3", "--to", "gemma3")


@pytest.mark.parametrize("given", [("--dim", "64"), ("--num-layers", "2"), ("--top", "4"), (*PATH, "--top", "4")])
def test_options_without_effect_are_refused(taetpu, here, contents, given):
    before = contents(here)
    code, _, err = taetpu("new", "x", *given)
    assert code == 2
    assert f"where:  {given[-2]}" in err
    assert "  remedy: Add --" in err
    assert contents(here) == before
