"""Mixtures: shares of training windows are exact, sources keep their own epochs, and nothing depends on chunks."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.test_document_files import MANY, json_lines
from tests.suites import by_default

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data import streamed_text, text, tokenizer_pool
from taetpu.data.mixture import BLOCK, Mixture, facts_of_run, shares_of
from taetpu.testing import check_component

WEIGHTS = st.lists(st.floats(0.001, 1), min_size=1, max_size=5)


def mixture(weights, windows):
    names = tuple(map(str, range(len(weights))))
    shares = shares_of(dict(zip(names, weights, strict=True)))
    return Mixture(names, tuple(shares.values()), tuple(windows), tuple(windows))


def sources(mixed, rows):
    return np.searchsorted(mixed.firsts, rows.ravel(), "right") - 1


@settings(max_examples=15, deadline=None)
@given(WEIGHTS, st.integers(0, 2**31 - 1), st.integers(0, 3), st.data())
def test_shares_are_exact_at_the_end_of_each_block(weights, seed, blocks, data):
    windows = data.draw(st.lists(st.integers(1, 3000), min_size=len(weights), max_size=len(weights)))
    mixed = mixture(weights, windows)
    count = (blocks + 1) * mixed.block
    drawn = np.bincount(sources(mixed, mixed.rows(seed, 0, count, 1)), minlength=len(weights))
    assert all(abs(n - count * share) < 1 for n, share in zip(drawn.tolist(), mixed.shares, strict=True))
    assert mixed.count(seed, count) == drawn.tolist()
    part = data.draw(st.integers(1, count))
    first = np.bincount(sources(mixed, mixed.rows(seed, 0, part, 1)), minlength=len(weights))
    assert mixed.count(seed, part) == first.tolist()


@settings(max_examples=15, deadline=None)
@given(WEIGHTS, st.integers(0, 400), st.integers(1, 300), st.integers(1, 7), st.data())
def test_rows_do_not_depend_on_the_request(weights, start, count, batch, data):
    windows = data.draw(st.lists(st.integers(1, 50), min_size=len(weights), max_size=len(weights)))
    mixed = mixture(weights, windows)
    whole = mixed.rows(7, 0, start + count, batch)
    np.testing.assert_array_equal(mixed.rows(7, start, count, batch), whole[start:])
    np.testing.assert_array_equal(mixed.rows(7, 0, batch * (start + count), 1).ravel(), whole.ravel())
    assert whole.dtype == np.int32


def test_each_source_has_epochs_of_its_own():
    mixed = mixture([0.75, 0.25], [10, 1000])
    rows = mixed.rows(3, 0, 4 * BLOCK, 1).ravel()
    small, large = rows[rows < 10], rows[rows >= 10]
    for epoch in range(len(small) // 10):
        assert sorted(small[10 * epoch : 10 * epoch + 10].tolist()) == [*range(10)]
    assert small[:10].tolist() != small[10:20].tolist()
    assert sorted(large[:1000].tolist()) == [*range(10, 1010)]
    assert mixed.rows(4, 0, 8, 4).tolist() != mixed.rows(3, 0, 8, 4).tolist()


def test_sources_of_equal_size_have_different_orders():
    mixed = mixture([1, 1], [500, 500])
    rows = mixed.rows(0, 0, 1000, 1).ravel()
    first, second = rows[rows < 500], rows[rows >= 500] - 500
    assert abs(np.corrcoef(first[:400], second[:400])[0, 1]) < 0.2


def test_a_far_place_needs_no_place_before_it():
    mixed = mixture([0.9, 0.1], [10**9, 10**9])
    rows = mixed.rows(1, 10**9, 2, 512)
    assert rows.min() >= 0
    assert rows.max() < 2 * 10**9
    assert abs(float((rows < 10**9).mean()) - 0.9) < 0.02


def test_small_shares_have_larger_blocks():
    mixed = mixture([1e5, 1], [10, 10])
    assert mixed.block == 2**17
    assert mixed.count(0, 2**17) == [2**17 - 1, 1]
    assert mixture([3, 6, 1], [1, 1, 1]).shares == mixture([0.3, 0.6, 0.1], [1, 1, 1]).shares == (
        Fraction(3, 10), Fraction(6, 10), Fraction(1, 10),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "path"),
    [({"a": 0}, ("a",)), ({"a": 1, "b": -1}, ("b",)), ({"a": float("nan")}, ("a",)), ({"a": float("inf")}, ("a",)),
     ({"a": True}, ("a",)), ({"a": {"b": 1}}, ("a",)), ({"a": "many"}, ("a",)), ({}, ()),
     ({"a": 1, "b": 1e-9}, ("b",))],
)  # fmt: skip
@pytest.mark.parametrize("kind", [{"kind": "text"}, {"kind": "tokens", "vocab_size": 9}])
def test_weights_that_are_no_shares_are_refused(weights, path, kind):
    with pytest.raises(UserError) as caught:
        build_component("task", {"source": weights, "seq_len": 8, **kind}, ("base", "task"))
    assert caught.value.path == ("base", "task", "source", *path)
    assert caught.value.remedy
    assert all(repr(name) in caught.value.problem for name in path)


# --- tasks -----------------------------------------------------------------------------------------------------------


def words(offset):
    """Return texts whose characters no other offset has."""
    return [" ".join(chr(offset + (i * j) % 23) * (j % 5 + 1) for j in range(1, 30)) for i in range(1, 60)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    for name, offset in (("a", 0x61), ("b", 0x400), ("c", 0x3B1)):
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines(words(offset)))
        np.concatenate([np.frombuffer(t.encode("utf-16-le"), "<u2") for t in words(offset)]).tofile(
            tmp_path / f"{name}.bin"
        )
    return tmp_path


KINDS = {
    "text": {"kind": "text", "val": 0.2, "segments": True, "split": "hash"},
    "large": {"kind": "text", "val": 0.2, "tokenizer": {"kind": "bpe", "vocab_size": 300}},
    "tokens": {"kind": "tokens", "val": 0.2, "vocab_size": 2**16},
}
EVEN = {"a": 1, "b": 1, "c": 2}


def prepared(folder, case, weights, monkeypatch=None, **fields):
    settings = {"seq_len": 16, **KINDS[case], **fields}
    if case == "large" and monkeypatch is not None:
        monkeypatch.setattr(text, "LARGE", 1000)
        monkeypatch.setattr(streamed_text, "BLOCK", 300)
        monkeypatch.setattr(tokenizer_pool, "cpu_cores", lambda: 1)  # test_token_cache.py compares numbers of processes
    ending = "bin" if case == "tokens" else "jsonl"
    source = {f"{name}.{ending}": weight for name, weight in weights.items()}
    return build_component("task", {**settings, "source": source}).prepare(folder)


@pytest.mark.parametrize("case", KINDS)
def test_windows_lie_within_one_source(folder, case, monkeypatch):
    source = prepared(folder, case, EVEN, monkeypatch)
    alphabets = {0x61: "a", 0x400: "b", 0x3B1: "c"}
    windows = source.arrays["windows"]
    assert len(windows) == source.num_windows == sum(source.mixture.windows)
    for row, window in enumerate(windows):
        shown = "".join(map(chr, window)) if case == "tokens" else source.show(window)
        letters = {alphabets[base] for char in shown for base in alphabets if base <= ord(char) < base + 23}
        assert letters <= {source.mixture.source_of(row)[0]}


@pytest.mark.parametrize("case", by_default(KINDS, "text", "tokens"))
def test_each_source_is_read_as_without_the_others(folder, case, monkeypatch):
    mixed = (
        prepared(folder, case, EVEN, monkeypatch, tokenizer="byte")
        if case != "tokens"
        else prepared(folder, case, EVEN)
    )
    parts = dict(zip(mixed.mixture.names, np.split(mixed.arrays["windows"], mixed.mixture.firsts[1:]), strict=True))
    held_out = mixed.evaluation("val")
    scored = 0
    for name in EVEN:
        alone = prepared(folder, case, {name: 1}, **({} if case == "tokens" else {"tokenizer": "byte"}))
        (key,) = [full for full in parts if full.startswith(name)]
        np.testing.assert_array_equal(parts[key], alone.arrays["windows"])
        scored += alone.facts["tokens"]["val"]
    separators = 2 * 2 if case == "text" else 0  # empty lines between the three sources
    assert mixed.facts["tokens"]["val"] == scored + separators
    assert held_out.weights.sum() == scored + separators - 1


@pytest.mark.parametrize("case", by_default(KINDS, "text", "tokens"))
def test_feeds_and_packs_have_the_same_batches(folder, case, monkeypatch):
    source = prepared(folder, case, EVEN, monkeypatch)
    rows = source.rows(5, 3, 4, 8)
    resident = {name: jnp.asarray(array) for name, array in source.arrays.items()}
    read = {name: jnp.asarray(array) for name, array in source.gather(rows.ravel()).items()}
    places = np.arange(rows.size).reshape(rows.shape)
    key = jax.random.key(0)
    for i in range(len(rows)):
        first, second = source.batch(resident, rows[i], key), source.batch(read, places[i], key)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", by_default(KINDS, "text", "tokens"))
def test_identity_has_weights_and_content_but_no_names(folder, case, monkeypatch):
    source = prepared(folder, case, EVEN, monkeypatch)
    scaled = prepared(folder, case, {"c": 1.0, "b": 0.5, "a": 0.5})
    assert scaled.fingerprint == source.fingerprint
    assert (scaled.rows(1, 0, 9, 8) == source.rows(1, 0, 9, 8)).all()
    other = prepared(folder, case, {"a": 2, "b": 1, "c": 1})
    assert other.fingerprint != source.fingerprint
    assert (other.evaluated, other.unit) == (source.evaluated, source.unit)
    for name in "abc":
        for ending in ("jsonl", "bin"):
            (folder / f"{name}.{ending}").rename(folder / f"z{name}.{ending}")
    renamed = prepared(folder, case, {"zc": 2, "za": 1, "zb": 1})
    assert (renamed.fingerprint, renamed.evaluated) == (source.fingerprint, source.evaluated)


@pytest.mark.parametrize("case", by_default(KINDS, "text", "tokens"))
def test_facts_say_what_a_run_reads(folder, case, monkeypatch):
    source = prepared(folder, case, EVEN, monkeypatch)
    rows = source.rows(2, 0, 100, 8)
    facts = facts_of_run(source, 2, rows.size)["mixture"]
    for name, read in facts.items():
        drawn = sum(source.mixture.source_of(row) == name for row in rows.ravel())
        assert read["share"] == drawn / 800
        assert read["epochs"] == drawn / read["windows"]
        assert read["weight"] == (0.5 if name.startswith("c") else 0.25)
    assert {name: {**facts[name], **known} for name, known in source.facts["mixture"].items()} == facts


@pytest.mark.parametrize("case", by_default(KINDS, "text", "tokens"))
def test_tasks_pass_the_checks_of_plug_ins(folder, case, monkeypatch):
    monkeypatch.chdir(folder)
    prepared(folder, case, EVEN, monkeypatch)
    ending = "bin" if case == "tokens" else "jsonl"
    settings = {**KINDS[case], "seq_len": 16, "source": {f"a.{ending}": 3, f"b.{ending}": 1}}
    report = check_component("task", **settings)
    assert not report.failed, str(report)


@pytest.mark.parametrize("case", by_default(KINDS, "text", "tokens"))
def test_a_source_too_short_for_a_window_is_refused(folder, case, monkeypatch):
    (folder / "c.jsonl").write_bytes(json_lines(["short", "texts"]))
    np.arange(5, dtype="<u2").tofile(folder / "c.bin")
    with pytest.raises(UserError) as caught:
        prepared(folder, case, EVEN, monkeypatch, val=0.0 if case != "tokens" else 0.2)
    assert "seq_len" in caught.value.path
    assert "'c." in caught.value.problem


@pytest.mark.parametrize("case", ["text", "tokens"])
def test_a_file_in_two_sources_is_refused(folder, case):
    ending = "bin" if case == "tokens" else "jsonl"
    task = build_component("task", {**KINDS[case], "seq_len": 16, "source": {f"a.{ending}": 1, f"[ab].{ending}": 1}})
    with pytest.raises(UserError) as caught:
        task.prepare(folder)
    assert caught.value.path == ("source", f"[ab].{ending}")
    assert f"a.{ending}" in caught.value.problem


@pytest.mark.parametrize("case", ["text", "large"])
def test_an_evaluation_document_of_one_source_is_not_trained_in_another(folder, case, monkeypatch):
    (folder / "b.jsonl").write_bytes(json_lines([*MANY, *words(0x61)]))
    source = prepared(folder, case, {"a": 1, "b": 1}, monkeypatch, tokenizer="byte", segments=False)
    held_out = source.show(source.evaluation("val").tokens.ravel())
    trained = source.show(source.arrays["windows"][:, :-1].ravel())
    shared = [text for text in words(0x61) if text in held_out]
    assert len(shared) > 5
    assert not [text for text in shared if text in trained]


@pytest.mark.slow
def test_named_evaluation_files_are_read_once(folder, monkeypatch):
    for case, val in (("text", "b.jsonl"), ("large", "b.jsonl"), ("tokens", "b.bin")):
        source = prepared(
            folder, case, {"a": 1, "c": 3}, monkeypatch, val_source=val, val=0.0 if case == "tokens" else 0.1
        )
        alone = prepared(folder, case, {"a": 1}, val_source=val, val=0.0 if case == "tokens" else 0.1)
        if case != "large":  # whose BPE is trained on other text
            assert source.facts["tokens"]["val"] == alone.facts["tokens"]["val"]
        assert source.evaluated == alone.evaluated


@pytest.mark.slow
def test_the_tokenizer_of_a_large_mixture_is_trained_on_all_sources(folder, monkeypatch):
    source = prepared(folder, "large", EVEN, monkeypatch, tokenizer="char")
    assert {char for part in "abc" for char in words({"a": 0x61, "b": 0x400, "c": 0x3B1}[part])[0]} <= {
        source.tokenizer.token(number) for number in range(source.vocab_size)
    }
    again = prepared(folder, "large", {"b": 1, "c": 5}, tokenizer="char")
    assert again.unit != source.unit
