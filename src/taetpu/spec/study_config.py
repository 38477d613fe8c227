"""The schema of study files and the resolved config of a run."""

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from taetpu.core.config import Config, SlotMark, to_data
from taetpu.core.config_parsing import load_config, normalize_value
from taetpu.core.errors import KeyPath, UserError, locate_errors
from taetpu.core.metric_spec import Direction, MetricSpec
from taetpu.core.registry import kinds
from taetpu.nn.block import LayerConfig
from taetpu.nn.lm import LMConfig, ModelConfig
from taetpu.nn.mask import StaticWindowConfig, WindowConfig
from taetpu.optim.eval_metrics.item_scores import item_scores
from taetpu.optim.objectives import default_objective
from taetpu.spec.contrasts import ContrastConfig
from taetpu.spec.document import format_value
from taetpu.spec.goal import EXAMPLE as GOAL_EXAMPLE
from taetpu.spec.goal import GoalConfig
from taetpu.spec.post_hoc import PostHocConfig, refuse_duplicates
from taetpu.spec.train_config import TrainConfig
from taetpu.store.metrics import SAMPLED, metric_on_split

BASELINE = "baseline"
MAX_SEEDS = 10_000
MAX_LOOKS = 3
MAX_SEED = 2**31 - 1
MIN_GOAL_SEEDS = 2
LONGEST_NAME = 100
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9=.,+_-]{{0,{LONGEST_NAME - 1}}}")

# Example values for the keys whose values are mappings, for the catalog.
EXAMPLES = {
    "base": "{task: ..., model: ..., train: ...}",
    "arms": "{nope: {model.position: none}}",
    "grid": "{model.norm: [rms, layer], model.bias: [false, true]}",
    "leave_one_out": "{rope: {model.position: none}}",
    "add_one_in": "{bias: {model.bias: true}}",
    "factorial": "{model.norm: [rms, layer], model.position: [rope, none]}",
    "ladder": "{model.dim: [32, 64]}",
    "tune": "{train.optimizer.lr: [1e-3, 3e-3]}",
    "goal": GOAL_EXAMPLE,
    "tasks": "{text: {}, recall: {task: {kind: mqar}}}",
    "across": "{model.init: [gpt2-scaled, fan-in]}",
}

Matching = Literal["steps", "flops", "params", "time"]


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
                raise UserError(
                    f"mask {mask.kind!r} reads segments, but the batches of task {self.task.kind!r} contain none",
                    path=("model", "layers", i, "mixer", "mask"),
                    remedy="Set task.segments: true for a text, or the mask's separator.",
                )
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
                known = ", ".join(
                    sorted(k for k, cls in kinds("position").items() if getattr(cls, "extrapolates", False))
                )
                raise UserError(
                    f"{position.kind!r} positions exist for the {self.task.seq_len} tokens of task.seq_len only, but "
                    f"task.eval_lengths contains {longest}",
                    path=path,
                    remedy=f"Use one of: {known}; or remove lengths above {self.task.seq_len}.",
                )

    @property
    def metric_specs(self) -> dict[str, MetricSpec]:
        """What the metrics are that runs of this config measure, by name (see `stats.plan.Plan.metrics`)."""
        train = self.train
        measured = {name: metric for name, metric in train.eval_metrics.items() if metric.has_value}
        specs = {name: metric.spec for name, metric in measured.items()}
        items = item_scores(train.eval_metrics).items()
        scores = {f"{name}/{part}": spec for name, score in items for part, spec in score.item_metrics.items()}
        named = {n: replace(s, mean_of=tuple(f"{n}.{part}" for part in s.mean_of)) for n, s in specs.items()}
        return {
            **self.task.metric_specs,
            **named,
            **scores,
            **{f"{name}/": m.spec for name, m in train.metrics.items()},
        }

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


class Measure(Config):
    """How arms are compared. The direction defaults to the better direction of the primary metric."""

    primary: str = "val/loss"
    """Metric by which arms are compared at the end of training."""
    direction: Direction = "min"
    """Whether lower (`min`) or higher (`max`) values of the primary metric are better."""
    equivalence: Annotated[
        PositiveFloat | None, Field(description="margin of equivalence: differences smaller than this do not matter")
    ] = None
    alpha: Annotated[
        float, Field(gt=0, le=0.2, description="probability of at least one false verdict of better or worse")
    ] = 0.05
    solved: float | None = None
    """Value of the primary metric from which on a run has solved its task; arms are compared by shares of such runs."""
    reach: float | None = None
    """Value that the primary metric, e.g. `val_sample/loss`, is to reach; arms are compared by the time to it."""
    by: Literal["steps", "tokens", "flops"] = "steps"
    """Unit of the time to `reach`."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which interim analyses give verdicts, e.g. [5, 8]."""
    contrasts: dict[str, ContrastConfig] = Field(default_factory=dict)
    """Further comparisons by name: `{compare: ARM, to: ARM}`, or `{spread: METRIC, over: PATH, by: PATH}`."""
    post_hoc: tuple[PostHocConfig, ...] = ()
    """Tables of what trained models lose without each part, e.g. `[{knockout: heads, how: mean}]`."""

    @field_validator("post_hoc")
    @classmethod
    def _different_tables(cls, value: tuple[PostHocConfig, ...]) -> tuple[PostHocConfig, ...]:
        refuse_duplicates(value)
        return value

    @model_validator(mode="after")
    def _one_outcome(self) -> "Measure":
        if self.solved is not None and self.reach is not None:
            problem = f"solved={self.solved:g} and reach={self.reach:g}: arms are compared by one outcome"
            raise UserError(problem, path=("reach",), remedy="Remove solved or reach.")
        if "by" in self.model_fields_set and self.reach is None:
            raise UserError(f"by={self.by} is the unit of a time, and reach is not set", path=("by",),
                            remedy="Set reach, or remove by.")  # fmt: skip
        if self.solved is not None and self.equivalence is not None:
            problem = f"equivalence={self.equivalence:g}: the exact test of shares of solved runs has no margin"
            raise UserError(problem, path=("equivalence",), remedy="Remove equivalence or solved.")
        for name, contrast in self.contrasts.items() if self.solved is not None else ():
            if max(len(contrast.compare), len(contrast.to)) > 1:
                problem = "the exact test of shares of solved runs compares single arms, and this contrast has groups"
                raise UserError(problem, path=("contrasts", name), remedy="Compare one arm to one arm.")
        return self

    @property
    def measured(self) -> str:
        """The primary metric, or the metric on the whole validation split if a sample of it is primary."""
        return metric_on_split(self.primary, "val") if self.reach is not None else self.primary

    def check_split(self) -> None:
        """Raise `UserError` if `reach` is about a metric that is not measured during training."""
        split, _, name = self.primary.partition("/")
        if self.reach is not None and split != SAMPLED:
            problem = f"{self.primary!r} is not measured during training, so runs have no time to reach={self.reach:g}"
            raise UserError(problem, path=("measure", "primary"), remedy=f"Use {SAMPLED}/{name}.")

    def check_outcome(self, spec: MetricSpec, train: TrainConfig) -> None:
        """Raise `UserError` if `solved` or `reach` cannot be compared with the primary metric.

        Args:
            spec: What the primary metric is.
            train: The training of the baseline.
        """
        if self.reach is not None and train.eval_every is None:
            problem = f"eval_every is not set, and reach={self.reach:g} measures times in evaluations"
            raise UserError(problem, path=("base", "train", "eval_every"), remedy="Set eval_every, e.g. 20.")
        low, high = spec.bounds
        for field, level in (("solved", self.solved), ("reach", self.reach)):
            if level is None:
                continue
            worst = low if spec.better == "max" else high
            if not low <= level <= high or level == worst:
                problem = f"{self.primary} is between {low:g} and {high:g}, so {field}={level:g} "
                problem += "is reached by every run" if level == worst else "is not one of its values"
                inside = f" and below {high:g}" if math.isfinite(high) else ""
                raise UserError(problem, path=("measure", field), remedy=f"Use a value above {low:g}{inside}.")

    def directed(self, spec: MetricSpec) -> "Measure":
        """Return the measure with the better direction of its primary metric.

        Args:
            spec: What the primary metric is.

        Raises:
            UserError: If the study sets the other direction, or a margin that includes all possible effects.
        """
        if "direction" in self.model_fields_set and self.direction != spec.better:
            more = "higher" if self.direction == "max" else "lower"
            problem = f"{self.direction} would judge a {more} {self.primary} as better"
            remedy = f"Set direction: {spec.better}, or remove it."
            raise UserError(problem, path=("measure", "direction"), remedy=remedy)
        widest = spec.bounds[1] - spec.bounds[0]
        if self.equivalence is not None and self.reach is None and self.equivalence >= widest:
            problem = (
                f"{self.equivalence:g} is not below {widest:g}, the largest possible difference between two values of "
                f"{self.primary}"
            )
            raise UserError(problem, path=("measure", "equivalence"), remedy=f"Use e.g. {widest / 100:g}.")
        return self.model_copy(update={"direction": spec.better})


class TaskMeasure(Config):
    """How arms are compared on one of the `tasks`. What is not set is that of the study's `measure` or of the task."""

    primary: str = ""
    """Metric by which arms are compared on this task; by default, that of the study."""
    direction: Direction | None = None
    """Whether lower (`min`) or higher (`max`) values are better; by default, as the metric says."""
    equivalence: PositiveFloat | None = None
    """Margin of equivalence on this task; without one, equivalence is tested on the baseline's task only."""
    chance: float | None = None
    """Value that counts as 0 in pooled effects; by default, that of a uniform guess if the task knows it."""
    best: float | None = None
    """Value that counts as 1 in pooled effects; by default, the lowest possible loss or the bound of the metric."""


class StudySpec(Config):
    """The top level of a study file."""

    study: Annotated[str, Field(description="the name of the study")]
    base: Annotated[dict[str, Any], Field(description="the baseline: task, model, train")]
    seeds: Annotated[Any, Field(description="the number of seeds, or a list of them, e.g. 5 or [11, 12, 13]")] = 3
    plugins: tuple[str, ...] = ()
    """Python files that register additional kinds, relative to the study file."""
    arms: dict[Any, Any] = Field(default_factory=dict)
    """Variants of the baseline by name, each with overrides by dotted path from `model`, `train` or `task` on."""
    grid: dict[Any, Any] = Field(default_factory=dict)
    """Lists of values by dotted path, with an arm for every combination."""
    leave_one_out: dict[Any, Any] = Field(default_factory=dict)
    """Parts to remove from the baseline, by name: an arm without each part, and an arm without all parts."""
    add_one_in: dict[Any, Any] = Field(default_factory=dict)
    """Parts to add to the baseline, by name: an arm with each part, and an arm with all parts."""
    factorial: dict[Any, Any] = Field(default_factory=dict)
    """Factors to cross, each a list of values or a named change; `fraction`: share of the combinations to run."""
    ladder: dict[Any, Any] = Field(default_factory=dict)
    """Scales at which every arm is repeated: a list of values for each dotted path, one value per scale."""
    tasks: Annotated[Any, Field(description="tasks on which every arm is repeated, or the name of a suite: mad")] = None
    across: dict[Any, Any] = Field(default_factory=dict)
    """Settings under which every arm is repeated, one at a time: a list of values by dotted path, or a named change."""
    tune: Annotated[dict[Any, Any], Field(description="values to try for every arm, with separate `seeds`")] = Field(
        default_factory=dict
    )
    match: Annotated[
        tuple[Matching, ...],
        Field(description="quantities in which each arm is matched to the baseline, e.g. [flops, params]"),
    ] = ()
    measure: Measure = Measure()
    """How arms are compared."""
    goal: Annotated[
        GoalConfig | None, Field(description="threshold that the smallest of all candidates is asked to meet")
    ] = None
    trackers: Annotated[Any, Field(description="services that show the runs, e.g. [tensorboard]")] = None

    @field_validator("match", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else (value,)

    @field_validator(
        "base", "arms", "grid", "leave_one_out", "add_one_in", "factorial", "ladder", "across", "tune", mode="before"
    )
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        return {} if value is None else value  # a key without a value, for example with only comments after it

    @model_validator(mode="after")
    def _fits(self) -> "StudySpec":
        check_name(self.study, "study", ("study",))
        self._check_looks(len(self.seed_list()))
        if self.goal is not None:
            self._check_goal(len(self.seed_list()))
        return self

    def _check_goal(self, seeds: int) -> None:
        """Raise `UserError` if the study cannot have a goal: too few seeds, interim analyses, or dependent arms."""
        for path, set_ in (
            (("measure", "looks"), self.measure.looks),
            (("tune",), self.tune),
            (("tasks",), self.tasks),
            (("across",), self.across),
            (("match",), set(self.match) - {"steps"}),
        ):
            if set_:
                problem = f"a study with a goal cannot have {'.'.join(path)}"
                raise UserError(problem, path=path, remedy=f"Remove {'.'.join(path)}, or the goal.")
        if seeds < MIN_GOAL_SEEDS:
            problem = f"a mean over {seeds} seed has no interval, so a goal needs at least {MIN_GOAL_SEEDS} seeds"
            raise UserError(problem, path=("seeds",), remedy="Use e.g. 5.")

    def _check_looks(self, seeds: int) -> None:
        """Raise `UserError` unless the numbers in `looks` increase and include the study's number of seeds."""
        looks, path = self.measure.looks, ("measure", "looks")
        if not looks:
            return
        if len(looks) > MAX_LOOKS or looks[0] < 2 or any(a >= b for a, b in pairwise(looks)):
            remedy = (
                f"List at most {MAX_LOOKS} increasing numbers from 2 on, e.g. [{max(seeds, 2)}, {2 * max(seeds, 2)}]."
            )
            raise UserError(f"interim analyses at {list(looks)} seeds cannot be planned", path=path, remedy=remedy)
        if seeds not in looks:
            problem = f"the study has {seeds} seeds, which is not one of the looks {list(looks)}"
            raise UserError(problem, path=path, remedy=f"Set seeds: {looks[0]}, or looks: [{seeds}, ...].")

    def seed_list(self) -> tuple[int, ...]:
        """Return the seeds of the study (see `parse_seeds`)."""
        return parse_seeds(self.seeds, ("seeds",))


def parse_seeds(value: Any, path: KeyPath, first: int = 0) -> tuple[int, ...]:
    """Return the seeds that `value` lists or, if `value` is a number `n`, the seeds `first` to `first + n - 1`.

    Raises:
        UserError: If the value is neither a number nor a list, if there are too many seeds, or if a seed is invalid or
            listed twice.
    """
    value = normalize_value(value, integers=True)
    if type(value) is int and 0 < value <= MAX_SEEDS:
        return tuple(range(first, first + value))
    if not isinstance(value, tuple) or not 0 < len(value) <= MAX_SEEDS:
        problem = f"{format_value(value)} is neither a number of seeds from 1 to {MAX_SEEDS} nor a list of seeds"
        raise UserError(problem, path=path, remedy="Write e.g. 5, or [11, 12, 13].")
    seen = set[int]()
    for i, seed in enumerate(value):
        if type(seed) is not int or not 0 <= seed <= MAX_SEED:
            raise UserError(f"{seed!r} is not a seed", path=(*path, i), remedy=f"Use integers from 0 to {MAX_SEED}.")
        if seed in seen:
            raise UserError(f"seed {seed} is listed twice", path=(*path, i), remedy="Remove the duplicate.")
        seen.add(seed)
    return value


def check_name(name: str, what: str, path: KeyPath) -> str:
    """Return `name` if it is a valid folder name on every platform.

    Args:
        name: The name.
        what: The noun for the name in the error message.
        path: The path of the error.

    Raises:
        UserError: If the name is not a valid folder name.
    """
    if NAME.fullmatch(name):
        return name
    example = re.sub(r"[^A-Za-z0-9=.,+_-]+", "-", name)[:LONGEST_NAME].strip("=.,+_-") or f"my-{what}"
    remedy = (
        f"Use at most {LONGEST_NAME} letters, digits and = . , + _ -, starting with a letter or digit, e.g. {example}."
    )
    raise UserError(f"{what} name {name!r} is not a valid folder name", path=path, remedy=remedy)
