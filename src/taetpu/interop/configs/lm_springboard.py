"""Configs of lm-springboard (github.com/gailweiss/lm-springboard): sections of `key = literal`.

Settings and defaults are those of its commit f54a2bf. Older configs have settings of EvalParams in TrainParams.
"""

import re
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.interop.configs.config_file import ConfigFile, System, Translation, divide, parse_constant

DATA, TRAIN, EVAL, MODEL = SECTIONS = ("DataParams", "TrainParams", "EvalParams", "ModelParams")
DEFAULTS: dict[str, dict[str, Any]] = {
    DATA: {"dataset_name": "ptb", "langs": ["en", "fra_Latn", "roh_Latn", "deu_Latn", "ita_Latn"], "debug_crop": None,
           "breaking_synthetic_samples_ok": False, "val_pct": 10, "test_pct": 5, "lines_per_sample": 1,
           "max_seq_len": -1, "task_type": "?", "total_train_samples": -1, "total_samples": -1},
    TRAIN: {"batch_size": 8, "accumulate_grad_batches": 1, "epochs": 5, "dropout": 0.1, "gradient_clip_val": 0.5,
            "lr": 1e-3, "lr_warm_steps": 50, "lr_scheduler_type": "Cosine", "min_lr": 1e-7, "scheduler_factor": 0.995,
            "patience": 10, "lr_cycle_steps": 500, "lora_rank": 0, "lora_std": 0.02, "early_stop_nsamples": -1,
            "weight_decay": 0.01, "random_seed": None},
    EVAL: {"val_check_epoch_frac": 0.1, "max_sample_tokens": 30, "sample_temperature": 1, "no_wandb": False,
           "slower_log_freq": 10, "checkpoint_every": 0, "extra_tracking": False, "track_hellaswag": True,
           "track_sepsquad": False},
    MODEL: {"n_layers": 8, "n_heads": 8, "dim": 256, "rnn_x_dim": -1, "dim_ff_factor": 2, "max_seq_len": 200,
            "crop_tokenizer": True, "tokenizer_source_name": "custom", "custom_tokenizer_ntokens": 20000,
            "layer_architecture": "torch-transformer", "from_os_pretrained": "", "from_saved": "",
            "individual_head_params": False, "pos_encoding": "learned", "tie_embed_deembed": False,
            "norm_first": False},
}  # fmt: skip
RENAMED = {"hyperparams_log_freq": "slower_log_freq", "is_synthetic_task": "task_type"}
INTERNAL = ("task_type", "total_train_samples", "total_samples")

TASKS: dict[str, dict[str, Any]] = {
    "copy": {"kind": "copy", "symbols": 62, "min_length": 10, "max_length": 60},
    "maskedcopy": {"kind": "masked-copy", "symbols": 62, "min_length": 10, "max_length": 60},
    "sort": {"kind": "sort", "symbols": 62, "min_length": 10, "max_length": 60},
    "histogram": {"kind": "histogram", "symbols": 52, "min_length": 10, "max_length": 80},
    "doublehistogram": {"kind": "double-histogram", "symbols": 52, "min_length": 10, "max_length": 80},
    "long_addition": {"kind": "long-addition", "min_length": 2, "max_length": 20},
    "numbersort": {"kind": "number-sort", "digits": 3, "min_length": 10, "max_length": 30},
}
"""The synthetic tasks by name, with their lengths and numbers of symbols."""
SAMPLES = 1_000_000
"""Number of samples of a synthetic task."""
MOST_EVALUATED = 1024
"""Largest number of sequences in an evaluation set of a synthetic task."""
HUB = {"gpt2": "openai-community/gpt2", "bert-base-uncased": "google-bert/bert-base-uncased",
       "xlm-roberta-large": "FacebookAI/xlm-roberta-large", "pythia": "EleutherAI/pythia-70m"}  # fmt: skip
"""Names of tokenizers on the Hugging Face hub."""
BORDERS = {"bert": ("[CLS]", "[SEP]"), "xlm": ("<s>", "</s>")}
"""Tokens that begin and end a text, by a part of the tokenizer's name. Others have `<|endoftext|>`."""
POSITIONS = {"learned": "learned", "sin": "sinusoidal", "none": "none"}
HEADER = re.compile(rf"^\s*({'|'.join(SECTIONS)})\s*(#.*)?$", re.MULTILINE)

# --- reading ---------------------------------------------------------------------------------------------------------


def read(file: Path, text: str) -> list[ConfigFile]:
    """Return the settings of a config, by `SECTION.NAME`.

    Raises:
        UserError: If a line is neither a section, a setting with a literal, nor a comment.
    """
    config, section = ConfigFile(file.stem), ""
    for number, written in enumerate(text.splitlines(), 1):
        line = written.partition("#")[0].strip()
        key, sign, value = line.partition("=")
        key = RENAMED.get(key.strip(), key.strip())
        if not line:
            continue
        if not sign:
            if line not in SECTIONS:
                remedy = suggest(line, SECTIONS)
                raise UserError(f"unknown section {line!r}", file=file, line=number, remedy=remedy)
            section = line
            continue
        if not section:
            remedy = f"Write one of these lines before it: {', '.join(SECTIONS)}."
            raise UserError(f"{key!r} is in no section", file=file, line=number, remedy=remedy)
        moved = key in DEFAULTS[EVAL] and section == TRAIN
        name = f"{EVAL if moved else section}.{key}"
        try:
            config.given[name] = parse_constant(value.strip())
        except ValueError:
            problem, remedy = f"{value.strip()!r} is not a literal of Python", "Quote text, as in 'copy'."
            raise UserError(problem, file=file, line=number, path=(key,), remedy=remedy) from None
        config.lines[name] = number
        if key not in DEFAULTS[section] and not moved:
            config.note(name, "it is not a setting of lm-springboard; write a plug-in for one of your own code")
    return [config]


# --- translation -----------------------------------------------------------------------------------------------------


def translate(values: Mapping[str, Any], config: ConfigFile) -> Translation:
    """Translate the values of all settings, by `SECTION.NAME`."""
    data, train, evaluation, model = (
        {name: values[f"{section}.{name}"] for name in DEFAULTS[section]} for section in SECTIONS
    )
    for name in INTERNAL:
        config.note(f"{DATA}.{name}", "it is set by lm-springboard itself")
    task, count = _task(data, model, config)
    translated = Translation(task, _model(model, train, config), _train(train, evaluation, count, config))
    loaded = model["from_os_pretrained"] == "gpt2"
    if train["weight_decay"] > 0:  # only matrices in layers decay
        kept = {"embedding": True, "position": loaded or model["pos_encoding"] == "learned",
                "unembedding": not (loaded or model["tie_embed_deembed"])}  # fmt: skip
        groups = {role: {"weight_decay": 0.0} for role, exists in kept.items() if exists}
        translated.train["optimizer"]["groups"] = groups
    translated.more = {"measure": {"primary": "val/loss", "direction": "min"}}
    if train["lr_scheduler_type"] == "Plateau":  # it chooses by validation loss
        translated.more["measure"]["primary"] = "test/loss"
        translated.train["schedule"]["windows"] = min(64, task.get("eval_size", 64))
        if task["kind"] == "text" and not task.get("test"):
            task["test"] = 0.1
    if loaded:
        task.pop("tokenizer", None)
        config.note(f"{MODEL}.tokenizer_source_name", "the tokenizer is that of the loaded model")
    return translated


def _task(data: dict[str, Any], model: dict[str, Any], config: ConfigFile) -> tuple[dict[str, Any], int | None]:
    """Return the task, and its number of training sequences; None if it is known only when the text is read."""
    name, crop = str(data["dataset_name"]), data["debug_crop"] and int(data["debug_crop"])
    seq_len = data["max_seq_len"] if data["max_seq_len"] > 0 else model["max_seq_len"]
    trained = (100 - data["val_pct"] - data["test_pct"]) / 100
    if name in TASKS:
        for unused in ("val_pct", "test_pct"):
            config.note(f"{DATA}.{unused}", f"evaluation sets have at most {MOST_EVALUATED} sequences (`eval_size`)")
        note_synthetic(config)
        total = crop or SAMPLES
        size = min(MOST_EVALUATED, divide(total * data["val_pct"], 100))
        examples = divide(total * trained, 1)
        return {**TASKS[name], "seq_len": seq_len, "eval_size": size, "examples": examples}, examples
    config.note(f"{DATA}.breaking_synthetic_samples_ok", "only synthetic tasks read it")
    task: dict[str, Any] = {"kind": "text", **_source(name, data, config), "tokenizer": _tokenizer(model, config)}
    parts = {"val": data["val_pct"], "test": data["test_pct"]}
    if name in ("ptb", "wikitext", "wikisquad"):
        for part in parts:
            config.note(f"{DATA}.{part}_pct", "the corpus is published with its splits")
        share = 1.0
    else:
        task |= {part: percent / 100 for part, percent in parts.items()}
        share = trained
    if crop:
        sources = len(task["source"]) if isinstance(task["source"], dict) else 1
        task["train_documents"] = divide(crop * share, sources)
        config.note(f"{DATA}.debug_crop", "it crops training documents alone; evaluation data stay whole")
    if task["tokenizer"]["kind"] == "hub":
        borders = (tokens for part, tokens in BORDERS.items() if part in task["tokenizer"]["name"].lower())
        bos, task["separator"] = next(borders, (None, "<|endoftext|>"))
        task |= {"bos": bos} if bos else {}
    return {**task, "seq_len": seq_len}, None


def note_synthetic(config: ConfigFile) -> None:
    """Say how a synthetic task differs."""
    config.note(f"{DATA}.dataset_name", "a symbol is a token, and only answers are scored, not the random questions")
    config.note(f"{DATA}.breaking_synthetic_samples_ok", "sequences are never broken; `max_length` must fit `seq_len`")
    for name in ("tokenizer_source_name", "custom_tokenizer_ntokens", "crop_tokenizer"):
        config.note(f"{MODEL}.{name}", "a task with symbols has no tokenizer")
    config.note(f"{DATA}.lines_per_sample", "only texts have lines")


def _source(name: str, data: dict[str, Any], config: ConfigFile) -> dict[str, Any]:
    """Return the settings that name the corpus of a dataset."""
    lines, key = data["lines_per_sample"], f"{DATA}.dataset_name"
    local = name not in ("ptb", "wikitext", "wikisquad", "fineweb-ml", "wiki40b") and not name.startswith("c4-")
    if not local:
        config.note(f"{DATA}.lines_per_sample", "only local texts are divided by lines")
    if name not in ("fineweb-ml", "wiki40b"):
        config.note(f"{DATA}.langs", "the dataset has one language")
    whole = {"per": "line", "samples": "documents", "long_documents": "crop"}
    if name == "ptb":
        return {"source": "ptb", **whole}
    if name in ("wikitext", "wikisquad"):
        if name == "wikisquad":
            config.note(key, "only its WikiText is read; add its other files to `source`")
        return {"source": "wikitext-103"}
    if not local:
        config.note(key, "all files of these datasets would be downloaded; name single files: hf://datasets/.../FILE")
    if name == "wiki40b":
        return {"source": {f"hf://datasets/google/wiki40b?config={lang}": 1 for lang in data["langs"]}}
    if name == "fineweb-ml":
        english = "hf://datasets/HuggingFaceFW/fineweb?config=CC-MAIN-2024-18"
        other = "hf://datasets/HuggingFaceFW/fineweb-2?config="
        return {"source": {english if lang == "en" else f"{other}{lang}": 1 for lang in data["langs"]}}
    if name.startswith("c4-"):
        return {"source": f"hf://datasets/allenai/c4?config={name.removeprefix('c4-')}"}
    config.note(key, "a folder of text files beside the study file; write another path if it is elsewhere")
    source = {"source": f"{'data' if name == 'dummy' else name}/*.txt"}
    if lines < 0:
        return {**source, "split": "order"}
    return {**source, **whole, "lines_per_document": lines}


def _tokenizer(model: dict[str, Any], config: ConfigFile) -> dict[str, Any]:
    name = str(model["tokenizer_source_name"])
    if name != "custom":
        config.note(f"{MODEL}.custom_tokenizer_ntokens", "only the tokenizer 'custom' reads it")
    if name in ("char", "custom"):
        config.note(f"{MODEL}.crop_tokenizer", "a tokenizer of the training text has no other tokens")
        return {"kind": "char"} if name == "char" else {"kind": "bpe", "vocab_size": model["custom_tokenizer_ntokens"]}
    return {"kind": "hub", "name": HUB.get(name, name), "crop": bool(model["crop_tokenizer"])}


def _model(model: dict[str, Any], train: dict[str, Any], config: ConfigFile) -> dict[str, Any]:
    """Return the settings of the model."""
    config.note(f"{MODEL}.from_saved", "it names a pickle, which is never read; `train.start` names a run of taetpu")
    config.note(f"{MODEL}.individual_head_params", "heads are slices of one matrix; the model is the same")
    adapter = {}
    if train["lora_rank"] > 0:
        adapter = {"adapter": {"kind": "lora", "rank": train["lora_rank"], "alpha": train["lora_rank"]}}
        config.note(f"{TRAIN}.lora_rank", "it adapts queries and values (`model.adapter.targets`), not all parameters")
    config.note(f"{TRAIN}.lora_std", "the first matrix is drawn as `model.init` draws")
    if (pretrained := model["from_os_pretrained"]) == "gpt2":
        for name in ("n_layers", "n_heads", "dim", "dim_ff_factor", "pos_encoding", "norm_first", "layer_architecture",
                     "tie_embed_deembed"):  # fmt: skip
            config.note(f"{MODEL}.{name}", "it is that of the loaded model")
        return {"start": {"folder": HUB["gpt2"], "revision": "main"}, "dropout": train["dropout"], **adapter}
    if pretrained:
        config.note(f"{MODEL}.from_os_pretrained", "only gpt2 is known there; `model.start` reads other models")
    shape = {"dim": model["dim"], "num_layers": model["n_layers"]}
    embedding = {"kind": "tied" if model["tie_embed_deembed"] else "untied", "bias": True}
    shared = {"embedding": embedding, "bias": True, "dropout": train["dropout"], **adapter}
    architecture = str(model["layer_architecture"])
    if architecture in ("torch-lstm", "torch-gru"):
        for name in ("n_heads", "dim_ff_factor", "norm_first"):
            config.note(f"{MODEL}.{name}", "recurrent layers have none")
        config.note(f"{MODEL}.rnn_x_dim", "embeddings have the size of the stream, `model.dim`")
        parts = dict.fromkeys(("ffn", "norm", "residual", "position"), "none")
        return {**shape, "mixer": {"kind": architecture.removeprefix("torch-")}, **parts, **shared}
    config.note(f"{MODEL}.rnn_x_dim", "only recurrent layers read it")
    config.note(f"{MODEL}.layer_architecture", "there is one implementation, which plug-ins extend")
    if model["pos_encoding"] == "sin":
        config.note(f"{MODEL}.pos_encoding", "embeddings are multiplied by sqrt(dim) before the table is added")
    return {
        **shape,
        "mixer": {"kind": "attention", "num_heads": model["n_heads"]},
        "position": {"kind": POSITIONS.get(str(model["pos_encoding"]), model["pos_encoding"])},
        "norm": {"kind": "layer", "placement": "pre" if model["norm_first"] else "post", "eps": 1e-5},
        "ffn": {"kind": "relu", "mult": model["dim_ff_factor"]},
        **shared,
    }


def _train(train: dict[str, Any], evaluation: dict[str, Any], count: int | None, config: ConfigFile) -> dict[str, Any]:
    """Return the settings of training, given the number of training sequences if it is known."""
    batch = train["batch_size"] * train["accumulate_grad_batches"]
    length = {"epochs": train["epochs"]}
    if (samples := train["early_stop_nsamples"]) > 0:
        length = {"steps": ceil(samples / batch)}
        config.note(f"{TRAIN}.epochs", "training ends after early_stop_nsamples, also if its epochs are fewer")
    decay, betas = train["weight_decay"], {"b1": 0.9, "b2": 0.999}
    rule = {"kind": "adamw", "weight_decay": decay} if decay > 0 else {"kind": "adam"}
    return {
        **length,
        "batch_size": batch,
        "accumulate": train["accumulate_grad_batches"],
        "optimizer": {**rule, "lr": train["lr"], **betas},
        "schedule": _schedule(train, length.get("steps") or (count and ceil(train["epochs"] * count / batch)), config),
        "clip": train["gradient_clip_val"] or "none",
        **({"hooks": {"freeze": {"trained": ["*.adapter.*"]}}} if train["lora_rank"] > 0 else {}),
        **_evaluation(train, evaluation, count, config),
    }


def _schedule(train: dict[str, Any], steps: int | None, config: ConfigFile) -> dict[str, Any]:
    kind, warmup = str(train["lr_scheduler_type"]), train["lr_warm_steps"]
    if steps and warmup >= steps:
        warmup = steps - 1
        config.note(f"{TRAIN}.lr_warm_steps", f"training has {steps} steps, and warm-up must be shorter")
    warm, floor = {"warmup": warmup}, {"min_lr": min(train["min_lr"], train["lr"])}
    if kind != "Plateau":
        for name in ("patience", "scheduler_factor"):
            config.note(f"{TRAIN}.{name}", "only the schedule Plateau reads it")
    if kind not in ("Cosine", "Cyclic"):
        config.note(f"{TRAIN}.lr_cycle_steps", "only the schedules Cosine and Cyclic read it")
    if kind == "Plateau":
        reason = "it counts observations of the validation loss (`every` steps), not training batches"
        config.note(f"{TRAIN}.patience", reason)
        change = {"factor": train["scheduler_factor"], "patience": train["patience"] + 1}
        if steps:
            change["every"] = max(1, min(100, (steps - 1) // (train["patience"] + 2)))
        return {"kind": "plateau", **warm, **floor, **change}
    if kind == "Cyclic":
        cycles = divide(steps - warmup, train["lr_cycle_steps"]) if steps else 4
        if not steps:
            config.note(f"{TRAIN}.lr_cycle_steps", "the number of steps is not known before the text is read: 4 cycles")
        return {"kind": "cyclic", **warm, **floor, "cycles": cycles}
    if kind == "Cosine":
        config.note(f"{TRAIN}.lr_cycle_steps", "the cosine ends with the run, and does not rise again")
    return {"kind": "linear" if kind == "Linear" else "cosine", **warm, **floor}


def _evaluation(
    train: dict[str, Any], evaluation: dict[str, Any], count: int | None, config: ConfigFile
) -> dict[str, Any]:
    """Return when a run is evaluated, sampled and stored."""
    batch, every = train["batch_size"] * train["accumulate_grad_batches"], evaluation["val_check_epoch_frac"]
    more: dict[str, Any] = {}
    if isinstance(every, int):
        more["eval_every"] = divide(every, train["accumulate_grad_batches"])
    elif count:
        more["eval_every"] = divide(every * count, batch)
    else:
        config.note(f"{EVAL}.val_check_epoch_frac", "an epoch's steps are not known before the text is read: set "
                    "train.eval_every (default: ten evaluations a run)")  # fmt: skip
    more["sample"] = {name: evaluation[setting] for name, setting in
                      (("tokens", "max_sample_tokens"), ("temperature", "sample_temperature"))}  # fmt: skip
    if (stored := evaluation["checkpoint_every"]) != 0:
        more |= {"checkpoint": "eval" if stored < 0 else divide(stored, batch), "keep_checkpoints": True}
    if evaluation["extra_tracking"]:
        names = ("weight-norm", "gradient-norm", "clipped-gradient-norm", "update-norm")
        more["metrics"] = {name: {"every": evaluation["slower_log_freq"]} for name in names}
    else:
        config.note(f"{EVAL}.slower_log_freq", "only extra_tracking reads it")
    config.note(f"{EVAL}.no_wandb", "a study has no tracker unless it has `trackers: [wandb]`")
    if evaluation["track_hellaswag"]:
        config.note(f"{EVAL}.track_hellaswag", "`taetpu lens score` scores trained models on items of HellaSwag")
    if evaluation["track_sepsquad"]:
        config.note(
            f"{EVAL}.track_sepsquad", "its questions are files of that repository; `taetpu lens score` reads items"
        )
    config.note(f"{TRAIN}.random_seed", "the study has several seeds, and other random numbers")
    return more


LM_SPRINGBOARD = System(
    "lm-springboard",
    lambda file, text: HEADER.search(text) is not None,
    read,
    translate,
    {f"{section}.{name}": value for section, settings in DEFAULTS.items() for name, value in settings.items()},
    whole=(f"{DATA}.langs",),
)
