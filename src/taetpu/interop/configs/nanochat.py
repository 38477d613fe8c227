"""Arguments of nanochat (github.com/karpathy/nanochat): commands of `scripts.base_train`, or a checkpoint's meta.json.

Settings, defaults and the rules that follow from the depth are those of its commit 92d63d4.
"""

import argparse
import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.configs.config_file import ConfigFile, System, Translation, divide
from taetpu.spec.presets import expand_preset

DEFAULTS: dict[str, Any] = {
    "run": "dummy", "device_type": "", "fp8": False, "fp8_recipe": "tensorwise", "depth": 20, "aspect_ratio": 64,
    "head_dim": 128, "max_seq_len": 2048, "window_pattern": "SSSL", "num_iterations": -1, "target_flops": -1.0,
    "target_param_data_ratio": 12.0, "device_batch_size": 32, "total_batch_size": -1, "embedding_lr": 0.3,
    "unembedding_lr": 0.008, "weight_decay": 0.28, "matrix_lr": 0.02, "scalar_lr": 0.5, "warmup_steps": 40,
    "warmdown_ratio": 0.65, "final_lr_frac": 0.05, "resume_from_step": -1, "eval_every": 250,
    "eval_tokens": 80 * 524288, "core_metric_every": 2000, "core_metric_max_per_task": 500, "sample_every": 2000,
    "save_every": -1, "model_tag": None,
}  # fmt: skip
COMMAND = re.compile(r"scripts[./]base_train(\.py)?\b")
USER_CONFIG = "user_config"
VOCABULARY = 2**15
REFERENCE_DEPTH, REFERENCE_BATCH, REFERENCE_DIM = 12, 2**19, 768
"""The model, and its batch in tokens, from which batch size, learning rates and weight decay are scaled."""
BATCH_EXPONENT = 0.383
TILE = 128
"""Multiple of which the narrow window is; it is a quarter of the context."""
UNUSED = {
    "eval_tokens": "evaluations during training take a tenth of the FLOPs (`train.eval_windows`)",
    "device_type": "the device is an option of the command: `taetpu --device N`",
    "fp8": "products are in bfloat16 or float32 (`train.precision`)",
    "fp8_recipe": "products are in bfloat16 or float32 (`train.precision`)",
    "scalar_lr": "the model has no trained factors of the stream",
    "resume_from_step": "`taetpu run` resumes runs of taetpu; its own checkpoints are the only ones",
    "core_metric_every": "`taetpu lens score` scores trained models on items",
    "core_metric_max_per_task": "`taetpu lens score` scores trained models on items",
}
"""Arguments without a counterpart in a study file, with the reason."""

# --- reading ---------------------------------------------------------------------------------------------------------


def recognises(file: Path, text: str) -> bool:
    """Return whether a file contains a command of `scripts.base_train`, or a checkpoint's `user_config`."""
    return COMMAND.search(text) is not None or (file.suffix == ".json" and f'"{USER_CONFIG}"' in text)


def read(file: Path, text: str) -> list[ConfigFile]:
    """Return the arguments of each command in a script, or those of a checkpoint.

    Raises:
        UserError: If the file contains neither.
    """
    if file.suffix == ".json":
        try:
            given = json.loads(text)[USER_CONFIG]
            if not isinstance(given, dict):
                raise TypeError("not an object")
        except (ValueError, KeyError, TypeError) as error:
            remedy = "Name a file meta_NUMBER.json of a checkpoint."
            raise UserError(f"no {USER_CONFIG} in this file: {error}", file=file, remedy=remedy) from None
        config = ConfigFile(str(given.get("model_tag") or file.stem))
        for name, value in given.items():
            _add(config, name, value, None)
        return [config]
    configs: list[ConfigFile] = []
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if joined else number
        joined += line.rstrip().removesuffix("\\") + " "
        if line.rstrip().endswith("\\"):
            continue
        if (command := COMMAND.search(joined)) and not joined.lstrip().startswith("#"):
            name = file.stem if not configs else f"{file.stem}-{len(configs) + 1}"
            configs.append(_parse(name, joined[command.end() :], file, first))
        joined = ""
    if not configs:
        problem, remedy = "no command of scripts.base_train in this file", "Name a script such as runs/runcpu.sh."
        raise UserError(problem, file=file, remedy=remedy)
    return configs


def _parse(name: str, text: str, file: Path, line: int) -> ConfigFile:
    """Return the arguments of a command, up to a redirection or another command."""
    try:
        words = shlex.split(re.split(r"[|;&<>]|\d>", text)[0], comments=True)
    except ValueError as error:
        raise UserError(f"this command cannot be read: {error}", file=file, line=line) from None
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    for setting, default in DEFAULTS.items():
        flag = f"--{setting.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS)
        else:
            parser.add_argument(flag, default=argparse.SUPPRESS)
    try:
        given, unknown = parser.parse_known_args([word for word in words if word != "--"])
    except argparse.ArgumentError as error:
        raise UserError(f"this command cannot be read: {error}", file=file, line=line) from None
    config = ConfigFile(name)
    for setting, value in vars(given).items():
        _add(config, setting, value, line)
    for word in unknown:
        _add(config, word, "", line)
    return config


def _add(config: ConfigFile, name: str, value: Any, line: int | None) -> None:
    """Add an argument with a value of the type of its default. What cannot be used becomes a note."""
    config.given[name] = value
    if line is not None:
        config.lines[name] = line
    if name not in DEFAULTS:
        config.note(name, "it is not an argument of nanochat's base_train")
        return
    kind = type(DEFAULTS[name])
    try:
        config.given[name] = kind(value) if kind in (int, float) and value is not None else value
    except ValueError:
        config.note(name, "its value is not a number, so the default is used")
        config.given[name] = DEFAULTS[name]


# --- translation -----------------------------------------------------------------------------------------------------


def translate(values: Mapping[str, Any], config: ConfigFile) -> Translation:
    """Translate the values of all arguments."""
    for name, reason in UNUSED.items():
        if values[name] != -1:
            config.note(name, reason)
    task = {
        "kind": "text",
        "source": "fineweb-edu-10bt",
        "tokenizer": {"kind": "bpe", "vocab_size": VOCABULARY},
        "val": 0.001,
        "seq_len": values["max_seq_len"],
    }
    config.note("depth", "the text is FineWeb-Edu with a BPE trained on it; value embeddings, smear, backout and the "
                "factors of the stream in each layer have no counterpart")  # fmt: skip
    translated = Translation(task, _model(values, config), _train(values, config))
    translated.more = {"measure": {"primary": "val/loss", "direction": "min"}}
    if values["run"] != "dummy":
        translated.more["trackers"] = {"wandb": {"project": "nanochat"}}
    return translated


def _width(values: Mapping[str, Any], depth: int) -> int:
    """Return the width of a model: the depth times the aspect ratio, rounded up to whole heads."""
    return -(-depth * values["aspect_ratio"] // values["head_dim"]) * values["head_dim"]


def _scaled_parameters(values: Mapping[str, Any], depth: int) -> int:
    """Return the number of parameters of the matrices in layers and of the output embedding."""
    dim = _width(values, depth)
    return 12 * depth * dim**2 + VOCABULARY * dim


def _model(values: Mapping[str, Any], config: ConfigFile) -> dict[str, Any]:
    dim, pattern = _width(values, values["depth"]), str(values["window_pattern"]).upper()
    model = expand_preset({"preset": "nanochat", "dim": dim, "num_layers": values["depth"]})
    model["mixer"] |= {"num_heads": dim // values["head_dim"]}
    model["position"] = {"kind": "rope", "base": 100000.0}
    if "S" in pattern:
        width = -(-values["max_seq_len"] // (4 * TILE)) * TILE
        model["mixer"]["mask"] = {"kind": "window", "width": width, "pattern": pattern}
    return model


def _train(values: Mapping[str, Any], config: ConfigFile) -> dict[str, Any]:
    seq_len, ratio = values["max_seq_len"], values["target_param_data_ratio"]
    tokens = ratio * _scaled_parameters(values, values["depth"])
    reference = ratio * _scaled_parameters(values, REFERENCE_DEPTH)
    total = values["total_batch_size"]
    if total == -1:
        total = 2 ** round(math.log2(REFERENCE_BATCH * (tokens / reference) ** BATCH_EXPONENT))
    batch = divide(total, seq_len)
    steps = values["num_iterations"]
    if steps < 1:
        steps = divide(tokens, total)
        config.note("target_flops", "training FLOPs are matched between arms (`match: flops`); the length follows from "
                    "target_param_data_ratio")  # fmt: skip
    else:
        config.note("target_flops", "num_iterations is set")
        config.note("target_param_data_ratio", "num_iterations is set")
    part = values["device_batch_size"]
    if batch % part:
        config.note("device_batch_size", f"it does not divide the batch of {batch} sequences")
    scale = (total / REFERENCE_BATCH) ** 0.5
    table = (_width(values, values["depth"]) / REFERENCE_DIM) ** -0.5
    lr = values["matrix_lr"] * scale
    tables = {"embedding": (values["embedding_lr"], 0.001), "unembedding": (values["unembedding_lr"], 0.01)}
    config.note("weight_decay", "it is constant during training, and applies whatever the sign of the update")
    return {
        "steps": steps,
        "batch_size": batch,
        "accumulate": 1 if batch % part else batch // part,
        "optimizer": {
            "kind": "muon",
            "lr": lr,
            "consistent_rms": "none",
            "b1": 0.8,
            "b2": 0.995,
            "weight_decay": values["weight_decay"] * scale * reference / tokens,
            "groups": {
                role: {"lr": rate / values["matrix_lr"] * table, "weight_decay": decay}
                for role, (rate, decay) in tables.items()
            },
        },
        "schedule": {
            "kind": "wsd",
            "warmup": values["warmup_steps"],
            "decay_share": values["warmdown_ratio"],
            "shape": "linear",
            "min_lr": values["final_lr_frac"] * lr,
        },
        "clip": "none",
        **_evaluation(values, config),
    }


def _evaluation(values: Mapping[str, Any], config: ConfigFile) -> dict[str, Any]:
    """Return when a run is evaluated and stored."""
    more: dict[str, Any] = {}
    if values["sample_every"] < 1:
        more["sample"] = "none"
    else:
        config.note("sample_every", "texts are sampled at each evaluation")
    if values["eval_every"] > 0:
        more["eval_every"] = values["eval_every"]
    if values["save_every"] > 0:
        more |= {"checkpoint": values["save_every"], "keep_checkpoints": True}
    return more


NANOCHAT = System("nanochat", recognises, read, translate, DEFAULTS)
