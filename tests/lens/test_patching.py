"""Patching: exact scores, estimates from one gradient, and direct paths, on models whose circuits are known."""

import json

import numpy as np
import pytest
from tests.lens.cases import ATTENTION, MODELS, VOCAB

from taetpu.core.errors import UserError
from taetpu.core.sites import Edit
from taetpu.lens.ablation.components import find_components, find_positions
from taetpu.lens.ablation.knockout import losses_of_sets
from taetpu.lens.ablation.patching import attribution_patching, clean_measure, patch, read_pairs
from taetpu.lens.ablation.path_patching import Receiver, path_patching
from taetpu.lens.ablation.replacements import Method, make_replacements

TOKENS, LENGTH, PAIRS = 29, 12, 6


@pytest.fixture(scope="session")
def repeated(made):
    """Pairs for the induction model: the token after the repeated token differs between clean and corrupted texts."""
    clean, corrupted, answers, wrong = [], [], [], []
    for seed in range(PAIRS):
        first, *row = np.random.default_rng(seed).permutation(TOKENS)[: LENGTH + 1].tolist()
        ends = row[3]
        clean.append([*row, ends])
        answers.append(row[4])
        corrupted.append([*row[:4], first, *row[5:], ends])
        wrong.append(first)
    return read_pairs(made, clean, corrupted, answers, wrong)


def by_name(found):
    return {row["component"]: row for row in found.rows()}


def test_the_induction_head_restores_the_answer(made, repeated):
    found = patch(made, repeated, "heads", attribution=True)
    rows = by_name(found)
    assert rows["1.1"]["score"] == pytest.approx(1, abs=1e-3)
    assert found.rows()[0]["component"] == "1.1"
    for head in ("0.1", "1.0"):
        assert rows[head]["score"] == pytest.approx(0, abs=1e-3)
    assert found.clean > 0 > found.corrupted
    assert rows["1.1"]["estimate"] == pytest.approx(1, abs=1e-2)  # the output of the last head is linear in the logits
    assert found.correlation is not None


@pytest.mark.slow
def test_a_small_difference_of_clean_and_corrupted_runs_is_named(of, made, repeated):
    assert patch(made, repeated, "heads").warning is None
    opened, rng = of({"num_layers": 1, "mixer": ATTENTION}), np.random.default_rng(0)
    rows = rng.integers(0, VOCAB, (2, 6, 5)).tolist()
    one, other = rows[0][0], rows[1][0]
    many = patch(opened, read_pairs(opened, [one, other, one], [other, one, other], [3] * 3, [4] * 3), "heads")
    assert abs(many.clean - many.corrupted) < 2 * many.difference_error
    assert "less than 2 standard errors" in str(many.warning)
    warnings = set()
    for clean, corrupted in zip(*rows, strict=True):  # single pairs have no standard error
        found = patch(opened, read_pairs(opened, [clean], [corrupted], [3], [4]), "heads")
        whole, scores = found.clean - found.corrupted, np.abs(found.scores)
        assert (found.warning is not None) == (whole < 0 or scores.max() > 2)
        assert found.to_dict()["warning"] == found.warning
        assert found.to_dict()["difference_error"] is None
        warnings.add(str(found.warning)[-20:])
    assert len(warnings) > 1


def test_positions_restore_where_the_answer_is(made, repeated):
    """The embedding of the changed token holds the answer, and in the end the last position does."""
    before = patch(made, repeated, find_positions(made, "embed", LENGTH + 1))
    scores = {row["component"]: row["score"] for row in before.rows()}
    assert scores["4"] == pytest.approx(1, abs=1e-3)
    assert all(abs(score) < 1e-3 for name, score in scores.items() if name != "4")
    after = patch(made, repeated, find_positions(made, "residual", LENGTH + 1))
    scores = {row["component"]: row["score"] for row in after.rows()}
    assert scores["1.12"] == pytest.approx(1, abs=1e-3)
    assert scores["0.4"] == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pre", "post", "different heads"])
def test_estimates_are_the_slope_of_exact_scores(of, name):
    """Mixing a small share of the clean activations into the corrupted ones changes the measure by the estimate."""
    opened = of(MODELS[name])
    rng = np.random.default_rng(0)
    clean, corrupted = rng.integers(0, 11, (2, 4, 7))
    pairs = read_pairs(opened, clean, corrupted, [1, 2, 3, 4], [5, 6, 7, 8])
    components = find_components(opened, "mixers")
    found = attribution_patching(opened, pairs, components)
    assert np.isfinite(clean_measure(opened, pairs, components)).all()
    share = 1e-2
    for number in range(len(components)):
        values = []
        for sign in (1, -1):
            changes = []
            for one, other, answer, wrong in zip(clean, corrupted, [1, 2, 3, 4], [5, 6, 7, 8], strict=True):
                outs = [
                    np.asarray(opened(row.tolist(), "mixer.out").sites["mixer.out"])[number] for row in (one, other)
                ]
                edit = Edit("mixer.out", lambda x, value: x + value, layer=number, value="step")
                step = sign * share * (outs[0] - outs[1])
                logits = np.asarray(opened(other.tolist(), (), [edit], {"step": step}).logits[0, -1])
                changes.append(logits[answer] - logits[wrong])
            values.append(np.mean(changes))
        assert found[number] == pytest.approx((values[0] - values[1]) / (2 * share), rel=2e-2, abs=1e-4)


@pytest.mark.slow
def test_the_previous_token_head_reaches_the_induction_head_by_its_keys(made, repeated):
    """Head 0.0 writes what head 1.1 reads as keys; its queries and values come from the embedding."""
    rows = np.random.default_rng(3).permutation(TOKENS)[:LENGTH].tolist()
    clean, corrupted = [*rows, rows[3]], [*rows[:3], rows[5], *rows[4:], rows[3]]
    pairs = read_pairs(made, [clean], [corrupted], [rows[4]], [rows[6]])
    keys = by_name(path_patching(made, pairs, "heads", Receiver("mixer.k", 1, 1)))
    assert keys["0.0"]["score"] > 0.9
    assert keys["0.1"]["score"] == pytest.approx(0, abs=1e-3)
    for site in ("mixer.q", "mixer.v"):
        assert by_name(path_patching(made, pairs, "heads", Receiver(site, 1, 1)))["0.0"]["score"] < 0.05
    other = by_name(path_patching(made, pairs, "heads", Receiver("mixer.k", 1, 0)))
    assert other["0.0"]["score"] == pytest.approx(0, abs=1e-3)


@pytest.fixture
def grouped(of):
    """A model whose heads share keys and values in pairs, and texts for it."""
    opened = of({"num_layers": 2, "mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}})
    clean, corrupted = np.random.default_rng(0).integers(0, 11, (2, 5, 7))
    return opened, read_pairs(opened, clean, corrupted, [1, 2, 3, 4, 5], [6, 7, 8, 9, 10])


@pytest.mark.slow
def test_a_group_of_heads_with_shared_keys_is_patched_as_a_whole(grouped):
    opened, pairs = grouped
    found = patch(opened, pairs, "kv-groups", attribution=True)
    assert [one.name for one in found.components.each] == [f"{layer}.{group}" for layer in range(2) for group in (0, 1)]
    heads = find_components(opened, "heads")
    replacements = make_replacements(opened, heads, pairs.corrupted, Method("counterfactual", counterparts=pairs.clean))
    sets = [(), *((first, first + 1) for first in range(0, 8, 2))]
    measured = losses_of_sets(replacements, sets)
    np.testing.assert_allclose(found.effects.estimate, (measured[1:] - measured[0]).mean(-1), atol=1e-5)
    alone = patch(opened, pairs, heads, attribution=True).estimates
    assert found.estimates is not None
    assert alone is not None
    np.testing.assert_allclose(found.estimates, alone.reshape(-1, 2).sum(-1), atol=1e-5)
    assert np.abs(found.scores).min() > 1e-4
    assert found.cells()[1, 0] == pytest.approx(found.scores[2])
    assert '"group"' in json.dumps(found.chart().to_dict())


@pytest.mark.slow
def test_the_keys_of_a_group_receive_what_groups_send(grouped):
    """A receiver of keys is a group, of which there are fewer than heads."""
    opened, pairs = grouped
    found = [path_patching(opened, pairs, "kv-groups", Receiver("mixer.k", 1, group)) for group in (0, 1)]
    assert [row["component"] for row in sorted(found[0].rows(), key=lambda row: row["component"])] == ["0.0", "0.1"]
    assert all(np.abs(one.scores).min() > 1e-5 for one in found)
    with pytest.raises(UserError, match=r"head 2 .* layer 1, which has 2 heads"):
        path_patching(opened, pairs, "kv-groups", Receiver("mixer.k", 1, 2))


def test_mistakes(made, repeated):
    with pytest.raises(UserError, match=r"clean text 0 has 3 tokens, .*corrupted .* 2") as caught:
        read_pairs(made, [[1, 2, 3]], [[1, 2]], [4])
    assert caught.value.path == ("corrupted", 0)
    with pytest.raises(UserError, match="there are 1 clean texts, 2 corrupted texts, 1 answers"):
        read_pairs(made, [[1, 2]], [[1, 2], [3, 4]], [4])
    same = read_pairs(made, [[1, 2, 3]], [[1, 2, 3]], [4])
    with pytest.raises(UserError, match="the same measure"):
        patch(made, same, "heads")
    with pytest.raises(UserError, match="before layer 0"):
        path_patching(made, repeated, "heads", Receiver("mixer.q", 0, 1))
    with pytest.raises(UserError, match="head 7 does not exist"):
        path_patching(made, repeated, "heads", Receiver("mixer.q", 1, 7))
    with pytest.raises(UserError, match="no single axis"):
        find_positions(made, "mixer.pattern", 4)
