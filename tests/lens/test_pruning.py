"""Pruning curves and pairs."""

import numpy as np
import pytest
from tests.lens.cases import MODELS, ROWS

from taetpu.core.errors import UserError
from taetpu.core.sites import Edit
from taetpu.lens.ablation import passes
from taetpu.lens.ablation.components import find_components
from taetpu.lens.ablation.documents import Documents, read_documents
from taetpu.lens.ablation.knockout import knockout, losses_of_sets
from taetpu.lens.ablation.pruning import angular_distances, importances, pair_effects, prune
from taetpu.lens.ablation.replacements import Method, make_replacements

ZERO = Method("zero")


@pytest.mark.slow
def test_a_greedy_search_removes_the_least_harmful_component_each_time(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    components = find_components(opened, "mixers")
    found = prune(opened, documents, components, ZERO, "greedy")
    (first,), (second,) = found.removed
    replacements = make_replacements(opened, components, documents, ZERO)
    one = losses_of_sets(replacements, [(i,) for i in range(3)]).sum(-1)
    assert first == one.argmin()
    rest = [i for i in range(3) if i != first]
    two = losses_of_sets(replacements, [(first, i) for i in rest]).sum(-1)
    assert second == rest[two.argmin()]
    assert [row["removed"] for row in found.rows()] == [1, 2]
    assert found.rows()[1]["effect"] == pytest.approx(two.min() / documents.scored.sum() - found.intact, rel=1e-4)


@pytest.mark.slow
def test_importances_are_the_mean_absolute_slopes_of_gates(of):
    """A gate of 1 - share on a head changes a document's loss by the share of A . dL/dA."""
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    components = find_components(opened, "heads")
    found = importances(make_replacements(opened, components, documents, ZERO))
    share, slopes = 1e-2, np.zeros((3, 2, len(ROWS)))
    for layer, head in np.ndindex(3, 2):
        for number, row in enumerate(ROWS):
            losses = []
            for sign in (1, -1):
                gate = np.ones((2, 1, 1), np.float32)
                gate[head] = 1 - sign * share
                edit = Edit("mixer.z", lambda x, value: x * value, layer=layer, value="gate")
                logits = np.asarray(opened(row[:-1], (), [edit], {"gate": gate}).logits[0], np.float64)
                logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
                losses.append(-logs[np.arange(len(row) - 1), row[1:]].sum())
            slopes[layer, head, number] = abs(losses[0] - losses[1]) / (2 * share)
    expected = slopes.mean(-1)
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found.reshape(3, 2), expected, rtol=1e-2)


@pytest.mark.slow
def test_steps_of_importance_remove_all_but_one(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    found = prune(opened, documents, find_components(opened, "heads"), ZERO)
    numbers = [number for own in found.removed for number in own]
    assert len(numbers) == len(set(numbers)) == 5
    assert len(prune(opened, documents, find_components(opened, "heads"), ZERO, steps=2).removed) == 2


@pytest.mark.slow
def test_blocks_have_the_smallest_angle(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    angles = angular_distances(opened, documents)
    streams = [
        np.concatenate(
            [
                np.asarray(opened(row[:-1], ["embed"]).sites["embed"])[None],
                np.asarray(opened(row[:-1], ["residual"]).sites["residual"]),
            ]
        )[:, 0]
        for row in ROWS
    ]
    whole = np.concatenate(streams, 1)
    unit = whole / np.linalg.norm(whole, axis=-1, keepdims=True)
    expected = np.arccos(np.clip((unit[0] * unit[2]).sum(-1), -1, 1)).mean() / np.pi
    assert angles[0, 2] == pytest.approx(expected, rel=1e-4)
    found = prune(opened, documents, find_components(opened, "layers"), ZERO, "blocks")
    assert [len(own) for own in found.removed] == [1, 2]
    assert found.distances is not None
    assert found.distances[1] == pytest.approx(min(angles[0, 2], angles[1, 3]))


@pytest.mark.slow
def test_interactions_are_joint_effects_minus_single_effects(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    components = find_components(opened, "mixers")
    single = knockout(opened, documents, components, ZERO, controls=False).effect.estimate
    found = pair_effects(opened, documents, components, ZERO)
    assert found.pairs == [(0, 1), (0, 2), (1, 2)]
    for place, (i, j) in enumerate(found.pairs):
        expected = found.joint.estimate[place] - single[i] - single[j]
        assert found.interaction.estimate[place] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_a_kind_by_name_is_that_kind_and_may_be_of_one_layer(of):
    opened = of(MODELS["pre"])
    heads = find_components(opened, "heads", 1)
    expected = pair_effects(opened, read_documents(opened, ROWS), heads, ZERO)
    found = pair_effects(opened, ROWS, "heads", "zero", layer=1)
    assert found.rows() == expected.rows()
    assert [row["pair"] for row in found.rows()] == ["1.0 + 1.1"]
    single = knockout(opened, ROWS, "heads", "zero", layer=1, controls=False)
    assert {row["component"] for row in single.rows()} == {"1.0", "1.1"}
    with pytest.raises(UserError, match="layer=1") as caught:
        knockout(opened, ROWS, heads, "zero", layer=1)
    assert caught.value.path == ("layer",)


def test_passes_are_counted_first(of, monkeypatch):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    monkeypatch.setattr(passes, "MOST_PASSES", 10)
    heads, batches = find_components(opened, "heads"), len(list(documents.batches()))
    monkeypatch.setattr(passes, "time_pass", lambda *_: (2.0, 60.0 / batches))  # compilation and a pass
    with pytest.raises(UserError, match=f"each pair of 6 heads takes {22 * batches} passes .* about 22 min") as caught:
        pair_effects(opened, documents, heads, ZERO)
    assert "--layer" in str(caught.value.remedy)
    draws = Method("noise", draws=5)
    with pytest.raises(UserError, match=f"each pair of 6 heads takes {22 * batches * 5} passes"):
        pair_effects(opened, documents, heads, draws)
    with pytest.raises(UserError, match=f"the order 'greedy' of 6 heads takes {26 * batches} passes"):
        prune(opened, documents, heads, ZERO, "greedy")
    fitted = (22 + 3 * 6 * (4 + 2)) * batches  # each component has four steps, the mean and zero
    with pytest.raises(UserError, match=f"each pair of 6 heads takes {fitted} passes"):
        pair_effects(opened, documents, heads, Method("optimal", steps=4))
    monkeypatch.setattr(Documents, "batches", lambda self: iter(range(7)))
    with pytest.raises(UserError, match=f"takes {22 * 7} passes"):
        pair_effects(opened, documents, heads, ZERO)


@pytest.mark.slow
def test_the_time_of_a_pass_is_measured_without_its_compilation(of):
    opened = of({**MODELS["pre"], "dim": 16})
    compilation, each = passes.time_pass(opened, read_documents(opened, ROWS), find_components(opened, "heads"))
    assert 0 < each < compilation


@pytest.mark.parametrize(("seconds", "lines"), [(0.01, 0), (1.0, 1)])
def test_long_computations_are_reported_first(of, monkeypatch, seconds, lines):
    opened, reports = of(MODELS["pre"]), []
    documents = read_documents(opened, ROWS)
    monkeypatch.setattr(passes, "time_pass", lambda *_: (0.0, seconds))
    passes.check_passes(opened, documents, find_components(opened, "heads"), ZERO, "this", 100, report=reports.append)
    assert len(reports) == lines
    assert all("this takes 100 passes" in line and "1.67 min" in line for line in reports)


@pytest.mark.parametrize("order", ["greedy", "importance", "blocks"])
def test_a_curve_needs_two_components(of, order):
    what, layer = ("layers", None) if order == "blocks" else ("mixers", 1)
    opened = of({**MODELS["pre"], "num_layers": 1} if order == "blocks" else MODELS["pre"])
    components, documents = find_components(opened, what, layer), read_documents(opened, ROWS)
    with pytest.raises(UserError, match=f"of the kind {what}") as caught:
        prune(opened, documents, components, ZERO, order)
    assert "several members" in str(caught.value.remedy)


def test_other_mistakes_of_curves(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    with pytest.raises(UserError, match="unknown order 'greed'"):
        prune(opened, documents, find_components(opened, "heads"), ZERO, "greed")
    with pytest.raises(UserError, match="at least 1, got 0"):
        prune(opened, documents, find_components(opened, "heads"), ZERO, "greedy", steps=0)
    with pytest.raises(UserError, match="no importance"):
        prune(opened, documents, find_components(opened, "layers"), ZERO)
    with pytest.raises(UserError, match=r"blocks .*layers"):
        prune(opened, documents, find_components(opened, "heads"), ZERO, "blocks")
