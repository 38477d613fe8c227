"""The arms of a study at each stage: written, generated, matched and tuned."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from taetpu.spec.resolved_study import Arm, Study
from taetpu.study.matching import match_sizes, match_times
from taetpu.study.tuning import trial_study, tuned_arms


@dataclass(frozen=True)
class ArmStages:
    """A study with its arms at each stage. A stage is computed once, on first use, and raises `UserError` if it fails.

    All stages share the prepared tasks and the run IDs of the study. In each, the baseline is the first arm.

    Attributes:
        written: the study as loaded from its file, with written and generated arms.
        steps: the numbers of training steps of the arms that are matched by time (`matching.time_matched_steps`);
            empty until they are measured.
    """

    written: Study
    steps: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def sized(self) -> Study:
        """The study with the arms matched by FLOPs or parameters, which depend on the study's data."""
        return _with_matched(self.written, match_sizes(self.written))

    @cached_property
    def matched(self) -> Study:
        """The study with all matched arms. Arms are matched by time only if their `steps` are known."""
        return _with_matched(self.sized, match_times(self.sized, self.steps)) if self.steps else self.sized

    @cached_property
    def trials(self) -> Study | None:
        """The study of the tuning trials of the matched arms; None if nothing is tuned."""
        return None if self.written.tune is None else trial_study(self.matched)

    def timed(self, steps: Mapping[str, int]) -> "ArmStages":
        """Return the stages with known `steps`."""
        if not steps:
            return self
        new = replace(self, steps=steps)
        new.__dict__["sized"] = self.sized
        return new

    def tuned(self, best: Mapping[str, Any]) -> Study:
        """Return the study with all arms, given the result of `tuning.choose_values`."""
        return self.matched.changed(arms=(*self.matched.arms, *tuned_arms(self.matched, best)))


def _with_matched(study: Study, matched: Iterable[Arm]) -> Study:
    """Return a study with matched arms after its arms.

    A matched arm is not added if an existing arm has the same config and baseline, so that no run or comparison counts
    twice. Instead, the match is added to the entry `also` in the existing arm's `role`.
    """
    arms = list(study.arms)
    for new in matched:
        against = study.against(new)
        twin = next((i for i, a in enumerate(arms) if a.config == new.config and study.against(a) is against), None)
        if twin is None:
            arms.append(new)
        else:
            role = arms[twin].role
            arms[twin] = replace(arms[twin], role={**role, "also": [*role.get("also", ()), new.role["match"]]})
    return study.changed(arms=tuple(arms))
