"""A model without components: every view sees it, with a cache too, and knock-outs on top remove both."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.lens.cases import MODELS, ROWS, SEQ
from tests.lens.test_knockout import document_losses, with_weights
from tests.suites import by_default

import taetpu
from taetpu.core.errors import UserError
from taetpu.core.sites import capture
from taetpu.interop.exporting import to_huggingface
from taetpu.lens.ablation.components import find_components
from taetpu.lens.ablation.documents import read_documents, split_documents
from taetpu.lens.ablation.knockout import knockout, losses_of_sets
from taetpu.lens.ablation.patching import patch, read_pairs
from taetpu.lens.ablation.path_patching import Receiver, path_patching
from taetpu.lens.ablation.pruning import pair_effects, prune
from taetpu.lens.ablation.removal import remove_components, without
from taetpu.lens.ablation.replacements import Method, make_replacements
from taetpu.lens.attention import head_progress
from taetpu.lens.beam import beam_search
from taetpu.lens.check_run import check_losses
from taetpu.lens.generate import Sampling, generate
from taetpu.lens.losses import find_split
from taetpu.lens.norms import residual_norms
from taetpu.lens.perplexity import perplexity, split_perplexity
from taetpu.nn.cache import empty_cache, extend
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.train.model_io import to_files

TEXT = "the fox and the quick fox"
TEXTS = [TEXT, "a lazy dog jumps over", "the brown dog"]
LABELLED = [f"the {'fox' if i % 2 else 'dog'} {'jumps ' * (i // 2)}" for i in range(20)]
GREEDY = Sampling(0)
ATTENTION = {"kind": "attention", "num_heads": 2}
WINDOW = {"kind": "attention", "num_heads": 2, "mask": {"kind": "window", "width": 3}}
# A model, the components to remove, and what takes their place.
CACHED = {
    "heads": ({"mixer": ATTENTION}, "heads", ["0.1", "1.0"], "zero"),
    "means of heads": ({"mixer": ATTENTION}, "heads", ["0.1", "1.0"], "mean"),
    "window": ({"mixer": WINDOW}, "heads", ["0.0", "2.1"], "mean"),
    "lstm": ({"mixer": "lstm"}, "states", ["0.3", "1.0", "2.7"], "mean"),
    "linear": ({"mixer": {"kind": "linear", "num_heads": 2}}, "heads", ["1.1"], "mean"),
    "keys of a latent": ({"mixer": {"kind": "mla", "num_heads": 2, "kv_latent": 4, "rope_dim": 2}}, "mixer.k", ["1"],
                         "mean"),
    "keys": ({"mixer": ATTENTION}, "mixer.k", ["1"], "mean"),
    "weights of attention": ({"mixer": ATTENTION}, "mixer.pattern", ["0"], "zero"),
    "convolved experts": ({"mixer": ATTENTION, "short_conv": "canon",
                           "ffn": {"kind": "moe", "experts": 3, "top": 1, "hidden": 4}}, "ffns", ["0"], "mean"),
    "layers": ({"mixer": ATTENTION}, "layers", [1], "zero"),
    "embeddings": ({"mixer": ATTENTION}, "embed", ["embed"], "mean"),
    "final norm": ({"mixer": ATTENTION}, "final_norm.scale", ["final_norm.scale"], "mean"),
    "values of layer 0": ({"mixer": {**ATTENTION, "values": "residual"}}, "mixer.v", ["0"], "mean"),
    "shared layers": ({"mixer": ATTENTION, "layers": {2: {"same_as": 0}}}, "heads", ["0.1", "2.0"], "mean"),
    "different heads": (MODELS["different heads"], "heads", ["0.1", "1.3", "2.0"], "mean"),
    "many layers": ({"mixer": ATTENTION, "num_layers": 10}, "heads", ["9.1", "3.0", "4.1"], "mean"),
    "two streams": (MODELS["hyper-connections"], "residual", ["1"], "mean"),
    "kv-groups": ({"mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}}, "kv-groups", ["0.1"], "mean"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CACHED)
def test_a_cache_changes_nothing(of, name):
    settings, what, names, how = CACHED[name]
    whole = of(settings)
    opened = without(whole, what, names, how, ROWS)
    model, ids = opened.unrolled, jnp.array([ROWS[2], ROWS[5]])
    expected = np.asarray(opened(np.asarray(ids)).logits)
    step, cache, found = eqx.filter_jit(extend), empty_cache(model, 2, SEQ), []
    for part in (ids[:, :3], *(ids[:, i : i + 1] for i in range(3, ids.shape[1]))):
        logits, cache = step(model, part, cache)
        found.append(np.asarray(logits))
    np.testing.assert_allclose(np.concatenate(found, 1), expected, atol=2e-5)
    assert np.abs(np.asarray(whole(np.asarray(ids)).logits) - expected).max() > 1e-3
    prompts = [ROWS[0][:3], ROWS[1][:2]]
    tokens = [[one.tokens.tolist() for one in generate(opened, prompts, max_tokens=4, sampling=GREEDY, cache=cached)]
              for cached in (True, False)]  # fmt: skip
    assert tokens[0] == tokens[1]


def zero_rows(values, layer=0, head=1):
    weight = values[f"layers.{layer}.mixer.wo"]
    size = len(weight) // 2
    weight[head * size : (head + 1) * size] = 0


def pairs(opened):
    return read_pairs(opened, ["the lazy fox", "the fox and"], ["the lazy dog", "the dog and"], [" ", " "], ["s", "q"])


def harness(opened):
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from taetpu.lens.harness import HarnessModel

    request = Instance("loglikelihood", {}, ("the quick", " brown fox"), 0)  # pyright: ignore[reportArgumentType]
    return HarnessModel(opened).loglikelihood([request])[0][0]


VIEWS = {
    "logits": lambda opened: opened(TEXT).logits,
    "samples": lambda opened: [generate(opened, "the ", max_tokens=30, seed=seed)[0].tokens for seed in range(3)],
    "beams": lambda opened: [beam.score for beam in beam_search(opened, "the ", beams=3, max_tokens=8)],
    "perplexity": lambda opened: perplexity(opened, TEXTS).mean,
    "loss of a split": lambda opened: split_perplexity(opened, "val").mean,
    "attention": lambda opened: taetpu.attention_maps(opened, TEXT)[0].patterns[1],
    "attention over training": lambda opened: head_progress(opened, TEXT, 1, 0, [10, 30]).patterns,
    "scores of heads": lambda opened: [row["induction"] for row in taetpu.head_scores(opened, length=8).rows()],
    "logit lens": lambda opened: taetpu.logit_lens(opened, TEXT)[0].probabilities[1:],
    "attribution": lambda opened: taetpu.attribution(opened, TEXT)[0].values,
    "contributions of heads": lambda opened: taetpu.attribution(opened, TEXT)[0].heads[0],
    "norms": lambda opened: residual_norms(opened, TEXT)[0].norms[1:],
    "embed": lambda opened: taetpu.embed(opened, TEXTS, "residual").vectors,
    "probe": lambda opened: taetpu.probe(opened, LABELLED, [*"ab"] * 10, "final").rows()[0]["accuracy"],
    "knock-outs": lambda opened: [own.estimate for own in knockout(opened, TEXTS, "heads", "mean").effects.values()],
    "pairs": lambda opened: pair_effects(
        opened, read_documents(opened, TEXTS), find_components(opened, "heads"), Method("zero")).interaction.estimate,
    "pruning": lambda opened: prune(
        opened, read_documents(opened, TEXTS), find_components(opened, "ffns"), Method("mean")).effects.estimate,
    "optimal constants": lambda opened: knockout(
        opened, TEXTS, find_components(opened, "mixers"), Method("optimal", steps=3), controls=False).effect.estimate,
    "patches": lambda opened: patch(opened, pairs(opened), "heads").effects.estimate,
    "estimated patches": lambda opened: patch(opened, pairs(opened), "ffns", attribution=True).estimates,
    "paths": lambda opened: path_patching(opened, pairs(opened), "heads", Receiver("mixer.v", 1)).effects.estimate,
    "harness": harness,
}  # fmt: skip
UNCHANGED = ("probe",)
"""Views of which numbers are so coarse that a head need not change them."""


@pytest.mark.parametrize("view", by_default(VIEWS, "logits"))
def test_each_view_is_that_of_a_model_with_zero_rows_of_the_output_projection(opened, view):
    look = VIEWS[view]
    removed, expected = without(opened, "heads", "0.1"), with_weights(opened, zero_rows)
    if view == "attention over training":  # of the models of both steps
        steps = [taetpu.open_run(opened.run.where, step=step, data_folder=opened.data_folder) for step in (10, None)]
        (first, last) = (taetpu.attention_maps(with_weights(one, zero_rows), TEXT)[0].patterns[1][0] for one in steps)
        np.testing.assert_allclose(np.asarray(look(removed)), np.stack([first, last]), atol=1e-5)
    else:
        np.testing.assert_allclose(np.asarray(look(removed)), np.asarray(look(expected)), rtol=1e-4, atol=2e-5)
    if view not in UNCHANGED:
        assert np.abs(np.asarray(look(removed), float) - np.asarray(look(opened), float)).max() > 1e-4


@pytest.mark.slow
def test_a_knockout_of_a_model_without_a_part_removes_both(of):
    opened = of({"mixer": ATTENTION})
    documents = read_documents(opened, ROWS)
    components = find_components(opened, "heads")
    zeros = make_replacements(opened, components, documents, Method("zero"))
    both = losses_of_sets(zeros, [(1,), *((1, i) for i in range(6))])
    removed = without(opened, "heads", "0.1")
    found = knockout(removed, documents, "heads", "zero", controls=False)
    scored = documents.scored.sum()
    np.testing.assert_allclose(found.effect.estimate, (both[1:] - both[0]).sum(-1) / scored, atol=1e-5)
    assert found.effect.estimate[1] == pytest.approx(0, abs=1e-6)
    assert np.abs(found.effect.estimate[[0, 2, 3, 4, 5]]).min() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("what", "names", "how"), [
    ("heads", ["1.0"], "zero"), ("heads", ["0.1", "2.0"], "mean"), ("neurons", ["0.0", "1.3"], "mean"),
    ("mixers", [1], "mean"), ("ffns", ["0", "2"], "zero"), ("layers", ["1", "2"], "zero"), ("mixer.q", ["2"], "mean"),
])  # fmt: skip
def test_losses_are_those_of_a_knockout(of, what, names, how):
    opened = of({"mixer": ATTENTION})
    documents = read_documents(opened, ROWS)
    components = find_components(opened, what)
    numbers = [number for number, one in enumerate(components.each) if one.name in map(str, names)]
    replacements = make_replacements(opened, components, documents, Method(how))
    expected = losses_of_sets(replacements, [numbers])[0]
    np.testing.assert_allclose(document_losses(without(opened, what, names, how, ROWS)), expected, rtol=1e-5)


@pytest.mark.slow
def test_a_skipped_layer_contributes_nothing(opened):
    removed = without(opened, "layers", "1")
    norms = residual_norms(removed, TEXT)[0].norms
    np.testing.assert_allclose(norms[2], norms[1])
    (found,) = taetpu.attribution(removed, TEXT)
    own = [place for place, name in enumerate(found.components) if name.startswith("1.")]
    assert np.abs(found.values[own]).max() < 1e-6
    np.testing.assert_allclose(found.values.sum(0), found.logits, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize(("what", "name"), [("mixers", "0"), ("heads", "0.1"), ("ffns", "1"), ("residual", "0"),
                                            ("embed", "embed"), ("norm.scale", "0")])  # fmt: skip
def test_contributions_to_a_logit_still_sum_to_it(opened, what, name, how):
    what = "mixer_norm.scale" if what == "norm.scale" else what
    (found,) = taetpu.attribution(without(opened, what, name, how), TEXT)
    np.testing.assert_allclose(found.values.sum(0), found.logits, atol=1e-3)
    values = dict(zip(found.components, found.values, strict=True))
    if what == "mixers" and how == "zero":
        assert np.abs(values["0.mixer"]).max() == 0
        assert 0 not in found.heads  # whose sum is not the output
    if what == "heads" and how == "zero":
        assert np.abs(found.heads[0][1]).max() == 0
        assert np.abs(found.heads[0][0]).max() > 1e-3
    if what == "residual":  # nothing before the edit reaches the logits
        assert max(np.abs(values[name]).max() for name in ("embed", "0.mixer", "0.ffn")) < 1e-6


@pytest.mark.slow
def test_optimal_constants_lose_at_most_as_much_as_means(opened):
    losses = {how: perplexity(without(opened, "mixers", "1", how, TEXTS), TEXTS).mean
              for how in ("zero", "mean", "optimal")}  # fmt: skip
    assert losses["optimal"] < min(losses["zero"], losses["mean"]) - 1e-3


def test_means_of_a_run_are_those_of_its_evaluation_set(opened):
    removed = without(opened, "heads", "1.1", "mean")
    documents = split_documents(find_split(opened, "val"), 64)
    expected = without(opened, "heads", "1.1", "mean", documents)
    np.testing.assert_array_equal(removed(TEXT).logits, expected(TEXT).logits)
    other = without(opened, "heads", "1.1", "mean", ["zzz"])
    assert np.abs(np.asarray(other(TEXT).logits) - np.asarray(removed(TEXT).logits)).max() > 1e-3


@pytest.mark.slow
def test_removals_add_up(of):
    opened = of({"mixer": ATTENTION})
    parts = {"heads": ["0.1", "1.0"], "ffns": "1", "final_norm.scale": "final_norm.scale"}
    once = remove_components(opened, parts)
    steps = opened
    for what, name in (("heads", ["1.0"]), ("final_norm.scale", "final_norm.scale"), ("ffns", 1), ("heads", "0.1")):
        steps = without(steps, what, name)
    np.testing.assert_allclose(once(ROWS[0]).logits, steps(ROWS[0]).logits, atol=1e-6)
    assert once.name == "drawn without heads 0.1, 1.0 and ffns 1 and final_norm.scale"
    assert without(without(opened, "heads", ["0.1"], "mean", ROWS), "ffns", 1).name == (
        "drawn without heads 0.1 (mean) and ffns 1"
    )
    assert without(opened, "neurons", [f"0.{i}" for i in range(9)]).name.endswith("0.4, 0.5 and 3 more")


@pytest.mark.slow
def test_other_components_and_constants_share_programs(of):
    opened = of({"mixer": ATTENTION})
    traced = []

    def look(removed):
        def build():
            def forward(model, ids):
                traced.append(removed.name)
                return model(ids)

            return jax.jit(forward)

        return np.asarray(removed.program("test", build)(removed.model, jnp.array([ROWS[0]])))

    first = look(without(opened, "heads", "0.1", "mean", ROWS))
    others = [look(without(opened, "heads", ["2.0", "1.1"], "mean", ROWS)),
              look(without(opened, "heads", "0.1", "mean", ROWS[:2]))]  # fmt: skip
    assert len(traced) == 1
    assert all(np.abs(other - first).max() > 1e-3 for other in others)
    look(without(opened, "ffns", 0))
    assert len(traced) == 2


def test_captures_read_edited_activations_and_edit_them_further(opened):
    removed = without(opened, "heads", "0.1")
    z = np.asarray(removed(TEXT, ["mixer.z"]).sites["mixer.z"])
    assert (z[0, :, 1] == 0).all()
    assert np.abs(z[0, :, 0]).max() > 0
    _, reads = capture(removed.unrolled, ["mixer.z"])(jnp.asarray(removed.encode(TEXT).ids))
    assert (np.asarray(reads["mixer.z"])[0, :, 1] == 0).all()
    again = with_parameters(removed.model, named_parameters(opened.model))
    np.testing.assert_array_equal(replace(removed, model=again)(TEXT).logits, removed(TEXT).logits)


def test_files_never_lose_edits(opened):
    sizes = {"interface": opened.interface, "seq_len": opened.seq_len}
    for what in ("heads", "layers"):
        removed = without(opened, what, find_components(opened, what).each[0].name)
        assert named_parameters(removed.model).keys() == named_parameters(opened.model).keys()
        with pytest.raises(UserError, match="active edits"):
            to_files(removed.model, removed.config, tokenizer=None, **sizes)
        with pytest.raises(UserError, match="active edits"):
            to_huggingface(removed.config, removed.model)
    with pytest.raises(UserError, match=r"no loss .* small/baseline/0 without heads 0\.1"):
        check_losses(without(opened, "heads", "0.1"))


MISTAKES = [
    (("headz", "0.1"), "no components 'headz'", "Did you mean 'heads'"),
    (("heads", "0.5"), "no component '0.5' among its heads", "Use one of: 0.0, 0.1, 1.0"),
    (("heads", ()), "no heads", "0.0"),
    (("positions", "0"), "to documents", "knockout"),
    (("heads", "0.1", "resample"), "'resample' is not one", "mean"),
    (("heads", "0.1", "mean"), "drawn was not", "reference"),
    (("layers", "0", "mean", ROWS), "layers are skipped", "zero"),
    (("mixer.pattern", "0", "mean", ROWS), "no single axis", "zero"),
    (("final", "final"), "after all layers", "residual"),
]


@pytest.mark.parametrize(("arguments", "problem", "remedy"), MISTAKES)
def test_mistakes(of, arguments, problem, remedy):
    with pytest.raises(UserError) as caught:
        without(of({"mixer": ATTENTION}), *arguments)
    assert problem in caught.value.problem
    assert remedy in str(caught.value.remedy)
