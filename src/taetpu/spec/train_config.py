"""Training settings: length, batches, optimizer, evaluation and checkpoints."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from taetpu.core.config import Config, Size, SlotMark, Traced
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.metric_spec import TASK_METRICS
from taetpu.core.registry import kinds
from taetpu.data.base import Source
from taetpu.optim.eval_metrics.item_scores import item_scores
from taetpu.optim.evaluated import AverageLast, Last
from taetpu.optim.hooks import overrides_method
from taetpu.optim.objectives import TaskObjective
from taetpu.optim.optimizers.adam import AdamW
from taetpu.optim.schedules import WSD, Cosine
from taetpu.optim.selection import SELECTION, observers, selectors
from taetpu.optim.stopping import Never
from taetpu.optim.structure_checks import evaluates_trained
from taetpu.spec.compute_config import ComputeConfig, word_or_count
from taetpu.spec.start import StartConfig

MAX_STEPS = 2**31 - 1  # steps are counted in 32 bits on the device
SERIES = (
    "train",
    "val",
    "val_sample",
    "test",
    "lr",
    "tokens",
    "flops",
    SELECTION,
)  # names reserved for built-in metrics


class SampleConfig(Config):
    """The text sampled from the model at each evaluation."""

    tokens: Size = 60
    """Number of tokens to draw."""
    temperature: NonNegativeFloat = 0.8
    """Divisor of the logits before sampling; 0 selects the most likely token."""
    top_k: Size | None = None
    """Number of most likely tokens among which to sample; `none`: all tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Total probability of the most likely tokens among which to sample; `none`: all tokens."""


class TrainConfig(Config):
    """The training settings of a run. Exactly one of `steps` and `epochs` is set.

    The last step is always evaluated. A run diverges if its training loss is above `loss_bound` or NaN.
    """

    steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] | None = None
    """Number of optimizer steps. Either `steps` or `epochs` is set. With 0, models are evaluated as initialised."""
    epochs: Annotated[PositiveFloat, Field(le=MAX_STEPS)] | None = None
    """Number of passes over the training windows. Either `steps` or `epochs` is set."""
    batch_size: Size = 32
    """Number of sequences per optimizer step."""
    accumulate: Size = 1
    """Number of microbatches into which a batch is divided to save memory; must divide `batch_size`."""
    start: StartConfig | None = None
    """Stored model that training starts from: a folder; `none`: parameters are drawn."""
    optimizer: Annotated[Any, SlotMark("optimizer")] = AdamW()
    """The update rule, with its learning rate: `{kind: adamw, lr: 3e-3}`."""
    schedule: Annotated[Any, SlotMark("schedule")] = Cosine()
    """The learning rate over the course of training."""
    stop: Annotated[Any, SlotMark("stop")] = Never()
    """Whether a run ends before its last step, e.g. after evaluations without an improvement."""
    evaluate: Annotated[Any, SlotMark("evaluate")] = Last()
    """The parameters that are evaluated, sampled and stored: the last ones, the best ones, or a mean."""
    clip: Annotated[PositiveFloat | None, Traced(neutral=None)] = 1.0
    """Upper bound on the norm of the gradient; `none`: no clipping."""
    objective: Annotated[Any, SlotMark("objective")] = TaskObjective()
    """What training minimises; `task`: what the task names. Evaluation sets are evaluated as the task names."""
    hooks: Annotated[dict[str, Any], SlotMark("hook", many=True)] = Field(default_factory=dict)
    """Changes to the training step: a list of kinds, or settings by name."""
    metrics: Annotated[dict[str, Any], SlotMark("metric", many=True)] = Field(default_factory=dict)
    """Additional measurements of training steps: a list of kinds, or settings by name."""
    eval_metrics: Annotated[dict[str, Any], SlotMark("eval_metric", many=True)] = Field(default_factory=dict)
    """Metrics on evaluation sets beside loss and accuracy: a list of kinds, or settings by name."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of activations and products; parameters are float32. `auto`: bfloat16 where it is fast."""
    compute: ComputeConfig = ComputeConfig()
    """How numbers are computed. These settings are the same for all arms and not part of a run's identity."""
    eval_every: PositiveInt | None = None
    """Steps between evaluations; `none`: about ten evaluations a run. The last step is always evaluated."""
    eval_windows: Annotated[int | str, word_or_count("auto", "all", unit="windows")] = "auto"
    """Number of windows of the validation split to evaluate during training; `all`: the whole split; `auto`: as many
    windows as take at most a tenth of the training FLOPs. The whole split is evaluated at the end.
    """
    checkpoint: Annotated[int | str, word_or_count("eval", "log", "end", unit="steps")] = "eval"
    """Steps from which a killed run can resume: each evaluation (`eval`), steps 1, 2, 4, 8 ... (`log`), every n-th step
    (a number), or only the last step (`end`).
    """
    keep_checkpoints: bool = False
    """Whether to keep the models of all checkpoint steps."""
    log_every: PositiveInt = 10
    """Number of steps over which logged training metrics are averaged."""
    sample: SampleConfig | None = SampleConfig()
    """The text sampled from the model at each evaluation; `none`: no text."""
    loss_bound: PositiveFloat = 1e3
    """Training loss above which a run has diverged."""

    @model_validator(mode="after")
    def _fits(self) -> "TrainConfig":
        if (self.steps is None) == (self.epochs is None):
            problem = f"steps={self.steps} and epochs={self.epochs}: exactly one of them must be set"
            raise UserError(problem, remedy="Set either steps or epochs.")
        if self.batch_size % self.accumulate:
            problem = f"batch_size={self.batch_size} is not divisible by accumulate={self.accumulate}"
            raise UserError(problem, path=("accumulate",), remedy="Use a divisor of batch_size.")
        self.check_mesh()
        self.check_hooks()
        self.check_selection()
        for field, reserved in (("metrics", SERIES), ("eval_metrics", TASK_METRICS)):
            if taken := sorted(set(getattr(self, field)) & set(reserved)):
                problem = f"the metric name {taken[0]!r} is reserved for a metric that every run measures"
                raise UserError(problem, path=(field, taken[0]), remedy="Use another name and set the metric's kind.")
        self.check_scores()
        peak, floor = getattr(self.optimizer, "lr", None), getattr(self.schedule, "min_lr", None)
        if isinstance(peak, int | float) and isinstance(floor, int | float) and floor > peak:
            problem = f"min_lr={floor} is above lr={peak}, so the learning rate would rise"
            raise UserError(problem, path=("schedule", "min_lr"), remedy=f"Use at most {peak}.")
        if self.steps:
            self.check_schedule(self.steps)
        return self

    def check_scores(self) -> None:
        """Raise `UserError` if scores on items have the name of other series."""
        for name in item_scores(self.eval_metrics):
            if name in self.metrics or name in SERIES or name.startswith("val@") or "/" in name:
                problem = f"the scores {name}/... would have the names of other metrics"
                raise UserError(problem, path=("eval_metrics", name), remedy="Use another name, and set its kind.")

    def check_hooks(self) -> None:
        """Raise `UserError` if a hook changes the updates of an optimizer that evaluates other parameters."""
        for name, hook in self.hooks.items() if hasattr(self.optimizer, "evaluated") else ():
            if overrides_method(hook, "updates"):
                problem = f"hook {name!r} changes updates, which the parameters that {self.optimizer.kind!r} evaluates "
                problem += "would not contain"
                remedy = "Use another optimizer, or optimizer.groups (lr: 0 freezes parameters) instead of the hook."
                raise UserError(problem, path=("hooks", name), remedy=remedy)

    def check_selection(self) -> None:
        """Raise `UserError` if runs that stop do not complete their schedule, or two means are evaluated."""
        if "stop" in observers(self) and getattr(self.schedule, "has_end", True):
            problem = f"stop={self.stop.kind!r} ends runs before schedule {self.schedule.kind!r} is completed, so the "
            problem += "learning rate of a run that stopped is not that of its last step"
            without = ", ".join(kind for kind, cls in kinds("schedule").items() if not getattr(cls, "has_end", True))
            raise UserError(problem, path=("schedule",), remedy=f"Use one of: {without}. Or remove stop.")
        if isinstance(self.evaluate, AverageLast) and not evaluates_trained(self.optimizer):
            mean = "ema" if getattr(self.optimizer, "ema", None) is not None else f"optimizer {self.optimizer.kind!r}"
            problem = (
                f"evaluate={self.evaluate.kind!r} is a mean of trained parameters, and {mean} evaluates another one"
            )
            raise UserError(problem, path=("evaluate",), remedy="Use evaluate: last, or another optimizer.")

    def check_mesh(self) -> None:
        """Raise `UserError` if a microbatch cannot be divided evenly among the mesh's `data` devices."""
        mesh, part = self.compute.mesh, self.batch_size // self.accumulate
        if mesh != "auto" and part % mesh.data:
            problem = f"data={mesh.data} does not divide the {part} sequences of a microbatch "
            problem += f"(batch_size={self.batch_size}, accumulate={self.accumulate})"
            remedy = f"Use a divisor of {part}, or another batch_size."
            raise UserError(problem, path=("compute", "mesh", "data"), remedy=remedy)

    def check_schedule(self, steps: int) -> None:
        """Raise `UserError` unless the learning rate's warm-up is shorter than training, and ends before its decay."""
        warmup = getattr(self.schedule, "warmup", None)
        if isinstance(warmup, int) and warmup >= steps:
            problem = f"warmup={warmup} is not shorter than the {steps} steps of training"
            raise UserError(problem, path=("schedule", "warmup"), remedy=f"Use at most {steps - 1}.")
        if isinstance(self.schedule, WSD):
            self.schedule.check_steps(steps)
        for slot, component in observers(self).items():
            with locate_errors(slot):
                component.check_steps(steps)

    def check_windows(self, source: Source) -> None:
        """Raise `UserError` if the validation split has fewer windows than those by which a run chooses.

        Args:
            source: The prepared task.
        """
        chosen = selectors(self)
        split = source.evaluation("val") if chosen else None
        for slot, component in chosen.items():
            if split is None:
                problem = f"{slot}={component.kind!r} reads the validation loss, and the task has no validation data"
                raise UserError(problem, path=(slot,), remedy="Give the task validation data.")
            if component.windows > len(split.tokens):
                problem = f"windows={component.windows} exceeds the {len(split.tokens)} windows of the validation split"
                raise UserError(problem, path=(slot, "windows"), remedy=f"Use at most {len(split.tokens)}.")

    def evaluations(self, steps: int) -> list[int]:
        """Return the steps after which a run with `steps` steps is evaluated. The last step is always included.

        Step 0 is included if a metric on evaluation sets is `measured_at_start`.
        """
        every = self._eval_every(steps)
        start = any(metric.measured_at_start for metric in self.eval_metrics.values())
        return sorted({*([0] if start else []), *range(every, steps, every), steps})

    def num_evaluations(self, steps: int, after: int = 0) -> int:
        """Return the number of evaluations after step `after` in a run with `steps` steps.

        The list of evaluations is not built, because a run may have 2^31 - 1 steps.
        """
        every = self._eval_every(steps)
        return -(-steps // every) - after // every if after < steps else 0

    def _eval_every(self, steps: int) -> int:
        return self.eval_every or max(1, steps // 10)

    def total_steps(self, num_windows: int | None) -> int:
        """Return the number of optimizer steps of a run.

        Args:
            num_windows: The number of training windows of the task; None if it is unlimited.

        Raises:
            UserError: If `epochs` is set for an unlimited number of windows; if `epochs` results in too many steps; or
                if `epochs` results in training that is not longer than the warm-up.
        """
        if self.steps is not None:
            return self.steps
        if num_windows is None:
            problem = f"epochs={self.epochs}, but this task draws an unlimited number of sequences"
            raise UserError(problem, path=("epochs",), remedy="Set steps instead.")
        asked = (self.epochs or 0) * num_windows / self.batch_size
        if asked > MAX_STEPS:
            problem = f"epochs={self.epochs:g} of {num_windows} windows would take {asked:.3g} steps"
            raise UserError(problem, path=("epochs",), remedy=f"Use fewer epochs, for at most {MAX_STEPS} steps.")
        steps = max(1, round(asked))
        self.check_schedule(steps)
        return steps
