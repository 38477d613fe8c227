"""Texts of masked and prefix language models: what their batches hold, and which settings are refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.suites import by_default
from tests.tokenizer_files import write_tokenizer

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.data import text as text_task
from taetpu.data.base import read_windows
from taetpu.data.text import TextTask
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.spec.study_config import RunConfig

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ate", "it"]
MODEL = {"dim": 8, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}}


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(150)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    rng.integers(0, 20, 2000).astype("<u2").tofile(tmp_path / "train.bin")
    rng.integers(0, 20, 600).astype("<u2").tofile(tmp_path / "val.bin")
    write_tokenizer(tmp_path / "tokenizer.json", "\n".join(lines))
    return tmp_path


def prepared(folder, kind="text", objective="masked-lm", **fields):
    given = {"text": {"source": "lines.txt", "val": 0.2}, "tokens": {"source": ["*.bin"], "vocab_size": 20}}[kind]
    task = build_component("task", {"kind": kind, "seq_len": 24, "objective": objective, **given, **fields})
    return task.prepare(folder)


def first_batch(source, seed=0, size=8):
    arrays, rows = read_windows(source, source.rows(seed, 0, 1, size)[0])
    return jax.tree.map(np.asarray, source.batch(arrays, jnp.asarray(rows), root_key(seed)))


DOCUMENTS = {"samples": "documents", "per": "line", "seq_len": 48}
KINDS = {
    "text": {},
    "documents": DOCUMENTS,
    "segments": {"segments": True, "per": "line"},
    "tokens": {"kind": "tokens"},
}


@pytest.mark.parametrize("kind", by_default(KINDS, "text"))
def test_masked_tokens_are_the_targets(folder, kind):
    source, plain = (prepared(folder, objective=objective, **KINDS[kind]) for objective in ("masked-lm", "causal-lm"))
    mask = source.vocabulary.mask
    assert (source.vocab_size, mask) == (plain.vocab_size + 1, plain.vocab_size)
    batch, before = first_batch(source), first_batch(plain)
    scored = batch.weights > 0
    np.testing.assert_array_equal(batch.targets, before.tokens)
    np.testing.assert_array_equal(batch.tokens[~scored], before.tokens[~scored])
    assert 0 < scored.sum() < 0.5 * (before.weights > 0).sum()
    assert (batch.tokens[scored] == mask).any()
    assert not (scored & (before.weights == 0)).any()
    split, whole = source.evaluation("val"), plain.evaluation("val")
    fixed = split.weights > 0
    assert (split.tokens[fixed] == mask).all()
    np.testing.assert_array_equal(np.where(fixed, split.targets, split.tokens), whole.tokens)
    maskable = (whole.weights > 0) & ~source.vocabulary.special[whole.tokens]
    assert fixed.sum() == round(0.15 * maskable.sum())
    assert split.num_bytes is None


def test_special_tokens_are_not_masked(folder):
    source = prepared(folder, separator="<|endoftext|>", tokenizer={"kind": "file", "path": "tokenizer.json"})
    end = source.tokenizer.number("<|endoftext|>")
    split = source.evaluation("val")
    assert (split.tokens == end).sum() > 10
    assert not ((split.targets == end) & (split.weights > 0)).any()
    numbers = prepared(folder, "tokens", end_token=3)
    batch = first_batch(numbers, size=32)
    assert (batch.tokens == 3).any()
    assert not ((batch.targets == 3) & (batch.weights > 0)).any()


def test_the_mask_token_is_that_of_the_tokenizer_or_is_added(folder):
    added = prepared(folder)
    assert added.tokenizer.number("[MASK]") == added.vocab_size - 1
    again = load_tokenizer(added.tokenizer.to_json())
    assert again.encode("a[MASK]t").tolist() == [*again.encode("a"), added.vocab_size - 1, *again.encode("t")]
    assert again.unit == added.unit
    (folder / "own.json").write_text(added.tokenizer.to_json())
    own = {"kind": "file", "path": "own.json"}
    known = prepared(folder, tokenizer=own)
    assert (known.vocab_size, known.vocabulary.mask) == (added.vocab_size, added.vocab_size - 1)
    named = prepared(folder, tokenizer=own, objective={"kind": "masked-lm", "mask_token": "t"})
    assert named.vocabulary.mask == named.tokenizer.number("t")
    number = prepared(folder, "tokens", objective={"kind": "masked-lm", "mask_token": 7})
    assert (number.vocab_size, number.vocabulary.mask) == (20, 7)
    assert number.show([1, 7]) == "1 [MASK]"


CHANGES = ({"share": 0.4}, {"unit": "word"}, {"span": 3.0}, {"mask": 1.0, "random": 0.0})


def test_all_settings_are_evaluated_on_the_same_masks(folder):
    base = prepared(folder)
    for change in CHANGES:
        other = prepared(folder, objective={"kind": "masked-lm", **change})
        assert other.evaluated == base.evaluated
        assert other.fingerprint != base.fingerprint
        for name in ("tokens", "targets", "weights"):
            same = [getattr(source.evaluation("val"), name) for source in (base, other)]
            np.testing.assert_array_equal(*same)
        assert (first_batch(other).tokens != first_batch(base).tokens).any()
    assert prepared(folder, objective="causal-lm").evaluated != base.evaluated
    assert prepared(folder, objective="prefix-lm").evaluated != base.evaluated


def test_masks_of_further_lengths_are_those_of_the_split(folder):
    source = prepared(folder, eval_lengths=[12])
    short, whole = source.evaluation("val@12"), source.evaluation("val")
    place = min(short.weights.size, whole.weights.size)
    np.testing.assert_array_equal(short.weights.ravel()[:place], whole.weights.ravel()[:place])
    assert source.evaluation("test") is None


@pytest.mark.slow
def test_a_corpus_that_is_not_in_memory_has_the_same_evaluation_masks(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    settings = {"split": "hash", "per": "line", "tokenizer": {"kind": "file", "path": "tokenizer.json"}}
    settings |= {"separator": "<|endoftext|>"}
    small = prepared(folder, **settings)
    monkeypatch.setattr(text_task, "LARGE", 100)
    large = prepared(folder, **settings)
    for name in ("tokens", "targets", "weights"):
        np.testing.assert_array_equal(*(getattr(s.evaluation("val"), name) for s in (small, large)))
    arrays, rows = read_windows(large, np.arange(4))
    assert (np.asarray(large.batch(arrays, rows, root_key(0)).tokens) == large.vocabulary.mask).any()


def test_references_are_those_of_scored_targets(folder):
    source = prepared(folder)
    split, train = source.evaluation("val"), source.inner.streams["train"][:]
    counts = np.bincount(train, minlength=source.vocab_size) + 1
    chances = counts / counts.sum()
    expected = -np.log(chances[split.targets[split.weights > 0]]).mean()
    assert math.isclose(source.facts["decoy_loss"], expected, rel_tol=1e-9)
    assert source.facts["chance_loss"] == math.log(source.vocab_size)
    assert source.facts["scored"] == {"val": int(split.weights.sum())}
    assert "escape_bits" not in source.facts


# --- prefixes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_targets_after_a_prefix_are_scored(folder, fields):
    source, plain = (prepared(folder, objective=objective, **fields) for objective in ("prefix-lm", "causal-lm"))
    batch, before = first_batch(source, size=64), first_batch(plain, size=64)
    np.testing.assert_array_equal(batch.tokens, before.tokens)
    np.testing.assert_array_equal(batch.targets, before.targets)
    for given, whole in ((batch, before.weights), (source.evaluation("val"), plain.evaluation("val").weights)):
        place = np.arange(given.weights.shape[1])
        np.testing.assert_array_equal(given.weights, whole * (place >= given.prefix[:, None] - 1))
        assert (given.weights.sum(1) >= 1).all()
        assert given.prefix.min() >= 1
    assert batch.prefix.min() < 5 < 10 < batch.prefix.max()
    assert source.facts["decoy_loss"] < math.log(source.vocab_size) + 0.5


def test_the_bigram_loss_is_that_of_targets_after_the_prefix(folder):
    source = prepared(folder, "tokens", "prefix-lm")
    split, train = source.evaluation("val"), source.inner.streams["train"][:]
    counts = np.ones((20, 20))
    np.add.at(counts, (train[:-1], train[1:]), 1)
    chances = (counts / counts.sum(1, keepdims=True))[split.tokens, split.targets]
    expected = -np.log(chances[split.weights > 0]).mean()
    assert math.isclose(source.facts["decoy_loss"], expected, rel_tol=1e-6)


# --- pairs -----------------------------------------------------------------------------------------------------------

PAIRS = {"samples": "pairs", "per": "line", "seq_len": 40}


@pytest.mark.slow
def test_half_of_the_pairs_follow_each_other(folder):
    source = prepared(folder, objective="next-sentence", **PAIRS)
    lines = (folder / "lines.txt").read_text().splitlines()
    cls, sep = source.ends
    classes = []
    for given in (source.evaluation("val"), first_batch(source, size=64)):
        for row, target, types, length in zip(
            given.tokens, given.targets[:, 0], given.types, given.lengths, strict=True
        ):
            first, end, middle = np.flatnonzero(row == cls), length - 1, int(np.flatnonzero(row == sep)[0])
            assert (first.tolist(), row[end]) == ([0], sep)
            a, b = (source.tokenizer.decode(row[slice(*part)]) for part in ((1, middle), (middle + 1, end)))
            assert any(a in line for line in lines)
            assert any(b in line for line in lines)
            np.testing.assert_array_equal(types, (np.arange(40) > middle) & (np.arange(40) < length))
            follows = any(a + b in line for line in lines)
            assert follows if target == sep else target == cls
            classes.append(target == sep)
        np.testing.assert_array_equal(given.weights, np.broadcast_to(np.arange(40) == 0, given.weights.shape))
    size = len(source.evaluation("val").tokens)
    assert abs(sum(classes[:size]) - size / 2) <= 0.5
    assert 16 < sum(classes[size:]) < 48
    assert source.facts["decoy_loss"] == math.log(2)


def test_the_second_piece_of_another_document_is_of_another_document(folder):
    (folder / "two.txt").write_text("abcdefghij" * 12 + "\n" + "0123456789" * 12)
    source = prepared(folder, objective="next-sentence", **{**PAIRS, "source": "two.txt", "val": 0})
    for row in source.arrays["other"]:
        first, second, *_ = source.tokenizer.decode(row).removeprefix("[CLS]").split("[SEP]")
        assert first[0].isdigit() != second[0].isdigit()


def test_masked_pairs_score_tokens_in_evaluation_and_the_class_in_training(folder):
    joint, alone = (
        prepared(folder, objective={"kind": "masked-lm", "next_sentence": weight}, **PAIRS) for weight in (1.0, 0.0)
    )
    batch, plain = first_batch(joint), first_batch(alone)
    np.testing.assert_allclose(batch.weights[:, 0], 0.15 * 40, rtol=1e-6)
    np.testing.assert_array_equal(batch.weights[:, 1:], plain.weights[:, 1:])
    assert not plain.weights[:, 0].any()
    np.testing.assert_array_equal(batch.tokens, plain.tokens)
    assert set(batch.targets[:, 0]) == set(joint.inner.ends)
    special = np.isin(batch.targets, joint.inner.ends)
    assert not (batch.weights[:, 1:] * special[:, 1:]).any()
    for name in ("tokens", "targets", "weights", "types"):
        np.testing.assert_array_equal(*(getattr(source.evaluation("val"), name) for source in (joint, alone)))
    assert not joint.evaluation("val").weights[:, 0].any()
    assert joint.evaluated == alone.evaluated
    assert joint.interface.types == 2


REFUSED_PAIRS = {
    "causal": ({"objective": "causal-lm"}, ("objective",), "causal-lm"),
    "prefix": ({"objective": "prefix-lm"}, ("objective",), "prefix-lm"),
    "windows": ({"samples": "windows"}, ("objective",), "next-sentence"),
    "tokens": ({"kind": "tokens"}, ("objective",), "next-sentence"),
    "weight": ({"samples": "windows", "objective": {"kind": "masked-lm", "next_sentence": 2}},
               ("objective", "next_sentence"), "2"),
    "mixture": ({"source": {"lines.txt": 1, "more.txt": 2}}, ("source",), "2"),
    "segments": ({"segments": True}, ("segments",), "pairs"),
    "one document": ({"per": "file"}, ("samples",), "1"),
    "short": ({"seq_len": 4}, ("samples",), "4"),
    "crop": ({"long_documents": "crop"}, ("long_documents",), "crop"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "path", "value"), REFUSED_PAIRS.values(), ids=REFUSED_PAIRS)
def test_settings_that_make_no_pairs_are_refused(folder, fields, path, value):
    (folder / "more.txt").write_text("a\nb\n")
    kind = fields.get("kind", "text")
    pairs = {} if kind == "tokens" else {**PAIRS, "val": 0}
    with pytest.raises(UserError) as caught:
        prepared(folder, **{"objective": "next-sentence", **pairs, **fields})
    assert caught.value.path == path
    assert value in caught.value.problem
    assert caught.value.remedy


# --- refusals --------------------------------------------------------------------------------------------------------

REFUSED = {
    "share 0": ({"share": 0}, ("share",), "0"),
    "share 1": ({"share": 1}, ("share",), "1"),
    "sum": ({"mask": 0.8, "random": 0.3}, ("random",), "0.3"),
    "no mask": ({"mask": 0}, ("mask",), "0"),
    "spans": ({"share": 0.6, "span": 1}, ("share",), "0.6"),
    "short spans": ({"span": 0.5}, ("span",), "0.5"),
}


@pytest.mark.parametrize(("fields", "path", "value"), REFUSED.values(), ids=REFUSED)
def test_settings_are_refused(fields, path, value):
    with pytest.raises(UserError) as caught:
        build_component("task", text({"kind": "masked-lm", **fields}))
    assert caught.value.path == ("objective", *path)
    assert value in caught.value.problem
    assert caught.value.remedy


UNUSABLE = {
    "words of numbers": ("tokens", {"unit": "word"}),
    "unknown token": ("text", {"mask_token": "<hole>"}),
    "large number": ("tokens", {"mask_token": 20}),
    "name without tokenizer": ("tokens", {"mask_token": "m"}),
}


@pytest.mark.parametrize(("kind", "fields"), UNUSABLE.values(), ids=UNUSABLE)
def test_tokens_that_do_not_fit_are_refused(folder, kind, fields):
    with pytest.raises(UserError) as caught:
        prepared(folder, kind, {"kind": "masked-lm", **fields})
    (name, value), *_ = fields.items()
    assert caught.value.path == ("objective", name)
    assert repr(value) in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize("kind", ["squared-error", "reconstruction", "task"])
def test_objectives_of_other_tasks_are_refused(kind):
    with pytest.raises(UserError, match=kind) as caught:
        TextTask(source="a", seq_len=8, objective=build_component("objective", kind))
    assert "masked-lm" in caught.value.remedy


def config(task, mask, **train):
    model = {**MODEL, "mixer": {**MODEL["mixer"], "mask": mask}}
    data = {"task": task, "model": model, "train": {"steps": 2, "batch_size": 2, **train}}
    return load_config(RunConfig, data).resolve()


def text(objective):
    return {"kind": "text", "source": "a", "seq_len": 8, "objective": objective}


MISFITS = {
    "masked, causal": ("masked-lm", "causal", "mask: full"),
    "masked, prefix": ("masked-lm", {"kind": "prefix", "separator": 0}, "mask: full"),
    "prefix, causal": ("prefix-lm", "causal", "mask: prefix"),
    "prefix, full": ("prefix-lm", "full", "mask: prefix"),
    "prefix, separator": ("prefix-lm", {"kind": "prefix", "separator": 0}, "mask: prefix"),
    "causal, full": ("causal-lm", "full", "causal mask"),
    "causal, prefix": ("causal-lm", "prefix", "prefix-lm"),
}


@pytest.mark.parametrize(("objective", "mask", "remedy"), MISFITS.values(), ids=MISFITS)
def test_a_mask_that_does_not_fit_is_refused(objective, mask, remedy):
    with pytest.raises(UserError) as caught:
        config(text(objective), mask).check()
    assert caught.value.path[:4] == ("model", "layers", 0, "mixer")
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(("objective", "mask"), [("masked-lm", "full"), ("prefix-lm", "prefix")])
def test_what_the_objective_scores(objective, mask):
    checked = config(text(objective), mask)
    checked.check()
    assert "val/bits_per_byte" not in checked.metrics()
    assert {"val/loss", "val/accuracy"} <= {*checked.metrics()}
    assert "val/bits_per_byte" in config(text("causal-lm"), "causal").metrics()


def test_heads_and_objectives_in_training_are_refused():
    masked = config(text("masked-lm"), "full").model_copy()
    heads = masked.model.model_copy(update={"heads": {"more": build_component("head", "multi-token")}})
    with pytest.raises(UserError) as caught:
        masked.model_copy(update={"model": heads}).check()
    assert caught.value.path == ("model", "heads")
    with pytest.raises(UserError, match="masked-lm") as caught:
        config(text("causal-lm"), "causal", objective="masked-lm").check()
    assert caught.value.path == ("train", "objective")
    assert "task.objective" in caught.value.remedy


def test_an_objective_at_its_default_changes_no_digest(folder):
    written = prepared(folder, objective="causal-lm")
    plain = build_component("task", {"kind": "text", "seq_len": 24, "source": "lines.txt", "val": 0.2}).prepare(folder)
    assert written.fingerprint == plain.fingerprint
    assert type(written) is type(plain)
