"""Checks for tasks and tokenizers."""

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
from taetpu.data.base import Batch, read_windows
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.testing.report import CheckFailed, Checks
from taetpu.testing.tiny import BATCH, describe_array, identical, stack_trees

TEXT = "The quick brown fox jumps over the lazy dog.\n\nZwölf Boxkämpfer jagen Viktor, 1234567890 times.\n" * 3
UNSEEN = [chr(code) for code in range(0x4E00, 0x4E10)]


# --- tasks -----------------------------------------------------------------------------------------------------------


def check_task(checks: Checks) -> None:
    """Run all checks for a task."""
    component: Any = checks.component
    prepared: list[Any] = []
    checks.run("prepare", check_prepare, component, prepared)
    checks.run("rows", check_rows, *prepared, after="prepare")
    checks.run("batch", check_batch, component, *prepared, after="rows")
    checks.run("evaluation", check_evaluation, component, *prepared, after="prepare")
    checks.run("prompt", check_prompt, *prepared, after="prepare")


def check_prepare(component: Any, prepared: list[Any]) -> str:
    """Check that two preparations agree and that `facts` is valid JSON; append both sources to `prepared`."""
    at = (component, "prepare")
    first, second = (component.prepare(Path.cwd()) for _ in range(2))
    prepared.append(first)
    for name in ("fingerprint", "evaluated", "unit", "vocab_size", "seq_len"):
        if getattr(first, name) != getattr(second, name):
            raise CheckFailed(f"two preparations differ in {name}", at=at, remedy="Draw data from fixed keys.")
    if first.seq_len != component.seq_len:
        raise CheckFailed(f"seq_len of the source is {first.seq_len}, expected the task's {component.seq_len}", at=at)
    if not isinstance(component.causal, bool):
        raise CheckFailed(f"causal is {component.causal!r}, expected True or False", at=(component, ""))
    if not isinstance(first.facts, Mapping):
        raise CheckFailed(f"facts is {first.facts!r}, expected a mapping", at=at)
    try:
        json.dumps(first.facts, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"facts cannot be stored as JSON: {error}", at=at) from None
    return f"{first.interface}, fingerprint {first.fingerprint[:8]} in both preparations"


def check_rows(source: Any) -> str:
    """Check that the windows of a step depend only on the seed and the step, not on the requested range of steps."""
    at = (source, "rows")
    whole = source.rows(3, 0, 5, BATCH)
    if describe_array(whole) != f"(5, {BATCH}) int32":
        raise CheckFailed(f"rows of 5 steps are {describe_array(whole)}, expected (5, {BATCH}) int32", at=at)
    parts = np.concatenate([source.rows(3, 0, 2, BATCH), source.rows(3, 2, 3, BATCH)])
    if not np.array_equal(whole, parts):
        remedy = "Compute rows from seed and step number, because a resumed run requests only the remaining steps."
        raise CheckFailed("steps 2 to 4 read different windows when requested alone", at=at, remedy=remedy)
    if source.num_windows is not None and (whole.min() < 0 or whole.max() >= source.num_windows):
        raise CheckFailed(f"rows range from {whole.min()} to {whole.max()} for {source.num_windows} windows", at=at)
    return "rows depend only on seed and step"


def check_batch(component: Any, source: Any) -> str:
    """Check shapes, dtypes and token ids of a batch, and that packed and single runs read identical batches."""
    at = (source, "batch")
    windows, keys = jnp.asarray(source.rows(3, 0, 2, BATCH)), jnp.stack([root_key(0), root_key(1)])
    arrays = {name: jnp.asarray(array) for name, array in source.arrays.items()}
    draw = jit_once(lambda w, k: source.batch(arrays, w, k))
    batches = [draw(w, k) for w, k in zip(windows, keys, strict=True)]
    _check_arrays("a batch", batches[0], component, source, at)
    for batch in batches:
        _check_values(batch, source, at)
    again = jit_once(lambda w, k: source.batch(arrays, w, k))(windows[0], keys[0])
    if not identical(batches[0], again):
        problem = "two calls with the same window indices and key return different batches"
        raise CheckFailed(problem, at=at, remedy="Draw only from `key`.")
    packed = jit_once(jax.vmap(lambda w, k: source.batch(arrays, w, k)))(windows, keys)
    if not identical(packed, stack_trees(*batches)):
        raise CheckFailed("two packed runs read different batches than the same runs alone", at=at)
    if source.can_gather:
        parts, places = read_windows(source, np.asarray(windows[0]))
        parts = {name: jnp.asarray(part) for name, part in parts.items()}
        if not identical(batches[0], jit_once(lambda w, k: source.batch(parts, w, k))(places, keys[0])):
            problem = "the batch of the windows that `gather` returns differs from the batch of their indices"
            raise CheckFailed(problem, at=at, remedy="Read windows in `batch` from `arrays` only.")
    return "shapes and dtypes are valid, and batches depend only on window indices and key"


def _check_arrays(what: str, batch: Batch, component: Any, source: Any, at: Any) -> None:
    wanted = component.batch.shapes(source.interface, len(batch.tokens), source.seq_len)
    for name, actual, expected in zip(Batch._fields, batch, wanted, strict=True):
        if describe_array(actual) != describe_array(expected):
            problem = f"{name} of {what} are {describe_array(actual)}, expected {describe_array(expected)}"
            raise CheckFailed(problem, at=at)


def _check_values(batch: Batch, source: Any, at: Any) -> None:
    sizes = {"tokens": source.interface.vocab_size, "targets": source.interface.output_size}
    for name, size in {**sizes, "types": source.interface.types, "lengths": source.seq_len + 1}.items():
        values = getattr(batch, name)
        if values is None:
            continue
        ids = np.asarray(values)
        if ids.dtype.kind == "f" and not np.isfinite(ids).all():
            raise CheckFailed(f"{name} are not finite", at=at)
        if ids.dtype.kind == "i" and (ids.min() < 0 or ids.max() >= size):
            problem = f"{name} range from {ids.min()} to {ids.max()}, expected 0 to {size - 1}"
            raise CheckFailed(problem, at=at)
    weights, padding = np.asarray(batch.weights), batch.context["padding"]
    if weights.min() < 0 or not weights.any():
        raise CheckFailed("weights are negative or all zero", at=at)
    if padding is not None and weights[np.asarray(padding)].any():
        raise CheckFailed("padding has weights other than 0", at=at, remedy="Score only positions below `lengths`.")


def check_evaluation(component: Any, source: Any) -> str:
    """Check that evaluation splits have the shapes and dtypes of training windows, and that at least one exists."""
    at, sizes = (source, "evaluation"), {}
    for split in ("val", "test"):
        data = source.evaluation(split)
        if data is None:
            continue
        _check_arrays(split, data.batch, component, source, at)
        _check_values(data.batch, source, at)
        sizes[split] = len(data.tokens)
    if not sizes:
        raise CheckFailed("the task has neither a val nor a test split, so arms cannot be compared", at=at)
    return ", ".join(f"{count} windows of {split}" for split, count in sizes.items())


def check_prompt(source: Any) -> str:
    """Check the shape of the prompt for sampling, and that tokens can be shown as text."""
    if not source.interface.is_language_model:
        return "not needed: the model does not generate tokens"
    prompt = np.asarray(source.prompt())
    if prompt.ndim != 1 or not 1 <= len(prompt) <= source.seq_len:
        raise CheckFailed(
            f"the prompt is {describe_array(prompt)}, expected 1 to {source.seq_len} tokens", at=(source, "prompt")
        )
    if not isinstance(source.show(prompt), str):
        raise CheckFailed(f"show returns {source.show(prompt)!r}, expected text", at=(source, "show"))
    return f"{len(prompt)} tokens"


# --- tokenizers ------------------------------------------------------------------------------------------------------


def check_tokenizer(checks: Checks) -> None:
    """Run all checks for a tokenizer."""
    component: Any = checks.component
    trained: list[Any] = []
    checks.run("train", check_train, component, trained)
    checks.run("round trip", check_round_trip, *trained, after="train")
    checks.run("reload", check_reload, *trained, after="train")
    checks.run("escape bits", check_escape_bits, *trained, after="train")


def check_train(component: Any, trained: list[Any]) -> str:
    """Check that training twice gives the same tokenizer; append both tokenizers to `trained`."""
    first, second = (component.train(TEXT) for _ in range(2))
    trained.append(first)
    if first.to_json() != second.to_json():
        raise CheckFailed("training twice on the same text gives different tokenizers", at=(component, "train"))
    return f"{first.vocab_size} tokens from {len(TEXT)} characters"


def check_round_trip(tokenizer: Any) -> str:
    """Check that encoding returns int32 ids in the vocabulary, and that decoding the ids restores the text."""
    ids = tokenizer.encode(TEXT)
    if describe_array(ids) != f"({len(ids)},) int32":
        raise CheckFailed(
            f"encode returns {describe_array(ids)}, expected ({len(ids)},) int32", at=(tokenizer, "encode")
        )
    if ids.min() < 0 or ids.max() >= tokenizer.vocab_size:
        problem = f"ids range from {ids.min()} to {ids.max()}, expected 0 to {tokenizer.vocab_size - 1}"
        raise CheckFailed(problem, at=(tokenizer, "encode"))
    if (text := tokenizer.decode(ids)) != TEXT:
        at = next((i for i, (a, b) in enumerate(zip(text, TEXT, strict=False)) if a != b), min(len(text), len(TEXT)))
        problem = f"decoding the encoded text returns {text[at : at + 20]!r} at character {at}"
        raise CheckFailed(f"{problem}, expected {TEXT[at : at + 20]!r}", at=(tokenizer, "decode"))
    return f"{len(ids)} tokens decode to the text"


def check_reload(tokenizer: Any) -> str:
    """Check that a tokenizer loaded from tokenizer.json, as in `open_run`, agrees with the trained tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokenizer.json")
        file.write_text(tokenizer.to_json(), encoding="utf-8")
        opened = load_tokenizer(file.read_text(encoding="utf-8"))
    if not np.array_equal(opened.encode(TEXT), tokenizer.encode(TEXT)):
        raise CheckFailed("the tokenizer read from tokenizer.json encodes differently", at=(tokenizer, "to_json"))
    if opened.decode(tokenizer.encode(TEXT)) != tokenizer.decode(tokenizer.encode(TEXT)):
        raise CheckFailed("the tokenizer read from tokenizer.json decodes differently", at=(tokenizer, "to_json"))
    return "tokenizer.json restores the tokenizer"


def check_escape_bits(tokenizer: Any) -> str:
    """Check that `escape_bits` returns enough bits to distinguish the texts that encode to the same tokens."""
    charged = dict[tuple[int, ...], list[float]]()
    for text in (TEXT + character for character in UNSEEN):
        try:
            ids, bits = tokenizer.encode(text), tokenizer.escape_bits(text)
        except UserError:  # the tokenizer rejects this character
            continue
        if bits is not None:
            charged.setdefault(tuple(ids), []).append(bits)
    for bits_of_texts in charged.values():
        if min(bits_of_texts) < 0 or sum(2.0**-bits for bits in bits_of_texts) > 1:
            problem = (
                f"escape_bits returns {min(bits_of_texts):g} bits for {len(bits_of_texts)} texts with the same tokens"
            )
            remedy = f"Return at least {np.log2(len(bits_of_texts)):g} bits, or None if there is no code."
            raise CheckFailed(problem, at=(tokenizer, "escape_bits"), remedy=remedy)
    return f"escape_bits returns a cost for {sum(map(len, charged.values()))} of {len(UNSEEN)} unseen characters"
