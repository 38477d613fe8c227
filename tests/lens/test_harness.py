"""lm-evaluation-harness scores our models."""

import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.lens.generate import Sampling, generate

pytest.importorskip("lm_eval")

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("HF_HUB_OFFLINE", "1")
    import lm_eval.evaluator
    from lm_eval.api.instance import Instance
    from lm_eval.tasks import TaskManager

    from taetpu.lens.harness import HarnessModel

TASK = """\
task: endings
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{start}}"
doc_to_choice: "{{ends}}"
doc_to_target: "{{right}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
DOCS = [
    {"start": "the quick brown ", "ends": ["fox jumps", "zzz qqqqq"], "right": 0},
    {"start": "jumps over the ", "ends": ["ggggg vvv", "lazy dog."], "right": 1},
    {"start": "the lazy dog. the ", "ends": ["quick", "xxxxx"], "right": 0},
]


@pytest.fixture(scope="module")
def model(opened):
    return HarnessModel(opened)


def request(kind: str, *arguments) -> Instance:
    return Instance(kind, {}, arguments, 0)  # pyright: ignore[reportArgumentType]


def log_probabilities(opened, text: str) -> np.ndarray:
    """Return the log-probability of each token after the first, from a forward pass without padding."""
    ids = opened.tokenizer.encode(text)
    scores = np.asarray(jax.nn.log_softmax(opened.model(jnp.asarray(ids)[None]), -1))[0]
    return scores[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.slow
def test_continuations_have_the_sum_of_their_tokens(model, opened):
    pairs = [("the quick", " brown fox"), ("t", "he"), ("the lazy dog. the", " quick brown")]
    found = model.loglikelihood([request("loglikelihood", *pair) for pair in pairs])
    for (context, continuation), (score, _) in zip(pairs, found, strict=True):
        alone = log_probabilities(opened, context + continuation)[-len(continuation) :].sum()
        assert score == pytest.approx(alone, abs=1e-3)


def test_the_greedy_continuation_is_marked(model):
    (text,) = model.generate_until([request("generate_until", "the qui", {"until": ["."], "max_gen_toks": 6})])
    marks = [model.loglikelihood([request("loglikelihood", "the qui", end)])[0][1] for end in (text, "zzz")]
    assert marks == [True, False]


@pytest.mark.slow
def test_spaces_between_context_and_continuation_are_scored(spaced):
    adapter, ids = HarnessModel(spaced), spaced.tokenizer.encode("the cat")
    assert len(ids) == len(spaced.tokenizer.encode("the "))  # so that the lengths differ by no token
    own = log_probabilities(spaced, "the cat")[-1]
    requests = [request("loglikelihood", *pair) for pair in (("the ", "cat"), ("the", " cat"), ("the c", "at"))]
    scores = adapter.loglikelihood(requests)
    assert [score for score, _ in scores] == pytest.approx([own] * 3, abs=1e-5)
    assert own < -0.1
    assert adapter.loglikelihood([request("loglikelihood", "the", "")]) == [(0.0, True)]


@pytest.mark.slow
def test_tokens_that_start_every_text_are_not_scored(spaced):
    adapter = HarnessModel(spaced)
    assert spaced.tokenizer.start_tokens.tolist() == [1]
    (rolling,) = adapter.loglikelihood_rolling([request("loglikelihood_rolling", "the fox, the cat")])
    ((whole, _),) = adapter.loglikelihood([request("loglikelihood", "", "the fox, the cat")])
    assert rolling == pytest.approx(log_probabilities(spaced, "the fox, the cat").sum(), abs=1e-4)
    assert whole == pytest.approx(rolling, abs=1e-4)
    assert adapter.loglikelihood_rolling([request("loglikelihood_rolling", "")]) == [0.0]


@pytest.mark.slow
def test_texts_longer_than_a_window_score_each_token_once(model, opened):
    text = ("the quick brown fox jumps over the lazy dog. " * 3)[:100]
    (found,) = model.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    ids, window = opened.tokenizer.encode(text), opened.seq_len
    expected = -np.log(opened.vocab_size)  # of the first token
    for start in range(0, len(ids), window):
        end = min(start + window, len(ids))
        first = max(0, end - window - 1)
        expected += log_probabilities(opened, text[first:end])[max(start, 1) - first - 1 :].sum()
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def begun(opened):
    """A model whose config names a token that begins texts, which its tokenizer does not add."""
    return replace(opened, special_tokens={"bos_token_id": 3, "eos_token_id": [5, 7]})


def test_a_text_without_context_follows_the_token_that_begins_texts(begun, opened):
    """As in HFLM: the token that begins texts, else the first that ends them, else nothing."""
    assert (begun.prefix_token, opened.prefix_token) == (3, None)
    assert replace(begun, special_tokens={"eos_token_id": 5}).prefix_token == 5
    ids = [3, *opened.tokenizer.encode("the fox").tolist()]
    logs = np.asarray(jax.nn.log_softmax(opened.model(jnp.asarray(ids)[None])[0, :-1], -1))
    expected = logs[np.arange(len(ids) - 1), ids[1:]].sum()
    adapter, text = HarnessModel(begun), opened.decode(ids[1:])
    for context, end in (("", text), (text[:4], text[4:])):
        ((score, _),) = adapter.loglikelihood([request("loglikelihood", context, end)])
        assert (score == pytest.approx(expected, abs=1e-4)) == (context == "")
    (rolling,) = adapter.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    assert rolling == pytest.approx(expected, abs=1e-4)
    again = opened.decode([3]) + text  # the token itself is the context
    ((score, _),) = adapter.loglikelihood([request("loglikelihood", "", again)])
    assert score == pytest.approx(expected, abs=1e-4)


def test_contexts_longer_than_the_training_sequences_are_cut_on_the_left(model, opened):
    assert all(layer.position.extrapolates for layer in opened.config.layers)  # rope
    long, options = "the lazy dog. the quick brown fox jumps over the", {"until": ["#"], "max_gen_toks": 6}
    cut = long[-(opened.seq_len - 6) :]
    texts = model.generate_until([request("generate_until", text, options) for text in (long, cut)])
    (alone,) = generate(opened, [opened.tokenizer.encode(cut)], max_tokens=6, sampling=Sampling(0))
    assert texts == [alone.text] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_harness_runs_a_task_of_its_own_kind_offline(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, DOCS)))
    (tmp_path / "endings.yaml").write_text(TASK.replace("DATA", str(tmp_path / "docs.jsonl")))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results: Any = lm_eval.evaluator.simple_evaluate(model, tasks=["endings"], task_manager=manager, bootstrap_iters=0)
    assert results is not None
    assert results["results"]["endings"]["acc,none"] == 1.0
