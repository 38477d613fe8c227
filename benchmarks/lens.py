"""All single-head knock-outs of a model on a CPU, compared with a loop of TransformerLens hooks: GPT-2, random weights.

`python -m benchmarks.lens`. Both sides read the same folder and tokens in float32, with a thread per core, and measure
the loss of each document without each head (zero ablation), at all positions or at the last one. A window consists of
whole sweeps over all heads, or over the first `--heads` heads of each layer; it includes neither loading nor compiling.
Each knock-out costs the same in all heads of a layer, so few heads per layer give the same speed-up as all.
`--small` uses tiny sizes, to check that everything works; its times have no meaning.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.contest import Contestant, Round, machine, over_rounds, shown_machine, take_turns
from benchmarks.decoding import SMALL_STD, write_model
from taetpu.core.jax_setup import cpu_cores, prepare_jax

COMMAND = (sys.executable, "-m", "benchmarks.lens", "--answer")
ROUNDS, SECONDS = 5, 1.0
TARGETS = ("all", "last")
SIZES = {"dim": 768, "layers": 12, "heads": 12, "vocab": 50257, "positions": 1024, "batch": 8, "seq": 128}
SMALL = {"dim": 32, "layers": 2, "heads": 2, "vocab": 97, "positions": 64, "batch": 2, "seq": 12}
STD = 0.05
OURS, THEIRS = "taetpu", "TransformerLens"


# --- contestants ------------------------------------------------------------------------------------------------------


class Sweeper(Protocol):
    """A model whose heads are knocked out one after the other."""

    def sweep(self) -> np.ndarray:
        """Return the loss of each document without each head, `(head, document)`."""
        ...


class Ours:
    """The model of a folder, opened and ablated as by `taetpu lens knockout --how zero --no-controls`."""

    def __init__(self, folder: str, tokens: np.ndarray, at: str, heads: int):
        import taetpu
        from taetpu.lens.ablation.components import find_components
        from taetpu.lens.ablation.documents import read_documents
        from taetpu.lens.ablation.replacements import Method, make_replacements

        self.model = taetpu.open_run(folder)
        documents = read_documents(self.model, tokens)
        self.documents = documents if at == "all" else documents.last()
        self.components = find_components(self.model, "heads")
        chosen = [number for number, one in enumerate(self.components.each) if one.units[0] < heads]
        self.sets = [(number,) for number in chosen]
        self.replacements = make_replacements(self.model, self.components, self.documents, Method("zero"))

    def sweep(self) -> np.ndarray:
        from taetpu.lens.ablation.knockout import losses_of_sets

        return losses_of_sets(self.replacements, self.sets)


class Theirs:
    """A `TransformerBridge` without gradients. A hook sets `hook_z` of one head to zero in each forward pass."""

    def __init__(self, folder: str, tokens: np.ndarray, at: str, heads: int):
        import torch
        from transformer_lens.model_bridge import TransformerBridge
        from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

        torch.set_num_threads(cpu_cores())
        self.torch, self.at = torch, at
        model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.layers, self.heads = model.config.n_layer, min(heads, model.config.n_head)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=_any_tokenizer(), eos_token="a", pad_token="a")
        self.model = TransformerBridge.boot_transformers("gpt2", hf_model=model, tokenizer=tokenizer)
        self.tokens = torch.as_tensor(tokens, dtype=torch.long)

    def sweep(self) -> np.ndarray:
        return np.stack([self._without(layer, head) for layer in range(self.layers) for head in range(self.heads)])

    def _without(self, layer: int, head: int) -> np.ndarray:
        def zero(z: Any, hook: Any) -> Any:
            z[:, :, head] = 0
            return z

        with self.torch.inference_mode():
            logits = self.model.run_with_hooks(self.tokens[:, :-1], fwd_hooks=[(f"blocks.{layer}.attn.hook_z", zero)])
            targets = self.tokens[:, 1:]
            if self.at == "last":
                logits, targets = logits[:, -1:], targets[:, -1:]
            losses = self.torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return losses.sum(-1).numpy()


def _any_tokenizer() -> Any:
    """Return a tokenizer, which TransformerLens requires and does not use."""
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))


def time_sweeps(sweeper: Sweeper, seconds: float) -> dict[str, float]:
    """Sweep for about `seconds`, and at least once."""
    calls, began = 0, time.perf_counter()
    while True:
        sweeper.sweep()
        calls += 1
        if (passed := time.perf_counter() - began) >= seconds:
            return {"calls": calls, "seconds": passed}


def answer() -> None:
    """Run a contestant: answer the request with its losses, and each number of seconds with a timed window."""
    os.environ.update(JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1")
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print, and only answers belong to stdout
    asked = json.loads(sys.stdin.readline())
    if asked["name"] == OURS:
        prepare_jax()
    kind = {OURS: Ours, THEIRS: Theirs}[asked["name"]]
    sweeper = kind(asked["folder"], np.array(asked["tokens"], np.int32), asked["at"], asked["heads"])
    losses = sweeper.sweep()  # compiles
    print(json.dumps({"losses": losses.tolist()}), file=answers, flush=True)
    for line in sys.stdin:
        found = time_sweeps(sweeper, json.loads(line))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({**found, "memory": memory}), file=answers, flush=True)


# --- contest ----------------------------------------------------------------------------------------------------------


def measure(folder: Path, sizes: Mapping[str, int], at: str, heads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Time both contestants in turns and return what was measured."""
    tokens = np.random.default_rng(0).integers(sizes["vocab"], size=(sizes["batch"], sizes["seq"] + 1)).tolist()
    asked = {"folder": str(folder), "tokens": tokens, "at": at, "heads": heads}
    with ExitStack() as stack:
        ready = {}
        for name in (OURS, THEIRS):
            ready[name] = Contestant(COMMAND, {"name": name, **asked})
            stack.callback(ready[name].close)
        windows = take_turns(ready, rounds, seconds)
        losses = [np.array(ready[name].about["losses"]) for name in (OURS, THEIRS)]
    scored = sizes["seq"] if at == "all" else 1
    apart = float(np.abs(losses[0] - losses[1]).max()) / scored
    return {"at": at, "heads": heads, "largest_difference": apart, "windows": windows, **compare(windows)}


def compare(windows: Sequence[Round]) -> dict[str, Any]:
    """Return the seconds of a sweep of each contestant, their ratio within a round, and the peak memory in GiB."""

    def seconds(window: Mapping[str, float]) -> float:
        return window["seconds"] / window["calls"]

    return {
        "seconds": {name: over_rounds(windows, lambda one, n=name: seconds(one[n])) for name in (OURS, THEIRS)},
        "ratio": over_rounds(windows, lambda one: seconds(one[THEIRS]) / seconds(one[OURS])),
        "memory": {name: max(one[name]["memory"] for one in windows) for name in (OURS, THEIRS)},
    }


def show(found: Mapping[str, Any]) -> str:
    """Return the results as lines."""
    ratio = found["ratio"]
    return "\n".join(
        [
            f"loss at {found['at']} positions; largest difference {found['largest_difference']:.1e} nats per target",
            *(f"{name:16}{own['median']:>8.1f} s per sweep ({own['least']:.1f}-{own['most']:.1f}), "
              f"{found['memory'][name]:.1f} GiB" for name, own in found["seconds"].items()),
            f"{'speed-up':16}{ratio['median']:>8.2f} ({ratio['least']:.2f}-{ratio['most']:.2f})",
        ]
    )  # fmt: skip


def main() -> None:
    """Print the results for the loss at all positions and at the last one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="tiny sizes and short windows")
    parser.add_argument("--heads", type=int, help="number of heads of each layer; all by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds of each timed window, at least a sweep")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write everything that was measured")
    options = parser.parse_args()
    if options.answer:
        return answer()
    sizes, rounds, seconds = (SMALL, 2, 0.1) if options.small else (SIZES, options.rounds, options.seconds)
    print(shown_machine(), end="\n\n", flush=True)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), sizes, SMALL_STD if options.small else STD)
        for at in TARGETS:
            found.append(measure(Path(folder), sizes, at, options.heads or sizes["heads"], rounds, seconds))
            print(show(found[-1]), end="\n\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "sizes": sizes, "targets": found}, indent=1))
    return None


if __name__ == "__main__":
    main()
