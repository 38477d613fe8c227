"""Greedy decoding with a cache on a CPU, compared with `generate` of Hugging Face: GPT-2 with random weights.

`python -m benchmarks.decoding`. Both sides read the same folder and continue the same prompts in float32, with a thread
per core. A window consists of whole calls of `generate`, so it includes the pass over the prompt, but neither loading
nor compiling. `--small` uses tiny sizes, to check that everything works; its times have no meaning.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.contest import Contestant, Round, machine, over_rounds, rate, shown_machine, take_turns
from taetpu.core.jax_setup import cpu_cores, prepare_jax

COMMAND = (sys.executable, "-m", "benchmarks.decoding", "--answer")
ROUNDS, SECONDS = 7, 6.0
BATCHES = (1, 8)
SIZES = {"dim": 768, "layers": 12, "heads": 12, "vocab": 50257, "positions": 1024, "prompt": 64, "new": 64}
SMALL = {"dim": 32, "layers": 2, "heads": 2, "vocab": 97, "positions": 64, "prompt": 16, "new": 20}
STD, SMALL_STD = 0.05, 0.3
"""Standard deviations of the weights. With GPT-2's 0.02, the most likely token is often the one before."""
OURS, THEIRS = "taetpu", "Hugging Face"


# --- contestants ------------------------------------------------------------------------------------------------------


class Decoder(Protocol):
    """A model that continues prompts."""

    @property
    def params(self) -> int:
        """The number of parameters."""
        ...

    def generate(self) -> np.ndarray:
        """Return the tokens after each prompt, `(batch, new)`."""
        ...


class Ours:
    """The model of a folder, opened and sampled as by `taetpu lens sample --temperature 0`."""

    def __init__(self, folder: str, prompts: np.ndarray, new: int):
        import taetpu
        from taetpu.lens.generate import Sampling
        from taetpu.nn.named_arrays import named_parameters

        self.model, self.prompts, self.new = taetpu.open_run(folder), prompts, new
        self.sampling = Sampling(temperature=0)
        self.params = sum(array.size for array in named_parameters(self.model.model).values())

    def generate(self) -> np.ndarray:
        from taetpu.lens.generate import generate

        found = generate(self.model, self.prompts, max_tokens=self.new, sampling=self.sampling, cache=True)
        return np.stack([one.tokens for one in found])


class Theirs:
    """`GPT2LMHeadModel` with its default cache and fused attention, without gradients."""

    def __init__(self, folder: str, prompts: np.ndarray, new: int):
        import torch
        from transformers import GPT2LMHeadModel

        torch.set_num_threads(cpu_cores())
        self.torch, self.new = torch, new
        self.model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
        self.prompts = torch.as_tensor(prompts, dtype=torch.long)
        self.params = sum(parameter.numel() for parameter in self.model.parameters())

    def generate(self) -> np.ndarray:
        with self.torch.inference_mode():
            found = self.model.generate(  # pyright: ignore[reportAttributeAccessIssue]
                self.prompts, attention_mask=self.torch.ones_like(self.prompts), do_sample=False, use_cache=True,
                max_new_tokens=self.new, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        return found[:, self.prompts.shape[1] :].numpy()


def time_calls(decoder: Decoder, seconds: float) -> dict[str, float]:
    """Generate for about `seconds`, and at least once."""
    calls, tokens, began = 0, 0, time.perf_counter()
    while True:
        tokens += decoder.generate().size
        calls += 1
        if (passed := time.perf_counter() - began) >= seconds:
            return {"calls": calls, "seconds": passed, "tokens": tokens}


def answer() -> None:
    """Run a contestant: answer the request with its first tokens, and each number of seconds with a timed window."""
    os.environ.update(JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1")
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print, and only answers belong to stdout
    asked = json.loads(sys.stdin.readline())
    if asked["name"] == OURS:
        prepare_jax()
    kind = {OURS: Ours, THEIRS: Theirs}[asked["name"]]
    decoder = kind(asked["folder"], np.array(asked["prompts"], np.int32), asked["new"])
    tokens = decoder.generate()  # compiles
    print(json.dumps({"params": decoder.params, "tokens": tokens.tolist()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(time_calls(decoder, json.loads(line))), file=answers, flush=True)


# --- contest ----------------------------------------------------------------------------------------------------------


def write_model(folder: Path, sizes: Mapping[str, int], std: float) -> None:
    """Write a GPT-2 of Hugging Face with random weights of a standard deviation to a folder."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=sizes["vocab"], n_positions=sizes["positions"], n_embd=sizes["dim"], n_layer=sizes["layers"],
        n_head=sizes["heads"], activation_function="gelu_pytorch_tanh", bos_token_id=None, eos_token_id=None,
        initializer_range=std,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)


def draw_prompts(sizes: Mapping[str, int], batch: int) -> list[list[int]]:
    """Return random prompts."""
    return np.random.default_rng(0).integers(sizes["vocab"], size=(batch, sizes["prompt"])).tolist()


def measure(folder: Path, sizes: Mapping[str, int], batch: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Time both contestants in turns and return what was measured."""
    asked = {"folder": str(folder), "prompts": draw_prompts(sizes, batch), "new": sizes["new"]}
    with ExitStack() as stack:
        ready = {}
        for name in (OURS, THEIRS):
            ready[name] = Contestant(COMMAND, {"name": name, **asked})
            stack.callback(ready[name].close)
        windows = take_turns(ready, rounds, seconds)
        about = {name: one.about for name, one in ready.items()}
    tokens = [np.array(about[name].pop("tokens")) for name in (OURS, THEIRS)]
    same = float((tokens[0] == tokens[1]).mean())
    return {"batch": batch, "about": about, "same_tokens": same, "windows": windows, **compare(windows)}


def compare(windows: Sequence[Round]) -> dict[str, Any]:
    """Return the tokens per second of each contestant, and the ratio of both within a round."""
    return {
        "tokens_per_second": {name: over_rounds(windows, lambda one, n=name: rate(one[n])) for name in (OURS, THEIRS)},
        "ratio": over_rounds(windows, lambda one: rate(one[OURS]) / rate(one[THEIRS])),
    }


def show(found: Mapping[str, Any]) -> str:
    """Return the results of a batch size as lines."""
    ratio, rates = found["ratio"], found["tokens_per_second"]
    return "\n".join(
        [
            f"batch {found['batch']}: {found['same_tokens']:.0%} of the tokens are equal",
            *(f"{name:14}{own['median']:>10,.1f} tokens/s ({own['least']:,.1f}-{own['most']:,.1f})"
              for name, own in rates.items()),
            f"{'ratio':14}{ratio['median']:>10.2f} ({ratio['least']:.2f}-{ratio['most']:.2f})",
        ]
    )  # fmt: skip


def main() -> None:
    """Print the results of each batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="tiny sizes and short windows")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds of each timed window")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write everything that was measured")
    options = parser.parse_args()
    if options.answer:
        return answer()
    sizes, rounds, seconds = (SMALL, 2, 0.1) if options.small else (SIZES, options.rounds, options.seconds)
    print(shown_machine(), end="\n\n", flush=True)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), sizes, SMALL_STD if options.small else STD)
        for batch in BATCHES:
            found.append(measure(Path(folder), sizes, batch, rounds, seconds))
            print(show(found[-1]), end="\n\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "sizes": sizes, "batches": found}, indent=1))
    return None


if __name__ == "__main__":
    main()
