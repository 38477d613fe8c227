"""The arms of a study at each stage: written, generated, matched and tuned."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from taetpu.spec.loading import derive_arm
from taetpu.spec.resolved_study import Arm, Study
from taetpu.store.frozen_study import Tuning
from taetpu.study.matching import match_sizes, match_times
from taetpu.study.tuning import trial_study, tuned_arms


@dataclass(frozen=True)
class ArmStages:
    """A study with its arms at each stage. All stages share the prepared tasks and the run IDs.

    The properties are computed on first use, and raise `UserError` if an arm is invalid.

    Attributes:
        sized: the study with written and generated arms, and the arms that are matched by FLOPs or parameters.
        steps: the numbers of training steps of the arms that are matched by time (`matching.time_matched_steps`);
            empty until they are measured.
    """

    sized: Study
    steps: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, study: Study) -> "ArmStages":
        """Return the stages of a study that was loaded from its file. Raises `UserError` if an arm cannot be matched.

        This prepares the tasks, because matching depends on their data.
        """
        return cls(_with_matched(study, match_sizes(study)))

    @cached_property
    def matched(self) -> Study:
        """The study with all matched arms. Arms are matched by time only if their `steps` are known."""
        return _with_matched(self.sized, match_times(self.sized, self.steps)) if self.steps else self.sized

    @cached_property
    def trials(self) -> Study | None:
        """The study of the tuning trials of the matched arms; None if nothing is tuned."""
        return None if self.sized.tune is None else trial_study(self.matched, derive_arm).changed(match=())

    def timed(self, steps: Mapping[str, int]) -> "ArmStages":
        """Return the stages with the measured `steps`, which may be empty."""
        return replace(self, steps=steps) if steps else self

    def tuned(self, best: Tuning) -> Study:
        """Return the study with all arms, given the result of `tuning.choose_values`."""
        return self.matched.changed(arms=(*self.matched.arms, *tuned_arms(self.matched, best, derive_arm)))


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
        elif match := new.role.get("match"):
            role = arms[twin].role
            arms[twin] = replace(arms[twin], role={**role, "also": [*role.get("also", ()), match]})
    return study.changed(arms=tuple(arms))
