"""The levers of training on a GPU, each alone against the defaults: `python -m benchmarks.gpu --levers`.

A wave is the defaults beside some levers, which take turns, so that ratios are those of one minute of the machine. The
contestants of a wave compile side by side. The defaults stay in memory; the levers of a wave end before those of the
next start. Products that XLA has tuned are stored in a folder that all contestants share, so `ready` of the first wave
is with autotuning, and that of later ones without.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks.contest import Timed, over_rounds, turns_of_survivors, why
from taetpu.core.child_process import ChildFailed

COMMAND = (sys.executable, "-m", "benchmarks.gpu", "--answer")
MARGIN = 1.2  # a wave is started if this multiple of the longest wave is left


class Lever(NamedTuple):
    """A change of how a model is trained.

    Attributes:
        name: Its name in the table.
        compute: Changes of `train.compute`.
        flags: Flags for XLA.
        sizes: Changes of the sizes of the model and its batch.
    """

    name: str = "defaults"
    compute: Mapping[str, Any] = {}
    flags: str = ""
    sizes: Mapping[str, int] = {}


class Limits(NamedTuple):
    """The seconds of the whole table, contestants at once, rounds, and the seconds of a window."""

    total: float
    at_once: int
    rounds: int
    seconds: float


DEFAULTS = Lever()
SIZES = {"gpt2": {"batch": 64, "vocab": 50257}}  # of a table of levers, in place of those of the contests
OPTIONS = {"unroll": "all", "remat": "none", "loss_chunk": None, "logits": "bfloat16", "pad_vocab": 128, "cast": "step"}
LEVERS = (
    Lever("all options at once", OPTIONS),
    Lever("all layers unrolled", {"unroll": "all"}),
    Lever("nothing recomputed", {"remat": "none"}),
    Lever("loss not chunked", {"loss_chunk": None}),
    Lever("logits in bfloat16", {"logits": "bfloat16"}),
    Lever("vocabulary padded to 128", {"pad_vocab": 128}),
    Lever("weights cast once a step", {"cast": "step"}),
    Lever("plain attention", {"attention": "plain"}),
    Lever("no products by Triton", flags="--xla_gpu_enable_triton_gemm=false"),
    Lever("any product by Triton", flags="--xla_gpu_triton_gemm_any=true"),
    Lever("no command buffers", flags="--xla_gpu_enable_command_buffer="),
    Lever("no pass of rematerialisation", flags="--xla_disable_hlo_passes=rematerialization"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that change what `--levers` calls the defaults, and taetpu's side of a contest."""
    for name, value in OPTIONS.items():
        choices = f"e.g. {'none' if value is None else value}"
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"train.compute.{name}, {choices}")
    parser.add_argument("--attention", help="train.compute.attention")
    parser.add_argument("--batch", type=int, help="sequences of a step, on both sides")
    parser.add_argument("--vocab", type=int, help="size of the vocabulary, on both sides, e.g. 50257")
    parser.add_argument("--xla-flags", default="", help="flags for XLA on taetpu's side")


def read_options(options: argparse.Namespace) -> Lever:
    """Return what the options of the command ask for."""
    given = {name: getattr(options, name) for name in (*OPTIONS, "attention")}
    compute = {name: parse_value(text) for name, text in given.items() if text is not None}
    sizes = {name: getattr(options, name) for name in ("batch", "vocab") if getattr(options, name)}
    return Lever("as asked", compute, options.xla_flags, sizes)


def parse_value(text: str) -> str | int | None:
    return int(text) if text.isdecimal() else None if text == "none" else text


def environ(device: str, flags: str) -> dict[str, str]:
    """Return the environment of a contestant."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    return {
        **os.environ, "JAX_PLATFORMS": device, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "HF_HUB_OFFLINE": "1",
        **({"XLA_FLAGS": flags} if flags else {}),
    }  # fmt: skip


def measure_levers(
    sizes: Mapping[str, int], width: int, device: str, asked: Lever, limits: Limits, levers: Sequence[Lever] = LEVERS
) -> dict[str, Any]:
    """Return the tokens per second of each lever and its ratio to the defaults within rounds, by name of the lever.

    A lever that fails, or for which no time is left, has `failed` in place of figures.
    """
    began, waiting, longest = time.monotonic(), list(levers), 0.0
    found: dict[str, Any] = {lever.name: {"failed": "no time was left"} for lever in (DEFAULTS, *levers)}
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        tuned = f"--xla_gpu_per_fusion_autotune_cache_dir={cache}"

        def start(lever: Lever) -> Timed | str:
            """Start a contestant, and return it or why it failed."""
            request = {
                "sizes": {**sizes, **lever.sizes}, "width": width, "compute": {**asked.compute, **lever.compute},
                "device": device,
            }  # fmt: skip
            try:
                return Timed(
                    COMMAND, request, environ(device, f"{tuned} {asked.flags} {lever.flags}"), began + limits.total
                )
            except (ChildFailed, MemoryError) as error:
                return why(error)

        ready: dict[str, Timed] = {}
        size = max(1, limits.at_once - 1)
        while waiting and time.monotonic() - began + MARGIN * longest < limits.total:
            since = time.monotonic()
            wave, waiting = waiting[:size], waiting[size:]
            with ExitStack() as ends, ThreadPoolExecutor() as pool:
                new = wave if DEFAULTS.name in ready else [DEFAULTS, *wave]
                started = dict(zip((lever.name for lever in new), pool.map(start, new), strict=True))
                for name, child in started.items():
                    if isinstance(child, str):
                        found[name] = {"failed": child}
                        continue
                    ready[name] = child
                    (stack if name == DEFAULTS.name else ends).callback(child.close)
                measured = time_in_turns(ready, limits)
                going = DEFAULTS.name in measured and "failed" not in measured[DEFAULTS.name]
                if not going and "failed" not in found[DEFAULTS.name]:
                    measured.pop(DEFAULTS.name, None)  # the figures of an earlier wave stay
                found |= measured
                ready = {DEFAULTS.name: ready[DEFAULTS.name]} if going else {}  # or the next wave starts them again
            longest = max(longest, time.monotonic() - since)
            print(f"{len(levers) - len(waiting)} of {len(levers)} levers after {time.monotonic() - began:.0f} s",
                  file=sys.stderr, flush=True)  # fmt: skip
    return found


def time_in_turns(ready: Mapping[str, Timed], limits: Limits) -> dict[str, Any]:
    """Return what was measured of each contestant, or why it failed. The others go on without one that fails."""
    rounds, reasons = turns_of_survivors(ready, limits.rounds, limits.seconds)
    failed: dict[str, Any] = {name: {"failed": reason} for name, reason in reasons.items()}
    going = {name: child for name, child in ready.items() if name not in failed}
    if DEFAULTS.name not in going:
        return failed | {name: {"failed": "the defaults, beside which it ran, failed"} for name in going}
    return failed | {name: figures(name, child, rounds) for name, child in going.items()}


def figures(name: str, child: Timed, rounds: Sequence[Any]) -> dict[str, Any]:
    """Return what was measured of a contestant."""
    from taetpu.core.chips import find_peak

    rate = over_rounds(rounds, lambda one: one[name]["rate"])
    peak = find_peak(child.about["device"])
    flops = None if peak is None else peak.bf16_flops
    return {
        "tokens_per_second": rate,
        "ratio": over_rounds(rounds, lambda one: one[name]["rate"] / one[DEFAULTS.name]["rate"]),
        "utilisation": None if flops is None else rate["median"] * child.about["flops_per_token"] / flops,
        "peak_bytes": child.about["peak_bytes"],
        "ready_seconds": child.ready,
        "compute": child.about["compute"],
        "device": child.about["device"],
    }


def show(name: str, found: Mapping[str, Any]) -> str:
    """Return the table of all levers."""
    device = found[DEFAULTS.name].get("device", "a device that trained nothing")
    head = f"{'':30}{'tokens/s':>12}{'of the defaults':>24}{'of the peak':>13}{'GB':>8}{'ready, s':>10}"
    lines = [f"{name} on {device}", head]
    for lever, one in found.items():
        if "failed" in one:
            lines.append(f"{lever:30}  not measured: {one['failed']}")
            continue
        ratio, used, peak = one["ratio"], one["utilisation"], one["peak_bytes"]
        ratios = f"{ratio['median']:.3f} ({ratio['least']:.3f}-{ratio['most']:.3f})"
        lines.append(
            f"{lever:30}{one['tokens_per_second']['median']:>12,.0f}{ratios:>24}"
            f"{'-' if used is None else f'{used:.1%}':>13}{'-' if peak is None else f'{peak / 1e9:.1f}':>8}"
            f"{one['ready_seconds']:>10.0f}"
        )
    return "\n".join(lines)
