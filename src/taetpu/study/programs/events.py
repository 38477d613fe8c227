"""The events of a study of a program, and their display as lines of a log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taetpu.core.streams import escape_controls
from taetpu.spec.programs.study import ProgramRun, ProgramStudy
from taetpu.study.programs.attempt import Ended, Slot

MOST_VALUES = 4


class Events:
    """Receives the events of a study. The methods do nothing; override the ones you need."""

    def on_study_begin(self, study: ProgramStudy, left: int, slots: int) -> None:
        """Handle the start of a study with `left` runs without a result, of which `slots` run at once."""

    def on_start(self, run: ProgramRun, slot: Slot, words: Sequence[str], where: str) -> None:
        """Handle the start of a run's program, with the words of its command and the folder of its record."""

    def on_restart(self, run: ProgramRun) -> None:
        """Handle the death of a node or of the process that ran a program; another attempt follows."""

    def on_end(self, run: ProgramRun, ended: Ended) -> None:
        """Handle the end of a run that has a result."""

    def on_failed(self, run: ProgramRun, ended: Ended) -> None:
        """Handle the end of a run that has no result."""

    def on_wait(self, reason: str) -> None:
        """Handle waiting for another process; an empty reason means that the wait is over."""

    def on_damage(self, where: str, problem: str, moved: str) -> None:
        """Handle a damaged run, which was moved."""

    def on_seeds_added(self, seeds: Sequence[int]) -> None:
        """Handle the seeds that are added because an arm is inconclusive."""

    def on_tracker_failed(self, tracker: str, problem: str) -> None:
        """Handle a tracker that is switched off because it failed."""


@dataclass
class EventLog(Events):
    """Writes a line for each event.

    Attributes:
        write: writes a line.
    """

    write: Callable[[str], None]
    total: int = 0
    ended: int = 0
    primary: str = ""

    def log(self, line: str) -> None:
        """Write a line without control characters."""
        self.write(escape_controls(line))

    def on_study_begin(self, study: ProgramStudy, left: int, slots: int) -> None:
        """Write the size of the study."""
        self.total, self.primary = left, study.measure.primary
        at_once = f", {slots} at once" if slots > 1 else ""
        numbers = (len(study.arms), "arm"), (len(study.seeds), "seed"), (left, "run")
        sizes = ", ".join(f"{number} {noun}{'s' * (number != 1)}" for number, noun in numbers)
        self.log(f"study {study.name}: {sizes} to start{at_once}")

    def on_start(self, run: ProgramRun, slot: Slot, words: Sequence[str], where: str) -> None:
        """Write the run, its GPUs and its node."""
        place = [f"GPU {', '.join(slot.gpus)}"] if slot.gpus else []
        place += [f"on {slot.node}"] if slot.node else []
        self.log(f"{run.title}: started" + (f" ({' '.join(place)})" if place else ""))

    def on_restart(self, run: ProgramRun) -> None:
        """Write the run."""
        self.log(f"{run.title}: its node or its Ray process died; it starts again")

    def on_end(self, run: ProgramRun, ended: Ended) -> None:
        """Write the outcome and the last values."""
        self.ended += 1
        self.log(f"{run.title}: {ended.outcome}, {self._values(ended)} ({self.ended} of {self.total})")

    def on_failed(self, run: ProgramRun, ended: Ended) -> None:
        """Write how the program ended, and the last lines of its output."""
        self.ended += 1
        reason = f"{ended.how}: {ended.problem}" if ended.problem else ended.how
        self.log(f"{run.title}: failed, {reason} ({self.ended} of {self.total})")
        for line in ended.lines:
            self.log(f"  | {line}")

    def on_wait(self, reason: str) -> None:
        """Write the reason."""
        if reason:
            self.log(f"waiting: {reason}")

    def on_damage(self, where: str, problem: str, moved: str) -> None:
        """Write the problem."""
        self.log(f"damaged: {where}: {problem}; moved to {moved}")

    def on_seeds_added(self, seeds: Sequence[int]) -> None:
        """Write the number of seeds."""
        self.log(f"an arm is inconclusive, so {len(seeds)} seeds per arm are run until the next interim analysis")

    def on_tracker_failed(self, tracker: str, problem: str) -> None:
        """Write the problem."""
        self.log(f"tracker {tracker} is switched off: {problem}; the runs continue")

    def _values(self, ended: Ended) -> str:
        names = sorted(ended.last, key=lambda name: name != self.primary)[:MOST_VALUES]
        return ", ".join(f"{name} {ended.last[name]:.5g}" for name in names)
