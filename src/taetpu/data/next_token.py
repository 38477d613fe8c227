"""The base of tasks in which each position predicts the next token of a text."""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from taetpu.core.config import SlotMark
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.metric_spec import TASK_METRICS, MetricSpec
from taetpu.data.base import TOKEN_METRICS, Source
from taetpu.data.mixture import shares_of
from taetpu.data.pairs import PairSource
from taetpu.data.source_task import SourceTask


def causal_lm() -> Any:
    """Return the objective `causal-lm`, whose class is in a package that imports this one."""
    return build_component("objective", "causal-lm")


class NextTokenTask(SourceTask):
    """Base of the tasks `text` and `tokens`."""

    objective: Annotated[Any, SlotMark("objective")] = Field(default_factory=causal_lm)  # pyright: ignore
    """What is predicted: the next token (`causal-lm`), masked tokens, tokens after a prefix, or pairs."""

    @property
    def causal(self) -> bool:
        """Whether a position may attend only to earlier positions, because each predicts the next token."""
        return self.objective.causal

    @property
    def metric_specs(self) -> dict[str, MetricSpec]:
        """See `Task.metric_specs`. Bits per byte exist if all tokens are predicted."""
        return TASK_METRICS if self.objective.predicts_all else TOKEN_METRICS

    @abstractmethod
    def read(self, folder: Path) -> Any:
        """Return the prepared text, before the objective changes its batches; see `Task.prepare`."""

    @abstractmethod
    def special_tokens(self, source: Any) -> Collection[int]:
        """Return the tokens of the prepared text that the task adds between documents."""

    def prepare(self, folder: Path) -> Source:
        """See `Task.prepare`."""
        source = self.read(folder)
        if isinstance(source, PairSource) and not self.objective.of_pairs:
            problem = f"samples are pairs, and objective {self.objective.kind!r} predicts tokens one after another"
            raise UserError(problem, path=("objective",), remedy="Use next-sentence or masked-lm.")
        with locate_errors("objective"):
            return self.objective.prepare_text(source, self.special_tokens(source))

    @field_validator("objective")
    @classmethod
    def _of_text(cls, objective: Any) -> Any:
        if not objective.of_text:
            problem = f"objective {objective.kind!r} does not predict the tokens of a text"
            remedy = "Use causal-lm, masked-lm, prefix-lm or next-sentence. Set train.objective to train another one."
            raise UserError(problem, path=("objective",), remedy=remedy)
        return objective

    @field_validator("source", mode="before", check_fields=False)
    @classmethod
    def _weights(cls, source: Any) -> Any:
        """Check the weights of a mixture."""
        if isinstance(source, Mapping):
            with locate_errors("source"):
                shares_of(source)
        return source
