"""Synthetic tasks against oracles in plain Python that read only the tokens, and their references and errors."""

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.data.base import Batch, Source

BITS = {"0", "1"}


def prepare(kind: str, **fields: Any) -> Source:
    size = {} if kind == "modular-addition" else {"eval_size": 8}
    return build_component("task", {"kind": kind, **size, **fields}).prepare(Path())  # pyright: ignore[reportAttributeAccessIssue]


def sequences(source: Source, count: int = 400) -> list[tuple[list[str], list[str | int], list[bool]]]:
    """Return the names of tokens and targets, and which of these are scored, of generated sequences."""
    batch = jax.tree.map(np.asarray, jit_once(source.batch)({}, jnp.arange(count), jax.random.key(5)))
    labels = source.interface.outputs is not None
    return [
        (source.show(tokens).split(), target.tolist() if labels else source.show(target).split(), (weight > 0).tolist())
        for tokens, target, weight in zip(batch.tokens, batch.targets, batch.weights, strict=True)
    ]


# --- oracles: the answers to a sequence, from its tokens --------------------------------------------------------------


def between(tokens: list[str], first: str, last: str) -> list[str]:
    return tokens[tokens.index(first) + 1 : tokens.index(last)]


def double_histogram(tokens: list[str]) -> list[str]:
    question = between(tokens, "<bos>", "<sep>")
    counts = Counter(question)
    alike = Counter(counts.values())
    return [*(str(alike[counts[symbol]]) for symbol in question), "<eos>"]


def long_addition(tokens: list[str], *, lowest_first: bool = False) -> list[str]:
    step = -1 if lowest_first else 1
    a, b = ("".join(part)[::step] for part in (between(tokens, "<bos>", "+"), between(tokens, "+", "=")))
    assert all(number == str(int(number)) for number in (a, b))
    return [*str(int(a) + int(b))[::step], "<eos>"]


def number_sort(tokens: list[str]) -> list[str]:
    numbers = "".join(between(tokens, "<bos>", "<sep>")).split(",")
    assert {len(number) for number in numbers} == {3}
    return [*",".join(sorted(numbers)), "<eos>"]


def recall(tokens: list[str]) -> list[str]:
    """Return the last value of each key that occurs again without a value."""
    values, answers = {}, []
    for token, following in itertools.pairwise([*tokens, "."]):
        if token[0] == "k" and following[0] == "v":
            values[token] = following
        elif token[0] == "k":
            answers.append(values[token])
    return answers


def compositional(tokens: list[str]) -> list[str]:
    values, answers = {}, []
    for key, value in zip(itertools.pairwise(tokens), [*tokens[2:], "."], strict=False):
        if key[0][0] == "a" and value[0] == "v":
            values[key] = value
        elif key[0][0] == "a":
            answers.append(values[key])
    firsts = {key[0] for key in values}
    assert len(values) == len(firsts) ** 2
    return answers


def mad_recall(tokens: list[str]) -> list[str]:
    values, answers = {}, []
    for key, value in zip(tokens[::2], tokens[1::2], strict=True):
        if key[0] == "k":
            answers += [value] if key in values else []
            assert values.setdefault(key, value) == value
    assert tokens[-2] in values
    assert answers
    return answers


def mad_fuzzy_recall(tokens: list[str], following: str) -> list[str]:
    """Return the values of repeated keys. The last value may end after the tokens."""
    whole = [token for token in [*tokens, following] if token != "<pad>"]
    runs = [list(run) for _, run in itertools.groupby(whole, key=lambda token: token[0])]
    values, answers = {}, []
    for key, value in zip(runs[::2], runs[1::2], strict=True):
        assert len(set(key)) == len(key) <= 3
        answers += value if tuple(key) in values else []
        assert values.setdefault(tuple(key), value) == value
    assert tuple(runs[-2]) in [tuple(key) for key in runs[:-2:2]]
    return answers


def selective_copy(tokens: list[str]) -> list[str]:
    return [token for token in tokens if token[0] == "s"]


def parity(tokens: list[str]) -> list[str]:
    return [str(between(tokens, "<bos>", "<sep>").count("1") % 2)]


def dyck(tokens: list[str]) -> list[int]:
    """Return the numbers of the sets, as (last open kind, whether the depth is the largest)."""
    stack: list[int] = []
    sets = []
    for token in tokens:
        if token in "([":
            stack.append("([".index(token))
        elif token in ")]":
            assert stack.pop() == ")]".index(token)
        sets.append(1 + stack[-1] + 2 * (len(stack) == 3) if stack else 0)
        assert len(stack) <= 3
    return sets


def shuffle_dyck(tokens: list[str]) -> list[int]:
    places = range(1, len(tokens) + 1)
    open_brackets = [[tokens[:i].count(a) - tokens[:i].count(b) for a, b in ("()", "[]")] for i in places]
    assert min(map(min, open_brackets)) == 0
    return [(a > 0) + 2 * (b > 0) for a, b in open_brackets]


def flip_flop(tokens: list[str]) -> list[str]:
    memory, answers = "", []
    for instruction, bit in zip(tokens[::2], tokens[1::2], strict=True):
        memory = bit if instruction == "w" else memory
        answers += [memory] if instruction == "r" else []
    assert tokens[-2] == "r"
    return answers


def needle(tokens: list[str]) -> list[str]:
    context = between(tokens, "<bos>", "<sep>")
    values = {key: value for key, value in itertools.pairwise(context) if key[0] == "k" and len(key) == 2}
    assert len(values) == 2
    return [values[tokens[tokens.index("<sep>") + 1]]]


def variable_binding(tokens: list[str]) -> list[str]:
    values: dict[str, str] = {}
    for name, equal, value, end in zip(*[iter(tokens[: tokens.index("?")])] * 4, strict=True):
        assert (equal, end) == ("=", ";")
        values[name] = values.get(value, value)
    assert len(values) == 6
    return [values[tokens[tokens.index("?") + 1]]]


def lego(tokens: list[str]) -> list[int]:
    sign, values = {"+": 0, "-": 1}, {"1": 0}
    clauses = list(zip(*[iter(tokens[: tokens.index("<sep>")])] * 5, strict=True))
    for _ in clauses:
        for name, _, sign_of, before, _ in clauses:
            if before in values:
                values[name] = (values[before] + sign[sign_of]) % 2
    return [values[name] for name in tokens[tokens.index("<sep>") + 1 :] if name != "<pad>"]


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "double-histogram": ({"seq_len": 16, "symbols": 4}, double_histogram),
    "long-addition": ({"seq_len": 16}, long_addition),
    "long-addition lowest first": (
        {"seq_len": 13, "lowest_first": True}, lambda tokens: long_addition(tokens, lowest_first=True)),
    "number-sort": ({"seq_len": 40}, number_sort),
    "mqar": ({"seq_len": 20, "symbols": 12}, recall),
    "mqar-forgetting": ({"seq_len": 24, "symbols": 12, "updates": 3}, recall),
    "mqar-compositional": ({"seq_len": 30}, compositional),
    "mad-recall": ({"seq_len": 16, "symbols": 8}, mad_recall),
    "mad-noisy-recall": ({"seq_len": 16, "symbols": 8, "noise": 0.5}, mad_recall),
    "mad-selective-copy": ({"seq_len": 16, "copied": 3}, selective_copy),
    "parity": ({"seq_len": 12}, parity),
    "dyck": ({"seq_len": 24, "max_depth": 3}, dyck),
    "shuffle-dyck": ({"seq_len": 16}, shuffle_dyck),
    "flip-flop": ({"seq_len": 16, "ignored": 0.3}, flip_flop),
    "needle": ({"seq_len": 18, "needles": 2, "symbols": 5}, needle),
    "variable-binding": ({"seq_len": 28, "chains": 2, "hops": 2}, variable_binding),
    "lego": ({"seq_len": 26, "clauses": 4, "variables": 6}, lego),
}  # fmt: skip


@pytest.mark.parametrize("case", by_default(CASES, "long-addition", "mqar", "parity", "dyck", "needle", "lego"))
def test_the_scored_targets_are_the_answers_of_the_oracle(case: str):
    fields, oracle = CASES[case]
    source = prepare(case.split()[0], **fields)
    seen = sequences(source)
    for tokens, targets, scored in seen:
        assert [target for target, is_scored in zip(targets, scored, strict=True) if is_scored] == oracle(tokens)
    assert len({tuple(tokens) for tokens, _, _ in seen}) > 100


@pytest.mark.slow
def test_targets_are_the_next_tokens_of_tasks_that_write_their_answers():
    for kind in ("double-histogram", "long-addition", "number-sort", "parity", "needle", "variable-binding"):
        for tokens, targets, scored in sequences(prepare(kind, seq_len=32)):
            for i in range(31):
                assert not scored[i] or targets[i] == tokens[i + 1]


def test_fuzzy_recall():
    for tokens, targets, scored in sequences(prepare("mad-fuzzy-recall", seq_len=40, symbols=9)):
        answers = [target for target, is_scored in zip(targets, scored, strict=True) if is_scored]
        assert answers == mad_fuzzy_recall(tokens, str(targets[-1]))


def test_memorization_has_one_value_for_each_key_in_all_sequences():
    source = prepare("mad-memorization", symbols=9, seq_len=12)
    pairs = {(tokens[i], targets[i + 1]) for tokens, targets, _ in sequences(source) for i in range(0, 12, 2)}
    assert len(pairs) == len({key for key, _ in pairs}) == len({value for _, value in pairs}) == 4
    other = prepare("mad-memorization", symbols=9, seq_len=12, table_seed=1)
    assert pairs != {(tokens[i], targets[i + 1]) for tokens, targets, _ in sequences(other) for i in range(0, 12, 2)}


def test_compression_predicts_all_tokens_before_the_last():
    source = prepare("mad-compression", seq_len=6, symbols=4)
    assert source.interface.outputs == 24
    for tokens, targets, scored in sequences(source):
        assert [f"s{target}" for target in targets[:-1]] == tokens[:-1]
        assert (tokens[-1], scored) == ("<c>", [True] * 5 + [False])


def test_modular_addition_has_every_pair_once():
    source = prepare("modular-addition", modulus=11, train_share=0.5)
    parts = [source.arrays, *(source.evaluation(name).batch._asdict() for name in ("val", "test"))]  # pyright: ignore[reportOptionalMemberAccess]
    tokens, targets = (np.concatenate([part[name] for part in parts]) for name in ("tokens", "targets"))
    assert [len(part["tokens"]) for part in parts] == [60, 30, 31]
    assert {tuple(row) for row in tokens.tolist()} == {(a, b, 11) for a in range(11) for b in range(11)}
    assert (targets[:, 2] == tokens[:, :2].sum(1) % 11).all()
    assert source.show(parts[0]["tokens"][0]).split()[-1] == "="


@pytest.mark.parametrize("order", [1, 2])
def test_a_markov_chain_has_the_entropy_that_it_states(order: int):
    source = prepare("markov", symbols=3, order=order, seq_len=16, sharpness=2.0)
    batch: Batch = jax.tree.map(np.asarray, jit_once(source.batch)({}, jnp.arange(40_000), jax.random.key(1)))
    whole = np.concatenate([batch.tokens, batch.targets[:, -1:]], 1)
    windows = np.lib.stride_tricks.sliding_window_view(whole, order + 1, axis=1)
    states = (windows[..., :-1] * 3 ** np.arange(order)).sum(-1)
    counts = np.zeros((3**order, 3))
    np.add.at(counts, (states.ravel(), windows[..., -1].ravel()), 1)
    table = counts / counts.sum(1, keepdims=True)
    entropy = -(counts * np.log(table)).sum() / counts.sum()
    assert entropy == pytest.approx(source.facts["bayes_loss"], abs=3e-3)
    # A sequence starts with the stationary distribution: the states of all places are equally distributed.
    shares = [np.bincount(states[:, place], minlength=3**order) / len(states) for place in (0, states.shape[1] - 1)]
    np.testing.assert_allclose(*shares, atol=0.012)


def test_sentences_of_a_grammar_have_the_entropy_that_it_states():
    source = prepare("grammar", symbols=3, rules=2, depth=2, seq_len=8)
    batch = jit_once(source.batch)({}, jnp.arange(30_000), jax.random.key(1))
    counts = Counter(map(tuple, np.asarray(batch.targets).reshape(-1, 4).tolist()))
    assert len(counts) == 3 * 2**3
    shares = np.array([*counts.values()]) / 60_000
    assert -(shares * np.log(shares)).sum() / 4 == pytest.approx(source.facts["bayes_loss"], abs=1e-3)


@pytest.mark.slow
def test_the_scores_of_a_masked_copy_are_those_of_the_best_policy():
    """The best policy knows the lengths that remain after a prefix, and copies. Its scores are counted here."""
    source = prepare("masked-copy", seq_len=12, symbols=3, question_share=0.5, min_length=2)
    loss, right, total = 0.0, 0.0, 0
    for tokens, targets, scored in sequences(source, 20_000):
        n = tokens.index("<sep>") - 1
        for place in np.flatnonzero(scored):
            ends = 1 / (5 - place + 1) if 2 <= place <= 5 else 0.0
            chance = 1.0 if place > n else ends if place == n else (1 - ends) / 3
            guess = targets[place] if place > n else "<sep>" if ends >= (1 - ends) / 3 else "a"
            loss, right, total = loss - math.log(chance), right + (guess == targets[place]), total + 1
    assert loss / total == pytest.approx(source.facts["bayes_loss"], abs=0.02)
    assert right / total == pytest.approx(source.facts["bayes_accuracy"], abs=0.01)


def test_regression_is_linear_and_least_squares_has_the_loss_that_is_stated():
    source = prepare("in-context-regression", dims=4, seq_len=16)
    batch = jax.tree.map(np.asarray, jit_once(source.batch)({}, jnp.arange(4_000), jax.random.key(1)))
    x, y = batch.tokens[:, ::2, :4].astype(np.float64), batch.targets[:, ::2].astype(np.float64)
    np.testing.assert_array_equal(batch.tokens[:, 1::2, 4], batch.targets[:, ::2])
    assert not batch.tokens[:, 1::2, :4].any()
    assert not batch.tokens[:, ::2, 4].any()
    errors = np.zeros(8)
    for i in range(8):
        w = np.linalg.pinv(x[:, :i]) @ y[:, :i, None] if i else np.zeros((len(x), 4, 1))
        errors[i] = ((x[:, i] * w[..., 0]).sum(-1) - y[:, i]).__pow__(2).mean()
    assert errors.mean() == pytest.approx(source.facts["bayes_loss"], abs=0.02)
    assert (y**2).mean() == pytest.approx(1, abs=0.04)
    assert (x**2).mean() == pytest.approx(1, abs=0.02)


def test_counted_policies_of_a_known_task_equal_its_exact_scores():
    """`sort` has an exact joint distribution, and the table of token and position is counted on many sequences."""
    source: Any = prepare("sort", seq_len=12, symbols=4, eval_size=4_000)
    exact = source.facts["decoy_loss"], source.facts["decoy_accuracy"]
    assert source._count_policies()[0] == pytest.approx(exact, abs=0.01)


def test_a_fixed_set_of_examples_is_the_same_for_every_key_and_is_read_in_epochs():
    source, endless = (prepare("copy", seq_len=8, examples=size) for size in (10, None))
    rows = source.rows(3, 0, 5, 4)
    assert sorted(rows.ravel()[:10].tolist()) == sorted(rows.ravel()[10:].tolist()) == [*range(10)]
    batch = jit_once(source.batch)
    first, second = (batch({}, jnp.arange(10), jax.random.key(seed)).tokens for seed in (0, 1))
    np.testing.assert_array_equal(first, second)
    again = batch({}, jnp.asarray([7, 2]), jax.random.key(0)).tokens
    np.testing.assert_array_equal(again, first[np.array([7, 2])])
    assert len({tuple(row) for row in np.asarray(first).tolist()}) > 5
    assert source.fingerprint != endless.fingerprint
    assert source.evaluated == endless.evaluated


def test_text_in_the_symbols_of_a_task_is_read():
    source = prepare("long-addition", seq_len=16)
    text = "<bos> 1 2 + 7 ="
    assert source.show(source.parse(text)) == source.show(source.parse("<bos>12+7=")) == text
    with pytest.raises(UserError) as caught:
        source.parse("12 - 7")
    assert "'-'" in caught.value.problem
    assert "+" in caught.value.remedy


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"kind": "mqar-forgetting", "seq_len": 16, "pairs": 4, "updates": 2}, "pairs"),
        ({"kind": "mqar-compositional", "seq_len": 64, "pairs": 5}, "pairs"),
        ({"kind": "mad-recall", "seq_len": 15}, "seq_len"),
        ({"kind": "mad-recall", "seq_len": 16, "noise": 0.1}, "noise_symbols"),
        ({"kind": "mad-fuzzy-recall", "seq_len": 8}, "seq_len"),
        ({"kind": "mad-selective-copy", "seq_len": 16, "copied": 9}, "copied"),
        ({"kind": "parity", "seq_len": 8, "max_length": 7}, "max_length"),
        ({"kind": "flip-flop", "seq_len": 7}, "seq_len"),
        ({"kind": "needle", "seq_len": 16, "needles": 9}, "needles"),
        ({"kind": "variable-binding", "seq_len": 8}, "seq_len"),
        ({"kind": "lego", "seq_len": 64, "clauses": 8, "variables": 7}, "variables"),
        ({"kind": "markov", "seq_len": 8, "symbols": 16, "order": 4}, "order"),
        ({"kind": "grammar", "seq_len": 12}, "seq_len"),
        ({"kind": "grammar", "seq_len": 16, "symbols": 3, "rules": 4}, "rules"),
        ({"kind": "in-context-regression", "seq_len": 7}, "seq_len"),
        ({"kind": "modular-addition", "seq_len": 4}, "seq_len"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else value,
)
def test_sizes_that_do_not_fit_are_refused_by_name(fields: dict[str, Any], path: str):
    with pytest.raises(UserError) as caught:
        prepare(**fields)
    assert caught.value.path == (path,)
    assert caught.value.remedy
