"""Synthetic tasks: targets against a plain-Python oracle, decoy scores against counting, lengths, and errors."""

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.data.base import Batch, Source
from taetpu.data.synthetic import attention_free_bound

ANSWERS = ("copy", "reverse", "sort", "histogram")
CASES = [*((kind, form) for kind in ANSWERS for form in ("causal", "encoder")), ("induction", None)]
SEQ_LEN = 12


def prepared(kind: str, form: str | None = None, **fields: Any) -> Source:
    config = {"kind": kind, "seq_len": SEQ_LEN, "symbols": 5, "eval_size": 64, **fields}
    task = build_component("task", config if form is None else {**config, "form": form})
    assert task.causal == (form != "encoder")  # pyright: ignore[reportAttributeAccessIssue]
    return task.prepare(Path())  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(filter(None, case)))
def drawn(request: pytest.FixtureRequest) -> tuple[str, str | None, Source, Batch]:
    kind, form = request.param
    source = prepared(kind, form)
    batch = jit_once(source.batch)({}, jnp.zeros(8_000, jnp.int32), jax.random.key(1))
    return kind, form, source, jax.tree.map(np.asarray, batch)


def answers(kind: str, question: list[str]) -> list[str]:
    if kind == "copy":
        return question
    if kind == "reverse":
        return question[::-1]
    if kind == "sort":
        return sorted(question)
    return [str(Counter(question)[symbol]) for symbol in question]


def expected(kind: str, form: str | None, tokens: list[str]) -> tuple[list[str], list[float]]:
    """Return the names of targets and the weights, computed from the tokens by plain Python."""
    body = [name for name in tokens if name != "<pad>"]
    assert body[0] == "<bos>"
    if kind == "induction":
        length = len(set(body)) - 1
        whole = ["<bos>", *body[1 : length + 1], *body[1 : length + 1]]
        scored = range(length + 2, len(whole))
    elif form == "causal":
        question = body[1 : body.index("<sep>")]
        whole = ["<bos>", *question, "<sep>", *answers(kind, question), "<eos>"]
        scored = range(len(question) + 2, len(whole))
    else:
        whole = ["<bos>", *body[1:]]
        place_holder = ["<pad>", *answers(kind, body[1:])]
        pad = ["<pad>"] * (len(tokens) - len(body))
        return place_holder + pad, [0.0] + [1.0] * (len(body) - 1) + [0.0] * len(pad)
    whole += ["<pad>"] * (len(tokens) + 1 - len(whole))
    assert whole[:-1] == tokens
    return whole[1:], [float(i in scored) for i in range(1, len(whole))]


def test_targets_and_weights_equal_the_oracles(drawn: tuple[str, str | None, Source, Batch]):
    kind, form, source, batch = drawn
    for tokens, targets, weights in zip(*(part[:300] for part in batch[:3]), strict=True):
        want_targets, want_weights = expected(kind, form, source.show(tokens).split())
        assert source.show(targets).split() == want_targets
        assert weights.tolist() == want_weights


def test_shapes_types_and_lengths(drawn: tuple[str, str | None, Source, Batch]):
    kind, form, source, batch = drawn
    assert [part.shape for part in batch[:3]] == [(8_000, SEQ_LEN)] * 3
    assert (batch.tokens.dtype, batch.targets.dtype, batch.weights.dtype) == (np.int32, np.int32, np.float32)
    assert batch.tokens.min() >= 0
    assert max(batch.tokens.max(), batch.targets.max()) < source.vocab_size
    low, high = source.facts["lengths"]
    per_length = {"induction": -1, None: 0, "causal": 1, "encoder": 0}[kind if kind == "induction" else form]
    counted = Counter((batch.weights.sum(axis=1) - per_length).tolist())
    assert sorted(counted) == list(range(low, high + 1))
    assert min(counted.values()) > 0.85 * 8_000 / (high - low + 1)  # uniform, and the longest fits


def test_decoy_scores_equal_counts(drawn: tuple[str, str | None, Source, Batch]):
    _, _, source, batch = drawn
    scored = batch.weights > 0
    place = np.broadcast_to(np.arange(SEQ_LEN), scored.shape)[scored]
    joint = np.zeros((SEQ_LEN, source.vocab_size, source.vocab_size))
    np.add.at(joint, (place, batch.tokens[scored], batch.targets[scored]), 1)
    # Fitted to the sample that it is scored on, so slightly too good.
    loss, accuracy = attention_free_bound.score_best_policy(joint)
    assert source.facts["decoy_loss"] == pytest.approx(loss, abs=0.03)
    assert source.facts["decoy_accuracy"] == pytest.approx(accuracy, abs=0.03)
    assert source.facts["decoy_loss"] <= source.facts["chance_loss"]


def test_packed_batches_equal_solo_batches(drawn: tuple[str, str | None, Source, Batch]):
    source, alone = drawn[2:]
    keys = jnp.stack([jax.random.key(2), jax.random.key(1)])
    rows = jnp.zeros((2, len(alone.tokens)), jnp.int32)
    packed = jit_once(jax.vmap(source.batch, in_axes=(None, 0, 0)))({}, rows, keys)
    for one, many in zip(alone[:3], packed[:3], strict=True):
        np.testing.assert_array_equal(one, many[1])
    assert not np.array_equal(packed.tokens[0], packed.tokens[1])


def test_evaluation_sets_are_correct_and_differ(drawn: tuple[str, str | None, Source, Batch]):
    kind, form, source, _ = drawn
    val, test = source.evaluation("val"), source.evaluation("test")
    assert val is not None
    assert test is not None
    assert val.tokens.shape == test.tokens.shape == (64, SEQ_LEN)
    assert not np.array_equal(val.tokens, test.tokens)
    assert val.num_bytes is None
    for row in range(64):
        want_targets, want_weights = expected(kind, form, source.show(val.tokens[row]).split())
        assert source.show(val.targets[row]).split() == want_targets
        assert val.weights[row].tolist() == want_weights


def test_the_prompt_is_the_question(drawn: tuple[str, str | None, Source, Batch]):
    kind, form, source, _ = drawn
    words = source.show(source.prompt()).split()
    assert words[0] == "<bos>"
    if kind == "induction":
        assert words[1] == words[-1]
        assert len(words) == len(set(words)) + 1
    else:
        assert (words[-1] == "<sep>") == (form == "causal")
        assert set(words[1:-1]) <= set("abcde")


def test_the_evaluation_sets_are_fixed_and_the_fingerprint_follows_the_task():
    one, two, other = prepared("copy"), prepared("copy"), prepared("reverse")
    for left, right in zip(*(vars(source.evaluation("val")).values() for source in (one, two)), strict=True):
        np.testing.assert_array_equal(left, right)
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint != prepared("copy", min_length=2).fingerprint
    assert (one.evaluated, one.unit) == (two.evaluated, two.unit)
    changes: tuple[dict[str, Any], ...] = ({"eval_size": 65}, {"seq_len": 13})
    sources = [one, other, prepared("copy", "encoder"), *(prepared("copy", **change) for change in changes)]
    assert len({source.evaluated for source in sources}) == len(sources)
    assert one.facts is one.facts


def test_decoy_scores_with_known_values():
    assert prepared("copy", "encoder").facts["decoy_accuracy"] == pytest.approx(1)
    facts = prepared("induction", symbols=6).facts
    assert facts["decoy_accuracy"] == pytest.approx(1 / 5)
    assert facts["decoy_loss"] == pytest.approx(np.log(5))
    fixed = prepared("reverse", "causal", min_length=4, max_length=4).facts  # 4 uniform symbols, then a certain <eos>
    assert fixed["decoy_accuracy"] == pytest.approx((4 / 5 + 1) / 5)
    assert fixed["decoy_loss"] == pytest.approx(4 * np.log(5) / 5)


@pytest.mark.parametrize("kind", ["sort", "histogram"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_distributions_of_answers_equal_enumeration(kind: str, n: int):
    symbols = 3
    questions = np.stack(np.meshgrid(*[np.arange(symbols)] * n, indexing="ij"), -1).reshape(-1, n)
    if kind == "sort":
        given, answer = attention_free_bound.sorted_answers(n, symbols), np.sort(questions, axis=1)
        aligned = attention_free_bound.sort_joint(n, symbols)
        for i in range(n):
            want = np.zeros((symbols, symbols))
            np.add.at(want, (questions[:, i], answer[:, i]), 1 / len(questions))
            np.testing.assert_allclose(aligned[i], want, atol=1e-12)
    else:
        given = attention_free_bound.histogram_answers(n, symbols, 3)
        answer = (questions[:, :, None] == questions[:, None, :]).sum(axis=2) - 1
    assert given.steps.shape == (n - 1, 3, 3)
    for j in range(n - 1):
        want = np.zeros((3, 3))
        np.add.at(want, (answer[:, j], answer[:, j + 1]), 1 / len(questions))
        np.testing.assert_allclose(given.steps[j], want, atol=1e-12)
    np.testing.assert_allclose(given.first, np.bincount(answer[:, 0], minlength=3) / len(questions), atol=1e-12)
    np.testing.assert_allclose(given.last, np.bincount(answer[:, -1], minlength=3) / len(questions), atol=1e-12)


def test_distributions_of_long_sequences_neither_overflow_nor_vanish():
    n = 1200  # C(n, n/2) is beyond float64
    np.testing.assert_allclose(attention_free_bound.sort_joint(n, 3).sum(axis=(1, 2)), 1)
    for given in (attention_free_bound.sorted_answers(n, 3), attention_free_bound.histogram_answers(n, 3, n)):
        for total in (given.first.sum(), given.steps[n // 2].sum(), given.last.sum()):
            assert total == pytest.approx(1)


@pytest.mark.slow
def test_a_decoy_score_with_too_large_a_table_is_counted():
    facts = prepared("copy", symbols=3000, eval_size=1).facts
    assert "counted" in facts["decoy"]
    assert facts["decoy_loss"] < facts["chance_loss"]


@pytest.mark.parametrize(("kind", "fields", "where", "problem", "remedy"), [
    ("copy", {"seq_len": 3}, "min_length", "seq_len 3", "raise seq_len"),
    ("sort", {"max_length": 6}, "max_length", "from 1 to 6 do not fit: sort with seq_len 12", "max_length <= 5"),
    ("reverse", {"min_length": 4, "max_length": 3}, "max_length", "from 4 to 3", "min_length <= max_length"),
    ("induction", {"min_length": 5}, "min_length", "would have length 5", "below max_length"),
])  # fmt: skip
def test_invalid_lengths_are_refused(kind: str, fields: dict[str, Any], where: str, problem: str, remedy: str):
    with pytest.raises(UserError, match=problem) as caught:
        prepared(kind, **fields)
    assert caught.value.path == (where,)
    assert remedy in str(caught.value.remedy)


def test_an_unknown_task_suggests_the_nearest():
    with pytest.raises(UserError, match="unknown task kind 'histgram'") as caught:
        build_component("task", {"kind": "histgram", "seq_len": 4}, ("base", "task"))
    assert str(caught.value.remedy).startswith("Did you mean 'histogram'?")
    assert caught.value.path == ("base", "task", "kind")
