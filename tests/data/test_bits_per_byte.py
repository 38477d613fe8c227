"""Bits per byte are the length of a code for the whole raw text, for every tokenizer."""

import itertools
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.text import TextTask
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.characters import UNK, CharConfig, CharTokenizer
from taetpu.data.tokenizers.library import LibraryTokenizer
from taetpu.train.metric_series import metrics_from_sums

TOKENIZERS = [
    {"kind": "char"},
    {"kind": "char", "unseen": "drop"},
    {"kind": "char", "unseen": "error"},
    {"kind": "byte"},
    {"kind": "bpe", "vocab_size": 260},
]
ALPHABET = "ab\u00e9\u4f60\U0001f600\ufffd\n"
kinds = st.sampled_from(TOKENIZERS)
texts = st.text(alphabet=ALPHABET, min_size=1, max_size=30)


def trained(config: dict[str, Any], text: str) -> Tokenizer:
    return build_component("tokenizer", config).train(text)  # pyright: ignore[reportAttributeAccessIssue]


def bits(tokenizer: Tokenizer, text: str, chances: np.ndarray) -> float:
    """Return the code length of `text` for a model with these token probabilities; infinity without a code."""
    try:
        ids, escape = tokenizer.encode(text), tokenizer.escape_bits(text)
    except UserError:
        return math.inf
    return math.inf if escape is None else float(-np.log2(chances[ids]).sum()) + escape


@settings(deadline=None, max_examples=60)
@given(
    config=kinds,
    training=texts,
    alphabet=st.sets(st.sampled_from(ALPHABET), min_size=1, max_size=4),
    length=st.integers(1, 4),
    sharpness=st.sampled_from([0.0, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_bits_of_texts_satisfy_krafts_inequality(config, training, alphabet, length, sharpness, seed):
    """For every model, the sum of 2^-bits over all texts of a length is at most 1.

    A tokenizer under which a character costs less than it takes to say which one it is breaks it.
    """
    tokenizer = trained(config, training)
    scores = sharpness * np.random.default_rng(seed).normal(size=tokenizer.vocab_size)
    chances = np.exp(scores - scores.max())
    chances = chances / chances.sum() + 1e-300
    every = map("".join, itertools.product(sorted(alphabet), repeat=length))
    assert sum(2.0 ** -bits(tokenizer, text, chances) for text in every) <= 1 + 1e-6


@settings(deadline=None, max_examples=60)
@given(config=kinds, training=texts, text=texts)
def test_an_unseen_character_costs_its_bytes_or_leaves_no_code(config, training, text):
    tokenizer = trained(config, training)
    unseen = "".join(c for c in text if c not in training)
    if config["kind"] != "char":
        assert tokenizer.escape_bits(text) == 0
    elif config.get("unseen") == "error" and unseen:
        with pytest.raises(UserError):
            tokenizer.escape_bits(text)
    elif config.get("unseen") == "drop" and unseen:
        assert tokenizer.escape_bits(text) is None
    elif UNK not in text:
        assert tokenizer.escape_bits(text) == 8 * len(unseen.encode())


@settings(deadline=None, max_examples=40)
@given(config=kinds, text=st.text(alphabet=ALPHABET, min_size=60, max_size=120), seq_len=st.integers(1, 9))
def test_bits_are_divided_by_the_bytes_of_the_raw_text(config, text, seq_len, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "raw.txt"
    file.write_bytes(text.encode())
    task = {"kind": "text", "source": str(file), "seq_len": seq_len, "tokenizer": config, "val": 0.25, "test": 0.25}
    raw = {"val": text[len(text) // 2 : int(len(text) * 0.75)], "test": text[int(len(text) * 0.75) :]}
    try:
        source = prepared(task)
    except UserError:  # too few tokens for a window, a blank file, or a refused character
        return
    for name, expected in raw.items():
        split, escape = source.evaluation(name), source.tokenizer.escape_bits(expected)
        assert (split.weights > 0).sum() == len(source.tokenizer.encode(expected)) - 1
        assert split.num_bytes == (None if escape is None else len(expected.encode()))
        assert split.unpredicted_bits == math.log2(source.vocab_size) + (escape or 0)


def prepared(fields: dict[str, Any], folder: Path = Path()) -> Any:
    return build_component("task", fields).prepare(folder)  # pyright: ignore[reportAttributeAccessIssue]


def score(folder: Path, tokenizer: object) -> float | None:
    """Return the bits per byte of a perfect model, which are the bits that no target contains."""
    source = prepared({"kind": "text", "source": "t.txt", "seq_len": 8, "tokenizer": tokenizer, "val": 0.5}, folder)
    split = source.evaluation("val")
    sums = {"nll": 0.0, "correct": 0.0, "weight": float(split.weights.sum())}
    return metrics_from_sums(sums, "val", split).get("val/bits_per_byte")


def test_dropping_characters_does_not_improve_bits_per_byte(tmp_path):
    hard = "".join(chr(0x4E00 + i) + "a" for i in range(100))
    (tmp_path / "t.txt").write_text("a" * len(hard) + hard)
    unk, drop, byte = (score(tmp_path, made) for made in ("char", {"kind": "char", "unseen": "drop"}, "byte"))
    assert drop is None
    assert byte == pytest.approx(8 / 400)  # the first one
    assert unk == pytest.approx((1 + 8 * 300) / 400)  # the first of two tokens; three of four bytes are unseen


class Lowered(CharTokenizer):
    """A tokenizer of a plug-in that loses capitals without reporting it."""

    def encode(self, text: str) -> np.ndarray:
        return super().encode(text.lower())


class LoweredConfig(CharConfig):
    kind: ClassVar[str] = "lowered"

    def train(self, text: str) -> Tokenizer:
        return Lowered(hf.Tokenizer.from_str(super().train(text).to_json()))


class StartedConfig(CharConfig):
    kind: ClassVar[str] = "started"

    def train(self, text: str) -> Tokenizer:
        inner = hf.Tokenizer.from_str(super().train(text).to_json())
        inner.add_special_tokens(["<s>"])
        start = ("<s>", inner.token_to_id("<s>"))
        inner.post_processor = hf.processors.TemplateProcessing(single="<s> $A", special_tokens=[start])
        return LibraryTokenizer(inner)


def test_a_token_that_starts_every_text_costs_no_bits(tmp_path):
    (tmp_path / "t.txt").write_text("the cat sat. " * 20)
    task = TextTask(source="t.txt", seq_len=8, val=0.3, tokenizer=StartedConfig())
    split = task.prepare(tmp_path).evaluation("val")
    assert (split.weights > 0).sum() == split.num_bytes == 78
    assert split.unpredicted_bits == 0.0


def test_a_tokenizer_that_loses_text_is_not_measured_in_bits_per_byte(tmp_path):
    (tmp_path / "t.txt").write_text("the cat sat. The Cat Sat. " * 10)
    source = TextTask(source="t.txt", seq_len=8, val=0.3, tokenizer=LoweredConfig()).prepare(tmp_path)
    assert source.evaluation("val").num_bytes is None
