"""Every task and objective trains 20 steps: packed runs equal those alone, resumed ones those undisturbed."""

from typing import Any

import jax.numpy as jnp
import pytest
from tests.study.test_feed import trained
from tests.suites import by_default
from tests.testing.test_every_kind import ROOT, settings_of

from taetpu.core.config_parsing import build_component
from taetpu.core.registry import kinds
from taetpu.data.base import Batch
from taetpu.lens.opened import OpenedModel
from taetpu.lens.opening import open_run
from taetpu.store.documents import to_yaml

MODEL: dict[str, Any] = {
    "dim": 8, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}, "embedding": "untied"
}  # fmt: skip
TRAIN = {"steps": 20, "batch_size": 4, "eval_every": 10, "checkpoint": 10, "log_every": 10, "sample": "none"}

OF_TEXT: dict[str, dict[str, Any]] = {
    "masked-lm": {"objective": {"kind": "masked-lm", "share": 0.3}},
    "prefix-lm": {"objective": "prefix-lm"},
    "next-sentence": {"objective": "next-sentence", "samples": "pairs", "split": "document", "per": "line"},
}
"""Settings of a text for the objectives that are no task's default."""


def task_of(kind: str) -> dict[str, Any]:
    """Return the settings of a small task. Files that it names are those of the repository."""
    task = {"kind": kind, **settings_of("task", kind)}
    paths = {name: str(ROOT / task[name]) for name in ("source", "val_source", "test_source") if task.get(name)}
    return {**task, **paths}


@pytest.mark.parametrize("kind", by_default(kinds("task")))
def test_a_task_trains_packed_alone_and_resumed(kind, study, interrupting, tmp_path) -> None:
    check_training(task_of(kind), study, interrupting, tmp_path)


@pytest.mark.parametrize("kind", by_default(OF_TEXT))
def test_an_objective_trains_packed_alone_and_resumed(kind, study, interrupting, tmp_path) -> None:
    text = " ".join(f"word{i % 7} follows {i % 5}." for i in range(2000))
    (tmp_path / "text.txt").write_text("\n".join(text[i : i + 200] for i in range(0, len(text), 200)))
    task = {"kind": "text", "source": str(tmp_path / "text.txt"), "seq_len": 16, "tokenizer": "char", **OF_TEXT[kind]}
    check_training(task, study, interrupting, tmp_path)


def test_every_objective_is_that_of_a_task_or_is_set() -> None:
    default = {getattr(build_component("task", task_of(kind)), "objective", "causal-lm") for kind in kinds("task")}
    names = {choice if isinstance(choice, str) else choice.kind for choice in default}
    assert {*kinds("objective")} == {"task", *OF_TEXT, *names}


def check_training(task: dict[str, Any], study, interrupting, tmp_path) -> None:
    """Assert that runs of a task end as those alone and those resumed, and that its model is causal if the task is."""
    causal = build_component("task", task).causal
    mask = "prefix" if task.get("objective") == "prefix-lm" else "causal" if causal else "full"
    model = {**MODEL, "mixer": {**MODEL["mixer"], "mask": mask}}
    base = {"task": task, "model": model, "train": TRAIN}
    text = to_yaml(
        {"study": "all", "base": base, "seeds": 2, "arms": {"low-lr": {"train.optimizer.lr": 1e-4}}}
    ).decode()
    _, whole = study(text, root="whole")
    with pytest.raises(KeyboardInterrupt):
        study(text, root="cut", callback=interrupting("on_steps", 12))
    _, resumed = study(text, root="cut")
    assert trained(resumed) == trained(whole)
    _, solo = study(text, root="solo", pack=1)
    for alone, packed in zip(solo.runs(), whole.runs(), strict=True):
        assert alone.key == packed.key
        assert alone.result()["steps"] == 20
        assert alone.result()["metrics"] == pytest.approx(packed.result()["metrics"], rel=1e-5, abs=1e-6)
    assert is_causal(open_run("all/baseline/0", root=tmp_path / "whole", data_folder=tmp_path)) == causal


def is_causal(opened: OpenedModel) -> bool:
    """Return whether the outputs of a trained model ignore a change of the last input."""
    split = opened.data.evaluation("val")
    assert split is not None
    batch = Batch(*(None if part is None else jnp.asarray(part[:1]) for part in split.batch))
    last = batch.tokens[:, -1]
    changed = batch.tokens.at[:, -1].set(last + 1 if opened.interface.features else (last + 1) % opened.data.vocab_size)
    context = {**batch.context, "padding": None}
    before, after = (opened.model(part, **context)[:, :-1] for part in (batch.tokens, changed))
    return bool((before == after).all())
