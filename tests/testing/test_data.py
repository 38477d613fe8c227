"""Tasks and tokenizers with one fault: each fails the check for this fault."""

import itertools
import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.testing.failing import failing, leaky, line_of

from taetpu.core.registry import kinds
from taetpu.data.base import Batch, Source, Split, Task
from taetpu.testing import check_component

# --- tasks -----------------------------------------------------------------------------------------------------------

CALLS = itertools.count()


class Counting(Task):
    """Tokens count upwards from a window's number; the key says in which steps."""

    slot: ClassVar[str] = "task"
    kind: ClassVar[str] = "counting"
    seq_len: int = 6
    fault: str = ""

    @property
    def causal(self):
        return 1 if self.fault == "causal" else True

    def prepare(self, folder):
        return CountingSource(self.seq_len, self.fault)


class CountingSource(Source):
    vocab_size, num_windows, evaluated, unit, tokenizer = 9, 7, "e", "number", None

    def __init__(self, seq_len, fault):
        self.fault, self.seq_len = fault, seq_len + (fault == "seq_len")
        self.fingerprint = f"f{next(CALLS)}" if fault == "fingerprint" else "f"
        if fault == "gather":
            self.can_gather, self.gather = True, lambda rows: {}
        self.facts = {"facts": [], "nan": {"decoy_loss": float("nan")}}.get(fault, {})

    def rows(self, seed, start, count, batch_size):
        if self.fault == "stateful":
            start = next(CALLS)
        rows = (seed + np.arange(start * batch_size, (start + count) * batch_size)).reshape(count, batch_size)
        rows = rows % (self.num_windows + (self.fault == "beyond"))
        return rows.astype(np.int64 if self.fault == "int64" else np.int32)

    def batch(self, arrays, rows, key):
        step = leaky(jax.random.bits(key)) if self.fault == "batch packs" else jax.random.bits(key)
        if self.fault == "numpy":
            step = np.uint32(next(CALLS))
        stream = rows[:, None] + jnp.arange(self.seq_len + 1) * (1 + step % 5).astype(jnp.int32)
        stream = stream % (self.vocab_size + (self.fault == "vocabulary"))
        weights = jnp.full(rows.shape, 1.0)[:, None] * jnp.ones(self.seq_len, jnp.float32)
        if self.fault == "one weight":
            weights = weights[:, :1]
        return Batch(stream[:, :-1], stream[:, 1:], weights - 2.0 if self.fault == "weights" else weights)

    def evaluation(self, split):
        if split == "test" or self.fault == "no splits":
            return None
        tokens = (np.arange(3)[:, None] + np.arange(self.seq_len, dtype=np.int32)) % self.vocab_size
        tokens = tokens.astype(np.int32)
        weights = np.zeros(tokens.shape, np.float32) if self.fault == "weightless" else np.ones_like(tokens, np.float32)
        return Split(tokens[:, :-1] if self.fault == "short" else tokens, tokens, weights, None)

    def prompt(self):
        return np.zeros(self.seq_len + 1 if self.fault == "prompt" else 2, np.int32)

    def show(self, ids):
        return None if self.fault == "show" else " ".join(map(str, ids))


TASK = [
    ("fingerprint", "prepare", "two preparations .*fingerprint"),
    ("seq_len", "prepare", "seq_len of the source is 7, expected the task's 6"),
    ("causal", "prepare", "causal is 1, expected True or False"),
    ("facts", "prepare", r"facts is \[\], expected a mapping"),
    ("nan", "prepare", "facts cannot .*JSON: .*float values"),
    ("int64", "rows", r"rows of 5 steps are \(5, 2\) int64, expected \(5, 2\) int32"),
    ("stateful", "rows", "steps 2 to 4 .*different windows"),
    ("beyond", "rows", "rows range from 0 to 7 for 7 windows"),
    ("one weight", "batch", r"weights of a batch are \(2, 1\) float32, expected \(2, 6\) float32"),
    ("vocabulary", "batch", "(tokens|targets) range from [0-9] to 9, expected 0 to 8"),
    ("weights", "batch", "weights .*negative"),
    ("numpy", "batch", "two calls .*key .*different batches"),
    ("batch packs", "batch", "two packed runs .*different batches"),
    ("gather", "batch", "the batch .*gather.* differs"),
    ("short", "evaluation", r"tokens of val are \(3, 5\) int32, expected \(3, 6\) int32"),
    ("weightless", "evaluation", "weights .*negative"),
    ("no splits", "evaluation", "the task .* val nor .*test split"),
    ("prompt", "prompt", r"the prompt is \(7,\) int32, expected 1 to 6 tokens"),
    ("show", "prompt", "show returns None, expected text"),
]


@pytest.mark.parametrize(("fault", "check", "message"), TASK, ids=[row[0] for row in TASK])
def test_faults_of_a_task_are_reported(fault, check, message):
    (found,) = failing(Counting(fault=fault)).values()
    assert found.check == check
    assert re.match(message, found.message)
    if check in ("rows", "batch", "evaluation"):
        assert line_of(getattr(CountingSource, check), f"def {check}") in found.where
    else:
        assert "test_data.py:" in found.where


def test_a_correct_task_passes():
    assert not check_component("task", Counting()).failed


# --- tokenizers ------------------------------------------------------------------------------------------------------


class Bytes(kinds("tokenizer")["byte"]):
    """UTF-8, with one fault."""

    kind: ClassVar[str] = "bytes-with-a-fault"
    fault: str = ""

    def train(self, text):
        return Faulty(super().train(text), self.fault)


class Faulty:
    def __init__(self, inner, fault):
        self.inner, self.fault, self.vocab_size = inner, fault, 150 if fault == "vocabulary" else inner.vocab_size

    def encode(self, text):
        ids = self.inner.encode(text.lower() if self.fault == "lower" else text)
        ids = ids[::-1] if self.fault == "reversed" else ids
        ids = np.where(ids // 16 == 8, 0x80, ids) if self.fault == "lossy" else ids
        return ids.astype(np.int64) if self.fault == "int64" else ids

    def decode(self, ids):
        return self.inner.decode(ids[::-1] if self.fault == "reversed" else ids) + "." * (self.fault == "decode")

    def escape_bits(self, text):
        return self.inner.escape_bits(text)

    def to_json(self):
        return str(next(CALLS)) if self.fault == "train" else self.inner.to_json()


TOKENIZER = [
    ("train", "train", "training twice .*different tokenizers"),
    ("int64", "round trip", r"encode returns \((\d+),\) int64, expected \(\1,\) int32"),
    ("vocabulary", "round trip", r"ids range from 10 to 195, expected 0 to 149"),
    ("lower", "round trip", "decoding .* 'the quick .* at character 0, expected 'The"),
    ("decode", "round trip", r"decoding .* '\.' at character \d+, expected ''"),
    ("decode", "reload", "the tokenizer .* tokenizer.json decodes"),
    ("reversed", "reload", "the tokenizer .* tokenizer.json encodes"),
    ("lossy", "escape bits", "escape_bits returns 0 bits for 16 texts"),
]


@pytest.mark.parametrize(("fault", "check", "message"), TOKENIZER, ids=[f"{row[0]}-{row[1]}" for row in TOKENIZER])
def test_faults_of_a_tokenizer_are_reported(fault, check, message):
    found = failing(Bytes(fault=fault))
    assert set(found) == ({"round trip", "reload"} if fault in ("decode", "lower") else {check})
    assert re.match(message, found[check].message)
    assert "test_data.py:" in found[check].where
