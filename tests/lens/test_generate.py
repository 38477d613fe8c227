"""Generation: what is drawn, where it ends, and that a cache changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.page import write_plugin

from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.core.plugins import load_plugins
from taetpu.lens.generate import Sampling, generate
from taetpu.train.sample import draw

GREEDY = Sampling(temperature=0)
LOGITS = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.08, 0.02]))


def drawn(**settings) -> set[int]:
    """Return the tokens that 400 draws give."""
    keys = jax.random.split(root_key(0), 400)
    return set(np.asarray(jax.vmap(lambda key: draw(LOGITS, key, **settings))(keys)).tolist())


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"temperature": 0}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.65}, {0, 1}),
        ({"top_p": 0.75}, {0, 1, 2}),
        ({"min_p": 0.3}, {0, 1, 2}),
        ({"min_p": 0.9}, {0}),
        ({"top_k": 3, "min_p": 0.6}, {0, 1}),
    ],
)
def test_tokens_that_can_be_drawn(settings, possible):
    assert drawn(**settings) == possible


@pytest.mark.slow
@pytest.mark.parametrize("position", ["rope", "t5"])
def test_a_plug_ins_mixer_generates_with_a_cache_as_without(of, tmp_path, position):
    """The mixer is the attention of docs/plugins.md."""
    load_plugins([write_plugin("cosine.py", tmp_path)])
    model = of({"mixer": {"kind": "cosine", "num_heads": 2}, "position": position})
    cached, whole = (generate(model, [[1, 2]], max_tokens=8, cache=cache) for cache in (True, False))
    assert cached[0].tokens.tolist() == whole[0].tokens.tolist()
    assert len(set(cached[0].tokens.tolist())) > 1
    load_plugins([])


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.7, top_k=5)])
def test_a_cache_and_other_prompts_change_nothing(opened, sampling):
    prompts = ["the quick", "dog. the lazy"]
    cached, whole = (generate(opened, prompts, max_tokens=20, sampling=sampling, cache=c) for c in (True, False))
    for one, other in zip(cached, whole, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
    (alone,) = generate(opened, prompts[0], max_tokens=20, sampling=sampling)
    assert alone.tokens.tolist() == cached[0].tokens.tolist()


def test_greedy_tokens_are_the_most_likely_ones(opened):
    (found,) = generate(opened, "the ", max_tokens=12, sampling=GREEDY)
    out = opened([[*found.prompt, *found.tokens]])
    best = np.asarray(out.logits[0]).argmax(-1)[~out.tokens.padding[0]]
    assert best[len(found.prompt) - 1 : -1].tolist() == found.tokens.tolist()


@pytest.mark.slow
def test_seeds_give_different_texts_and_one_seed_the_same(opened):
    texts = [generate(opened, "the ", max_tokens=20, seed=seed)[0].text for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.slow
def test_stop_strings_and_tokens_end_the_text(opened):
    (whole,) = generate(opened, "the ", max_tokens=30, sampling=GREEDY)
    text = str(whole.text)
    word = text[3:7]
    parts: list[str] = []
    (found,) = generate(
        opened, "the ", max_tokens=30, sampling=GREEDY, stop=[word], on_text=lambda _, text: parts.append(text)
    )
    assert (found.text, found.stopped) == (text[: text.index(word)], word)
    assert "".join(parts) == found.text
    assert opened.decode(found.tokens) == found.text
    token = int(whole.tokens[2])
    (found,) = generate(opened, "the ", max_tokens=30, sampling=GREEDY, stop=[token])
    assert found.stopped == token
    assert token not in found.tokens


@pytest.mark.slow
def test_the_streamed_text_is_the_text(opened):
    parts: list[list[str]] = [[], []]
    found = generate(opened, ["the ", "dog"], max_tokens=40, on_text=lambda i, text: parts[i].append(text))
    assert ["".join(part) for part in parts] == [one.text for one in found]
    assert len(parts[0]) > 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Sampling(temperature=-1), "temperature is -1, expected at least 0"),
        (lambda: Sampling(top_k=0), "top_k is 0, expected at least 1"),
        (lambda: Sampling(top_p=1.5), "top_p is 1.5, expected above 0 and at most 1"),
        (lambda: Sampling(min_p=2.0), "min_p is 2.0, expected from 0 to 1"),
    ],
)
def test_invalid_sampling_is_refused(make, text):
    with pytest.raises(UserError, match=text):
        make()


def test_invalid_requests_are_refused(opened):
    with pytest.raises(UserError, match="0 tokens were requested"):
        generate(opened, "the", max_tokens=0)
    with pytest.raises(UserError, match="string is empty"):
        generate(opened, "the", stop=[""])
