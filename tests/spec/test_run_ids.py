"""A run's identity is equal for equivalent studies in every process, and different if any number could differ."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from taetpu.core.config import Component, Config, fields_at_default, slot_of, to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY, SCHEMA, canonical_json, recorded_identity, without_defaults
from taetpu.core.registry import kinds
from taetpu.nn.lm import ModelConfig
from taetpu.spec.differences import difference
from taetpu.spec.run_ids import run_ids
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.spec.train_config import TrainConfig

SHORT = {
    "task": {"kind": "text", "source": "a.txt", "seq_len": 8},
    "model": {"dim": 16, "num_layers": 4, "position": "none", "layers": {-1: {"ffn": "none"}}},
    "train": {"steps": 10, "clip": 1},
}
WRITTEN_OUT = {
    "train": {"steps": 10, "batch_size": 32, "optimizer": {"kind": "adamw", "lr": 1e-3}, "clip": 1.0},
    "model": {
        "layers": {"3": {"ffn": {"kind": "none"}}}, "position": {"kind": "none"}, "num_layers": 4, "dim": 16,
        "mixer": {"num_heads": 4, "kind": "attention", "num_kv_heads": None}, "bias": False,
    },
    "task": {"kind": "text", "source": "elsewhere/a.txt", "seq_len": 8, "val": 0.1, "tokenizer": "char"},
}  # fmt: skip


def resolve(data) -> ResolvedConfig:
    return load_config(RunConfig, data).resolve()


def ident(data, seed=0, fingerprint="f") -> str:
    return run_ids(resolve(data), {seed: ""}, fingerprint)[0]


def test_the_identity_does_not_depend_on_how_a_study_is_written():
    assert ident(SHORT) == ident(WRITTEN_OUT)


def test_the_identity_of_a_config_is_pinned():
    """It changes only with the schema, so that stored runs of earlier versions with this schema remain valid."""
    assert ident(SHORT) == "103bc21bbb15e534"


SLOTS = {"": "task", "hooks": "hook", "heads": "head"}  # of fields that are not called as their slot


def every_kind() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield `(section, field, settings)` for each kind of each slot of the baseline, without those of other tests."""
    needed = {"text": {"seq_len": 8, "source": "a.txt"}, "bpe": {"vocab_size": 300}, "freeze-layers": {"layers": [0]},
              "early-exit": {"layers": [0]}, "freeze": {"trained": ["*"]}, "mup": {"base_dim": 8},
              "tokens": {"seq_len": 8, "source": "a.bin", "vocab_size": 9}}  # fmt: skip
    rows = ("classification", "regression", "token-classification", "pairs")
    of_rows = {kind: {"seq_len": 8, "source": "a.jsonl"} for kind in rows}  # objectives have the same names
    needed |= {kind: {"every": 1} for kind in ("plateau", "patience", "best", "average-last")}
    needed |= {kind: dict(cls.example) for kind, cls in kinds("tokenizer").items() if kind != "start" and cls.example}
    for section, cls in (("model", ModelConfig), ("train", TrainConfig)):
        for field in cls.model_fields:
            slot = slot_of(cls, field)
            if slot is not None and field not in FIELDS_OUTSIDE_IDENTITY:
                for kind in builtin(slot.name):
                    yield section, field, {"kind": kind, **(needed.get(kind) or required(slot.name, kind))}
    yield from (
        ("task", "", {"kind": kind, **(of_rows | needed).get(kind, {"seq_len": 8})}) for kind in builtin("task")
    )
    yield from (("task", "tokenizer", {"kind": kind, **needed.get(kind, {})}) for kind in builtin("tokenizer"))


def required(slot: str, kind: str) -> dict[str, Any]:
    """Return the example's values of the fields that a kind requires."""
    cls = kinds(slot)[kind]
    return {name: cls.example[name] for name, info in cls.model_fields.items() if info.is_required()}


def builtin(slot: str) -> list[str]:
    return [kind for kind, cls in kinds(slot).items() if cls.__module__.startswith("taetpu.")]


def with_part(section: str, field: str, settings: dict[str, Any]) -> dict[str, Any]:
    if not field:
        return {**SHORT, section: settings}
    beside = {"schedule": "constant"} if settings["kind"] == "patience" else {}
    changed = {**beside, field: [settings] if field in ("hooks", "heads") else settings}
    return {**SHORT, section: {**SHORT[section], **changed}}


@pytest.mark.parametrize(("section", "field", "settings"), list(every_kind()))
def test_explicit_defaults_of_components_do_not_change_the_identity(section, field, settings):
    for name, info in kinds(SLOTS.get(field, field))[settings["kind"]].model_fields.items():
        if not info.is_required() and name not in settings:
            given = {**settings, name: to_data(info.get_default(call_default_factory=True))}
            assert ident(with_part(section, field, given)) == ident(with_part(section, field, settings)), name


@pytest.mark.parametrize(("section", "cls"), [("model", ModelConfig), ("train", TrainConfig)])
def test_explicit_defaults_of_sections_do_not_change_the_identity(section, cls):
    full = {**to_data(load_config(RunConfig, SHORT)), "task": SHORT["task"]}
    assert ident(full) == ident(SHORT)
    for name, info in cls.model_fields.items():
        if not info.is_required() and name not in SHORT[section]:
            given = to_data(info.get_default(call_default_factory=True))
            assert ident({**SHORT, section: {**SHORT[section], name: given}}) == ident(SHORT), name


@pytest.mark.slow
def test_every_kind_has_a_different_identity():
    """This includes kinds with the same fields at the same defaults."""
    parts = [part for part in every_kind() if part[:2] != ("task", "")]
    ids = {ident(with_part(*part)): part for part in parts}
    slots = {part[:2] for part in parts}
    same = {part[:2] for part in parts if ident(with_part(*part)) == ident(SHORT)}
    assert len(ids) == len(parts) - len(same) + 1  # each slot has one kind that SHORT has too, hooks and heads apart
    assert same == slots - {("train", "hooks"), ("model", "heads")}


class Earlier(Component):
    a: int = 1


class Later(Earlier):
    b: float = 2.0
    inner: Config | None = None


def test_new_fields_with_defaults_do_not_change_identities():
    for a in (1, 5):
        old, new = Earlier(a=a), Later(a=a)
        assert without_defaults(to_data(old), fields_at_default(old)) == without_defaults(
            to_data(new), fields_at_default(new)
        )
    other = Later(b=3.0)
    assert without_defaults(to_data(other), fields_at_default(other)) == {"kind": "", "b": 3.0}


def test_the_identity_is_recomputed_from_the_record_and_detects_edits():
    config = resolve(SHORT)
    record = {
        "schema": SCHEMA,
        "config": to_data(config),
        "defaults": fields_at_default(config),
        "seed": 3,
        "plugins": [],
    }
    assert recorded_identity(json.loads(json.dumps(record)), "f") == run_ids(config, {3: ""}, "f")[0]
    for path, value in leaves(record["config"]):
        edited = deepcopy(record)
        node = edited["config"]
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = "edited" if value != "edited" else None
        beside = (path[0] == "train" and path[1] in FIELDS_OUTSIDE_IDENTITY) or path[:2] in (
            ("task", "source"),
            ("train", "start"),
        )
        assert (recorded_identity(edited, "f") == run_ids(config, {3: ""}, "f")[0]) == beside, path


def leaves(data: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yield the path and value of every leaf in plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    inner = [leaf for key, value in items for leaf in leaves(value, (*path, key))]
    yield from inner or [(path, data)]


@pytest.mark.slow
def test_the_identity_is_the_same_in_another_process():
    script = f"from {Path(__file__).stem} import ident, SHORT\nprint(ident(SHORT))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.path.dirname(__file__)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ident(SHORT)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("model", "dim", 32), ("model", "layers", {-2: {"ffn": "none"}}), ("model", "position", "rope"),
        ("model", "dropout", 0.1), ("train", "steps", 11), ("train", "clip", None), ("task", "val", 0.2),
    ],
)  # fmt: skip
def test_another_value_changes_the_identity(part, field, value):
    assert ident({**SHORT, part: {**SHORT[part], field: value}}) != ident(SHORT)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eval_every", 3),
        ("checkpoint", 2),
        ("keep_checkpoints", True),
        ("log_every", 1),
        ("sample", "none"),
        ("compute", {"attention": "plain", "remat": "full", "loss_chunk": 64, "feed": "host", "mesh": {"data": 2}}),
        ("compute", {"unroll": "all", "logits": "bfloat16", "pad_vocab": 128, "cast": "step"}),
    ],
)
def test_observation_and_numerics_do_not_change_the_identity(field, value):
    assert ident({**SHORT, "train": {**SHORT["train"], field: value}}) == ident(SHORT)
    assert field in FIELDS_OUTSIDE_IDENTITY


def test_seed_and_data_change_the_identity():
    assert len({ident(SHORT), ident(SHORT, seed=1), ident(SHORT, fingerprint="g")}) == 3


def test_the_order_of_seeds_changes_no_identity(study):
    def ids(seeds):
        return {(run.arm, run.seed): run.id for run in study(f"seeds: {seeds}\n").runs()}

    assert ids("[2, 0, 1]") == ids("3")
    assert set(ids("[1, 5]").values()) & set(ids("[0, 1]").values()) == {ids("3")["baseline", 1]}


def test_the_identity_depends_on_the_content_of_the_data_not_on_its_path(study, folder):
    (folder / "copy.txt").write_bytes((folder / "text.txt").read_bytes())
    (folder / "other.txt").write_text("another text. " * 40)
    here, there, other = (
        study("seeds: 1\n", (), ("text.txt", name)).runs()[0].id for name in ("text.txt", "copy.txt", "other.txt")
    )
    assert here == there != other


def test_a_resolved_config_is_restored_from_plain_data():
    config = resolve(SHORT)
    assert load_config(ResolvedConfig, to_data(config)) == config


def test_numbers_that_are_not_finite_have_no_canonical_form():
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"x": float("nan")})
    with pytest.raises(UserError, match="finite"):
        resolve({**SHORT, "train": {"steps": 10, "loss_bound": float("inf")}})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dim": 32}, {"model.dim": (16, 32)}),
        ({"position": "learned"}, {"model.position": ({"kind": "none"}, {"kind": "learned"})}),
        ({"mixer": {"kind": "attention", "num_heads": 2}}, {"model.mixer.num_heads": (4, 2)}),
        ({"layers": {-1: {"ffn": "none"}, 0: {"drop": ["ffn"]}}}, {"model.layers.0.drop": ([], ["ffn"])}),
        ({"num_layers": 2, "layers": {}}, {"model.num_layers": (4, 2)}),
    ],
)
def test_a_difference_contains_exactly_the_changes(change, expected):
    changed = {**SHORT, "model": {**SHORT["model"], **change}}
    assert difference(resolve(SHORT), resolve(changed)) == expected
