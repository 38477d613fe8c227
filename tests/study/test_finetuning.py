"""Models of transformers are fine-tuned, exported and read by transformers again."""

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from tests.interop.cases import their_logits
from tests.tokenizer_files import train_bpe

import taetpu
from taetpu.cli.main import app
from taetpu.core.keys import named, root_key
from taetpu.data.base import read_windows
from taetpu.lens.conversion import Converter
from taetpu.lens.generate import Sampling
from taetpu.study.loading import load_study

pytestmark = pytest.mark.slow

ROWS = [f"Question {i}: to be, or not to be?\nAnswer: {'be' if i % 3 else 'not'}." for i in range(120)]
SIZES = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 32, "max_position_embeddings": 40, "tie_word_embeddings": False}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
FAMILIES = {
    "GPT2LMHeadModel": transformers.GPT2Config(
        vocab_size=310, n_positions=40, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    ),
    "GPTNeoXForCausalLM": transformers.GPTNeoXConfig(**SIZES),
    "LlamaForCausalLM": transformers.LlamaConfig(**GROUPED),
    "Qwen3ForCausalLM": transformers.Qwen3Config(**GROUPED),
}
STUDY = """\
study: fine
base:
  model: {start: theirs}
  task: {kind: text, source: rows.jsonl, field: body, seq_len: 32}
  train: {steps: 3, batch_size: 4, optimizer: {kind: adamw, lr: 1e-2}, schedule: constant, log_every: 1, sample: none}
seeds: 1
arms:
  lora: {model.adapter: {kind: lora, rank: 4}, train.hooks: {freeze: {trained: ["*.adapter.*"]}}}
  last: {train.hooks: {freeze: {trained: ["layers.1.*"]}}}
  shallow: {model.layers.0.drop: [layer]}
"""


@pytest.fixture(scope="module", params=FAMILIES)
def tuned(request, tmp_path_factory):
    """A folder with a model of transformers, and with a finished study that starts from it."""
    folder = tmp_path_factory.mktemp("tuned")
    config = FAMILIES[request.param]
    config.bos_token_id = config.eos_token_id = 0
    torch.manual_seed(0)
    model = getattr(transformers, request.param)(config).eval()
    with torch.no_grad():  # random biases and norms too
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder / "theirs")
    (folder / "theirs" / "tokenizer.json").write_text(train_bpe("\n".join(ROWS)).to_str())
    (folder / "rows.jsonl").write_text("".join(json.dumps({"body": row}) + "\n" for row in ROWS))
    (folder / "study.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAETPU_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        outcome = taetpu.run("study.yaml", root="runs")
        assert not outcome.failed
        yield folder, model


def opened(folder, arm):
    return taetpu.open_run(f"fine/{arm}/0", root=folder / "runs", data_folder=folder)


def exported(folder, arm):
    """Return an arm's model as transformers reads its export."""
    if not (folder / arm).exists():
        arguments = ["model", "export", f"fine/{arm}/0", "-o", str(folder / arm), "--root", str(folder / "runs")]
        app(arguments, standalone_mode=False)
    return transformers.AutoModelForCausalLM.from_pretrained(folder / arm, attn_implementation="eager").eval()


@pytest.mark.parametrize("arm", ["baseline", "lora", "last"])
def test_training_starts_from_the_loss_of_transformers(tuned, arm):
    folder, model = tuned
    study = load_study(folder / "study.yaml")
    source = study.source(study.arms[0])
    arrays, rows = read_windows(source, source.rows(0, 0, 1, 4)[0])
    batch = source.batch(arrays, rows, named(root_key(0), "data", 0))
    logits = torch.tensor(their_logits(model, np.asarray(batch.tokens)))
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(np.array(batch.targets)).long().flatten()
    )
    series = opened(folder, arm).metrics["train/loss"]
    assert series.step[0] == 1
    np.testing.assert_allclose(series.value[0], expected.item(), rtol=1e-5)
    assert series.value[-1] != series.value[0]


def test_frozen_parameters_keep_their_bits(tuned):
    folder, _ = tuned
    before = load_file(Converter()(str(folder / "theirs"), None) / "model.safetensors")
    for arm, trained in (("baseline", ""), ("lora", "adapter"), ("last", "layers.1.")):
        weights = opened(folder, arm).weights()
        changed = {name for name, array in weights.items() if not np.array_equal(array, cut(before.get(name), array))}
        assert changed
        assert changed == {name for name in weights if trained in name}


def cut(before, after):
    """Return the positions of a stored array that a run loads."""
    return None if before is None else before[: len(after)]


@pytest.mark.parametrize("arm", ["baseline", "lora", "last", "shallow"])
def test_exports_have_equal_logits_and_generate_the_same(tuned, arm):
    folder, _ = tuned
    ours, theirs = opened(folder, arm), exported(folder, arm)
    tokens = ours.tokenizer.encode("Question 7: to be, or not to be?")[None]
    np.testing.assert_allclose(ours(tokens).logits, their_logits(theirs, tokens), atol=5e-5)
    assert theirs.config.eos_token_id == 0
    assert theirs.config.num_hidden_layers == (1 if arm == "shallow" else 2)
    with torch.no_grad():
        expected = theirs.generate(torch.tensor(tokens).long(), max_new_tokens=10, do_sample=False, pad_token_id=0)
    (written,) = taetpu.generate(ours, [tokens[0]], max_tokens=10, sampling=Sampling(temperature=0.0))
    assert [n for n in expected[0, tokens.shape[1] :].tolist() if n] == [n for n in written.tokens.tolist() if n]
    ids = transformers.AutoTokenizer.from_pretrained(folder / arm).encode("to be")
    assert ids == ours.tokenizer.encode("to be").tolist()


def test_the_report_says_what_arms_load(tuned):
    folder, _ = tuned
    page = (folder / "runs" / "fine" / "report" / "report.md").read_text()
    assert "loaded from theirs" in page
    assert "adapter.down" in page
