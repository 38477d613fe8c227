"""Excessive numbers, products and nesting are refused quickly, with the limit."""

import os
import time
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.spec.document import LONGEST_FILE, MAX_VALUES
from taetpu.spec.loading import load_study

SLOWEST = 10  # seconds of this process, for any of them

MANY = ",".join(map(str, range(1, 1001)))
CUBE = "{{model.dim: [{0}], train.steps: [{0}], train.batch_size: [{0}]}}".format(",".join(map(str, range(1, 101))))
BOMB = ", ".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))

STEPS = ",".join(map(str, range(10, 110)))
SIX_ARMS = (
    "arms: {a: {model.bias: true}, b: {model.dim: [8, 32]}, c: {model.dropout: [0.1, 0.2]}, d: {model.position: none}}"
)

ADDED = [
    (f"grid: {{model.dim: [{MANY}], train.steps: [{MANY}], task.seq_len: [{MANY}]}}", "grid", "1000000000"),
    (f"grid: {CUBE}", "grid", "1000000"),
    (f"arms:\n  a: {CUBE}", "arms.a", "1000000"),
    (f"factorial: {CUBE}", "factorial", "1000000"),
    (f"tune: {CUBE}", "tune", "1000000"),
    (f"arms: {{{', '.join(f'a{i}: {{train.steps: {i + 20}}}' for i in range(600))}}}", "arms.a512.train.steps", "512"),
    (f"ladder: {{train.steps: [{STEPS}]}}\n{SIX_ARMS}", "ladder.train.steps", "512"),
    ("seeds: 1000000000000", "seeds", "10000"),
    (f"seeds: [{','.join(map(str, range(10_001)))}]", "seeds", "10000"),
    (f"arms: {{a: {{x: &a [1,1,1,1,1,1,1,1,1], {BOMB}}}}}", "arms.a", str(MAX_VALUES)),
    ("arms: &a {x: *a}", "arms.x", "an alias inside"),
    pytest.param("arms:\n  a: {model.norm: " + "[" * 1500, "", "levels", marks=pytest.mark.slow),
    (f"# {'x' * LONGEST_FILE}", "", str(LONGEST_FILE)),
]  # fmt: skip

SETS = [
    ("model.num_layers=1000000", "1024"), (f"model.dim={'9' * 27}", "131072"), (f"model.dim={'9' * 5000}", "999"),
    ("train.batch_size=100000000000", "at most 1048576"), ("task.seq_len=1000000000000", "at most 1048576"),
    ("train.steps=1e18", "at most 2147483647"), ("train.batch_size=1e12", "at most 1048576"),
    ("train.eval_windows=99999999999", "or all"), ("train.optimizer.lr=0", "above 0"),
    ("train.optimizer.lr=.inf", "a finite number"), ("train.checkpoint=0", "at least 1"),
    ("train.eval_windows=0", "at least 1"), ("train.compute.loss_chunk=0", "at least 1"),
    ("model.layers.0:1000000000.ffn=none", "0:4"),
    ("model.ffn={kind: relu, mult: 1e300}", "1048576"), ("model.mixer.num_heads=1000000007", "4096"),
    ("model.dim=&a [*a]", "an alias inside"), pytest.param("model.dim=" + "[" * 1500, "levels", marks=pytest.mark.slow),
]  # fmt: skip


def refused(study, added: str = "", sets: tuple[str, ...] = (), *replace: tuple[str, str]) -> UserError:
    began = time.process_time()
    with pytest.raises(UserError) as caught:
        study(added, sets, *replace).runs()
    assert time.process_time() - began < SLOWEST
    assert len(str(caught.value)) < 5000
    return caught.value


@pytest.mark.parametrize(("added", "path", "limit"), ADDED, ids=lambda value: str(value)[:30])
def test_excessive_products_and_nesting_in_a_file_are_refused(added: str, path: str, limit: str, study) -> None:
    error = refused(study, f"{added}\n")
    assert (".".join(map(str, error.path)).startswith(path), Path(str(error.file)).name) == (True, "s.yaml")
    assert limit in f"{error.problem} {error.remedy}"
    assert error.remedy


@pytest.mark.parametrize(("text", "limit"), SETS, ids=lambda value: str(value)[:30])
def test_excessive_values_of_set_options_are_refused(text: str, limit: str, study) -> None:
    error = refused(study, "", (text,))
    assert str(error.path[0]).startswith("--set ")
    assert limit in f"{error.problem} {error.remedy}"


@pytest.mark.parametrize("epochs", ["1e300", "1e308", "1e12"])
def test_too_many_epochs_are_refused(epochs: str, study) -> None:
    error = refused(study, "", (f"train.epochs={epochs}", "train.steps=none"))
    assert error.path == (f"--set train.epochs={epochs}",)
    assert "2147483647" in str(error.remedy)


WHOLE = [
    ("train.steps", "1e3", "1000"), ("model.num_layers", "2.0", "2"), ("train.checkpoint", "1e2", "100"),
    ("train.eval_windows", "5e0", "5"), ("train.eval_every", "5.0", "5"), ("model.dim", "3.2e1", "32"),
    ("model.mixer.drop_heads", "[1.0]", "[1]"), ("model.layers.0:2.ffn", "none", "none"),
]  # fmt: skip


def test_whole_floats_are_read_as_integers(study) -> None:
    one = study("seeds: [1e1, 2.0]\nmeasure: {looks: [2.0, 4e0]}\n", tuple(f"{path}={a}" for path, a, _ in WHOLE))
    two = study("seeds: [10, 2]\nmeasure: {looks: [2, 4]}\n", tuple(f"{path}={b}" for path, _, b in WHOLE))
    assert (one.baseline, one.seeds, one.measure) == (two.baseline, two.seeds, two.measure)
    assert [run.id for run in one.runs()] == [run.id for run in two.runs()]
    with pytest.raises(UserError, match=r"2\.5 is not allowed"):
        study("", ("train.steps=2.5",))


@pytest.mark.slow
def test_large_studies_are_accepted(study) -> None:
    assert len(study("", (), ("num_layers: 4", "num_layers: 1024")).arms[0].config.model.layers) == 1024
    assert len(study(f"seeds: [{','.join(map(str, range(10_000)))}]\n").seeds) == 10_000
    values = ",".join(f"{i}e-5" for i in range(1001, 1051))
    assert len(study(f"grid: {{train.optimizer.lr: [{values}], model.position: [rope, none]}}\n").arms) == 101


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        load_study("/dev/zero")
    assert (str(caught.value.file), str(LONGEST_FILE) in caught.value.problem) == ("/dev/zero", True)


def test_a_study_file_may_be_a_file_descriptor() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"study: s\r\nbase: {}\r\n")
    os.close(write_end)
    with pytest.raises(UserError) as caught:
        load_study(f"/dev/fd/{read_end}")
    os.close(read_end)
    assert "'task' is missing" in str(caught.value)
