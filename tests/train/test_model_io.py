"""A model that is read from its files is the model that was written."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.model_interface import Interface
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.lens.opening import open_run
from taetpu.nn.named_arrays import named_parameters
from taetpu.train.model_io import from_files, to_files
from taetpu.train.profile import COMPILED
from taetpu.train.trainer import take_run


def files(draw, make, text, settings):
    config = make(text[0], {"num_layers": 2, **settings}).model
    model = draw({"dim": 16, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}, **settings}, vocab=9)
    return model, to_files(model, config, interface=Interface(9), seq_len=8, tokenizer=text[1].tokenizer)


def test_opened_model_computes_the_same_logits(draw, make, text, tmp_path):
    settings = {"layers": {1: {"drop": ["ffn"]}}, "bias": True}
    model, stored = files(draw, make, text, settings)
    (tmp_path / "model").mkdir()
    for name, data in stored.items():
        (tmp_path / "model" / name).write_bytes(data)
    opened = open_run(tmp_path)
    tokens = jnp.arange(8)[None]
    forward = jit_once(lambda m, x: m(x))
    np.testing.assert_array_equal(forward(model, tokens), forward(opened.model, tokens))
    assert opened.tokenizer is not None
    assert opened.tokenizer.decode(opened.tokenizer.encode("the cat")) == "the cat"
    assert load_tokenizer(stored["tokenizer.json"].decode()).vocab_size == text[1].vocab_size


def test_a_run_of_a_pack_is_stored_and_read_without_compilation(draw, make, text):
    """JAX would compile a slice and a copy for every shape. No other test has arrays of these sizes."""
    settings = {"dim": 20, "num_layers": 3, "mixer": {"kind": "attention", "num_heads": 2}}
    model, config, compiled = draw(settings, vocab=9), make(text[0], settings).model, []
    pack = jax.tree.map(lambda array: jax.device_put(np.stack([np.zeros_like(array), array])), model)

    def listen(event, duration_secs, **about):
        if event == COMPILED:
            compiled.append(about)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        stored = to_files(
            jax.tree.map(partial(take_run, run=1), pack), config, interface=Interface(9), seq_len=8, tokenizer=None
        )
        found = from_files(stored).model
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
    assert jax.tree.all(jax.tree.map(np.array_equal, found, model))


def test_weights_are_named_by_layer(draw, make, text):
    model, _ = files(draw, make, text, {})
    assert {"layers.0.mixer.wq", "layers.1.ffn.down", "embedding.weight"} <= set(named_parameters(model))


def test_weights_of_another_model_are_refused(draw, make, text):
    _, stored = files(draw, make, text, {})
    config = json.loads(stored["config.json"])
    config["model"]["dim"] = 32
    with pytest.raises(UserError, match="has shape"):
        from_files({**stored, "config.json": json.dumps(config).encode()})
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        from_files({"config.json": stored["config.json"]}, "somewhere")


@pytest.mark.parametrize("content", [b"{}", b"\xff"])
def test_a_damaged_tokenizer_is_refused(draw, make, text, content):
    _, stored = files(draw, make, text, {})
    with pytest.raises(UserError, match="not a tokenizer") as caught:
        from_files({**stored, "tokenizer.json": content}, "place")
    assert caught.value.file == "place/tokenizer.json"
