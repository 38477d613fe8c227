"""The sample of the validation split for evaluations during training, which is the same for every run of a study."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from taetpu.core.errors import UserError
from taetpu.data.batches import Source
from taetpu.spec.schema import ResolvedConfig

SHARE = 0.1
"""The largest share of the baseline's training FLOPs to spend on evaluations during training."""
TRAINING = 3
"""FLOPs of training on a window per FLOP of evaluating it: the backward pass costs twice the forward pass."""


@dataclass(frozen=True)
class Sample:
    """A prefix of the validation split's windows in `data.batches.evaluation_order`.

    Attributes:
        asked: `train.eval_windows`.
        windows: The number of windows in the baseline's sample.
        total: The number of windows in the baseline's split; 0 without one.
    """

    asked: int | str
    windows: int
    total: int

    @classmethod
    def from_config(cls, config: ResolvedConfig, source: Source) -> "Sample":
        """Return the sample of a study with this baseline.

        `auto` is computed from FLOPs, so that it is reproducible: all evaluations of a run together take at most
        `SHARE` of its training, and at least one window each. The result is rounded down to whole batches.

        Raises:
            UserError: If `eval_windows` is larger than the split. The path starts in `train`.
        """
        train, split = config.train, source.evaluation("val")
        total = 0 if split is None else len(split.tokens)
        if train.eval_windows == "all":
            return cls("all", total, total)
        if isinstance(train.eval_windows, int):
            if 0 < total < train.eval_windows:
                problem = f"eval_windows={train.eval_windows} exceeds the {total} windows of the validation split"
                raise UserError(problem, path=("eval_windows",), remedy=f"Use at most {total}, or all.")
            return cls(train.eval_windows, min(train.eval_windows, total), total)
        steps = train.total_steps(source.num_windows)
        affordable = int(SHARE * TRAINING * steps * train.batch_size / train.num_evaluations(steps))
        if affordable > train.batch_size:
            affordable -= affordable % train.batch_size
        return cls("auto", min(max(1, affordable), total), total)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Sample":
        """Return the sample stored in a study's folder; the inverse of `frozen`."""
        return cls(**data)

    @property
    def frozen(self) -> dict[str, Any]:
        """The sample as plain data, as a study's folder stores it."""
        return asdict(self)

    def size_within(self, total: int) -> int:
        """Return the sample size for an arm whose split has `total` windows: the same share as the baseline's."""
        return total if self.windows >= self.total else max(1, round(self.windows * total / self.total))
