"""A saved model gives the losses of training, or its run gets no result."""

from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from tests.small import TINY

from taetpu.core.registry import unregister
from taetpu.nn.lm import named_constants
from taetpu.train.model_io import from_files, to_files
from taetpu.train.readback import FULL, loss_differences, mismatches

CLOCK = """\
import itertools
import equinox as eqx
import jax
import jax.numpy as jnp
from taetpu.plugin import Component, Fixed, named, project, register

built = itertools.count(1)


@register("ffn", "counting")
class Counting(Component):
    \"\"\"Computes something else each time that it is built.\"\"\"

    def init(self, dims, *, key):
        return Scaled(dims.weight(named(key, "w"), dims.dim, dims.dim), 1.0 / next(built))


class Scaled(eqx.Module):
    w: jax.Array
    scale: float = eqx.field(static=True)

    def __call__(self, x, ctx):
        return project(x, self.w) * self.scale


@register("ffn", "features")
class Features(Component):
    \"\"\"Random features, drawn once and not trained.\"\"\"

    def init(self, dims, *, key):
        drawn = jax.random.normal(named(key, "drawn"), (dims.dim, dims.dim))
        return Drawn(Fixed(drawn), dims.weight(named(key, "w"), dims.dim, dims.dim))


class Drawn(eqx.Module):
    drawn: Fixed
    w: jax.Array

    def __call__(self, x, ctx):
        return project(jnp.sin(project(x, self.drawn.value)), self.w)
"""


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def pack(request, trainer, make, text):
    """Three runs in a pack of four: one without heads, one whose mask is ones in training and absent in its file, and
    one that has diverged.
    """
    precision = {"precision": request.param}
    whole = make(text[0], **precision)
    dropped = make(text[0], {"mixer": {"kind": "attention", "num_heads": 2, "drop_heads": [0]}}, **precision)
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
    """Sums of each sequence of the first evaluation batch."""
    sums = pack.program.evaluate_on_host(pack.state.model, windows, count=1)
    return {name: values[:, : windows.tokens.shape[1]] for name, values in sums.items()}


def model_files(pack, config, i):
    model = jax.tree.map(lambda a: a[i], pack.state.model)
    return to_files(model, config.model, vocab_size=pack.source.vocab_size, seq_len=pack.source.seq_len,
                    tokenizer=pack.source.tokenizer)  # fmt: skip


def wrong(pack, **replaced):
    trained, files, windows, measured = pack
    given = {"trained": trained.state.model, "stored": files, "windows": windows, "measured": measured}
    return mismatches(trained.program, **{**given, **replaced})


def test_what_was_trained_is_what_was_saved(pack):
    assert wrong(pack) == {}
    forms = {jax.tree.structure(from_files(files).model) for files in pack[1].values()}
    assert len(forms) == 2  # with a mask, and without


def test_a_saved_model_that_differs_is_told_with_its_losses(pack):
    _, files, _, measured = pack
    saved = from_files(files[1])
    moved = eqx.tree_at(lambda m: m.embedding.weight, saved.model, saved.model.embedding.weight.at[0].add(0.5))
    sizes = {"vocab_size": saved.vocab_size, "seq_len": saved.seq_len}
    found = wrong(pack, stored={**files, 1: to_files(moved, saved.config, tokenizer=None, **sizes)})
    assert set(found) == {1}
    sequence = int(found[1].partition("sequence ")[2].split()[0])
    loss = measured["val"]["nll"][1][sequence] / measured["val"]["weight"][1][sequence]
    assert f"{loss:.6g} in training" in found[1]


def test_runs_whose_files_were_swapped_are_both_told(pack):
    _, files, _, _ = pack
    assert {1, 2} <= set(wrong(pack, stored={**files, 1: files[2], 2: files[1]}))


def test_a_nan_equals_a_nan_and_nothing_else():
    trained = np.array([1.0, np.nan, np.inf, np.nan, 50.0])
    saved = np.array([1.0 + FULL / 2, np.nan, np.inf, 1.0, 50.0 + 25 * FULL])
    apart = loss_differences(trained, saved)
    assert apart[[1, 2]].tolist() == [0, 0]
    assert apart[3] == np.inf
    assert apart[0] == pytest.approx(FULL / 2)
    assert apart[4] == pytest.approx(FULL / 2)  # of a loss above 1, as a share of it


@pytest.mark.parametrize("mesh", [{}, pytest.param({"data": 2}, marks=pytest.mark.slow)], ids=str)
def test_a_run_on_two_devices_is_checked_as_it_was_computed(trainer, make, text, mesh):
    config = make(text[0])
    pack = trainer([config] * 2, text[1], devices=2, **mesh)
    pack.advance(2)
    windows = {"val": pack.program.evaluation_set("val")}
    measured = {"val": first_batch(pack, windows["val"])}
    compiled = pack.program.evaluate._cache_size()
    given = (pack, {i: model_files(pack, config, i) for i in range(2)}, windows, measured)
    assert wrong(given) == {}
    assert pack.program.evaluate._cache_size() == compiled  # the opened models are what the program takes
    assert set(wrong(given, stored={0: given[1][1], 1: given[1][0]})) == {0, 1}


def test_a_run_that_cannot_be_reproduced_has_no_result(tmp_path, monkeypatch, capsys):
    """Its study goes on, ends with exit code 3, and names it; also when it is run again."""
    from taetpu.cli.main import main

    monkeypatch.chdir(tmp_path)
    Path("idea.py").write_text(CLOCK)
    arms = "arms:\n  counting: {model.ffn: counting}\n  features: {model.ffn: features}\nplugins: [idea.py]\n"
    Path("tiny.yaml").write_text(TINY + arms)
    try:
        for _ in range(2):
            monkeypatch.setattr("sys.argv", ["taetpu", "run", "tiny.yaml"])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 3
            told = " ".join(capsys.readouterr().err.split())
            assert "runs/tiny/runs/counting/0-" in told
            assert "does not give the stored val/loss: the loss of sequence" in told
            assert "Traceback" not in told
    finally:
        unregister("idea")
    done = {path.parents[1].name for path in Path("runs/tiny/runs").glob("*/*/result.json")}
    assert done == {"baseline", "features"}


def test_numbers_that_were_drawn_and_not_trained_are_saved(trainer, make, text):
    pack = trainer([make(text[0])], text[1])
    model = jax.tree.map(lambda a: a[0], pack.state.model)
    scale = model.stacks[0].block.mixer.scale.value
    drawn = eqx.tree_at(lambda m: m.stacks[0].block.mixer.scale.value, model, scale * 3)
    sizes = {"vocab_size": text[1].vocab_size, "seq_len": text[1].seq_len}
    opened = from_files(to_files(drawn, make(text[0]).model, tokenizer=None, **sizes)).model
    for name, value in named_constants(drawn).items():
        np.testing.assert_array_equal(named_constants(opened)[name], value)
