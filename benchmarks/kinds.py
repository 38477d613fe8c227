"""Compile a tiny model with every registered kind for TPUs: memory and the compiler's cycles.

The kinds are read from the registry, so that new ones are among them. `python -m benchmarks.kinds v5e-8 v3-8 v6e-8`
prints the table of docs/tpu.md. Import it after `prepare_jax`.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taetpu.core.chips import Slice, parse_slice
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.nn.compute_options import DEFAULT_OPTIONS
from taetpu.spec.kind_examples import example_arm, example_baseline
from taetpu.spec.overrides import apply_overrides
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.tpu.compile_client import Compiler, CompileRequest
from taetpu.train.layout import Layout

MODEL = {"dim": 128, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}}
TRAIN = {"steps": 20, "batch_size": 8}
TASK = {"kind": "copy", "seq_len": 64, "symbols": 6, "min_length": 2, "max_length": 20, "eval_size": 8}
DATA = {
    "text": {"source": "python-docs", "tokenizer": "char"},
    "tokens": {"source": "tests/data/stored", "vocab_size": 96},
    "modular-addition": {"seq_len": 3},
    **{kind: {"source": "tests/data/labelled.jsonl"} for kind in ("classification", "token-classification", "pairs")},
    "regression": {"source": "tests/data/labelled.jsonl", "label": "score"},
}
"""Settings of tasks. Data are relative to the repository."""
OUTPUTS = (
    "classification", "dyck", "in-context-regression", "lego", "mad-compression", "pairs", "regression",
    "shuffle-dyck", "token-classification",
)  # fmt: skip
"""Tasks whose outputs are not their tokens, so that one table cannot serve both."""
TASK_OF = {
    "contrastive": "pairs", "reconstruction": "mad-compression", "regression": "regression",
    "sequence-classification": "classification", "squared-error": "in-context-regression",
    "token-classification": "token-classification",
}  # fmt: skip
"""The task of each objective that only this task has."""
NOT_IN_STEPS = {"tokenizer", "tracker", "metric", "eval_metric"}
"""Slots whose kinds are not in the train step; metrics have separate programs."""


def every_kind() -> Iterator[tuple[str, str]]:
    """Return slot and kind of all of taetpu's kinds that are in the train step."""
    for slot in BUILTIN_MODULES:
        own = [kind for kind, component in sorted(kinds(slot).items()) if component.__module__.startswith("taetpu.")]
        yield from ((slot, kind) for kind in own if slot not in NOT_IN_STEPS)


def config(slot: str, kind: str) -> ResolvedConfig | None:
    """Return the config of a tiny run with a kind, as in the example of the catalog; None if it is not valid."""
    base: dict[str, Any] = {"task": TASK, "model": MODEL, "train": TRAIN}
    task = kind if slot == "task" else TASK_OF.get(kind) if slot == "objective" else None
    if task is not None:
        base["task"] = {"kind": task, "seq_len": 64, **DATA.get(task, {})}
        base["model"] = {**MODEL, "embedding": "untied"} if task in OUTPUTS else MODEL
    elif (slot, kind) in (("mask", "full"), ("mask", "local")):
        base["task"] = {**TASK, "form": "encoder"}
    elif slot == "objective" and kinds(slot)[kind].of_text and kinds(slot)[kind].of_task:
        base["task"] = {"kind": "text", "seq_len": 64, **DATA["text"]}
        base = apply_overrides(base, example_baseline(kinds(slot)[kind]) or {})
    try:
        overrides = example_arm(kinds(slot)[kind]) or {}
        return load_config(RunConfig, apply_overrides(base, overrides if slot != "task" else {})).resolve()
    except UserError:
        return None


def requests(slots: list[tuple[str, str]], tpu: Slice) -> dict[tuple[str, str], CompileRequest]:
    """Return a request per kind, for a program of one run on each device."""
    found = {}
    for slot, kind in slots:
        run = config(slot, kind)
        if run is not None:
            layout = Layout(tpu.devices, tpu.devices)
            source = run.task.prepare(Path())
            found[slot, kind] = CompileRequest(
                run, source, frozenset(), "bfloat16", DEFAULT_OPTIONS, layout, tpu, Path(), ()
            )
    return found


def table(names: list[str], only: list[str]) -> str:
    """Return a Markdown table with a row per kind and two columns per TPU.

    Args:
        names: The names of the slices.
        only: The kinds, as `slot/kind`; all kinds if empty.
    """
    rows = [(slot, kind) for slot, kind in every_kind() if not only or f"{slot}/{kind}" in only]
    slices = [parse_slice(name) for name in names]
    asked = [requests(rows, tpu) for tpu in slices]
    with Compiler(lambda done, of: print(f"{done} of {of}", end="\r", file=sys.stderr)) as compiler:
        answers = [dict(zip(one, compiler.compile_all(list(one.values())), strict=True)) for one in asked]
    heads = [f"{tpu.name} {what}" for tpu in slices for what in ("MB", "cycles a step")]
    lines = [f"| slot | kind | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for slot, kind in rows:
        cells = [cell for found in answers for cell in _cells(found.get((slot, kind)))]
        lines.append(f"| `{slot}` | `{kind}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(facts: Any) -> tuple[str, str]:
    if facts is None:
        return "needs settings", ""
    if "memory" not in facts:
        return "failed", facts["error"]
    return f"{facts['memory']['needed'] / 1e6:.1f}", f"{facts['cycles']:,}" if "cycles" in facts else "-"


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # with libtpu and without a TPU, jax would search for one
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kinds", description="Print the table of docs/tpu.md.")
    parser.add_argument("slices", nargs="*", default=["v5e-8"], metavar="SLICE", help="a TPU slice, such as v5e-8")
    parser.add_argument("--only", nargs="+", default=[], metavar="SLOT/KIND", help="kinds; all by default")
    given = parser.parse_args()
    print(table(given.slices, given.only))
