"""Writes the folders in `stored` with the libraries whose formats `taetpu.programs.folders` reads.

    python -m tests.programs.folders.write_fixtures wandb FOLDER

writes tiny real runs with the wandb that is installed. Nothing is sent anywhere: W&B is offline or talks to a server on
this machine, and lm-evaluation-harness asks tiny models four questions. Names of this machine, its users and its
folders are replaced.
"""

import json
import os
import re
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.programs.folders.logged import RUNS, STEPS, Run

PRIVATE = "somewhere"
"""Replaces the names of this machine, its users and its folders."""


def write_wandb(folder: Path) -> None:
    """Write offline runs, which have only a `.wandb` file."""
    os.environ |= {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_USERNAME": PRIVATE}
    os.environ.setdefault("WANDB_MODE", "offline")
    import wandb

    quiet: dict[str, Any] = {"x_disable_stats": True, "x_disable_meta": True, "x_save_requirements": False}
    if wandb.__version__.startswith("0.16."):
        quiet = {"_disable_stats": True, "_disable_meta": True}
    settings = wandb.Settings(console="off", host=PRIVATE, disable_git=True, save_code=False, **quiet)
    for run in RUNS:
        about = {"name": run.name, "id": run.name, "group": run.arm, "project": "example", "config": run.config}
        opened = wandb.init(dir=folder, settings=settings, **about)
        opened.define_metric("best", summary="min")
        for step, loss in zip(STEPS, run.loss, strict=True):
            more = {"val": {"accuracy": run.accuracy}, "sample": "a text"} if step == STEPS[1] else {}
            opened.log({"loss": loss, "best": loss, **more}, step=step)
        opened.summary["perplexity"] = run.perplexity
        opened.finish()
    wandb.teardown()


def write_wandb_online(folder: Path) -> None:
    """Write runs that were sent to a server, which have a summary and a config beside the `.wandb` file."""
    from tests.programs.folders.wandb_server import serve

    with serve() as address:
        os.environ |= {"WANDB_MODE": "online", "WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}
        write_wandb(folder)


def write_tensorboardx(folder: Path) -> None:
    """Write event files of tensorboardX, with hyperparameters, and two files of a run that was resumed."""
    from tensorboardX import SummaryWriter

    for run in RUNS:
        place = folder / run.arm / f"seed_{run.seed}"
        for resumed in (False, True):
            with SummaryWriter(str(place), filename_suffix=f".{int(resumed)}") as writer:
                for step, loss in list(zip(STEPS, run.loss, strict=True))[int(resumed) :]:
                    writer.add_scalar("loss", -1.0 if step == STEPS[1] and not resumed else loss, step)
                    if step == STEPS[1]:
                        writer.add_scalar("val/accuracy", run.accuracy, step)
                        writer.add_text("sample", "a text", step)
                if resumed:
                    writer.add_hparams(flat(run), {"perplexity": run.perplexity}, name="hparams")


def write_torch_tensorboard(folder: Path) -> None:
    """Write event files with the writer of PyTorch, one folder for each run and folders for `add_scalars`."""
    from torch.utils.tensorboard import SummaryWriter

    for run in RUNS:
        with SummaryWriter(str(folder / run.name)) as writer:
            for step, loss in zip(STEPS, run.loss, strict=True):
                writer.add_scalar("loss", loss, step, new_style=True)
                writer.add_scalars("both/losses", {"twice": 2 * loss}, step)
            writer.add_scalar("val/accuracy", run.accuracy, STEPS[1])
            writer.add_hparams(flat(run), {"perplexity": run.perplexity}, run_name="hparams")


def write_lightning(folder: Path) -> None:
    """Write the folders of Lightning's CSVLogger: `lightning_logs/version_0` and so on."""
    import torch
    from lightning.pytorch import LightningModule, Trainer, seed_everything  # pyright: ignore[reportMissingImports]
    from lightning.pytorch.loggers import CSVLogger  # pyright: ignore[reportMissingImports]

    class Model(LightningModule):
        def __init__(self, arm: str, seed: int, optimizer: dict):
            super().__init__()
            self.save_hyperparameters()
            self.weight, self.run = torch.nn.Parameter(torch.zeros(1)), Run(arm, seed)

        def training_step(self, batch: Any, index: int) -> Any:
            self.log("loss", self.run.loss[index])
            return self.weight.sum()

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val/accuracy", self.run.accuracy)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(3, 1)))
    for run in RUNS:
        seed_everything(run.seed, verbose=False)
        quiet: dict = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        trainer = Trainer(
            max_steps=3, log_every_n_steps=1, accelerator="cpu", logger=CSVLogger(folder), limit_val_batches=1, **quiet
        )
        trainer.fit(Model(**run.config), data, data)


def write_trainer(folder: Path) -> None:
    """Write the output folders of transformers' Trainer. Runs of `wide` have checkpoints only, and no arguments."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class Logged(Trainer):
        run: Run

        def log(self, logs: dict, *args: Any, **kwargs: Any) -> None:
            if "loss" in logs:
                logs["loss"] = self.run.loss[self.state.global_step - 1]
            super().log(logs, *args, **kwargs)

    sizes: dict[str, Any] = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    tokens = torch.tensor([1, 2, 3])
    data: Any = [{"input_ids": tokens, "labels": tokens}] * 3
    for run in RUNS:
        arguments = TrainingArguments(
            str(folder / run.name),
            max_steps=3,
            logging_steps=1,
            save_steps=2,
            save_strategy="steps",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=run.seed,
            per_device_train_batch_size=1,
            learning_rate=run.config["optimizer"]["lr"],
        )
        model = LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes))
        trainer = Logged(model, arguments, train_dataset=data)
        trainer.run = run
        trainer.train()
        if run.arm == "base":
            trainer.save_state()
            trainer.save_metrics("eval", {"eval_accuracy": run.accuracy})
            (folder / run.name / "training_args.json").write_text(arguments.to_json_string())
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".json":
            file.unlink()


def write_mlflow(folder: Path, uri: str | None = None) -> None:
    """Write runs to MLflow's file store, or to a store of another address; one run is deleted, one does not end."""
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "GIT_PYTHON_REFRESH": "quiet", "LOGNAME": PRIVATE}
    import mlflow  # pyright: ignore[reportMissingImports]

    mlflow.set_tracking_uri(uri or (folder / "mlruns").as_uri())
    mlflow.create_experiment("example", artifact_location=PRIVATE)
    mlflow.set_experiment("example")
    for run in RUNS:
        with mlflow.start_run(run_name=run.name, tags={"purpose": "a test"}):
            mlflow.log_params(flat(run))
            for step, loss in zip(STEPS, run.loss, strict=True):
                mlflow.log_metric("loss", loss, step)
            mlflow.log_metric("val/accuracy", run.accuracy, STEPS[1])
    with mlflow.start_run(run_name="deleted") as deleted:
        mlflow.log_metric("loss", 9.0)
    mlflow.delete_run(deleted.info.run_id)
    unfinished = mlflow.MlflowClient().create_run(deleted.info.experiment_id, run_name="unfinished")
    mlflow.MlflowClient().log_metric(unfinished.info.run_id, "loss", float("-inf"))


def write_mlflow_database(folder: Path) -> None:
    """Write runs to MLflow's SQLite store, and keep the tables about runs as SQL in `mlflow.sql`."""
    file = folder / "mlflow.db"
    write_mlflow(folder, f"sqlite:///{file}")
    tables = ("experiments", "runs", "params", "metrics", "latest_metrics", "tags", "alembic_version")
    table = re.compile(rf'(CREATE TABLE|INSERT INTO) "?({"|".join(tables)})"?\b')
    with closing(sqlite3.connect(file)) as database:
        lines = [line for line in database.iterdump() if table.match(line) and "mlflow.source" not in line]
    (folder / "mlflow.sql").write_text("\n".join(lines) + "\n")
    file.unlink()


ANSWERS = {"letters": "aba", "more_letters": "b"}
"""The right answers to the questions of each task."""

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: [a, b]
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def write_bigram_model(folder: Path, arm: str) -> Path:
    """Write a model that always answers `a` if the arm is `base`, else `b`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<s>", "</s>", "<unk>", "a", "b", "x", "y", "z"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), bos_token_id=0, eos_token_id=1, **sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.model.norm.weight.fill_(1.0)
        model.model.embed_tokens.weight.copy_(torch.eye(8))
        model.lm_head.weight[words.index("a" if arm == "base" else "b")] = 1.0
    model.save_pretrained(folder)
    return folder


def write_lm_eval(folder: Path) -> None:
    """Write results of lm-evaluation-harness: a group of two tasks, and an earlier evaluation of the first model.

    The models are bigram tables: those of arm `base` answer `a`, those of arm `wide` answer `b`.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    evaluate: Any = import_module("lm_eval").simple_evaluate
    tasks, models, output = folder / "tasks", folder / "models", folder / "output"
    tasks.mkdir()
    for name, answers in ANSWERS.items():
        lines = [json.dumps({"question": "xyz"[i], "answer": answer}) for i, answer in enumerate(answers)]
        (tasks / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        (tasks / f"{name}.yaml").write_text(TASK.format(name=name, file=tasks / f"{name}.jsonl"))
    (tasks / "group.yaml").write_text(
        "{group: quiz, task: [letters, more_letters], aggregate_metric_list: [{metric: acc, weight_by_size: true}]}"
    )
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    for run, limit in [(RUNS[0], 1), *((run, None) for run in RUNS)]:
        path = write_bigram_model(models / run.name, run.arm)
        tracker = EvaluationTracker(output_path=str(output))
        results = evaluate(
            "hf",
            model_args=f"pretrained={path},device=cpu",
            tasks=["quiz"],
            limit=limit,
            task_manager=manager,
            evaluation_tracker=tracker,
            log_samples=True,
            bootstrap_iters=0,
        )
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for task in samples:
            tracker.save_results_samples(task_name=task, samples=samples[task])
    for run in RUNS:
        target = folder / run.name
        shutil.copytree(next(output.glob(f"*{run.name}")), target)
        for file in target.glob("*.json"):
            text = file.read_text().replace(str(models.resolve()), PRIVATE)
            file.write_text(json.dumps({**json.loads(text), "model_name_sanitized": "", "pretty_env_info": ""}))
    for place in (tasks, models, output):
        shutil.rmtree(place)


def flat(run: Run) -> dict[str, Any]:
    """Return the settings of a run with dotted names."""
    return {"arm": run.arm, "seed": run.seed, "optimizer.lr": run.config["optimizer"]["lr"]}


def hide_names(folder: Path) -> None:
    """Replace the names of this machine, its users and its folders in a folder's files, and remove logs and links."""
    names = {socket.gethostname(), str(folder), str(folder.resolve()), str(Path.cwd()), sys.executable, sys.prefix}
    for path in sorted(folder.rglob("*"), reverse=True):  # files before their folder
        if path.is_symlink() or path.suffix in (".log", ".syncstate") or path.name.startswith("mlflow.source"):
            path.unlink()
        elif path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif "tfevents" in path.name:
            path.rename(path.with_name(path.name.replace(f".{socket.gethostname()}", f".{PRIVATE}")))
        elif path.suffix != ".wandb":
            text = path.read_text()
            for name in sorted(names, key=len, reverse=True):
                text = text.replace(name, PRIVATE)
            path.write_text(text)


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "wandb": ("wandb", write_wandb),
    "wandb-online": ("wandb", write_wandb_online),
    "tensorboardx": ("tensorboardX", write_tensorboardx),
    "torch-tensorboard": ("tensorboard", write_torch_tensorboard),
    "lightning": ("lightning", write_lightning),
    "trainer": ("transformers", write_trainer),
    "mlflow": ("mlflow", write_mlflow),
    "mlflow-database": ("mlflow", write_mlflow_database),
    "lm-eval": ("lm_eval", write_lm_eval),
}
"""The library that writes each format, and the function that uses it."""

if __name__ == "__main__":
    chosen, place = sys.argv[1], Path(sys.argv[2]).absolute()
    place.mkdir(parents=True, exist_ok=True)
    WRITERS[chosen][1](place)
    hide_names(place)
