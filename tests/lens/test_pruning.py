"""Pruning curves and pairs."""

import numpy as np
import pytest
from tests.lens.cases import MODELS, ROWS

from taetpu.core.errors import UserError
from taetpu.core.sites import Edit
from taetpu.lens.ablation import pruning
from taetpu.lens.ablation.components import find_components
from taetpu.lens.ablation.documents import read_documents
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
    one = losses_of_sets(opened, documents, components, [(i,) for i in range(3)], replacements).sum(-1)
    assert first == one.argmin()
    rest = [i for i in range(3) if i != first]
    two = losses_of_sets(opened, documents, components, [(first, i) for i in rest], replacements).sum(-1)
    assert second == rest[two.argmin()]
    assert [row["removed"] for row in found.rows()] == [1, 2]
    assert found.rows()[1]["effect"] == pytest.approx(two.min() / documents.scored.sum() - found.intact, rel=1e-4)


def test_importances_are_the_mean_absolute_slopes_of_gates(of):
    """A gate of 1 - share on a head changes a document's loss by the share of A . dL/dA."""
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    components = find_components(opened, "heads")
    found = importances(opened, documents, components, make_replacements(opened, components, documents, ZERO))
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


def test_passes_are_counted_first(of, monkeypatch):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    monkeypatch.setattr(pruning, "MOST_SETS", 10)
    with pytest.raises(UserError, match="each pair of 6 heads takes 22 passes") as caught:
        pair_effects(opened, documents, find_components(opened, "heads"), ZERO)
    assert "--layer" in str(caught.value.remedy)
    with pytest.raises(UserError, match="a greedy search takes 20 passes"):
        prune(opened, documents, find_components(opened, "heads"), ZERO, "greedy")
    with pytest.raises(UserError, match="blocks consist of layers"):
        prune(opened, documents, find_components(opened, "heads"), ZERO, "blocks")
