"""Every Hugging Face class and its imported model have the same logits, in both directions, padded and cached."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tests.interop.cases import (
    CASES,
    CLASSES,
    ENCODERS,
    LANGUAGE,
    LAST_CLASSES,
    MAIN,
    PADDING,
    SEQ,
    TOKENS,
    arrays,
    forward,
    imported,
    their_logits,
    theirs,
)
from tests.suites import by_default

from taetpu.core.jit import jit_once
from taetpu.interop.comparison import Comparable
from taetpu.interop.exporting import save_folder, to_huggingface
from taetpu.interop.families import FAMILIES, READ
from taetpu.interop.families.gemma import MULTIMODAL
from taetpu.interop.huggingface import from_huggingface, load_folder
from taetpu.nn.cache import empty_cache, extend
from taetpu.nn.named_arrays import named_parameters

BOUND = 5e-5


RIGHT = PADDING[:, ::-1].copy()
"""The second sequence is padded on the right."""


def export_options(hf) -> dict:
    """Return the options with which a model is exported as the Hugging Face model that it was read from."""
    length = getattr(hf.config, "max_position_embeddings", SEQ)
    return {
        "family": hf.config.model_type, "seq_len": length, "special_tokens": {"pad_token_id": hf.config.pad_token_id},
    }  # fmt: skip


def test_every_family_has_a_case():
    types = {theirs(case).config.model_type for case in MAIN}
    assert types == set(FAMILIES)


@pytest.mark.parametrize("case", by_default(LANGUAGE, "gemma3", "roberta"))
def test_same_logits_with_left_padding(case):
    hf, model = theirs(case), imported(case)[1]
    found = forward(model, TOKENS, PADDING)
    np.testing.assert_allclose(found[0], their_logits(hf)[0], atol=BOUND)
    expected = their_logits(hf, padding=PADDING)
    np.testing.assert_allclose(found[~PADDING], expected[~PADDING], atol=BOUND)


@pytest.mark.parametrize("case", by_default(ENCODERS, "bert", "bert-classes"))
def test_encoders_have_the_same_logits_with_right_padding(case):
    """The classes of a sequence are those of its first position."""
    found, expected = forward(imported(case)[1], TOKENS, RIGHT), their_logits(theirs(case), padding=RIGHT)
    ours, wanted = (found[:, 0], expected) if case in CLASSES else (found[~RIGHT], expected[~RIGHT])
    np.testing.assert_allclose(ours, wanted, atol=BOUND)
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("case", by_default(LAST_CLASSES, "gpt2-classes", "llama-classes"))
def test_classes_of_the_last_token_are_those_of_transformers(case):
    hf, model = theirs(case), imported(case)[1]
    tokens = np.where(RIGHT, hf.config.pad_token_id, TOKENS)
    found, expected = forward(model, tokens, RIGHT), their_logits(hf, tokens, RIGHT)
    np.testing.assert_allclose(found[[0, 1], (~RIGHT).sum(-1) - 1], expected, atol=BOUND)
    assert np.abs(expected).max() > 0.1


@pytest.mark.slow
def test_the_types_of_tokens_are_those_of_bert():
    hf, model = theirs("bert"), imported("bert")[1]
    types = np.arange(TOKENS.size).reshape(TOKENS.shape) % 3
    with torch.no_grad():
        expected = hf(torch.tensor(TOKENS, dtype=torch.long), token_type_ids=torch.tensor(types)).logits.numpy()
    np.testing.assert_allclose(model(jnp.asarray(TOKENS), types=jnp.asarray(types)), expected, atol=BOUND)
    assert np.abs(expected - their_logits(hf)).max() > 0.1


@pytest.mark.parametrize(
    "case", by_default(CASES, "gpt2", "neox", "gemma3", "bert", "roberta-classes", "llama-classes")
)
def test_import_export_import_gives_equal_tensors(case):
    hf = theirs(case)
    before = arrays(hf)
    config, model = imported(case)
    kind = hf.config.model_type
    settings, tensors = to_huggingface(config, model, **export_options(hf))
    assert (settings["model_type"], settings["architectures"]) == (kind, [type(hf).__name__])
    for name, tensor in tensors.items():
        theirs_name = "lm_head.weight" if name == "embed_out.weight" else name
        np.testing.assert_array_equal(tensor, before[theirs_name], err_msg=name)
    tied = getattr(hf, "_tied_weights_keys", None) or {}
    assert len(before) - len(tensors) == hf.config.tie_word_embeddings * len(tied)
    config_again, model_again = from_huggingface(settings, tensors)
    assert Comparable(config_again.resolve()).layers == Comparable(config.resolve()).layers
    assert jax.tree.all(jax.tree.map(np.array_equal, model_again, model))


@pytest.mark.slow
@pytest.mark.parametrize("case", by_default(CASES, "gpt-oss", "gemma3", "neox", "modernbert", "roberta"))
def test_transformers_reads_an_exported_folder(case, tmp_path):
    hf = theirs(case)
    config, model = imported(case)
    save_folder(tmp_path / "ours", config, model, **export_options(hf))
    again, report = type(hf).from_pretrained(
        tmp_path / "ours", attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    np.testing.assert_allclose(their_logits(again.eval()), their_logits(hf), atol=1e-5)
    folder = tmp_path / "theirs"
    again.save_pretrained(folder)
    _, model_again = load_folder(folder)
    assert jax.tree.all(jax.tree.map(np.array_equal, model_again, model))


@pytest.mark.slow
@pytest.mark.parametrize("case", by_default([case for case in LANGUAGE if case not in ENCODERS], "gemma3"))
def test_cached_decoding_with_left_padding(case):
    """A prompt of 8 tokens is read at once, and the other tokens one by one."""
    hf, model = theirs(case), imported(case)[1]
    expected = their_logits(hf, padding=PADDING)
    read = jit_once(lambda model, tokens, cache, padding: extend(model, tokens, cache, padding=padding))
    logits, cache = read(model, TOKENS[:, :8], empty_cache(model, 2, SEQ), PADDING[:, :8])
    np.testing.assert_allclose(logits[~PADDING[:, :8]], expected[:, :8][~PADDING[:, :8]], atol=BOUND)
    step = jit_once(extend)
    for i in range(8, SEQ):
        logits, cache = step(model, TOKENS[:, i : i + 1], cache)
        np.testing.assert_allclose(logits[:, 0], expected[:, i], atol=BOUND)


@pytest.mark.parametrize("case", by_default(MAIN, "gpt2", "gemma3", "gpt-oss", "mamba2", "bert"))
def test_number_of_parameters(case):
    ours = named_parameters(imported(case)[1])
    unread = 2 * 16 if case in ("opt", "roberta") else 0  # the rows of padding in the table of positions
    assert sum(array.size for array in ours.values()) == theirs(case).num_parameters() - unread


def test_the_page_lists_every_family():
    page = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows[1:] for name in re.findall(r"`(\w+)`", row)} == {*READ, *MULTIMODAL}
