"""Configs of nanoGPT (github.com/karpathy/nanoGPT): assignments in Python, which are parsed and never executed.

Settings and defaults are those of train.py in its commit 3adf61e.
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.configs.config_file import ConfigFile, Note, System, Translation, constant

DEFAULTS: dict[str, Any] = {
    "out_dir": "out", "eval_interval": 2000, "log_interval": 1, "eval_iters": 200, "eval_only": False,
    "always_save_checkpoint": True, "init_from": "scratch", "wandb_log": False, "wandb_project": "owt",
    "wandb_run_name": "gpt2", "dataset": "openwebtext", "gradient_accumulation_steps": 40, "batch_size": 12,
    "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768, "dropout": 0.0, "bias": False,
    "learning_rate": 6e-4, "max_iters": 600_000, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0,
    "decay_lr": True, "warmup_iters": 2000, "lr_decay_iters": 600_000, "min_lr": 6e-5, "backend": "nccl",
    "device": "cuda", "dtype": "bfloat16", "compile": True,
}  # fmt: skip
GPT2 = {"kind": "hub", "name": "openai-community/gpt2"}
END = "<|endoftext|>"
DATASETS: dict[str, dict[str, Any]] = {
    "shakespeare_char": {"source": "tinyshakespeare", "tokenizer": {"kind": "char"}, "val": 0.1},
    "shakespeare": {"source": "tinyshakespeare", "tokenizer": GPT2, "val": 0.1},
    "openwebtext": {"source": "openwebtext", "tokenizer": GPT2, "separator": END, "val": 0.0005},
}
"""The prepared datasets by name."""
GPT2_VOCABULARY = 50257
UNUSED = {
    "eval_iters": "evaluations during training take a tenth of the FLOPs (`train.eval_windows`)",
    "out_dir": "studies are stored below `--root`",
    "eval_only": "`taetpu lens perplexity` and `taetpu lens score` evaluate a model",
    "always_save_checkpoint": "the last model is stored; `train.evaluate: best` stores the best one",
    "wandb_run_name": "runs are named by study, arm and seed",
    "backend": "devices are connected without a setting",
    "device": "the device is an option of the command: `taetpu --device N`",
    "compile": "programs are always compiled",
}
"""Settings without a counterpart in a study file, with the reason."""


def recognises(file: Path, text: str) -> bool:
    """Return whether a file is Python that assigns a setting of nanoGPT."""
    if file.suffix != ".py":
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Assign) and _names(node) & DEFAULTS.keys() for node in tree.body)


def _names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def read(file: Path, text: str) -> list[ConfigFile]:
    """Return the settings of a config. Statements that are not assignments of constants become notes.

    Raises:
        UserError: If the file is not valid Python.
    """
    try:
        tree = ast.parse(text, file)
    except SyntaxError as error:
        raise UserError(f"not valid Python: {error.msg}", file=file, line=error.lineno) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"not valid Python: {error}", file=file) from None
    config = ConfigFile(file.stem)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            continue
        written = (ast.get_source_segment(text, node) or "").partition("\n")[0]
        if not isinstance(node, ast.Assign) or not (names := _names(node)):
            config.notes[f"line {node.lineno}"] = Note(written, node.lineno, "it is no assignment, and is not executed")
            continue
        try:
            value = constant(node.value, config.given)
        except (ValueError, TypeError, RecursionError):
            config.notes[f"line {node.lineno}"] = Note(written, node.lineno, "its value is no constant")
            continue
        for name in names:
            config.given[name], config.lines[name] = value, node.lineno
            if name not in DEFAULTS:
                config.note(name, "it is not a setting of nanoGPT")
    return [config]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def translate(values: Mapping[str, Any], config: ConfigFile) -> Translation:
    """Translate the values of all settings."""
    for name, reason in UNUSED.items():
        config.note(name, reason)
    translated = Translation(_task(values, config), _model(values, config), _train(values, config))
    translated.more = {"measure": {"primary": "val/loss", "direction": "min"}}
    if "start" in translated.model:
        translated.task.pop("tokenizer", None)
    if values["wandb_log"]:
        translated.more["trackers"] = {"wandb": {"project": values["wandb_project"]}}
    else:
        config.note("wandb_project", "wandb_log is off")
    return translated


def _task(values: Mapping[str, Any], config: ConfigFile) -> dict[str, Any]:
    name, length = str(values["dataset"]), {"seq_len": values["block_size"]}
    if name in DATASETS:
        config.note("dataset", "the text is tokenized by taetpu; windows do not overlap, and are read once an epoch")
        return {"kind": "text", **DATASETS[name], **length}
    config.note("dataset", f"vocab_size is that of GPT-2; set it to that of data/{name}/meta.pkl if there is one")
    files = {"source": f"data/{name}/train.bin", "val_source": f"data/{name}/val.bin"}
    return {"kind": "tokens", **files, "vocab_size": GPT2_VOCABULARY, **length}


def _model(values: Mapping[str, Any], config: ConfigFile) -> dict[str, Any]:
    start = str(values["init_from"])
    if start.startswith("gpt2"):
        for name in ("n_layer", "n_head", "n_embd", "bias"):
            config.note(name, "it is that of the loaded model")
        folder = f"openai-community/{start}"
        return {"start": {"folder": folder, "revision": "main"}, "dropout": values["dropout"]}
    if start == "resume":
        config.note("init_from", "`taetpu run` resumes runs of taetpu; checkpoints of nanoGPT are pickles. A converted "
                    "one is read by `model.start` (taetpu model import)")  # fmt: skip
    return {
        "dim": values["n_embd"],
        "num_layers": values["n_layer"],
        "mixer": {"kind": "attention", "num_heads": values["n_head"]},
        "position": {"kind": "learned"},
        "norm": {"kind": "layer", "placement": "pre", "eps": 1e-5},
        "ffn": {"kind": "gelu-erf", "mult": 4},
        "embedding": {"kind": "tied"},
        "init": {"kind": "gpt2-scaled", "std": 0.02},
        "bias": values["bias"],
        "dropout": values["dropout"],
    }


def _train(values: Mapping[str, Any], config: ConfigFile) -> dict[str, Any]:
    parts = values["gradient_accumulation_steps"]
    if values["decay_lr"]:
        floor = min(values["min_lr"], values["learning_rate"])
        schedule = {"kind": "cosine", "warmup": values["warmup_iters"], "min_lr": floor}
        if values["lr_decay_iters"] != values["max_iters"]:
            config.note("lr_decay_iters", "the cosine ends with the run, after max_iters")
    else:
        schedule = {"kind": "constant"}
        for name in ("warmup_iters", "lr_decay_iters", "min_lr"):
            config.note(name, "decay_lr is off")
    optimizer = {"kind": "adamw", "lr": values["learning_rate"], "b1": values["beta1"], "b2": values["beta2"],
                 "weight_decay": values["weight_decay"]}  # fmt: skip
    precision = "float32" if values["dtype"] == "float32" else "auto"
    if values["dtype"] == "float16":
        config.note("dtype", "there is no float16; `precision: auto` is bfloat16 where it is fast")
    return {
        "steps": values["max_iters"],
        "batch_size": values["batch_size"] * parts,
        "accumulate": parts,
        "optimizer": optimizer,
        "schedule": schedule,
        "clip": values["grad_clip"] or "none",
        "eval_every": min(values["eval_interval"], values["max_iters"]),
        "log_every": values["log_interval"],
        "precision": precision,
    }


NANOGPT = System("nanoGPT", recognises, read, translate, DEFAULTS)
