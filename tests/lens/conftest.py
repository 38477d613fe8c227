"""A study of two arms and two seeds, trained once for all tests of the lens."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers as hf
from tests.lens import cases
from tests.shared_folders import make_once
from tokenizers import decoders, models, normalizers, processors
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app
from taetpu.core.config_parsing import load_config
from taetpu.core.model_interface import Interface
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.nn.lm import ModelConfig
from taetpu.nn.named_arrays import named_parameters, with_parameters

STUDY = """\
study: small
base:
  task: {kind: text, source: words.txt, seq_len: 32, tokenizer: {kind: char}}
  model: {dim: 16, num_layers: 2, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 30, batch_size: 8, keep_checkpoints: true, eval_every: 10, optimizer: {kind: adamw, lr: 1e-2}}
seeds: 2
arms:
  fast: {train.optimizer.lr: 2e-2}
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder of the study file; the studies' root is its folder `runs`."""

    def train(folder: Path) -> None:
        (folder / "words.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
        (folder / "small.yaml").write_text(STUDY)
        taetpu.run(folder / "small.yaml", root=str(folder / "runs"))

    return make_once(tmp_path_factory, "trained-lens", train)


@pytest.fixture(scope="session")
def opened(trained):
    """The first run of the baseline."""
    return taetpu.open_run("small/baseline/0", root=trained / "runs", data_folder=trained)


@pytest.fixture(scope="session")
def of(opened, draw):
    """`of(settings)`: a model with random weights, opened."""

    def make(settings):
        settings = {"dim": 8, "num_layers": 3, **settings}
        config, model = load_config(ModelConfig, settings).resolve(), draw(settings, vocab=cases.VOCAB, seq=cases.SEQ)
        sizes = {"interface": Interface(cases.VOCAB), "seq_len": cases.SEQ}
        return replace(
            opened, model=model, config=config, tokenizer=None, name="drawn", run=None, step=None, _programs={}, **sizes
        )

    return make


@pytest.fixture
def lens(trained, monkeypatch):
    """Return a function that runs a command in the study's folder and returns its output."""
    monkeypatch.chdir(trained)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["lens", *arguments, "--root", "runs"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.stdout if "--json" in arguments else result.stdout + result.stderr

    return run


@pytest.fixture(scope="session")
def spaced(opened, draw):
    """A model with random weights and a tokenizer like that of Llama 2.

    The tokenizer adds `<s>` and a space before every text. Its words have a space before them.
    """
    words = ["the", "fox", "cat", "3"]
    vocab = {token: number for number, token in enumerate(("<unk>", "<s>", "▁", *"thefoxca37#,."))}
    merges = []
    for word in words:
        for end in range(1, len(word) + 1):
            merges.append((f"▁{word[: end - 1]}", word[end - 1]))
            vocab.setdefault(f"▁{word[:end]}", len(vocab))
    inner = hf.Tokenizer(models.BPE(vocab, [*dict.fromkeys(merges)], unk_token="<unk>", fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    inner.add_special_tokens(["<unk>", "<s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    settings = {"dim": 16, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}}
    return replace(
        opened,
        model=draw(settings, vocab=len(vocab), seq=SEQ),
        config=load_config(ModelConfig, settings).resolve(),
        tokenizer=load_tokenizer(inner.to_str()),
        interface=Interface(len(vocab)),
        name="spaced",
        run=None,
        step=None,
        _programs={},
    )


VOCAB, SEQ = 29, 32
DIM = 2 * VOCAB + SEQ
SHARP = 60.0


@pytest.fixture(scope="session")
def made(opened, draw):
    """A model of two layers and two heads that predicts what followed the last occurrence of a token.

    The stream is the token, the position, and the token before, each as one of many. Head 0.0 copies the token before
    into the third part. Head 1.1 attends to tokens whose token before is the current token, and copies them to the
    output. The other heads attend equally to all tokens, and write nothing.
    """
    settings = {
        "dim": DIM, "num_layers": 2, "norm": "none", "ffn": "none", "position": "learned",
        "mixer": {"kind": "attention", "num_heads": 2, "head_dim": DIM, "scale": 1.0},
    }  # fmt: skip
    config = load_config(ModelConfig, settings).resolve()
    blank = draw(settings, vocab=VOCAB, seq=SEQ)
    token, place, before = slice(0, VOCAB), slice(VOCAB, VOCAB + SEQ), slice(VOCAB + SEQ, DIM)
    values = {name: np.zeros(array.shape, np.float32) for name, array in named_parameters(blank).items()}
    values["embedding.weight"][:, token] = np.eye(VOCAB)
    (learned,) = (name for name in values if name.startswith("position"))
    values[learned][:, place] = np.eye(SEQ)

    def head(number):
        return slice(number * DIM, (number + 1) * DIM)

    def wire(layer, number, query, key, value, out):
        """Set the maps of a head, each `(from, to)` in the stream and in the head."""
        name = f"layers.{layer}.mixer."
        for matrix, block in (("wq", query), ("wk", key), ("wv", value)):
            values[name + matrix][:, head(number)] = block
        values[name + "wo"][head(number)] = out

    def square(rows, columns, block):
        whole = np.zeros((DIM, DIM), np.float32)
        whole[rows, columns] = block
        return whole

    back = np.eye(SEQ, k=-1)  # from position i to i - 1
    wire(0, 0, square(place, place, SHARP * back), square(place, place, np.eye(SEQ)),
         square(token, token, np.eye(VOCAB)), square(token, before, np.eye(VOCAB)))  # fmt: skip
    wire(1, 1, square(token, token, SHARP * np.eye(VOCAB)), square(before, token, np.eye(VOCAB)),
         square(token, token, np.eye(VOCAB)), square(token, token, 5 * np.eye(VOCAB)))  # fmt: skip
    model = with_parameters(blank, values)
    return replace(opened, model=model, config=config, name="made", run=None, step=None, _programs={})
