"""The sample of the validation split that is used for evaluations during training. All runs of a study share it."""

from dataclasses import dataclass

from taetpu.core.errors import UserError
from taetpu.data.base import Source, Task, at_length
from taetpu.spec.study_config import ResolvedConfig

SHARE = 0.1
"""The maximum share of the baseline's training FLOPs that may be spent on evaluations during training."""
TRAINING = 3
"""FLOPs to train on a window divided by FLOPs to evaluate it. The backward pass costs twice the forward pass."""


@dataclass(frozen=True)
class Sample:
    """A sample of the validation split: the first windows of the split in the order of `data.base.evaluation_order`.

    Attributes:
        asked: The value of `train.eval_windows`.
        windows: The number of windows in the baseline's sample.
        total: The number of windows in the baseline's validation split; 0 if there is no validation split.
    """

    asked: int | str
    windows: int
    total: int

    @classmethod
    def from_config(cls, config: ResolvedConfig, source: Source) -> "Sample":
        """Return the sample for a study with the given baseline.

        With `auto`, the sample size is computed from FLOPs, so that it is reproducible. All evaluations during a run
        together take at most `SHARE` of the FLOPs of its training. The sample size is rounded down to whole batches and
        is at least one window.

        Args:
            config: The config of the baseline.
            source: The prepared task of the baseline.

        Raises:
            UserError: If `eval_windows` is larger than the split. The error's path is relative to `train`.
        """
        train, split = config.train, source.evaluation("val")
        total = 0 if split is None else len(split.tokens)
        if train.eval_windows == "all" or train.steps == 0:
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

    def size_within(self, total: int) -> int:
        """Return the sample size for an arm whose split has `total` windows.

        The sample is the same share of the arm's split as the baseline's sample is of the baseline's split.
        """
        return total if self.windows >= self.total else max(1, round(self.windows * total / self.total))


def check_lengths(task: Task, source: Source) -> None:
    """Raise `UserError` unless a prepared task has an evaluation set of each length in `eval_lengths`."""
    for i, length in enumerate(task.eval_lengths):
        try:
            evaluation = source.evaluation(at_length(length))
        except LookupError:  # the source knows only `val` and `test`
            evaluation = None
        if evaluation is None or evaluation.weights.shape[1:] != (length,):
            problem = f"task {task.kind!r} has no evaluation set with sequences of {length} tokens"
            raise UserError(problem, path=("eval_lengths", i), remedy="Remove the length.")
