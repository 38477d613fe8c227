"""Scores equal those of lm-evaluation-harness on the exported model, with its own class for Hugging Face models."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
import torch
import transformers
from tests.lens.item_files import ITEMS, TEXT, write_items
from tokenizers import decoders, models, pre_tokenizers, trainers
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app

pytest.importorskip("lm_eval")

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("HF_HUB_OFFLINE", "1")
    import lm_eval.evaluator
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

COMMON = """\
task: NAME
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
"""
ACCURACIES = "output_type: multiple_choice\nmetric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]\n"
TASKS = {
    "hellaswag": f"{COMMON}{ACCURACIES}doc_to_text: '{{{{ctx}}}}'\ndoc_to_target: '{{{{label}}}}'\n"
    "doc_to_choice: '{{endings}}'\n",
    "arc": f'{COMMON}{ACCURACIES}doc_to_text: "Question: {{{{question}}}}\\nAnswer:"\n'
    "doc_to_target: '{{choices.label.index(answerKey)}}'\ndoc_to_choice: '{{choices.text}}'\n",
    "blimp": f"{COMMON}output_type: multiple_choice\nmetric_list: [{{metric: acc}}]\ndoc_to_text: ''\n"
    "doc_to_target: 0\ndoc_to_choice: '{{[sentence_good, sentence_bad]}}'\n",
    "lambada": f"{COMMON}output_type: loglikelihood\ndoc_to_text: \"{{{{text.split(' ')[:-1]|join(' ')}}}}\"\n"
    "doc_to_target: \"{{' '+text.split(' ')[-1]}}\"\n"
    "metric_list: [{metric: perplexity, aggregation: perplexity}, {metric: acc, aggregation: mean}]\n",
    "winogrande": f"{COMMON}output_type: multiple_choice\nmetric_list: [{{metric: acc}}]\n"
    "doc_to_text: '{{answer|int - 1}}'\ndoc_to_target: \"{{sentence.split('_')[1].strip()}}\"\n"
    "doc_to_choice: \"{{[sentence.split('_')[0] + option1, sentence.split('_')[0] + option2]}}\"\n",
    "prompts": f"{COMMON}output_type: generate_until\ndoc_to_text: '{{{{prompt}}}}'\ndoc_to_target: '{{{{answer}}}}'\n"
    "generation_kwargs: {until: ['.'], max_gen_toks: 6, do_sample: false}\n"
    "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
    "filter_list: [{name: none, filter: [{function: remove_whitespace}, {function: take_first}]}]\n",
}
STUDY = """\
study: tuned
base:
  task: {kind: text, source: words.txt, seq_len: 64, tokenizer: {kind: start}}
  model: {start: tiny}
  train:
    steps: 30
    batch_size: 8
    precision: float32
    optimizer: {kind: adamw, lr: 3e-3}
    eval_metrics: {METRICS}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a trained run, the items, and `out`, the run as a Hugging Face model."""
    folder = tmp_path_factory.mktemp("scores")
    (folder / "words.txt").write_text(TEXT * 40)
    write_items(folder)
    _write_tiny(folder / "tiny")
    kinds = {name: form for name, (form, _) in ITEMS.items()}
    metrics = {name: {"kind": kind, "file": f"{name}.jsonl"} for name, kind in kinds.items()}
    metrics["prompts"] |= {"max_tokens": 6, "stop": ["."]}
    (folder / "study.yaml").write_text(STUDY.replace("{METRICS}", json.dumps(metrics)))
    taetpu.run(folder / "study.yaml", root=str(folder / "runs"))
    result = CliRunner().invoke(app, ["model", "export", "tuned/baseline/0", "--root", str(folder / "runs"), "-o",
                                      str(folder / "out")])  # fmt: skip
    assert result.exit_code == 0, result.output
    return folder


def _write_tiny(folder: Path) -> None:
    """Write a Llama with random weights and a BPE tokenizer, as Hugging Face models are stored."""
    inner = hf.Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def harness(folder):
    """Return a function from the name of a format to the results of the harness and those of its items."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        for name, task in TASKS.items():
            text = task.replace("NAME", f"own_{name}").replace("FILE", str(folder / f"{name}.jsonl"))
            (folder / f"{name}.yaml").write_text(text)
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        model = HFLM(str(folder / "out"), dtype="float32", batch_size=1, device="cpu")

        def evaluate(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            task = f"own_{name}"
            found: Any = lm_eval.evaluator.simple_evaluate(
                model, tasks=[task], task_manager=manager, bootstrap_iters=0, log_samples=True
            )
            return found["results"][task], sorted(found["samples"][task], key=lambda sample: sample["doc_id"])

        yield evaluate


@pytest.mark.parametrize("name", TASKS)
def test_scores_equal_those_of_the_harness(folder, harness, name) -> None:
    opened = taetpu.open_run("tuned/baseline/0", root=folder / "runs", data_folder=folder)
    settings = {"max_tokens": 6, "stop": ["."]} if name == "prompts" else {}
    scores = taetpu.score(opened, folder / f"{name}.jsonl", **settings)
    theirs, samples = harness(name)
    stored = opened.result["metrics"]
    compared = [score for score in scores.totals if f"{score},none" in theirs]
    assert compared
    for score in compared:
        assert scores.totals[score] == pytest.approx(theirs[f"{score},none"], rel=1e-6), score
        assert stored[f"{name}/{score}"] == pytest.approx(scores.totals[score], rel=1e-6), score
    for values, sample in zip(scores.logp, samples, strict=bool(scores.logp)):
        expected = [float(response[0][0]) for response in sample["resps"]]
        assert values == pytest.approx(expected, rel=1e-6)  # the harness sums in float32
