"""The JSON schema accepts every valid study, and rejects misspelt keys and kinds and values of a wrong type."""

import json
import re
from copy import deepcopy
from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML
from tests.suites import by_default

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.registry import kinds, slots
from taetpu.spec.json_schema import study_schema
from taetpu.spec.kind_examples import example_baseline
from taetpu.spec.loading import load_study

ROOT = Path(__file__).parents[2]
FILES = [file for file in (ROOT / "studies").rglob("*.yaml") if "claims" not in file.name]
PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STUDY = {
    "study": "s",
    "base": {
        "task": {"kind": "copy", "seq_len": 16, "symbols": 4},
        "model": {"dim": 16, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}, "ffn": "relu"},
        "train": {"steps": 10, "optimizer": {"kind": "adamw", "lr": 3e-3}, "hooks": {"freeze": {"trained": ["*"]}}},
    },
    "arms": {"nope": {"model.position": "none"}},
    "measure": {"primary": "val/loss", "equivalence": 0.02},
}
PROGRAM = {
    "study": "s",
    "program": {"command": ["python", "a.py", "--seed={seed}"], "metrics": {"jsonl": "log.jsonl"}},
    "base": {"anything": {"goes": 1}},
    "measure": {"primary": "loss", "better": "min"},
}


@pytest.fixture(scope="module")
def schema():
    made = study_schema()
    Draft7Validator.check_schema(made)
    return Draft7Validator(made)


def plain(data):
    """Return data as an editor sees it: keys are texts, and a tuple is a list."""
    return json.loads(json.dumps(data))


def with_value(path, value, study=STUDY):
    changed = deepcopy(study)
    *above, last = path
    place = changed
    for part in above:
        place = place[part]
    place[last] = value
    return changed


def whole_studies():
    texts = [file.read_text() for file in FILES]
    texts += [text for page in PAGES for text in BLOCK.findall(page.read_text()) if "\nbase:" in text]
    studies = [YAML(typ="safe").load(text) for text in texts]
    return [study for study in studies if isinstance(study, dict) and "study" in study]


def test_every_study_of_the_repository_is_accepted(schema):
    studies = whole_studies()
    assert len(studies) > 40
    wrong = {study["study"]: [error.message for error in schema.iter_errors(plain(study))] for study in studies}
    assert {name: messages for name, messages in wrong.items() if messages} == {}


@pytest.mark.parametrize(
    "name", by_default(sorted(file.stem for file in ROOT.glob("studies/*.yaml")), "several-tasks", "smallest")
)
def test_a_baseline_with_all_its_defaults_is_accepted(schema, name):
    """Each field of each section is then written out, as the loader understands it."""
    file = ROOT / f"studies/{name}.yaml"
    try:
        study = load_study(file, ["task.source=python-docs"] if "tinyshakespeare.txt" in file.read_text() else [])
    except UserError as error:
        pytest.skip(str(error))
    base = to_data(study.arms[0].config)
    base["model"]["num_layers"] = len(base["model"].pop("layers"))
    base["model"] = {name: value for name, value in base["model"].items() if value is not None}
    assert [error.message for error in schema.iter_errors(plain({"study": "s", "base": base}))] == []


def test_the_example_of_each_kind_is_accepted(schema):
    tried = 0
    for slot in slots():
        for cls in kinds(slot).values():
            study, settings = deepcopy(STUDY), example_baseline(cls) or {}
            if {"task.objective", "task.tokenizer"} & settings.keys():
                study["base"]["task"] = {"kind": "text", "source": "python-docs", "seq_len": 16}
            for path, value in settings.items():
                place = study["base"]
                *above, last = path.split(".")
                for part in above:
                    place[part] = {} if not isinstance(place.get(part), dict) else place[part]
                    place = place[part]
                place[last] = value
                tried += 1
            assert [error.message for error in schema.iter_errors(plain(study))] == [], (slot, cls.kind)
    assert tried > 20


WRONG = {
    "a key": (("arsm",), {}),
    "a section": (("base", "trian"), {}),
    "a field": (("base", "model", "dims"), 16),
    "a kind": (("base", "model", "ffn"), "relou"),
    "a kind in a mapping": (("base", "model", "mixer", "kind"), "atention"),
    "a field of a kind": (("base", "model", "mixer", "heads"), 2),
    "a type": (("base", "train", "steps"), "many"),
    "a range": (("base", "train", "batch_size"), 0),
    "a field of a named entry": (("base", "train", "hooks", "freeze", "traind"), ["*"]),
    "a field of the measure": (("measure", "equivalenze"), 0.1),
    "a word": (("base", "train", "precision"), "float31"),
    "a preset": (("base", "model", "preset"), "gpt9"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_found_at_its_place(schema, mistake):
    assert schema.is_valid(STUDY)
    path, value = WRONG[mistake]
    errors = list(schema.iter_errors(plain(with_value(path, value))))
    places = {tuple(error.absolute_path) for error in errors}
    places |= {tuple(below.absolute_path) for error in errors for below in error.context}
    assert path in places or path[:-1] in places


def test_kinds_of_plugins_are_accepted_where_a_study_has_plugins(schema):
    study = with_value(("base", "model", "ffn"), {"kind": "mine", "any": 1})
    assert not schema.is_valid(study)
    assert schema.is_valid({**study, "plugins": ["mine.py"]})
    assert not schema.is_valid({**with_value(("base", "model", "dims"), 1), "plugins": ["mine.py"]})


def test_studies_of_programs_have_their_own_keys(schema):
    assert schema.is_valid(PROGRAM)
    assert not schema.is_valid({**PROGRAM, "tasks": {}})
    assert not schema.is_valid(with_value(("program", "comand"), [], PROGRAM))


@pytest.mark.parametrize("written", [None, "none"])
def test_optional_values_are_written_as_none(schema, written):
    assert schema.is_valid(with_value(("base", "train", "clip"), written))
    assert not schema.is_valid(with_value(("base", "train", "clip"), "nothing"))


def test_a_model_to_start_from_may_be_a_place_alone(schema):
    assert schema.is_valid(with_value(("base", "train", "start"), "runs/a/baseline/0"))
    assert schema.is_valid(with_value(("base", "model", "start"), "runs/a/baseline/0"))
    assert not schema.is_valid(with_value(("base", "train", "start"), {"folders": "runs/a/baseline/0"}))


def test_editors_offer_paths_and_descriptions():
    made = study_schema()["definitions"]
    paths = made["study.changes"]["properties"]
    assert {"model.position", "model.mixer.num_heads", "train.optimizer.lr", "task.seq_len"} <= set(paths)
    assert made["study.ModelConfig"]["properties"]["dim"]["description"]
