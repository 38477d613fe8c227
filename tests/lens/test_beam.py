"""Beam search finds what an exhaustive search finds, if it is wide enough; `taetpu lens sample --beams` shows it."""

import json

import jax
import numpy as np
import pytest
import torch
import transformers
from tests.suites import first_by_default

import taetpu
from taetpu.core.errors import UserError
from taetpu.lens.beam import beam_search
from taetpu.lens.generate import Sampling, generate


@pytest.fixture(scope="module")
def random_gpt2(tmp_path_factory):
    """A GPT-2 with 64 learned positions and large random weights, in transformers and opened."""
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=23, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model, taetpu.open_run(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "size"), [(60, 5), (64, 1)])
def test_the_last_token_needs_no_position(random_gpt2, prompt, size):
    theirs, opened = random_gpt2
    ids = [(3 * i) % 23 for i in range(prompt)]
    expected = theirs.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, prompt, dtype=torch.long), max_new_tokens=size,
        do_sample=False, eos_token_id=None, pad_token_id=0,
    )[0, prompt:].tolist()  # fmt: skip
    for cache in (True, False):
        (found,) = generate(opened, [ids], max_tokens=size, sampling=Sampling(0), cache=cache)
        assert found.tokens.tolist() == expected
    (beam,) = beam_search(opened, ids, beams=1, max_tokens=size)
    assert beam.tokens.tolist() == expected
    for search in (generate, beam_search):
        with pytest.raises(UserError, match=f"the sequence has {prompt + size}"):
            search(opened, [ids] if search is generate else ids, max_tokens=size + 1)


def log_probabilities(opened, rows: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of the token after each row."""
    return np.asarray(jax.nn.log_softmax(opened(rows).logits[:, -1], -1))


@pytest.mark.slow
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


@pytest.mark.slow
def test_one_beam_is_greedy(opened):
    (greedy,) = generate(opened, "the ", max_tokens=12, sampling=Sampling(0))
    (beam,) = beam_search(opened, "the ", beams=1, max_tokens=12)
    assert beam.tokens.tolist() == greedy.tokens.tolist()
    assert beam.text == greedy.text


@pytest.mark.slow
def test_scores_are_sums_of_log_probabilities_and_do_not_fall_with_width(opened):
    narrow, wide = (beam_search(opened, "dog", beams=beams, max_tokens=6) for beams in (2, 6))
    assert wide[0].score >= narrow[0].score - 1e-5
    out = opened([[*opened.tokenizer.encode("dog"), *wide[0].tokens]])
    logs = np.asarray(jax.nn.log_softmax(out.logits[0], -1))[~out.tokens.padding[0]][2:-1]
    assert wide[0].score == pytest.approx(logs[np.arange(6), wide[0].tokens].sum(), abs=1e-4)


@pytest.mark.slow
def test_an_end_token_ends_a_sequence(opened):
    end = int(opened.tokenizer.encode(" ")[0])
    found = beam_search(opened, "the qui", beams=5, max_tokens=10, end=end)
    assert all(end not in beam.tokens for beam in found)
    assert min(len(beam.tokens) for beam in found) < 10
    by_length = beam_search(opened, "the qui", beams=5, max_tokens=10, end=end, length_power=1.0)
    rates = [beam.score / min(len(beam.tokens) + 1, 10) for beam in by_length]  # the end token counts
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(("ends", "power"), first_by_default([((2, 7, 9, 13), 1.0), ((2, 7, 9, 13), 0.0), ((2,), 0.5)]))
def test_beams_and_scores_are_those_of_transformers(random_gpt2, ends, power):
    """Ended texts leave their beams to others, so that several end tokens end no search early."""
    theirs, opened = random_gpt2
    prompt, size = [7, 3, 12], 6
    found = beam_search(opened, prompt, beams=4, max_tokens=size, end=ends, length_power=power)
    expected = theirs.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 3, dtype=torch.long), num_beams=4, num_return_sequences=4,
        max_new_tokens=size, do_sample=False, early_stopping="never", length_penalty=power, eos_token_id=[*ends],
        pad_token_id=0, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    for beam, row, score in zip(found, expected.sequences.tolist(), expected.sequences_scores, strict=True):
        tokens = row[len(prompt) :]
        stop = next((i for i, token in enumerate(tokens) if token in ends), size)
        assert beam.tokens.tolist() == tokens[:stop]
        assert beam.score / min(stop + 1, size) ** power == pytest.approx(float(score), abs=1e-4)
    assert any(len(beam.tokens) < size for beam in found)


def test_invalid_searches_are_refused(opened):
    with pytest.raises(UserError, match="beams is 0, expected at least 1"):
        beam_search(opened, "the", beams=0)


SAMPLE = ("sample", "small/baseline/0", "--prompt", "the qui", "--tokens", "6")


@pytest.mark.slow
def test_the_command_shows_the_beams_of_each_prompt(lens, opened):
    prompts = ("the qui", "dog")
    found = [beam_search(opened, prompt, beams=3, max_tokens=6) for prompt in prompts]
    rows = json.loads(lens(*SAMPLE, "--prompt", "dog", "--beams", "3", "--json"))
    assert [row["prompt"] for row in rows] == [*prompts]
    for row, beams in zip(rows, found, strict=True):
        assert [beam["tokens"] for beam in row["beams"]] == [beam.tokens.tolist() for beam in beams]
        assert [beam["text"] for beam in row["beams"]] == [beam.text for beam in beams]
        assert [beam["score"] for beam in row["beams"]] == pytest.approx([beam.score for beam in beams])
    text = lens(*SAMPLE, "--beams", "3")
    assert text == "".join(f"log-probability {beam.score:.3f}\nthe qui{beam.text}\n\n" for beam in found[0])


@pytest.mark.slow
def test_a_beam_ends_at_the_token_of_stop(lens, opened):
    end = int(opened.tokenizer.encode(" ")[0])
    found = beam_search(opened, "the qui", beams=3, max_tokens=6, end=end)
    (row,) = json.loads(lens(*SAMPLE, "--beams", "3", "--stop", " ", "--json"))
    assert [beam["text"] for beam in row["beams"]] == [beam.text for beam in found]
    assert any(len(beam["tokens"]) < 6 for beam in row["beams"])


@pytest.mark.parametrize(
    ("given", "problem", "remedy"),
    [
        (
            ("--temperature", "0.5"),
            "--temperature 0.5 .*random samples",
            "--temperature, or remove --beams",
        ),
        (("--temperature", "0"), "--temperature 0.0 .*random samples", "--temperature, or remove --beams"),
        (("--top-k", "5"), "--top-k 5 .*random samples", "--top-k, or remove --beams"),
        (("--top-p", "0.9"), "--top-p 0.9 .*random samples", "--top-p, or remove --beams"),
        (("--min-p", "0.1"), "--min-p 0.1 .*random samples", "--min-p, or remove --beams"),
        (("--seed", "0"), "--seed 0 .*random samples", "--seed, or remove --beams"),
        (("--stop", "a", "--stop", "b"), "one end token, got 2", "Use one --stop"),
        (("--stop", "the"), "'the' .* 3 tokens: 't', 'h', 'e'", "one of these"),
    ],
)
def test_options_of_samples_are_refused_with_beams(lens, given, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        lens(*SAMPLE, "--beams", "2", *given)
    assert caught.value.path == (given[0],)
    assert remedy in str(caught.value.remedy)
    assert caught.value.exit_code == 2


def test_all_refused_options_are_reported_together(lens):
    with pytest.raises(UserError) as caught:
        lens(*SAMPLE, "--beams", "2", "--top-k", "5", "--seed", "1")
    assert [error.path for error in caught.value.all_errors] == [("--top-k",), ("--seed",)]


def test_zero_beams_are_refused(lens):
    assert "at least 1" in lens(*SAMPLE, "--beams", "0")
