"""Study files with a program: what is loaded, and what is refused with its place and remedy."""

import pytest
from tests.program_studies import PATTERN, STUDY, TRAIN, study_data, write_study

from taetpu.core.errors import UserError
from taetpu.core.identity import recorded_identity
from taetpu.spec.programs.loading import is_program_study, load_program_study


def load(folder, **changes):
    return load_program_study(write_study(folder, **changes))


def refused(folder, **changes) -> UserError:
    with pytest.raises(UserError) as caught:
        load(folder, **changes)
    return caught.value


def test_arms_have_the_settings_of_the_baseline_with_changes(tmp_path):
    study = load(tmp_path, arms={"high": {"lr": 0.5}, "both": {"lr": 0.5, "bias": True}})
    assert {arm.name: arm.settings for arm in study.arms} == {
        "baseline": {"lr": 0.1, "bias": False},
        "high": {"lr": 0.5, "bias": False},
        "both": {"lr": 0.5, "bias": True},
    }
    assert study.arms[2].change(study.base) == "lr: 0.1 -> 0.5, bias: false -> true"


def test_nested_settings_and_dotted_paths_are_the_same(tmp_path):
    nested = load(tmp_path, base={"opt": {"lr": 0.1, "beta": 0.9}}, arms={"high": {"opt": {"lr": 0.5}}})
    dotted = load(tmp_path, base={"opt.lr": 0.1, "opt.beta": 0.9}, arms={"high": {"opt.lr": 0.5}})
    assert [run.id for run in nested.runs()] == [run.id for run in dotted.runs()]
    assert nested.arms[1].settings == {"opt.lr": 0.5, "opt.beta": 0.9}


def test_identities_follow_from_the_record(tmp_path):
    runs = load(tmp_path).runs()
    assert len({run.id for run in runs}) == 4
    assert all(recorded_identity(run.record({"cwd": "anywhere"}), run.data) == run.id for run in runs)


def test_identities_depend_on_inputs_and_command_but_not_on_the_folder(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    ids = [run.id for run in load(tmp_path / "a").runs()]
    assert [run.id for run in load(tmp_path / "b", program={"time_limit": "2h"}).runs()] == ids
    other = load(tmp_path / "b", program={"command": [*STUDY["program"]["command"], "--fast=1"]})
    edited = load(tmp_path / "b", source=f"{TRAIN}# edited\n")
    assert len({*ids, *(run.id for run in other.runs()), *(run.id for run in edited.runs())}) == 12


def test_designs_become_arms(tmp_path):
    study = load(
        tmp_path,
        base={"lr": 0.1, "bias": False, "layers": [1, 2]},
        arms={"deep": {"layers": [[1, 2, 3], [1]]}, "rate": {"lr": [0.2, 0.3]}},
        factorial={"lr": [0.1, 0.4], "bias": [False, True]},
    )
    names = [arm.name for arm in study.arms]
    assert names == [
        "baseline", "deep=1+2+3", "deep=1", "rate=0.2", "rate=0.3", "bias=true", "lr=0.4", "lr=0.4,bias=true",
    ]  # fmt: skip
    assert study.design["factorial"]["factors"] == {"lr": ["", "lr=0.4"], "bias": ["", "bias=true"]}


def test_sets_change_the_baseline(tmp_path):
    study = load_program_study(write_study(tmp_path), ["lr=0.2"])
    assert study.base["lr"] == 0.2
    with pytest.raises(UserError) as caught:
        load_program_study(write_study(tmp_path), ["lrr=0.2"])
    assert caught.value.path == ("--set lrr=0.2",)
    assert "'lr'" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("changes", "path", "remedy"),
    [
        ({"arms": {"x": {"lrr": 1}}}, ("arms", "x", "lrr"), "'lr'"),
        ({"arms": {"x": {"lr": 0.1}}}, ("arms", "x", "lr"), "baseline"),
        ({"arms": {"x": {"lr": 1, "bias": False}}}, ("arms", "x", "bias"), "override"),
        ({"arms": {"x": {"lr": 1}, "y": {"lr": 1}}}, ("arms", "y", "lr"), "arms"),
        ({"arms": {"x": {}}}, ("arms", "x"), "{lr: "),
        ({"leave_one_out": {"x": None}}, ("leave_one_out", "x"), "{lr: "),
        ({"factorial": {"lr": [0.1, 0.2]}}, ("factorial",), "{lr: "),
        ({"tune": {"seeds": 2}}, ("tune",), "{lr: "),
        ({"base": {"lr": {"a": 1}, "lr.a": 2}}, ("base", "lr.a"), "Remove"),
        ({"base": {"lr": float("nan")}}, ("base", "lr"), "quotes"),
        ({"match": "flops"}, ("match",), "match"),
        ({"tasks": {"a": {}}}, ("tasks",), "across"),
        ({"plugins": ["a.py"]}, ("plugins",), "inputs"),
        ({"ladder": {"chinchilla": [1, 2], "dial": "depth"}}, ("ladder", "chinchilla"), "rung"),
        ({"measure": {"primary": "loss"}}, ("measure",), "better"),
        ({"measure": {"primary": "loss", "direction": "min"}}, ("measure", "direction"), "better: min"),
        ({"measure": {"primary": "los", "better": "min"}}, ("measure", "primary"), "loss"),
        ({"measure": {"primary": "loss", "better": "min", "worth": "flops"}}, ("measure", "worth"), "worth"),
        ({"goal": {"at_most": 1, "minimise": "params"}}, ("goal", "minimise"), "costs"),
        ({"program": {"cwd": "nowhere"}}, ("program", "cwd"), "folder"),
        ({"program": {"inputs": ["*.txt"]}}, ("program", "inputs", 0), "relative"),
        ({"program": {"command": ["python train.py"]}}, ("program", "inputs"), "*.py"),
        ({"program": {"command": ["python", "tain.py", "{lr}{bias}{seed}"]}}, ("program", "command", 1), "'train.py'"),
        ({"program": {"command": ["bash", "a/go.sh", "{lr}{bias}{seed}"]}}, ("program", "command", 1), "relative"),
        ({"program": {"command": "python train.py"}}, ("program", "command"), "[python, train.py]"),
        ({"program": {"command": "python train.py {seed}"}}, ("program", "command"), 'train.py, "{seed}"]'),
        ({"program": {"command": ["python", "train.py", {"seed": None}]}}, ("program", "command", 2), "'{seed}'"),
        ({"program": {"environment": {"SEED": {"seed": None}}}}, ("program", "environment", "SEED"), "'{seed}'"),
        ({"program": {"metrics": "log.jsonl"}}, ("program", "metrics"), "{jsonl: log.jsonl}"),
        ({"program": {"metrics": {"jsonl": "log.jsonl"}}}, ("program", "metrics", "jsonl"), "={folder}"),
        ({"program": {"metrics": {"tensorboard": "."}}}, ("program", "metrics", "tensorboard"), "={folder}"),
        ({"program": {"command": ["python", "train.py", "--seed={seed}"]}}, ("program", "command"), "{key}={value}"),
        ({"program": {"command": ["python", "train.py", "--{key}={value}"]}}, ("program", "command"), "{seed}"),
        ({"program": {"time_limit": "2 hours"}}, ("program", "time_limit"), "2h"),
        ({"program": {"each": {"memory": "much"}}}, ("program", "each", "memory"), "16GiB"),
        ({"program": {"metrics": {"stdout": "loss (.*)"}}}, ("program", "metrics", "stdout"), "P<"),
        ({"program": {"commands": []}}, ("program", "commands"), "'command'"),
        ({"base": {"lr": 0.1, "dim": 2}, "program": {"command": ["python", "train.py", "{lr}", "{seed}"]}},
         ("program", "command"), "{key}={value}"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_with_place_and_remedy(tmp_path, changes, path, remedy):
    error = refused(tmp_path, **changes)
    assert error.path == path
    assert remedy in (error.remedy or "")
    assert error.file == tmp_path / "study.yaml"


def test_a_misspelt_program_is_no_study_of_models(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("study: s\nprograms: {command: [a]}\n")
    with pytest.raises(UserError) as caught:
        is_program_study(file)
    assert caught.value.path == ("programs",)
    assert "'program'" in (caught.value.remedy or "")
    assert not is_program_study({"study": "s", "base": {}})


def test_a_study_may_be_a_dictionary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    assert len(load_program_study(study_data()).arms) == 2
    assert PATTERN in load_program_study(study_data()).program.metrics["stdout"]


CONFIG = {"command": ["python", "train.py", "{config}", "{seed}"]}


@pytest.mark.parametrize(
    ("changes", "path", "named"),
    [
        ({"program": {**CONFIG, "config": {"path": "c.json"}}}, ("program", "config", "path"), "{folder}/c.json"),
        (
            {"program": {"command": ["python", "train.py", "{seed}"], "config": {"path": "{folder}/c.json"}}},
            ("program", "command"), "{config}",
        ),
        (
            {"program": {**CONFIG, "config": {"path": "{folder}/c.json", "add": {"lr": {"first": 3}}}}},
            ("program", "config", "add", "lr.first"), "base",
        ),
        ({"program": {"environment": {"A=B": "x"}}}, ("program", "environment", "A=B"), "'='"),
        ({"base": {"lr": 1, "bias": 1}, "arms": {"text": {"lr": "1"}}}, ("arms", "text", "lr"), "another"),
    ],
)  # fmt: skip
def test_what_would_mix_runs_or_never_reach_the_program_is_refused(tmp_path, changes, path, named):
    error = refused(tmp_path, **changes)
    assert error.path == path
    assert named in error.remedy


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        (("base",), {"base": {"sizes": [1, None], "lr": 0.1}}),
        (("arms", "odd"), {"base": {"sizes": [1, 2], "lr": 0.1}, "arms": {"odd": {"sizes": [[1, [None]]]}}}),
    ],
)
def test_a_list_with_null_is_no_toml(tmp_path, place, changes):
    changes = {"arms": {"high": {"lr": 0.5}}} | changes
    program = {"command": ["python", "train.py", "{config}", "{seed}"], "config": {"path": "{folder}/c.toml"}}
    error = refused(tmp_path, program=program, **changes)
    assert error.path[: len(place)] == place
    assert "sizes" in error.problem
    assert "YAML" in error.remedy
    assert load(tmp_path, program={**program, "config": {"path": "{folder}/c.yaml"}}, **changes)


def test_a_template_is_an_input(tmp_path):
    (tmp_path / "base.json").write_text('{"lr": 1, "dim": 2}')
    config = {"path": "{folder}/c.json", "template": "base.json", "add": {"seed": "{seed}"}}
    study = load(tmp_path, program={"command": ["python", "train.py", "{config}"], "config": config})
    assert set(study.inputs) == {"train.py", "base.json"}
