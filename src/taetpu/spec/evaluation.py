"""The sample of the validation split that is evaluated during training: the same windows for every run of a study."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from taetpu.core.errors import UserError
from taetpu.data.batches import Source
from taetpu.spec.schema import ResolvedConfig

SHARE = 0.1
"""Of the FLOPs of training the baseline, at most this much is spent on evaluating it while it trains."""
TRAINING = 3
"""FLOPs of training on a window per FLOP of evaluating it: the backward pass takes twice the forward pass."""


@dataclass(frozen=True)
class Sample:
    """A prefix of the validation split's windows in `data.batches.evaluation_order`.

    Attributes:
        asked: `train.eval_windows`.
        windows: of the baseline's split that are in the sample.
        total: windows in the baseline's split; 0 where it has none.
    """

    asked: int | str
    windows: int
    total: int

    @classmethod
    def from_config(cls, config: ResolvedConfig, source: Source) -> "Sample":
        """The sample of a study with this baseline.

        `auto` follows from FLOPs, never from a clock: all evaluations of a run together take at most `SHARE` of its
        training, or a window each where that is more. Whole batches are taken where there is one.

        Raises:
            UserError: more windows are asked for than the split has; the path starts in `train`.
        """
        train, split = config.train, source.evaluation("val")
        total = 0 if split is None else len(split.tokens)
        if train.eval_windows == "all":
            return cls("all", total, total)
        if isinstance(train.eval_windows, int):
            if 0 < total < train.eval_windows:
                problem = f"eval_windows={train.eval_windows} is more than the {total} windows of the validation split"
                raise UserError(problem, path=("eval_windows",), remedy=f"at most {total}, or all")
            return cls(train.eval_windows, min(train.eval_windows, total), total)
        steps = train.total_steps(source.num_windows)
        affordable = int(SHARE * TRAINING * steps * train.batch_size / train.num_evaluations(steps))
        if affordable > train.batch_size:
            affordable -= affordable % train.batch_size
        return cls("auto", min(max(1, affordable), total), total)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Sample":
        """The inverse of `frozen`."""
        return cls(**data)

    @property
    def frozen(self) -> dict[str, Any]:
        """What the study's folder keeps."""
        return asdict(self)

    def size_within(self, total: int) -> int:
        """The size of the sample of a split of `total` windows: the same share for an arm with other windows."""
        return total if self.windows >= self.total else max(1, round(self.windows * total / self.total))
