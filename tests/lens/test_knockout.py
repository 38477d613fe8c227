"""Knock-outs: each equals a model whose weights lack the part, and statistics are those of the documents."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from tests.lens.cases import ATTENTION, MODELS, ROWS, SEQ
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.core.sites import Edit
from taetpu.lens.ablation.components import find_components
from taetpu.lens.ablation.documents import Documents, read_documents, split_documents
from taetpu.lens.ablation.knockout import check_traceable, knockout, losses_of_sets
from taetpu.lens.ablation.removal import without
from taetpu.lens.ablation.replacements import Method, make_replacements
from taetpu.lens.ablation.sweep import CONDITIONS
from taetpu.lens.activations import by_layer
from taetpu.lens.losses import find_split, sequence_losses
from taetpu.lens.perplexity import perplexity
from taetpu.nn.named_arrays import named_parameters, with_parameters


def with_weights(opened, change):
    """Return a model with changed weights: `change(values)` changes a dictionary of all weights in place."""
    values = {name: np.array(array) for name, array in named_parameters(opened.model).items()}
    change(values)
    return replace(opened, model=with_parameters(opened.model, values), _programs={})


def document_losses(opened, rows=ROWS):
    return np.array([losses.sum() for losses, _ in sequence_losses(opened, [np.array(row) for row in rows])])


def sums(opened, documents, what, sets, method=None, condition=CONDITIONS[0]):
    components = find_components(opened, what, positions=SEQ)
    replacements = make_replacements(opened, components, documents, method or Method("zero"))
    return losses_of_sets(replacements, sets, condition), components


@pytest.mark.parametrize("name", by_default(MODELS, "pre"))
def test_zeroing_a_head_zeroes_its_rows_of_the_output_projection(of, name):
    opened = of(MODELS[name])
    found, components = sums(opened, read_documents(opened, ROWS), "heads", [(i,) for i in range(6)])
    for number in range(6):
        layer, head = map(int, components.each[number].name.split("."))

        def zero(values, layer=layer, head=head):
            weight = values[f"layers.{layer}.mixer.wo"]
            size = len(weight) // opened.config.layers[layer].mixer.num_heads
            weight[head * size : (head + 1) * size] = 0

        np.testing.assert_allclose(found[number], document_losses(with_weights(opened, zero)), rtol=1e-5)


@pytest.mark.slow
def test_removing_nothing_changes_nothing(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    for condition in CONDITIONS:
        found, _ = sums(opened, documents, "heads", [(), ()], condition=condition)
        np.testing.assert_allclose(found, np.tile(document_losses(opened), (2, 1)), rtol=1e-5)
    whole = perplexity(opened, ROWS)
    assert found[0].sum() / documents.scored.sum() == pytest.approx(whole.mean, rel=1e-6)


@pytest.mark.parametrize("what", by_default(["heads", "ffns", "positions", "final_norm.scale"], "heads"))
def test_components_hold_the_shape_of_each_group(of, what):
    opened = of(MODELS["different heads"])
    components = find_components(opened, what, positions=SEQ)
    read = by_layer(opened, components.site, opened(ROWS[:2], components.site).sites[components.site])
    length = max(map(len, ROWS[:2]))
    assert components.shapes.keys() == ({*components.groups} or {None})
    for first, axis in components.position_axes().items():
        sizes = list(components.shapes[first].shape)
        sizes[0], sizes[axis] = 2, length
        assert read[first].shape == tuple(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("what", by_default(["heads", "ffns", "positions"], "positions"))
def test_the_clean_activation_restores_the_clean_loss(of, what):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    method = Method("counterfactual", counterparts=documents)
    found, _ = sums(opened, documents, what, [(0,), (1, 2)], method)
    np.testing.assert_allclose(found, np.tile(document_losses(opened), (2, 1)), rtol=1e-5)


@pytest.mark.slow
def test_optimal_constants_lose_at_most_as_much_as_mean_and_zero(of):
    opened = of({**MODELS["pre"], "num_layers": 2})
    documents = read_documents(opened, ROWS)
    sets = [(i,) for i in range(4)]
    zero, mean, optimal = (sums(opened, documents, "heads", sets, Method(how, steps=5))[0].sum(-1)
                           for how in ("zero", "mean", "optimal"))  # fmt: skip
    assert (optimal <= np.minimum(zero, mean) + 1e-4).all()
    assert (optimal < np.minimum(zero, mean) - 1e-3).any()


@pytest.mark.slow
@pytest.mark.parametrize("by_position", by_default([False, True], True))
def test_means_are_over_documents_without_padding(of, by_position):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    found, _ = sums(opened, documents, "mixers", [(1,)], Method("mean", by_position=by_position))
    outputs = [np.asarray(opened(row[:-1], "mixer.out").sites["mixer.out"])[1, 0] for row in ROWS]
    if by_position:
        means = [np.mean([own[i] for own in outputs if len(own) > i], 0) for i in range(max(map(len, outputs)))]
    else:
        means = [np.concatenate(outputs).mean(0)] * SEQ
    edit = Edit("mixer.out", lambda x, value: jax.numpy.broadcast_to(value, x.shape), layer=1, value="mean")
    for number, row in enumerate(ROWS):
        logits = opened(row[:-1], (), [edit], {"mean": np.stack(means[: len(row) - 1])}).logits[0]
        losses = -jax.nn.log_softmax(logits)[np.arange(len(row) - 1), np.array(row[1:])]
        assert found[0, number] == pytest.approx(float(losses.sum()), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS])
def test_a_skipped_layer_is_a_dropped_layer(of, name):
    opened = of(MODELS[name])
    found, _ = sums(opened, read_documents(opened, ROWS), "layers", [(1,), (0, 2)])
    for number, dropped in enumerate([(1,), (0, 2)]):
        layers = {layer: {**MODELS[name].get("layers", {}).get(layer, {}), "drop": ["layer"]} for layer in dropped}
        other = of({**MODELS[name], "layers": {**MODELS[name].get("layers", {}), **layers}})
        np.testing.assert_allclose(found[number], document_losses(other), rtol=1e-5)


@pytest.mark.slow
def test_other_documents_and_their_lengths_change_no_effect(of):
    opened = of(MODELS["pre"])
    whole, _ = sums(opened, read_documents(opened, ROWS), "heads", [(0,), (3,)])
    for number, row in enumerate(ROWS):
        alone, _ = sums(opened, read_documents(opened, [row]), "heads", [(0,), (3,)])
        np.testing.assert_allclose(whole[:, number], alone[:, 0], rtol=1e-5)


@pytest.mark.slow
def test_key_value_groups_are_the_heads_that_read_them(of):
    opened = of({"mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}})
    documents = read_documents(opened, ROWS)
    groups, components = sums(opened, documents, "kv-groups", [(1,), (4,)])
    assert [components.each[number].name for number in (1, 4)] == ["0.1", "2.0"]
    heads, _ = sums(opened, documents, "heads", [(2, 3), (8, 9)])
    np.testing.assert_allclose(groups, heads, rtol=1e-6)


@pytest.mark.slow
def test_tiny_noise_changes_nothing_and_usual_noise_something(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    clean = document_losses(opened)
    still, _ = sums(opened, documents, "ffns", [(0,)], Method("noise", sigma=1e-9))
    np.testing.assert_allclose(still[0], clean, rtol=1e-5)
    noisy, _ = sums(opened, documents, "ffns", [(0,), (0,)], Method("noise"))
    assert np.abs(noisy[0] - clean).max() > 1e-2
    np.testing.assert_array_equal(noisy[0], noisy[1])


@pytest.mark.slow
def test_resampled_activations_are_those_of_other_documents(of):
    opened = of(MODELS["pre"])
    rows = [row[:5] for row in ROWS]
    documents = read_documents(opened, rows)
    found, _ = sums(opened, documents, "mixers", [(0,)], Method("resample", draws=1, seed=3))
    shifts = []
    for shift in range(1, len(rows)):
        others = read_documents(opened, [rows[(i + shift) % len(rows)] for i in range(len(rows))])
        swapped, _ = sums(opened, documents, "mixers", [(0,)], Method("counterfactual", counterparts=others))
        shifts.append(np.allclose(swapped, found, rtol=1e-5))
    assert sum(shifts) == 1


def test_heads_of_an_induction_model_come_out_on_top(made):
    rows = [np.tile(np.random.default_rng(i).permutation(29)[:12], 2) for i in range(8)]
    documents = read_documents(made, rows)
    found = knockout(made, documents, find_components(made, "heads"), Method("zero"), controls=True)
    ranked = [row["component"] for row in found.rows()]
    assert set(ranked[:2]) == {"0.0", "1.1"}
    by_name = {row["component"]: row for row in found.rows()}
    assert by_name["0.0"]["low"] > 1
    assert by_name["1.1"]["low"] > 1
    # Head 0.0 writes what head 1.1 reads, and nothing that the output reads.
    assert by_name["0.0"]["direct"] == pytest.approx(0, abs=1e-3)
    assert by_name["1.1"]["direct"] == pytest.approx(by_name["1.1"]["effect"], rel=1e-4)
    assert by_name["0.1"]["effect"] == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_frozen_norms_keep_the_scales_of_the_intact_model(of):
    """The last ffn without its norm's influence: the logits change linearly, by its output alone."""
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    frozen, _ = sums(opened, documents, "ffns", [(2,)], condition="frozen norms")
    weight = np.asarray(named_parameters(opened.model)["norm.weight"])
    for number, row in enumerate(ROWS):
        out = opened(row[:-1], ["residual", "ffn.out", "final_norm.scale"])
        stream = np.asarray(out.sites["residual"])[-1, 0] - np.asarray(out.sites["ffn.out"])[-1, 0]
        normed = stream * np.asarray(out.sites["final_norm.scale"])[0] * weight
        logits = opened.model.decode(jax.numpy.asarray(normed[None]))[0]
        losses = -jax.nn.log_softmax(logits)[np.arange(len(row) - 1), np.array(row[1:])]
        assert frozen[0, number] == pytest.approx(float(losses.sum()), rel=1e-4)


@pytest.mark.slow
def test_the_last_target_alone_is_scored(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS).last()
    found, _ = sums(opened, documents, "heads", [(), (0,)])
    last = [losses[-1] for losses, _ in sequence_losses(opened, [np.array(row) for row in ROWS])]
    np.testing.assert_allclose(found[0], last, rtol=1e-5)
    assert documents.scored.tolist() == [1.0] * len(ROWS)


@pytest.mark.slow
def test_windows_of_an_evaluation_set_have_the_loss_of_training(opened):
    documents = split_documents(find_split(opened, "val"))
    found, _ = sums(opened, documents, "heads", [()])
    assert found.sum() / documents.scored.sum() == pytest.approx(opened.result["metrics"]["val/loss"], rel=1e-5)


USABLE = "Use one of layers, heads, kv-groups, mixers, ffns, neurons, positions."
MISTAKES = [
    ({"what": "headz"}, "no components 'headz'", "heads"),
    ({"what": "experts"}, "no experts: .*swiglu", USABLE),
    ({"what": "states"}, "no states: .*'mixer.state'", USABLE),
    ({"what": "heads", "how": "noise", "sigma": 0.0}, "sigma is 0, and noise", "above 0"),
    ({"what": "heads", "layer": 7}, "layer 7 does not exist", "Use 0 to 2"),
    ({"what": "positions", "layer": 0}, "layer 0 has no positions", "Remove the layer"),
    ({"what": "layers", "how": "mean"}, "no mean activation", "Use zero"),
    ({"what": "heads", "how": "counterfactual"}, "counterfactual needs other documents", "--counterfactual"),
    ({"what": "heads", "how": "zap"}, "unknown replacement 'zap'", "zero"),
]


@pytest.mark.parametrize(("options", "problem", "remedy"), MISTAKES)
def test_mistakes(of, options, problem, remedy):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)

    def measure():
        components = find_components(opened, options["what"], options.get("layer"), 5)
        make_replacements(
            opened, components, documents, Method(options.get("how", "zero"), sigma=options.get("sigma", 3.0))
        )

    with pytest.raises(UserError, match=problem) as caught:
        measure()
    assert remedy in str(caught.value.remedy)


@pytest.mark.slow
def test_suggested_kinds_are_usable(of):
    opened = of(MODELS["pre"])
    with pytest.raises(UserError) as caught:
        find_components(opened, "headz")
    known = str(caught.value.remedy).rpartition("Use one of: ")[2].rstrip(".").split(", ")
    assert {"heads", "layers", "residual"} <= {*known}
    for what in known:
        check_traceable(opened, find_components(opened, what, positions=4))


def test_experts_replace_neurons_in_the_suggestions_for_a_mixture(of):
    with pytest.raises(UserError, match=r"no neurons: .*moe\n") as caught:
        find_components(of({"mixer": {"kind": "attention", "num_heads": 2}, "ffn": {"kind": "moe"}}), "neurons")
    assert "experts" in str(caught.value.remedy)
    assert "neurons" not in str(caught.value.remedy)


@pytest.mark.slow
def test_layers_are_skipped_by_default(of):
    opened = of(MODELS["pre"])
    found = knockout(opened, ROWS, "layers", controls=False)
    expected = knockout(opened, ROWS, "layers", "zero", controls=False)
    assert found.method.how == "zero"
    assert found.effect.estimate.tolist() == expected.effect.estimate.tolist()
    assert knockout(opened, ROWS, "mixers", controls=False).method.how == "mean"


@pytest.mark.slow
def test_a_knockout_that_changes_nothing_is_refused(of):
    opened = without(of(MODELS["pre"]), "heads", "1.0")
    documents = read_documents(opened, ROWS)
    heads = find_components(opened, "heads", 1)
    (gone,) = [one for one in heads.each if one.name == "1.0"]
    with pytest.raises(UserError, match=r"removing heads 1\.0") as caught:
        knockout(opened, documents, replace(heads, each=(gone,)), "zero", controls=False)
    assert "--how" in str(caught.value.remedy)
    found = knockout(opened, documents, heads, "zero", controls=False).effect.estimate
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert abs(found[1]) > 1e-5
    same = Method("counterfactual", counterparts=documents)
    with pytest.raises(UserError, match=r"all 6 counterfactual documents .*equal"):
        knockout(opened, documents, heads, same)


def test_counterfactuals_of_other_lengths_are_refused(of):
    opened = of(MODELS["pre"])
    documents = read_documents(opened, ROWS)
    components = find_components(opened, "heads")
    others = read_documents(opened, [*ROWS[:3], [1, 2, 3], *ROWS[4:]])
    with pytest.raises(UserError, match=r"document 3 has 4 tokens, .*counterfactual has 2") as caught:
        make_replacements(opened, components, documents, Method("counterfactual", counterparts=others))
    assert caught.value.path == ("counterfactual", 3)
    one = read_documents(opened, ROWS[:1])
    with pytest.raises(UserError, match="there are 1 counterfactual documents for 6"):
        make_replacements(opened, components, documents, Method("counterfactual", counterparts=one))
    with pytest.raises(UserError, match="2 documents, got 1"):
        make_replacements(opened, components, one, Method("resample"))


@pytest.mark.slow
def test_few_documents_have_no_interval(of):
    opened = of(MODELS["pre"])
    components = find_components(opened, "ffns")
    for rows, error in ((ROWS[:1], False), (ROWS[:3], True)):
        documents = read_documents(opened, rows)
        assert isinstance(documents, Documents)
        found = knockout(opened, documents, components, Method("zero"), controls=False).effect
        assert np.isnan(found.low).all()
        assert np.isfinite(found.error).all() == error


@pytest.mark.slow
def test_notebooks_show_the_picture_and_the_largest_effects(of):
    opened = of({"mixer": {"kind": "attention", "num_heads": 8, "head_dim": 2}})
    found = knockout(opened, ROWS, "heads", "mean", controls=False)
    text = found._repr_html_()
    assert f"loss {found.intact[0]:.4f}" in text
    assert text.count("<svg") == 1
    assert [row["component"] for row in found.rows()[:10]] == re.findall(r'left">(\d\.\d)</td>', text)
    assert f"{found.rows()[0]['effect']:+.4f}" in text
    assert "14 more" in text
    neurons = knockout(opened, ROWS, find_components(opened, "neurons"), "zero", controls=False)
    assert f"{len(neurons.components) - 10} more" in neurons._repr_html_()


def test_windows_of_a_long_text_are_called_windows(of):
    opened = of({"mixer": ATTENTION})
    text = np.arange(2 * opened.seq_len + 3) % opened.vocab_size
    described = read_documents(opened, [text]).last().described
    for part in ("3 windows", f" {opened.seq_len} tokens", "one text"):
        assert part in described
    assert "2 texts" in read_documents(opened, [text, text[:4]]).described
    assert read_documents(opened, [text[:4]]).described == "1 document"
