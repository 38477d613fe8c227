"""The contestants train the same model with the same FLOPs on the same tokens, and all of them learn."""

import math

import numpy as np
import pytest
import torch
from benchmarks.peers import PEERS, Data, train
from benchmarks.shapes import SHAPES, VOCAB, Shape, baseline
from torch.utils.flop_counter import FlopCounterMode

from taetpu.core.config_parsing import load_config
from taetpu.interop.huggingface import import_config
from taetpu.nn.lm import ModelConfig
from taetpu.spec.study_config import RunConfig
from taetpu.train.model_cost import flops_per_token, num_params

# Of x-transformers, and torch's own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")]

TINY = Shape(dim=16, seq=16, batch=8, layers=2, heads=2)
STEPS = 120


def our_model(shape, text):
    return load_config(ModelConfig, baseline(shape, text, steps=1)["model"]).resolve()


def parameters(peer, shape):
    build = next(iter(PEERS[peer].values()))
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(shape).parameters())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.dim)
def test_parameters_are_those_of_gpt2_and_differ_from_x_transformers_by_named_biases(shape, text):
    ours = num_params(our_model(shape, text), VOCAB, shape.seq)
    assert parameters("gpt2", shape) == parameters("gpt2-tuned", shape) == ours
    norms, attention = (2 * shape.layers + 1) * shape.dim, 4 * shape.layers * shape.dim
    assert parameters("x-transformers", shape) == ours - norms - attention


@pytest.mark.parametrize("peer", ["gpt2", "gpt2-tuned"])
def test_the_model_equals_the_imported_gpt2(peer, text):
    theirs = PEERS[peer]["sdpa"](TINY).config.to_dict()
    assert import_config(theirs).resolve() == our_model(TINY, text)


@pytest.mark.parametrize(
    ("peer", "settings"), [("gpt2", "eager"), ("gpt2-tuned", "eager"), ("x-transformers", "plain")]
)
def test_a_step_has_the_same_flops(peer, settings, text):
    model = PEERS[peer][settings](TINY)
    tokens = torch.zeros(TINY.batch, TINY.seq, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        logits = model(tokens)
        getattr(logits, "logits", logits).sum().backward()
    ours = flops_per_token(our_model(TINY, text), VOCAB, TINY.seq) * TINY.tokens
    assert counter.get_total_flops() == ours


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.dim)
def test_benchmark_products_have_the_flops_of_the_model(shape, text):
    from benchmarks.products import factors, flops

    counted = sum(flops(a, b) for a, b in factors(shape, shape.batch))
    assert counted == flops_per_token(our_model(shape, text), VOCAB, shape.seq) * shape.tokens


def test_tokens_and_splits_are_the_same(text):
    source = load_config(RunConfig, baseline(TINY, text, steps=1)).task.prepare(text.parent)
    assert source.vocab_size == VOCAB
    theirs, windows = Data(text), np.asarray(source.arrays["windows"])
    count = len(windows) * TINY.seq
    assert np.array_equal(windows[:, :-1].ravel(), theirs.train[:count])
    assert len(theirs.train) - count <= TINY.seq
    held_out = source.evaluation("val")
    assert np.array_equal(held_out.tokens.ravel()[held_out.weights.ravel() > 0], theirs.val[:-1])


@pytest.mark.parametrize(
    "peer", [pytest.param(peer, marks=pytest.mark.slow if peer == "gpt2" else pytest.mark.nightly) for peer in PEERS]
)
def test_a_peer_learns(peer, text, tmp_path):
    request = {"threads": 1, "shape": TINY.data, "steps": STEPS, "peer": peer, "settings": next(iter(PEERS[peer])),
               "adamw": "fused", "text": str(text), "seed": 0, "model": str(tmp_path / "model.pt")}  # fmt: skip
    done = train(request)
    assert (len(done["losses"]), len(done["val"])) == (STEPS // 10, 10)
    assert done["val"][-1] == min(done["val"]) < done["val"][0] - 0.3
    assert torch.load(request["model"]).keys()


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"runs": 1}, marks=pytest.mark.nightly),
        pytest.param({"runs": 4}, marks=pytest.mark.nightly),
        pytest.param({"layout": {"width": 4, "devices": 2}}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ours_learns_the_same(more, text):
    from benchmarks.ours import Ours

    ours = Ours(TINY, text, **more)
    assert ours.about["params"] == parameters("gpt2", TINY)
    assert ours.layout.width == more.get("runs", 4)
    first = ours.training.losses.mean()
    assert first == pytest.approx(math.log(VOCAB), abs=0.2)
    window, taken = ours.window(0.0001), ours.training.taken
    assert window["steps"] == taken - 1
    assert window["tokens"] == window["steps"] * TINY.tokens * ours.layout.width
    while ours.training.taken < STEPS:
        window = ours.window(0.05)
    assert window["loss"] < first - 0.3
