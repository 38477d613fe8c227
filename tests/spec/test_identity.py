"""A run's identity: the same in every process and however a study is written, another where a number could differ."""

import os
import subprocess
import sys

import pytest

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.identity import BESIDE
from taetpu.core.loading import load
from taetpu.spec.design import difference
from taetpu.spec.identity import canonical, run_id
from taetpu.spec.schema import ResolvedConfig, RunConfig

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
    return load(RunConfig, data).resolve()


def ident(data, seed=0, fingerprint="f") -> str:
    return run_id(resolve(data), seed, fingerprint)


def test_the_identity_does_not_depend_on_how_a_study_is_written():
    assert ident(SHORT) == ident(WRITTEN_OUT)


def test_golden():
    """Changes when a field or a default changes anywhere below: then no stored run of an earlier version fits."""
    assert ident(SHORT) == "a6e98828562a4356"


@pytest.mark.slow
def test_the_identity_is_the_same_in_another_process():
    script = "from test_identity import ident, SHORT\nprint(ident(SHORT))"
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
def test_another_number_is_another_run(part, field, value):
    assert ident({**SHORT, part: {**SHORT[part], field: value}}) != ident(SHORT)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eval_every", 3),
        ("checkpoint", 2),
        ("keep_checkpoints", True),
        ("log_every", 1),
        ("sample", "none"),
        ("compute", {"attention": "plain", "remat": "full", "loss_chunk": 64, "mesh": {"data": 2}}),
    ],
)
def test_how_a_run_is_watched_or_computed_is_no_part_of_it(field, value):
    assert ident({**SHORT, "train": {**SHORT["train"], field: value}}) == ident(SHORT)
    assert field in BESIDE


def test_the_seed_and_the_data_are_part_of_it():
    assert len({ident(SHORT), ident(SHORT, seed=1), ident(SHORT, fingerprint="g")}) == 3


def test_the_order_of_seeds_changes_no_identity(study):
    def ids(seeds):
        return {(run.arm, run.seed): run.id for run in study(f"seeds: {seeds}\n").runs()}

    assert ids("[2, 0, 1]") == ids("3")
    assert set(ids("[1, 5]").values()) & set(ids("[0, 1]").values()) == {ids("3")["baseline", 1]}


def test_the_place_of_the_data_does_not_count_and_its_content_does(study, folder):
    (folder / "copy.txt").write_bytes((folder / "text.txt").read_bytes())
    (folder / "other.txt").write_text("another text. " * 40)
    here, there, other = (
        study("seeds: 1\n", (), ("text.txt", name)).runs()[0].id for name in ("text.txt", "copy.txt", "other.txt")
    )
    assert here == there != other


def test_a_resolved_config_survives_being_written_as_plain_data():
    config = resolve(SHORT)
    assert load(ResolvedConfig, to_data(config)) == config


def test_numbers_that_are_not_finite_have_no_canonical_form():
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical({"x": float("nan")})
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
def test_a_difference_names_what_changed_and_nothing_else(change, expected):
    changed = {**SHORT, "model": {**SHORT["model"], **change}}
    assert difference(resolve(SHORT), resolve(changed)) == expected
