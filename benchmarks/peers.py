"""The same training in eager PyTorch: Hugging Face's GPT-2 and x-transformers. Imports no jax.

As a program (`python -m benchmarks.peers`) it trains one run from its start to its end, which is what a study costs
there.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.shapes import BETAS, CLIP, HELD_OUT, LR, VOCAB, WEIGHT_DECAY, Shape

Build = Callable[[Shape], torch.nn.Module]

TRIALS, TRIAL = 3, 0.3  # windows, and their seconds, for choosing settings


def gpt2(shape: Shape, *, activation: str, attention: str) -> torch.nn.Module:
    """Return Hugging Face's model. Its `gelu_new`, GPT-2's original activation, is eight separate operations."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB, n_positions=shape.seq, n_embd=shape.dim, n_layer=shape.layers, n_head=shape.heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
        activation_function=activation, attn_implementation=attention,  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def x_transformers(shape: Shape, *, flash: bool) -> torch.nn.Module:
    """Return the closest model of x-transformers: its norms and attention projections have no biases."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.dim, depth=shape.layers, heads=shape.heads, attn_dim_head=shape.dim // shape.heads,
        attn_flash=flash, ff_custom_activation=torch.nn.GELU("tanh"), verbose=False,
    )  # fmt: skip
    return TransformerWrapper(num_tokens=VOCAB, max_seq_len=shape.seq, attn_layers=layers, tie_embedding=True)


# Candidate settings by peer; the fastest are used.
PEERS: dict[str, dict[str, Build]] = {
    "gpt2": {name: partial(gpt2, activation="gelu_new", attention=name) for name in ("sdpa", "eager")},
    "gpt2-tuned": {name: partial(gpt2, activation="gelu_pytorch_tanh", attention=name) for name in ("sdpa", "eager")},
    "x-transformers": {"flash": partial(x_transformers, flash=True), "plain": partial(x_transformers, flash=False)},
}
ADAMW: dict[str, dict[str, bool]] = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}


class Data:
    """Return the text as tokens."""

    def __init__(self, file: Path):
        text = file.read_text()
        number = {character: i for i, character in enumerate(sorted(set(text)))}
        tokens = torch.tensor([number[character] for character in text])
        border = int(len(tokens) * (1 - HELD_OUT))
        self.train, self.val = tokens[:border], tokens[border:]


class Training:
    """A peer's model in training.

    Args:
        peer: a name of `PEERS`.
        settings: one of the peer's.
        adamw: a name of `ADAMW`.
    """

    def __init__(self, peer: str, settings: str, adamw: str, shape: Shape, data: Data, seed: int = 0):
        torch.manual_seed(seed)
        self.settings, self.adamw, self.shape, self.data = settings, adamw, shape, data
        self.model = PEERS[peer][settings](shape).train()
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY, **ADAMW[adamw]
        )
        self.window_of = torch.arange(shape.seq + 1)

    def loss(self, windows: torch.Tensor) -> torch.Tensor:
        """Return the loss in nats per token of `windows`, `(batch, seq + 1)`."""
        logits = self.model(windows[:, :-1])
        logits = getattr(logits, "logits", logits)
        return F.cross_entropy(logits.reshape(-1, VOCAB), windows[:, 1:].reshape(-1))

    def step(self) -> torch.Tensor:
        """Train on a random batch and return its loss without synchronising."""
        starts = torch.randint(len(self.data.train) - self.shape.seq, (self.shape.batch, 1))
        loss = self.loss(self.data.train[starts + self.window_of])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @property
    def about(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "adamw": self.adamw,
            "way": f"{self.settings} attention, {self.adamw} AdamW",
            "params": sum(parameter.numel() for parameter in self.parameters),
        }

    def window(self, seconds: float) -> dict[str, float]:
        """Train for about `seconds`; the loss is that of the last step."""
        steps, began = 0, time.perf_counter()
        while True:
            loss, steps = self.step(), steps + 1
            if (passed := time.perf_counter() - began) >= seconds:
                return {"steps": steps, "seconds": passed, "tokens": steps * self.shape.tokens, "loss": loss.item()}

    def evaluate(self) -> float:
        """Return the mean loss over the validation split, in adjacent windows."""
        starts = torch.arange(0, len(self.data.val) - self.shape.seq, self.shape.seq)
        self.model.eval()
        with torch.inference_mode():
            batches = starts.split(self.shape.batch)
            sums = [self.loss(self.data.val[b[:, None] + self.window_of]).item() * len(b) for b in batches]
        self.model.train()
        return math.fsum(sums) / len(starts)


def fastest(peer: str, shape: Shape, data: Data) -> Training:
    """Return a peer with the settings and the AdamW that are fastest here, timed in turns."""
    ways = [Training(peer, settings, adamw, shape, data) for settings, adamw in product(PEERS[peer], ADAMW)]
    for way in ways:
        way.step()
    best = dict.fromkeys(ways, math.inf)
    for _ in range(TRIALS):
        for way in ways:
            found = way.window(TRIAL)
            best[way] = min(best[way], found["seconds"] / found["steps"])
    chosen = min(ways, key=best.__getitem__)
    return Training(peer, chosen.settings, chosen.adamw, shape, data)


def train(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Train one run as a study does: read the loss every ten steps, evaluate ten times, and save the model."""
    torch.set_num_threads(arguments["threads"])
    shape, steps = Shape(**arguments["shape"]), arguments["steps"]
    training = Training(
        arguments["peer"], arguments["settings"], arguments["adamw"], shape, Data(Path(arguments["text"])),
        seed=arguments["seed"],
    )  # fmt: skip
    losses, val = [], []
    for step in range(1, steps + 1):
        loss = training.step()
        if step % 10 == 0:
            losses.append(loss.item())
        if step % max(1, steps // 10) == 0 or step == steps:
            val.append(training.evaluate())
    torch.save(training.model.state_dict(), arguments["model"])
    return {"losses": losses, "val": val}


def main() -> None:
    """Train the run described by the JSON argument and print its losses."""
    parser = argparse.ArgumentParser(description=train.__doc__)
    parser.add_argument("run", type=json.loads, help="threads, shape, steps, peer, settings, adamw, text, seed, model")
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(json.dumps(train(parser.parse_args().run)))


if __name__ == "__main__":
    main()
