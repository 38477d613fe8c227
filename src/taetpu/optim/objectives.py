"""Slot `objective`: what training minimises. A task names its objective; `train.objective` replaces it.

Objectives act in training steps. Evaluation sets are evaluated with the objective of the task, whatever is trained, so
that arms with different objectives have comparable losses.
"""

from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field, NonNegativeInt, PrivateAttr, model_validator

from taetpu.core.config import Component, Traced
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError, change_errors
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.data.base import Batch, Source, Task
from taetpu.data.objective_sources import MaskedSource, PrefixSource
from taetpu.data.pairs import PairSource
from taetpu.nn.lm import LM
from taetpu.nn.slot_calls import describe_value
from taetpu.optim.loss import MEASURED, Logits, Targets, Weights, position_losses, predict
from taetpu.optim.structure_checks import method_location

MAX_SPAN = 1024
Predicted = tuple[Logits | None, dict[str, Weights]]
"""Logits, or None if they never exist as a whole, and values at each position by name."""
Gather = Callable[[Array], tuple[Array, Array | int]]
"""See `train.sharding.Division.gather_sequences`."""
RESERVED = ("loss", "accuracy")  # names under which every training step records `nll` and `correct`


class Objective(Component):
    """Base of objectives. The base itself is the cross entropy of the targets.

    An objective gives values at each position, each multiplied by the weight of the position. The mean of
    `objective` over the weights of the batch is minimised, or the mean of `nll` if there is no `objective`. Most
    objectives override `position_losses`, which is called for chunks of positions if losses are chunked.

    Attributes:
        real_targets: Whether the objective is for tasks with real targets (`BatchSpec.real_targets`), not for classes.
        of_task: Whether the objective is only for tasks that name it (`Task.objective`).
        of_text: Whether a task of texts may name it, and with it decide what its batches hold (`prepare_text`). The
            further attributes are about such tasks.
        causal: Whether each position predicts the next token, so that it may see only earlier ones.
        predicts_all: Whether all tokens of a text are predicted, so that the loss is the length of a code for it.
        has_prefix: Whether batches contain the lengths of prefixes.
        reads_batch: Whether values of a sequence depend on the other sequences of the batch. `predict` then takes the
            keyword argument `gather` (see `Gather`), and a batch cannot be divided into microbatches.
        of_pairs: Whether the objective can predict about pairs of pieces of documents.
    """

    real_targets: ClassVar[bool] = False
    of_task: ClassVar[bool] = False
    of_text: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    predicts_all: ClassVar[bool] = True
    has_prefix: ClassVar[bool] = False
    of_pairs: ClassVar[bool] = False
    reads_batch: ClassVar[bool] = False

    @property
    def by_position(self) -> bool:
        """Whether the outputs at a position are the logits of its target."""
        return True

    def prepare_text(self, source: Any, special: Collection[int]) -> Source:
        """Return a prepared text whose batches are those of the objective.

        Args:
            source: The prepared text, whose positions predict the next token.
            special: The tokens that the task adds between documents.

        Raises:
            UserError: if the objective cannot use the tokens of the text. The path is relative to the objective.
        """
        return source

    def position_losses(self, logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
        """Return values at each position by name, `(batch, seq)` in float32.

        The names `nll`, `correct` and `weight` are required (see `optim.loss.position_losses`), with real targets
        `nll` and `weight`. Further ones are recorded as `train/NAME`.
        """
        return position_losses(logits, targets, weights)

    def predict(self, model: LM, batch: Batch, *, key: Key | None, dtype: Any, whole: bool) -> Predicted:
        """Return the logits and the values at each position; see `optim.loss.predict`.

        Args:
            model: The model.
            batch: The batch or microbatch, or one device's part of it.
            key: The key of random numbers in the forward pass, such as dropout; None outside of training steps.
            dtype: The dtype of activations and matrix products.
            whole: Whether the logits are required. Otherwise, they may be None.
        """
        return predict(model, batch, key=key, dtype=dtype, whole=whole, losses=partial(compute_losses, self))

    def for_task(self, task: Task) -> "Objective":
        """Return the objective with which a task is trained."""
        return self

    def check_task(self, task: Task) -> None:
        """Raise `UserError` if a task cannot be trained with the objective."""
        if self.of_task and default_objective(task).kind != self.kind:
            problem = f"task {task.kind!r} is not one of the tasks with objective {self.kind!r}"
            remedy = "Remove the objective: a task names its own."
            if self.of_text:
                remedy = f"Set task.objective: {self.kind}, with a task of texts."
            raise UserError(problem, remedy=remedy)


@register("objective", "causal-lm")
class CausalLM(Objective):
    """The cross entropy between predictions and targets, in nats, as the mean over weighted positions."""

    of_text = True


@register("objective", "masked-lm")
class MaskedLM(Objective):
    """The cross entropy of masked tokens, which positions before and after them predict. Devlin et al. 2019 (BERT).

    A share of the tokens, never special ones, is masked anew in each step: replaced by the mask token, by a token drawn
    from the vocabulary, or kept. Only they are scored. In evaluation sets, the same 15 % of single tokens are replaced
    by the mask token for all settings of the objective, so that losses of arms with different shares are comparable;
    Wettig et al. 2022 compare such arms after fine-tuning.

    Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv 1810.04805; spans: Joshi et al. 2020, "SpanBERT: Improving Pre-training by Representing and Predicting Spans",
    arXiv 1907.10529, without its limit of 10 words; shares: Wettig et al. 2022, "Should You Mask 15% in Masked Language
    Modeling?", arXiv 2202.08005. Given the same masks, inputs and labels are those of transformers'
    DataCollatorForLanguageModeling.
    """

    of_task = of_text = of_pairs = True
    causal = predicts_all = False
    example: ClassVar = {"model.mixer.mask": "full"}

    unit: Literal["token", "word"] = "token"
    """What is masked as a whole: a `token`, or a `word`, where the vocabulary shows that one begins."""
    span: Annotated[float, Field(ge=1, le=MAX_SPAN)] | None = None
    """Mean number of neighbouring units that are masked together, with geometric lengths; `none`: single units."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are masked in training."""
    mask: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of the masked tokens that become the mask token."""
    random: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the masked tokens that become a token drawn from the vocabulary. Others are kept."""
    mask_token: str | NonNegativeInt | None = None
    """Mask token, as text or number; `none`: [MASK] or <mask>, which is added to a vocabulary that lacks it."""
    next_sentence: Annotated[float, Field(ge=0, le=1024)] = 0.0
    """With `samples: pairs`, weight of the class of pairs in training; 1: as much as all masked tokens (BERT)."""

    def prepare_text(self, source: Any, special: Collection[int]) -> Source:
        """See `Objective.prepare_text`."""
        if self.next_sentence and not isinstance(source, PairSource):
            problem = f"next_sentence is {self.next_sentence:g}, but the samples of the task are not pairs"
            raise UserError(problem, path=("next_sentence",), remedy="Set task.samples: pairs, or remove it.")
        return MaskedSource(source, self, special)

    @model_validator(mode="after")
    def _shares(self) -> "MaskedLM":
        if self.mask + self.random > 1 + 1e-9:
            problem = f"mask {self.mask:g} and random {self.random:g} are more than all masked tokens"
            raise UserError(problem, path=("random",), remedy=f"Use at most {1 - self.mask:.3g}, or a smaller mask.")
        if self.span is not None and self.share > self.span / (1 + self.span):
            problem = f"spans of {self.span:g} with a token between them cannot mask a share of {self.share:g}"
            remedy = f"Use a share of at most {self.span / (1 + self.span):.3g}, or longer spans."
            raise UserError(problem, path=("share",), remedy=remedy)
        return self


@register("objective", "prefix-lm")
class PrefixLM(Objective):
    """The cross entropy of the tokens after a prefix, whose positions attend to each other. Raffel et al. 2020.

    The length of the prefix is drawn for each sequence and step, from one token to all but the last; in evaluation
    sets, it is fixed. Attention needs the mask `prefix` without a separator. Text is generated as after a prefix of one
    token, so that prompts are read causally.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    arXiv 1910.10683, section 3.2.
    """

    of_task = of_text = has_prefix = True
    predicts_all = False
    example: ClassVar = {"model.mixer.mask": "prefix"}

    def prepare_text(self, source: Any, special: Collection[int]) -> Source:
        """See `Objective.prepare_text`."""
        return PrefixSource(source, self)


@register("objective", "next-sentence")
class NextSentence(Objective):
    """The cross entropy of the class of a pair of pieces of documents: whether the second one follows the first.

    The first position predicts `[SEP]` if it does, and `[CLS]` if it does not, over the whole vocabulary. Needs
    `samples: pairs`. BERT predicts masked tokens too, which is `masked-lm` with `next_sentence: 1`.

    Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv 1810.04805, with two outputs in place of the vocabulary.
    """

    of_task = of_text = of_pairs = True
    causal = predicts_all = False
    example: ClassVar = {"task.samples": "pairs", "model.mixer.mask": "full"}

    def prepare_text(self, source: Any, special: Collection[int]) -> Source:
        """See `Objective.prepare_text`."""
        if not isinstance(source, PairSource):
            problem = f"objective {self.kind!r} predicts the class of pairs, and the samples of the task are not pairs"
            raise UserError(problem, remedy="Set samples: pairs in a task `text`.")
        return source


@register("objective", "squared-error")
class SquaredError(Objective):
    """The squared difference of the first output and a real target, as the mean over weighted positions."""

    real_targets = of_task = True

    def position_losses(self, logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
        """See `Objective.position_losses`."""
        return {"nll": (logits[..., 0] - targets) ** 2 * weights, "weight": weights}


@register("objective", "reconstruction")
class Reconstruction(Objective):
    """The cross entropy of the targets of all positions, which the outputs of the last position predict.

    The outputs are divided equally among the positions, and those of a position are the logits of its classes.

    Source: the compression task of Poli et al. 2024 (MAD), arXiv 2403.17844, here without a decoder.
    """

    of_task = True

    @property
    def by_position(self) -> bool:
        """See `Objective.by_position`."""
        return False

    def predict(self, model: LM, batch: Batch, *, key: Key | None, dtype: Any, whole: bool) -> Predicted:
        """See `Objective.predict`."""
        logits = model(batch.tokens, key=key, dtype=dtype, **batch.context)
        by_position = logits[:, -1].reshape(*batch.targets.shape, -1)
        return logits, compute_losses(self, by_position, batch.targets, batch.weights)


class PooledObjective(Objective):
    """Base of the objectives of tasks with one target for each sequence (`data.labelled.labels.Pooling`).

    The outputs of a sequence are those of one position, or the mean of the outputs of all tokens.
    """

    of_task = True
    _pooling: str = PrivateAttr("last")

    @property
    def by_position(self) -> bool:
        """See `Objective.by_position`."""
        return self._pooling != "mean"

    def for_task(self, task: Task) -> "PooledObjective":
        """Return the objective with the pooling of the task."""
        pooled = self.model_copy()
        pooled._pooling = getattr(task, "pooling", self._pooling)
        return pooled

    def predict(self, model: LM, batch: Batch, *, key: Key | None, dtype: Any, whole: bool) -> Predicted:
        """See `Objective.predict`."""
        if self.by_position:
            return super().predict(model, batch, key=key, dtype=dtype, whole=whole)
        logits = model(batch.tokens, key=key, dtype=dtype, **batch.context)
        pooled = jnp.broadcast_to(self.pool(logits, batch)[:, None], logits.shape)
        return pooled, compute_losses(self, pooled, batch.targets, batch.weights)

    def pool(self, logits: Logits, batch: Batch) -> Float[Array, "batch outputs"]:
        """Return the outputs of each sequence."""
        seq = logits.shape[1]
        lengths = jnp.full(len(logits), seq) if batch.lengths is None else jnp.maximum(batch.lengths, 1)
        if self._pooling == "mean":
            inside = (jnp.arange(seq) < lengths[:, None]).astype(logits.dtype)
            return jnp.where(inside[..., None] > 0, logits, 0).sum(1) / lengths[:, None]
        place = jnp.zeros_like(lengths) if self._pooling == "first" else lengths - 1
        return jnp.take_along_axis(logits, place[:, None, None], axis=1)[:, 0]


@register("objective", "sequence-classification")
class SequenceClassification(PooledObjective):
    """The cross entropy of the class of a sequence, in nats. Devlin et al. 2019, section 4.1.

    Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv 1810.04805.
    """


@register("objective", "regression")
class Regression(PooledObjective, SquaredError):
    """The squared difference of the output of a sequence and its number."""


@register("objective", "token-classification")
class TokenClassification(Objective):
    """The cross entropy of the labels of words, in nats, as the mean over words. Devlin et al. 2019, section 5.3.

    Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv 1810.04805.
    """

    of_task = True


@register("objective", "contrastive")
class Contrastive(PooledObjective):
    """InfoNCE: the cross entropy of a text's partner among the second texts of the batch. Oord et al. 2018.

    The logits are cosines of the embeddings, divided by the temperature. The candidates are those of all devices.
    Evaluation sets are evaluated with the temperature of the task, so that losses of arms are comparable.

    Source: Oord et al. 2018, "Representation Learning with Contrastive Predictive Coding", arXiv 1807.03748; Gao et al.
    2021, "SimCSE", arXiv 2104.08821.
    Excludes: `train.accumulate` above 1, because a part of a batch has fewer candidates.
    """

    reads_batch = True

    temperature: Annotated[Annotated[float, Field(gt=0)] | None, Traced(neutral=None)] = None
    """Divisor of the cosines in training; `none`: that of the task."""
    _of_task: float = PrivateAttr(0.05)

    def for_task(self, task: Task) -> "PooledObjective":
        """Return the objective with the pooling and the temperature of the task."""
        made = super().for_task(task)
        assert isinstance(made, Contrastive)
        made._of_task = getattr(task, "temperature", self._of_task)
        return made

    @property
    def by_position(self) -> bool:
        """See `Objective.by_position`."""
        return False

    def predict(
        self, model: LM, batch: Batch, *, key: Key | None, dtype: Any, whole: bool, gather: Gather = lambda x: (x, 0)
    ) -> Predicted:
        """See `Objective.predict`. Logit 0 is that of the partner, and logit j that of the j-th pair after it."""
        both = batch.both_texts
        outputs = self.pool(model(both.tokens, key=key, dtype=dtype, **both.context), both)
        units = outputs / jnp.sqrt(jnp.maximum((outputs**2).sum(-1, keepdims=True), 1e-12))
        candidates, start = gather(units[1::2])
        real, _ = gather(batch.weights.sum(-1) > 0)  # not the rows that fill the last batch of an evaluation set
        cosines = units[::2] @ candidates.T / (self._of_task if self.temperature is None else self.temperature)
        count = len(candidates)
        places = (jnp.arange(len(cosines))[:, None] + start + jnp.arange(count)) % count
        logits = jnp.take_along_axis(jnp.where(real, cosines, -1e9), places, axis=1)
        of_positions = jnp.broadcast_to(logits[:, None], (*batch.targets.shape, count))
        return of_positions, compute_losses(self, of_positions, jnp.zeros_like(batch.targets), batch.weights)


@register("objective", "task")
class TaskObjective(Objective):
    """The objective that the task names, which is `causal-lm` for most tasks."""

    def for_task(self, task: Task) -> Objective:
        """Return the objective that the task names."""
        return default_objective(task)


def default_objective(task: Task) -> Objective:
    """Return the objective that a task names. Evaluation sets are evaluated with it.

    Raises:
        UserError: if no objective has this name.
    """
    named = getattr(task, "objective", CausalLM.kind)
    correct = f"Correct the attribute `objective` of task {task.kind!r}."
    with change_errors(lambda e: UserError(e.problem, path=("task",), remedy=f"{correct} {e.remedy or ''}".strip())):
        made: Objective = named if isinstance(named, Objective) else _objective(named)
        return made.for_task(task)


@cache
def _objective(kind: str) -> Any:
    return build_component("objective", {"kind": kind})


def compute_losses(objective: Objective, logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
    """Return the values of `Objective.position_losses`.

    Raises:
        UserError: if a required value is missing, or if a value has a wrong shape or dtype.
    """
    values = objective.position_losses(logits, targets, weights)
    _check_values(objective, "position_losses", values, targets)
    return values


def compute_objective(
    objective: Objective, model: LM, batch: Batch, *, key: Key | None = None, dtype: Any = jnp.float32,
    whole: bool = False, gather: Gather | None = None,
) -> Predicted:  # fmt: skip
    """Return the results of `Objective.predict`, which gathers sequences of all devices with `gather`.

    Raises:
        UserError: if the result is not a pair, if the logits are required and missing, if a required value is missing,
            or if a value has a wrong shape or dtype.
    """
    gathering: dict[str, Any] = {"gather": gather} if objective.reads_batch and gather is not None else {}
    result = objective.predict(model, batch, key=key, dtype=dtype, whole=whole, **gathering)
    if not isinstance(result, tuple) or len(result) != 2:
        problem = f"objective {objective.kind!r} returns {describe_value(result)} from predict"
        raise UserError(problem, remedy="Return (logits, values).", **method_location(objective, "predict"))
    logits, values = result
    if whole and logits is None:
        problem = f"objective {objective.kind!r} returns no logits, which hooks or metrics read"
        raise UserError(problem, remedy="Pass `whole` on to super().predict.", **method_location(objective, "predict"))
    _check_values(objective, "predict", values, batch.targets)
    return logits, values


def _check_values(objective: Objective, method: str, values: Any, targets: Targets) -> None:
    who, where = f"objective {objective.kind!r}", method_location(objective, method)
    if not isinstance(values, dict):
        problem = f"{who} returns {describe_value(values)} from {method}, expected values by name"
        raise UserError(problem, remedy="Return a dict.", **where)
    required = [name for name in MEASURED if name != "correct" or not objective.real_targets]
    if missing := [name for name in required if name not in values]:
        remedy = f"Return {', '.join(required)}; super().{method} returns them for classes."
        raise UserError(f"{who} returns no value {missing[0]!r} from {method}", remedy=remedy, **where)
    if taken := sorted(set(values) & set(RESERVED)):
        problem = f"{who} returns a value named {taken[0]!r}, which every training step records"
        raise UserError(problem, remedy="Use another name.", **where)
    for name, value in values.items():
        seen, expected = f"{jnp.shape(value)} {jnp.result_type(value)}", f"{targets.shape} float32"
        if seen != expected:
            problem = f"{who} returns {name!r} as {seen} from {method}, expected {expected}"
            raise UserError(problem, remedy="Return one value for each position.", **where)
