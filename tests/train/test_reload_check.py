"""A saved model reproduces the losses of training, or its run gets no result."""

from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from tests.small import TINY

from taetpu.core.registry import unregister
from taetpu.nn.named_arrays import named_constants
from taetpu.train import model_io
from taetpu.train.model_io import from_files, to_files
from taetpu.train.reload_check import FULL, loss_differences, mismatches

CLOCK = """\
import itertools
import equinox as eqx
import jax
from taetpu.plugin import Component, named, project, register

built = itertools.count(1)


@register("ffn", "counting")
class Counting(Component):
    \"\"\"Computes a different function each time that it is built.\"\"\"

    def init(self, dims, *, key):
        return Scaled(dims.weight(named(key, "w"), dims.dim, dims.dim), 1.0 / next(built))


class Scaled(eqx.Module):
    w: jax.Array
    scale: float = eqx.field(static=True)

    def __call__(self, x, ctx):
        return project(x, self.w) * self.scale
"""


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.nightly)])
def pack(request, trainer, make, text):
    """Return a pack of four with three runs: one with a dropped head, one whose mask of ones is absent in its file, and
    one that has diverged.
    """
    precision = {"precision": request.param}
    whole = make(text[0], **precision)
    mixer = {"kind": "attention", "num_heads": 2, "drop_heads": [0]}
    dropped = make(text[0], {"mixer": mixer, "layers": {0: {"drop": ["layer"]}}}, **precision)
    wild = make(text[0], optimizer={"kind": "adamw", "lr": 1e30}, **precision)
    configs = [dropped, whole, wild]
    pack = trainer(configs, text[1], width=4)
    pack.advance(6)
    windows = {"val": pack.program.evaluation_set("val"), "test": None}
    measured = {"val": first_batch(pack, windows["val"])}
    assert np.isnan(measured["val"]["nll"][2]).any()
    files = {i: model_files(pack, config, i) for i, config in enumerate(configs)}
    return pack, files, windows, measured


def first_batch(pack, windows):
    """Return the sums of each sequence in the first evaluation batch."""
    sums = pack.program.evaluate_on_host(pack.state.model, windows, count=1)
    return {name: values[:, : windows.tokens.shape[1]] for name, values in sums.items()}


def model_files(pack, config, i):
    model = jax.tree.map(lambda a: a[i], pack.state.model)
    return to_files(model, config.model, interface=pack.source.interface, seq_len=pack.source.seq_len,
                    tokenizer=pack.source.tokenizer)  # fmt: skip


def wrong(pack, **replaced):
    trained, files, windows, measured = pack
    given = {"trained": trained.state.model, "stored": files, "windows": windows, "measured": measured}
    return mismatches(trained.program, **{**given, **replaced})


def test_saved_models_reproduce_the_losses_of_training(pack):
    """Those of built-in kinds are evaluated by the program of training, with its masks of ones."""
    program = pack[0].program
    compiled = program.evaluate._cache_size(), program.evaluate_once._cache_size()
    assert wrong(pack) == {}
    assert (program.evaluate._cache_size(), program.evaluate_once._cache_size()) == compiled


def test_saved_models_of_plugins_are_evaluated_without_masks_of_ones(pack, monkeypatch):
    """So that a plug-in whose neutral mask changes the loss is found."""
    program, forms = pack[0].program, {jax.tree.structure(from_files(files).model) for files in pack[1].values()}
    assert len(forms) == 2  # with and without a mask
    monkeypatch.setattr(type(program.structure.model.layers[0].ffn), "plugin", "digest")
    monkeypatch.setattr(model_io, "_check_plugins", lambda digests, where: None)
    assert wrong(pack) == {}
    assert program.evaluate_once._cache_size() == 1


def test_changed_model_is_reported_with_its_losses(pack):
    _, files, _, measured = pack
    saved = from_files(files[1])
    moved = eqx.tree_at(lambda m: m.embedding.weight, saved.model, saved.model.embedding.weight.at[0].add(0.5))
    sizes = {"interface": saved.interface, "seq_len": saved.seq_len}
    found = wrong(pack, stored={**files, 1: to_files(moved, saved.config, tokenizer=None, **sizes)})
    assert set(found) == {1}
    sequence = int(found[1].partition("sequence ")[2].split()[0])
    loss = measured["val"]["nll"][1][sequence] / measured["val"]["weight"][1][sequence]
    assert f"{loss:.6g} in training" in found[1]


def test_swapped_files_are_reported_for_both_runs(pack):
    _, files, _, _ = pack
    assert {1, 2} <= set(wrong(pack, stored={**files, 1: files[2], 2: files[1]}))


def test_nan_losses_are_equal_to_nan_only():
    trained = np.array([1.0, np.nan, np.inf, np.nan, 50.0])
    saved = np.array([1.0 + FULL / 2, np.nan, np.inf, 1.0, 50.0 + 25 * FULL])
    apart = loss_differences(trained, saved)
    assert apart[[1, 2]].tolist() == [0, 0]
    assert apart[3] == np.inf
    assert apart[0] == pytest.approx(FULL / 2)
    assert apart[4] == pytest.approx(FULL / 2)  # relative, because the loss is above 1


@pytest.mark.slow
def test_saved_models_of_divided_runs_are_checked_without_compilation(trainer, make, text):
    config = make(text[0])
    pack = trainer([config] * 2, text[1], devices=2, data=2)
    pack.advance(2)
    windows = {"val": pack.program.evaluation_set("val")}
    measured = {"val": first_batch(pack, windows["val"])}
    compiled = pack.program.evaluate._cache_size()
    given = (pack, {i: model_files(pack, config, i) for i in range(2)}, windows, measured)
    assert wrong(given) == {}
    assert pack.program.evaluate._cache_size() == compiled
    assert set(wrong(given, stored={0: given[1][1], 1: given[1][0]})) == {0, 1}


@pytest.mark.slow
def test_run_that_cannot_be_reproduced_has_no_result(tmp_path, monkeypatch, capsys):
    """The study continues, names the run, and ends with exit code 3."""
    from taetpu.cli.main import main

    monkeypatch.chdir(tmp_path)
    Path("idea.py").write_text(CLOCK)
    arms = "seeds: 1\narms:\n  counting: {model.ffn: counting}\nplugins: [idea.py]\n"
    Path("tiny.yaml").write_text(TINY + arms)
    monkeypatch.setattr("sys.argv", ["taetpu", "run", "tiny.yaml"])
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        unregister("idea")
    assert ended.value.code == 3
    err = " ".join(capsys.readouterr().err.split())
    assert "runs/tiny/runs/counting/0-" in err
    assert "the stored val/loss" in err
    assert "Traceback" not in err
    assert [path.parents[1].name for path in Path("runs/tiny/runs").glob("*/*/result.json")] == ["baseline"]


@pytest.mark.slow
def test_untrained_numbers_are_saved(trainer, make, text):
    pack = trainer([make(text[0])], text[1])
    model = jax.tree.map(lambda a: a[0], pack.state.model)
    scale = model.stacks[0].block.mixer.scale.value
    drawn = eqx.tree_at(lambda m: m.stacks[0].block.mixer.scale.value, model, scale * 3)
    sizes = {"interface": text[1].interface, "seq_len": text[1].seq_len}
    opened = from_files(to_files(drawn, make(text[0]).model, tokenizer=None, **sizes)).model
    for name, value in named_constants(drawn).items():
        np.testing.assert_array_equal(named_constants(opened)[name], value)
