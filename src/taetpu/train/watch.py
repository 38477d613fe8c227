"""Who is told how training gets on. The base says nothing; `study.progress` shows it to a person."""

from collections.abc import Sequence

import numpy as np

from taetpu.spec.design import RunSpec


class Watcher:
    """Hears of everything that happens while a study trains, in the order of these methods."""

    def begun(self, run_steps: int) -> None:
        """Training begins; `run_steps` optimizer steps over all runs."""

    def pack(self, number: int, of: int, runs: Sequence[RunSpec]) -> None:
        """Pack `number` (from 1) begins; its first dispatch compiles the program."""

    def resumed(self, step: int) -> None:
        """The pack goes on from `step`, reached by an earlier process; 0 when it is new."""

    def advanced(self, step: int, loss: np.ndarray) -> None:
        """The runs of the pack have taken `step` steps; `loss` holds the last training loss of each."""

    def evaluated(self, step: int, run: RunSpec, values: dict[str, float]) -> None:
        """A run was evaluated on the validation split."""

    def sampled(self, step: int, run: RunSpec, text: str) -> None:
        """A text that a run's model made."""

    def stored(self, step: int) -> None:
        """All that was measured up to `step` is on the disk, and the state where it is kept."""

    def failed(self, runs: Sequence[RunSpec], error: Exception) -> None:
        """A pack raised; the study goes on with the next one."""
