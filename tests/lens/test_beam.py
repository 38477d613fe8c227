"""Beam search finds what an exhaustive search finds, if it is wide enough."""

import jax
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.lens.beam import beam_search
from taetpu.lens.generate import Sampling, generate


def log_probabilities(opened, rows: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of the token after each row."""
    return np.asarray(jax.nn.log_softmax(opened(rows).logits[:, -1], -1))


def test_a_wide_search_is_exhaustive(opened):
    prompt, vocab = opened.tokenizer.encode("the qu"), opened.vocab_size
    first = log_probabilities(opened, prompt[None])[0]
    rows = np.concatenate([np.tile(prompt, (vocab, 1)), np.arange(vocab)[:, None]], 1)
    totals = first[:, None] + log_probabilities(opened, rows)
    found = beam_search(opened, prompt, beams=vocab, max_tokens=2)
    order = np.argsort(-totals, axis=None)[:5]
    for beam, index in zip(found, order, strict=False):
        assert beam.tokens.tolist() == [index // vocab, index % vocab]
        assert beam.score == pytest.approx(totals.reshape(-1)[index], abs=1e-4)


def test_one_beam_is_greedy(opened):
    (greedy,) = generate(opened, "the ", max_tokens=12, sampling=Sampling(0))
    (beam,) = beam_search(opened, "the ", beams=1, max_tokens=12)
    assert beam.tokens.tolist() == greedy.tokens.tolist()
    assert beam.text == greedy.text


def test_scores_are_sums_of_log_probabilities_and_do_not_fall_with_width(opened):
    narrow, wide = (beam_search(opened, "dog", beams=beams, max_tokens=6) for beams in (2, 6))
    assert wide[0].score >= narrow[0].score - 1e-5
    out = opened([[*opened.tokenizer.encode("dog"), *wide[0].tokens]])
    logs = np.asarray(jax.nn.log_softmax(out.logits[0], -1))[~out.tokens.padding[0]][2:-1]
    assert wide[0].score == pytest.approx(logs[np.arange(6), wide[0].tokens].sum(), abs=1e-4)


def test_an_end_token_ends_a_sequence(opened):
    end = int(opened.tokenizer.encode(" ")[0])
    found = beam_search(opened, "the qui", beams=5, max_tokens=10, end=end)
    assert all(end not in beam.tokens for beam in found)
    assert min(len(beam.tokens) for beam in found) < 10
    by_length = beam_search(opened, "the qui", beams=5, max_tokens=10, end=end, length_power=1.0)
    assert {beam.text for beam in by_length} == {beam.text for beam in found}
    rates = [beam.score / max(1, len(beam.tokens)) for beam in by_length]
    assert rates == sorted(rates, reverse=True)


def test_invalid_searches_are_refused(opened):
    with pytest.raises(UserError, match="beams is 0, expected at least 1"):
        beam_search(opened, "the", beams=0)
