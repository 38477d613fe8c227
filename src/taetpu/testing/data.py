"""Checks of tasks and tokenizers."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.data.batches import Batch
from taetpu.data.tokenizers import load_tokenizer
from taetpu.testing.report import Checks, Unmet
from taetpu.testing.tiny import BATCH, same, told

TEXT = "The quick brown fox jumps over the lazy dog.\n\nZwölf Boxkämpfer jagen Viktor, 1234567890 times.\n" * 3
UNSEEN = [chr(code) for code in range(0x4E00, 0x4E10)]


# --- tasks -----------------------------------------------------------------------------------------------------------


def check_task(checks: Checks) -> None:
    """A task's data is a function of its settings, seeds and keys."""
    component: Any = checks.component
    prepared: list[Any] = []
    if not checks.make("prepare", prepare, component, prepared):
        checks.leave("rows", "batch", "evaluation", "prompt")
        return
    source = prepared[0]
    if checks.make("rows", rows, component, source):
        checks.make("batch", batch, component, source)
    else:
        checks.leave("batch")
    checks.make("evaluation", evaluation, component, source)
    checks.make("prompt", prompt, component, source)


def prepare(component: Any, prepared: list[Any]) -> str:
    """Preparing twice gives the same data under the same fingerprint; what is told of it can be stored."""
    at = (component, "prepare")
    prepared += [component.prepare(Path.cwd()) for _ in range(2)]
    one, two = prepared
    for name in ("fingerprint", "evaluated", "unit", "vocab_size", "seq_len"):
        if getattr(one, name) != getattr(two, name):
            raise Unmet(f"preparing twice gives two values of {name}", at=at, remedy="draw data from fixed keys")
    if one.seq_len != component.seq_len:
        raise Unmet(f"seq_len of the source is {one.seq_len}, expected the task's {component.seq_len}", at=at)
    if not isinstance(component.causal, bool):
        raise Unmet(f"causal is {component.causal!r}, expected True or False", at=(component, ""))
    if not isinstance(one.facts, Mapping):
        raise Unmet(f"facts is {one.facts!r}, expected a mapping", at=at)
    try:
        json.dumps(one.facts, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Unmet(f"facts cannot be stored as JSON: {error}", at=at) from None
    return f"{one.vocab_size} tokens, fingerprint {one.fingerprint[:8]} twice"


def rows(component: Any, source: Any) -> str:
    """Which windows a step reads depends on seed and step alone, however steps are asked for."""
    at = (source, "rows")
    whole = source.rows(3, 0, 5, BATCH)
    if told(whole) != f"(5, {BATCH}) int32":
        raise Unmet(f"rows of 5 steps are {told(whole)}, expected (5, {BATCH}) int32", at=at)
    parts = np.concatenate([source.rows(3, 0, 2, BATCH), source.rows(3, 2, 3, BATCH)])
    if not np.array_equal(whole, parts):
        remedy = "make them a function of seed and step number: a resumed run asks from where it was stopped"
        raise Unmet("steps 2 to 4 read other windows when they are asked for by themselves", at=at, remedy=remedy)
    if source.num_windows is not None and (whole.min() < 0 or whole.max() >= source.num_windows):
        raise Unmet(f"rows run from {whole.min()} to {whole.max()} of {source.num_windows} windows", at=at)
    return "a function of seed and step"


def batch(component: Any, source: Any) -> str:
    """A batch has its shapes and types, tokens of the vocabulary, and is the same packed or not."""
    at = (source, "batch")
    windows, keys = jnp.asarray(source.rows(3, 0, 2, BATCH)), jnp.stack([root_key(0), root_key(1)])
    arrays = {name: jnp.asarray(array) for name, array in source.arrays.items()}
    draw = jit_once(lambda w, k: source.batch(arrays, w, k))
    found = [draw(w, k) for w, k in zip(windows, keys, strict=True)]
    expected = [f"({BATCH}, {source.seq_len}) {kind}" for kind in ("int32", "int32", "float32")]
    for name, seen, asked in zip(Batch._fields, map(told, found[0]), expected, strict=True):
        if seen != asked:
            raise Unmet(f"{name} of a batch are {seen}, expected {asked}", at=at)
    for one in found:
        _in_vocabulary(one, source, at)
    again = jit_once(lambda w, k: source.batch(arrays, w, k))(windows[0], keys[0])
    if not same(found[0], again):
        raise Unmet("two batches of the same rows and key differ", at=at, remedy="draw from `key` alone")
    packed = jit_once(jax.vmap(lambda w, k: source.batch(arrays, w, k)))(windows, keys)
    if not same(packed, jax.tree.map(lambda *a: jnp.stack(a), *found)):
        raise Unmet("two runs in one program read other batches than each by itself", at=at)
    return "shapes, and a function of rows and key"


def _in_vocabulary(one: Any, source: Any, at: Any) -> None:
    for name in ("tokens", "targets"):
        ids = np.asarray(getattr(one, name))
        if ids.min() < 0 or ids.max() >= source.vocab_size:
            problem = f"{name} run from {ids.min()} to {ids.max()}, expected 0 to {source.vocab_size - 1}"
            raise Unmet(problem, at=at)
    weights = np.asarray(one.weights)
    if weights.min() < 0 or not weights.any():
        raise Unmet("weights are negative, or all zero", at=at)


def evaluation(component: Any, source: Any) -> str:
    """Evaluation sets hold windows like those of training."""
    at, sizes = (source, "evaluation"), {}
    for split in ("val", "test"):
        data = source.evaluation(split)
        if data is None:
            continue
        shape = (len(data.tokens), source.seq_len)
        for name, kind in (("tokens", "int32"), ("targets", "int32"), ("weights", "float32")):
            if told(getattr(data, name)) != f"{shape} {kind}":
                raise Unmet(f"{name} of {split} are {told(getattr(data, name))}, expected {shape} {kind}", at=at)
        _in_vocabulary(data, source, at)
        sizes[split] = len(data.tokens)
    if not sizes:
        raise Unmet("there is neither val nor test, so that arms could not be compared", at=at)
    return ", ".join(f"{count} windows of {split}" for split, count in sizes.items())


def prompt(component: Any, source: Any) -> str:
    """A sample can be begun and shown."""
    found = np.asarray(source.prompt())
    if found.ndim != 1 or not 1 <= len(found) <= source.seq_len:
        raise Unmet(f"the prompt is {told(found)}, expected 1 to {source.seq_len} tokens", at=(source, "prompt"))
    if not isinstance(source.show(found), str):
        raise Unmet(f"show gives {source.show(found)!r}, expected text", at=(source, "show"))
    return f"{len(found)} tokens"


# --- tokenizers ------------------------------------------------------------------------------------------------------


def check_tokenizer(checks: Checks) -> None:
    """A tokenizer gives back what it was given, also when it is stored and read."""
    component: Any = checks.component
    trained: list[Any] = []
    if not checks.make("train", train, component, trained):
        checks.leave("back", "stored", "escapes")
        return
    checks.make("back", back, trained[0])
    checks.make("stored", stored, trained[0])
    checks.make("escapes", escapes, trained[0])


def train(component: Any, trained: list[Any]) -> str:
    """Training twice gives the same vocabulary."""
    trained += [component.train(TEXT) for _ in range(2)]
    if trained[0].to_json() != trained[1].to_json():
        raise Unmet("training twice on one text gives two tokenizers", at=(component, "train"))
    return f"{trained[0].vocab_size} tokens from {len(TEXT)} characters"


def back(tokenizer: Any) -> str:
    """Encoding gives int32 numbers of the vocabulary, and decoding them gives the text."""
    ids = tokenizer.encode(TEXT)
    if told(ids) != f"({len(ids)},) int32":
        raise Unmet(f"encode gives {told(ids)}, expected ({len(ids)},) int32", at=(tokenizer, "encode"))
    if ids.min() < 0 or ids.max() >= tokenizer.vocab_size:
        problem = f"numbers run from {ids.min()} to {ids.max()}, expected 0 to {tokenizer.vocab_size - 1}"
        raise Unmet(problem, at=(tokenizer, "encode"))
    if (text := tokenizer.decode(ids)) != TEXT:
        at = next((i for i, (a, b) in enumerate(zip(text, TEXT, strict=False)) if a != b), min(len(text), len(TEXT)))
        problem = f"decoding what was encoded gives {text[at : at + 20]!r} at character {at}"
        raise Unmet(f"{problem}, expected {TEXT[at : at + 20]!r}", at=(tokenizer, "decode"))
    return f"{len(ids)} tokens, and the text again"


def stored(tokenizer: Any) -> str:
    """A tokenizer that was stored reads as the one it was: trained models are opened with it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokenizer.json")
        file.write_text(tokenizer.to_json())
        opened = load_tokenizer(file.read_text())
    if not np.array_equal(opened.encode(TEXT), tokenizer.encode(TEXT)):
        raise Unmet("what is read from tokenizer.json encodes otherwise", at=(tokenizer, "to_json"))
    if opened.decode(tokenizer.encode(TEXT)) != tokenizer.decode(tokenizer.encode(TEXT)):
        raise Unmet("what is read from tokenizer.json decodes otherwise", at=(tokenizer, "to_json"))
    return "the same after it was stored"


def escapes(tokenizer: Any) -> str:
    """Text that tokens do not express is charged in bits per byte, which are else not measured."""
    charged = dict[tuple[int, ...], list[float]]()
    for text in (TEXT + character for character in UNSEEN):
        try:
            ids, bits = tokenizer.encode(text), tokenizer.escape_bits(text)
        except UserError:  # such characters are refused
            continue
        if bits is not None:
            charged.setdefault(tuple(ids), []).append(bits)
    for found in charged.values():
        if min(found) < 0 or sum(2.0**-bits for bits in found) > 1:
            problem = f"escape_bits gives {min(found):g} bits for texts of which {len(found)} have the same tokens"
            remedy = f"it takes {np.log2(len(found)):g} bits to tell them apart; None says that there is no code"
            raise Unmet(problem, at=(tokenizer, "escape_bits"), remedy=remedy)
    return f"{sum(map(len, charged.values()))} of {len(UNSEEN)} unseen characters are charged"
