"""The config of a run, as a study file sets it and resolved."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, model_validator

from taetpu.core.config import Config, SlotMark, to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.metric_spec import MetricSpec
from taetpu.core.registry import kinds
from taetpu.nn.block import LayerConfig
from taetpu.nn.lm import LMConfig, ModelConfig
from taetpu.nn.mask import StaticWindowConfig, WindowConfig
from taetpu.optim.eval_metrics.item_scores import item_scores
from taetpu.optim.objectives import default_objective
from taetpu.spec.train_config import TrainConfig


class RunConfig(Config):
    """The config of a run with defaults filled in. Settings of single layers are still separate, in `model.layers`."""

    task: Annotated[Any, SlotMark("task"), Field(description="task to learn, e.g. {kind: text, ...}")]
    model: Annotated[ModelConfig, Field(description="the model; requires dim and num_layers")]
    train: Annotated[TrainConfig, Field(description="training; requires steps or epochs")]

    def resolve(self) -> "ResolvedConfig":
        """Resolve every layer.

        Raises:
            UserError: If `ModelConfig.resolve` raises. The error's path starts with `model`.
        """
        with locate_errors("model"):
            return ResolvedConfig(task=self.task, model=self.model.resolve(), train=self.train)


def with_static_windows(model: LMConfig) -> LMConfig:
    """Return a model's config in which the widths of window masks are part of the program."""
    changed: dict[int, LayerConfig] = {}  # most layers of a deep model are the same object
    for layer in model.layers:
        mask = layer.typed_mixer.effective_mask
        window = isinstance(mask, WindowConfig)
        changed.setdefault(id(layer), layer.with_mask(StaticWindowConfig(width=mask.width)) if window else layer)
    return model.model_copy(update={"layers": tuple(changed[id(layer)] for layer in model.layers)})


class ResolvedConfig(Config):
    """A fully resolved config, from which a run's identity is computed."""

    task: Annotated[Any, SlotMark("task")]
    model: LMConfig
    train: TrainConfig

    @model_validator(mode="before")
    @classmethod
    def _windows(cls, data: Any) -> Any:
        """Make the widths of window masks static if `train.compute.windows` says so."""
        model, train = data.get("model"), data.get("train")
        if not isinstance(model, LMConfig) or not isinstance(train, TrainConfig) or train.compute.windows == "traced":
            return data
        return {**data, "model": with_static_windows(model)}

    def with_windows(self, windows: str) -> "ResolvedConfig":
        """Return the config with another value of `train.compute.windows`."""
        compute = self.train.compute.model_copy(update={"windows": windows})
        train = self.train.model_copy(update={"compute": compute})
        return load_config(ResolvedConfig, {**to_data(self), "train": to_data(train)})

    def check(self) -> None:
        """Raise `UserError` if parts of the config are incompatible. The error's path is a path in this config.

        The vocabulary size is unknown before the data is read, so components are checked with a vocabulary size of 0.
        """
        with locate_errors("model"):
            self.model.check(0, self.task.seq_len)
        for i, layer in enumerate(self.model.layers):
            mixer = layer.typed_mixer
            mask = mixer.effective_mask
            if mask is not None and mask.needs_segments and not self.task.batch.segments:
                problem = f"mask {mask.kind!r} reads segments, but the batches of task {self.task.kind!r} contain none"
                remedy = "Set task.segments: true for a text, or the mask's separator."
                raise UserError(problem, path=("model", "layers", i, "mixer", "mask"), remedy=remedy)
            self._check_prefix(i)
            if not (self.task.any_mask or mixer.fits_task(self.task.causal)):
                raise self._mask_error(i)
        if self.task.needs_later and all(layer.typed_mixer.is_causal for layer in self.model.layers):
            raise self._mask_error(0)
        self._check_lengths()
        self._check_targets()
        try:
            self.train.objective.for_task(self.task).check_task(self.task)
        except UserError as error:
            raise error if error.path[:1] == ("task",) else error.within("train", "objective") from None
        for name, metric in self.train.eval_metrics.items():
            with locate_errors("train", "eval_metrics", name):
                metric.check_task(self.task)

    def _check_prefix(self, layer: int) -> None:
        """Raise `UserError` if the mask of a layer and the task do not both have prefixes, or both none."""
        mask = self.model.layers[layer].typed_mixer.effective_mask
        if mask is None or mask.needs_prefix == self.task.batch.prefix:
            return
        path, task = ("model", "layers", layer, "mixer", "mask"), self.task.kind
        if mask.needs_prefix:
            problem = f"mask {mask.kind!r} reads the lengths of prefixes, and the batches of task {task!r} contain none"
            remedy = "Set task.objective: prefix-lm for a text, or the mask's separator."
        else:
            problem = f"mask {mask.kind!r} has no prefix, which objective {default_objective(self.task).kind!r} draws"
            remedy = "Set mask: prefix."
        raise UserError(problem, path=path, remedy=remedy)

    def _check_targets(self) -> None:
        """Raise `UserError` if the objective, a head or the optimizer cannot use the targets of the task."""
        task, batch, objective = self.task, self.task.batch, self.train.objective.for_task(self.task)
        if batch.real_targets != objective.real_targets:
            targets, wanted = ("real numbers", "classes")[:: 1 if batch.real_targets else -1]
            problem = (
                f"the targets of task {task.kind!r} are {targets}, and objective {objective.kind!r} reads {wanted}"
            )
            remedy = f"Use an objective with real_targets = {batch.real_targets}."
            raise UserError(problem, path=("train", "objective"), remedy=remedy)
        masked = default_objective(task).of_text and not task.causal
        if self.model.heads and (batch.real_targets or batch.lengths or masked):
            problem = f"heads predict the next tokens, and the sequences of task {task.kind!r} have "
            problem += "real targets" if batch.real_targets else "padding" if batch.lengths else "masked tokens"
            raise UserError(problem, path=("model", "heads"), remedy="Remove the heads.")
        if objective.reads_batch and self.train.accumulate > 1:
            problem = f"objective {objective.kind!r} compares the sequences of a batch, which accumulate="
            problem += f"{self.train.accumulate} divides into parts"
            raise UserError(problem, path=("train", "accumulate"), remedy="Use accumulate: 1.")
        if objective.reads_batch and self.train.batch_size < 2:
            problem = f"objective {objective.kind!r} compares the sequences of a batch, which has a single one"
            raise UserError(problem, path=("train", "batch_size"), remedy="Use batch_size: 2 or more.")
        if batch.real_targets or not objective.by_position:
            if not getattr(self.train.optimizer, "uses_curvature", False):
                return
            problem = f"optimizer {self.train.optimizer.kind!r} reads the curvature of a cross entropy at each position"
            problem += f", and the loss of task {task.kind!r} is another one"
            raise UserError(problem, path=("train", "optimizer"), remedy="Use another optimizer, e.g. adamw.")

    def _mask_error(self, layer: int) -> UserError:
        """Return the error about a layer whose mask does not fit the task.

        `mask: full` and `causal: false` give equal configs, so the error names both.
        """
        mixer, task = self.model.layers[layer].mixer.kind, self.task.kind
        if self.task.causal and (mask := self.model.layers[layer].typed_mixer.effective_mask):
            written = "mask: full (or causal: false)" if mask.kind == "full" else f"mask: {mask.kind}"
            problem = f"{written} of mixer {mixer!r} shows later tokens, and task {task!r} predicts the next token"
            remedy = "Use a causal mask."
        else:
            objective = default_objective(self.task)
            named = f"objective {objective.kind!r} of task {task!r}" if not objective.causal else f"task {task!r}"
            problem = f"mixer {mixer!r} is causal, and {named} needs attention to later tokens"
            remedy = "Set mask: full."
        return UserError(problem, path=("model", "layers", layer, "mixer"), remedy=remedy)

    def _check_lengths(self) -> None:
        """Raise `UserError` if a position kind cannot be evaluated at the longest length in `task.eval_lengths`."""
        longest = max(self.task.eval_lengths, default=0)
        layers = ((("model", "layers", i, "position"), layer.position) for i, layer in enumerate(self.model.layers))
        for path, position in (("model", "position"), self.model.position), *layers:
            if longest > self.task.seq_len and not position.extrapolates:
                known = sorted(k for k, cls in kinds("position").items() if getattr(cls, "extrapolates", False))
                problem = f"{position.kind!r} positions exist for the {self.task.seq_len} tokens of task.seq_len only, "
                problem += f"but task.eval_lengths contains {longest}"
                remedy = f"Use one of: {', '.join(known)}; or remove lengths above {self.task.seq_len}."
                raise UserError(problem, path=path, remedy=remedy)

    @property
    def metric_specs(self) -> dict[str, MetricSpec]:
        """What the metrics are that runs of this config measure, by name (see `stats.plan.Plan.metrics`)."""
        train = self.train
        named = {
            f"{name}{end}": replace(spec, mean_of=tuple(f"{name}.{part}" for part in spec.mean_of))
            for name, metric in train.eval_metrics.items()
            for end, spec in metric.specs(len(self.model.layers)).items()
        }
        items = item_scores(train.eval_metrics).items()
        scores = {f"{name}/{part}": spec for name, score in items for part, spec in score.item_metrics.items()}
        trained = {f"{name}/": metric.spec for name, metric in train.metrics.items()}
        return {**self.task.metric_specs, **named, **scores, **trained}

    def metric_spec(self, metric: str) -> MetricSpec:
        """Return what a metric of `metrics` is."""
        specs = self.metric_specs
        return specs[metric if metric in specs else metric.partition("/")[2]]

    def metrics(self) -> list[str]:
        """Return the metrics by which runs can be compared: those on whole evaluation splits, and scores on items.

        Training metrics are excluded, since they are means over a number of steps that depends on `log_every`.
        """
        splits = self.task.evaluation_sets
        on_splits = [name for name in self.metric_specs if "/" not in name]
        scores = [name for name in self.metric_specs if "/" in name and not name.endswith("/")]
        return sorted([*(f"{split}/{name}" for split in splits for name in on_splits), *scores])
