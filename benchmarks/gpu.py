"""Training on an NVIDIA GPU compared with PyTorch: GPT-2 with 124 million parameters, and packs of small runs.

`python -m benchmarks.gpu`, on a machine with a GPU and a CUDA build of jax and PyTorch; elsewhere it says that nothing
was measured. `--device cpu --small` goes through all of it at tiny sizes, to see that it works; its figures mean
nothing. Contestants take turns, each in a process of its own, in bfloat16 (PyTorch by autocast).

Compute options, the batch and XLA's flags of taetpu are options of the command. `--levers` measures each of them alone
against the defaults, for the model of `--case`, and prints one table within `--minutes` (see `benchmarks.gpu_levers`).
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import gpu_levers
from benchmarks.contest import Contestant, Round, over_rounds, take_turns
from benchmarks.gpu_levers import COMMAND, Lever

ROUNDS, SECONDS, LEVER_SECONDS = 3, 5.0, 2.0
PACK = 64
SIZES = {
    "gpt2": {"dim": 768, "layers": 12, "heads": 12, "seq": 1024, "batch": 16, "vocab": 50304},
    "dim-128": {"dim": 128, "layers": 4, "heads": 4, "seq": 128, "batch": 8, "vocab": 128},
    "dim-1536": {"dim": 1536, "layers": 24, "heads": 24, "seq": 1024, "batch": 16, "vocab": 50304},
}
SMALL = {name: {"dim": 16, "layers": 2, "heads": 2, "seq": 32, "batch": 2, "vocab": 64} for name in SIZES}
CONTESTS = {
    "gpt2": {"ours": {"width": 1}, "PyTorch": {"compiled": False}, "PyTorch, compiled": {"compiled": True}},
    "dim-128": {
        "ours, one run": {"width": 1}, "ours, a pack": {"width": PACK}, "PyTorch": {"compiled": False},
        "PyTorch, compiled": {"compiled": True},
    },
}  # fmt: skip
CONTESTS["dim-1536"] = CONTESTS["gpt2"]


class Ours:
    """A pack of taetpu on jax's first device."""

    def __init__(self, sizes: Mapping[str, int], width: int, compute: Mapping[str, Any]):
        from taetpu.core.config_parsing import load_config
        from taetpu.data.synthetic.answers import SPECIALS
        from taetpu.spec.study_config import RunConfig
        from taetpu.train.choose_compute import choose_compute
        from taetpu.train.layout import Layout
        from taetpu.train.model_cost import flops_per_token, num_params
        from taetpu.train.step_time import StepTimer

        model = {
            "dim": sizes["dim"], "num_layers": sizes["layers"], "position": "learned", "norm": "layer", "bias": True,
            "mixer": {"kind": "attention", "num_heads": sizes["heads"]}, "embedding": "tied",
            "ffn": {"kind": "gelu-tanh", "hidden": 4 * sizes["dim"]},
        }  # fmt: skip
        task = {"kind": "copy", "seq_len": sizes["seq"], "symbols": sizes["vocab"] - len(SPECIALS), "min_length": 2,
                "max_length": 6, "eval_size": 8}  # fmt: skip
        train = {"steps": 10**6, "batch_size": sizes["batch"], "compute": compute}
        config = load_config(RunConfig, {"task": task, "model": model, "train": train}).resolve()
        source = config.task.prepare(Path())
        how = {
            "live": frozenset[str](),
            "precision": "bfloat16",
            "execution": choose_compute(config, source, "bfloat16"),
        }
        self.trial = StepTimer(config, source, Layout(width), **how)
        shape = (config.model, source.vocab_size, source.seq_len)
        self.about = {
            "params": num_params(*shape),
            "flops_per_token": flops_per_token(*shape),
            "device": device_kind(),
            "compute": how["execution"].non_default | {"unroll": how["execution"].unroll},
            "peak_bytes": peak_bytes(),
        }
        self.tokens = width * sizes["batch"] * sizes["seq"]

    def window(self, seconds: float) -> float:
        """Train for a window and return the tokens per second."""
        return self.tokens / self.trial.window(seconds)


def device_kind() -> str:
    import jax

    return jax.devices()[0].device_kind


def peak_bytes() -> int | None:
    """Return the most bytes of device memory that this process has used; None on a CPU."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


class PyTorch:
    """Hugging Face's GPT-2 at the same sizes, with fused attention and AdamW."""

    def __init__(self, sizes: Mapping[str, int], device: str, compiled: bool):
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=sizes["vocab"], n_positions=sizes["seq"], n_embd=sizes["dim"], n_layer=sizes["layers"],
            n_head=sizes["heads"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0,
            eos_token_id=0, activation_function="gelu_pytorch_tanh",
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
        )  # fmt: skip
        self.torch, self.device, self.sizes = torch, device, sizes
        model = GPT2LMHeadModel(config).to(device).train()
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, fused=True)
        self.model = torch.compile(model) if compiled else model
        self.about = {"params": sum(parameter.numel() for parameter in self.parameters)}
        self.step()  # compiles

    def step(self) -> None:
        torch, size = self.torch, (self.sizes["batch"], self.sizes["seq"] + 1)
        tokens = torch.randint(self.sizes["vocab"], size, device=self.device)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            logits = self.model(tokens[:, :-1]).logits
        flat = logits.float().reshape(-1, self.sizes["vocab"])
        torch.nn.functional.cross_entropy(flat, tokens[:, 1:].reshape(-1)).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def window(self, seconds: float) -> float:
        """Train for a window and return the tokens per second."""
        wait = self.torch.cuda.synchronize if self.device == "cuda" else lambda: None
        wait()
        steps, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds or not steps:
            self.step()
            wait()
            steps += 1
        return steps * self.sizes["batch"] * self.sizes["seq"] / passed if passed else 0.0


def answer() -> None:
    """Run a contestant in this process: print a line when it is ready, then the tokens per second of each window."""
    answers, sys.stdout = sys.stdout, sys.stderr
    asked = json.loads(sys.stdin.readline())
    sizes, ours = asked["sizes"], "width" in asked
    one = (
        Ours(sizes, asked["width"], asked.get("compute", {}))
        if ours
        else PyTorch(sizes, asked["device"], asked["compiled"])
    )
    print(json.dumps(one.about), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"rate": one.window(json.loads(line))}), file=answers, flush=True)


def measure(
    name: str, sizes: Mapping[str, int], device: str, rounds: int, seconds: float, asked: Lever
) -> dict[str, Any]:
    """Return the tokens per second of each contestant, ratios within rounds, and the share of the device's peak."""
    from taetpu.core.chips import find_peak

    with ExitStack() as stack, ThreadPoolExecutor() as pool:  # contestants compile side by side

        def start(who: str) -> Contestant:
            began = time.perf_counter()
            how = {**CONTESTS[name][who], "compute": dict(asked.compute)}
            child = Contestant(
                COMMAND, {"sizes": dict(sizes), "device": device, **how}, gpu_levers.environ(device, asked.flags)
            )
            stack.callback(child.close)
            print(f"{name}, {who}: ready after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            return child

        ready = dict(zip(CONTESTS[name], pool.map(start, CONTESTS[name]), strict=True))
        rates = take_turns(ready, rounds, seconds)
    ours = next(child.about for who, child in ready.items() if who.startswith("ours"))
    published = find_peak(ours["device"])

    def share(one: Round, who: str) -> float:
        assert published is not None
        assert published.bf16_flops is not None
        return one[who]["rate"] * ours["flops_per_token"] / published.bf16_flops

    first = next(iter(ready))
    return {
        "device": ours["device"],
        "compute": ours["compute"],
        "params": {who: child.about["params"] for who, child in ready.items()},
        "tokens_per_second": {who: over_rounds(rates, lambda one, w=who: one[w]["rate"]) for who in ready},
        "ratio": {who: over_rounds(rates, lambda one, w=who: one[w]["rate"] / one[first]["rate"]) for who in ready},
        "utilisation": None if published is None or published.bf16_flops is None
        else {who: over_rounds(rates, lambda one, w=who: share(one, w)) for who in ready},
    }  # fmt: skip


def show(name: str, found: Mapping[str, Any]) -> str:
    first = next(iter(found["ratio"]))
    lines = [f"{name} on {found['device']}", f"{'':20}{'tokens/s':>12}{'of ' + first:>20}{'of the peak':>13}"]
    for who, rate in found["tokens_per_second"].items():
        used = found["utilisation"][who]["median"] if found["utilisation"] else None
        told = "-" if used is None else f"{used:.1%}"
        lines.append(f"{who:20}{rate['median']:>12,.0f}{found['ratio'][who]['median']:>19.2f}x{told:>13}")
    return "\n".join(lines)


def main() -> None:
    """Print a table for each contest, or one of all levers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes and short windows")
    parser.add_argument("--seconds", type=float, help=f"of each window; {SECONDS:g}, or {LEVER_SECONDS:g}")
    parser.add_argument("--case", choices=SIZES, action="append", help="the model; gpt2 and dim-128 by default")
    parser.add_argument("--levers", action="store_true", help="each lever alone against the defaults, in one table")
    parser.add_argument("--minutes", type=float, default=7.5, help="time limit of --levers")
    parser.add_argument("--at-once", type=int, default=3, help="contestants of --levers in memory at once")
    gpu_levers.add_options(parser)
    parser.add_argument("--json", type=Path, help="where to write everything that was measured")
    options = parser.parse_args()
    if options.answer:
        return answer()
    if options.device == "cuda" and not any(Path("/dev").glob("nvidia[0-9]*")):
        print("no NVIDIA GPU is here: nothing was measured")
        return None
    seconds = options.seconds or (LEVER_SECONDS if options.levers else SECONDS)
    sizes, rounds, seconds = (SMALL, 2, 0.2) if options.small else (SIZES, ROUNDS, seconds)
    asked, found = gpu_levers.read_options(options), {}
    cases = options.case or (["gpt2"] if options.levers else ["gpt2", "dim-128"])
    for name in cases:
        usual = gpu_levers.SIZES.get(name, {}) if options.levers and not options.small else {}
        one = {**sizes[name], **usual, **asked.sizes}
        if options.levers:
            limits = gpu_levers.Limits(60 * options.minutes / len(cases), options.at_once, rounds, seconds)
            width = PACK if name == "dim-128" else 1
            found[name] = gpu_levers.measure_levers(one, width, options.device, asked, limits)
            print(f"{gpu_levers.show(name, found[name])}\n", flush=True)
            continue
        found[name] = measure(name, one, options.device, rounds, seconds, asked)
        print(f"{show(name, found[name])}\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return None


if __name__ == "__main__":
    main()
