"""The keys of a study file, whatever it trains: arms, designs, seeds, and how arms are compared."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from taetpu.core.config import Config
from taetpu.core.config_parsing import normalize_value
from taetpu.core.errors import KeyPath, UserError
from taetpu.core.short_paths import value_at
from taetpu.spec.document import format_brief, format_value
from taetpu.spec.goal import GoalConfig
from taetpu.spec.measure import Measure

BASELINE = "baseline"
MAX_SEEDS = 10_000
MAX_LOOKS = 3
MAX_SEED = 2**31 - 1
MIN_GOAL_SEEDS = 2
LONGEST_NAME = 100
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9=.,+_-]{{0,{LONGEST_NAME - 1}}}")

Matching = Literal["steps", "flops", "params", "time"]


class StudyFile(Config):
    """The keys of a study file. A subclass knows the settings of its baseline, to which overrides apply."""

    study: Annotated[str, Field(description="the name of the study")]
    base: Annotated[dict[str, Any], Field(description="the baseline: task, model, train")]
    seeds: Annotated[Any, Field(description="the number of seeds, or a list of them, e.g. 5 or [11, 12, 13]")] = 3
    plugins: tuple[str, ...] = ()
    """Python files that register additional kinds, relative to the study file."""
    arms: dict[Any, Any] = Field(default_factory=dict)
    """Variants of the baseline by name, each with overrides by dotted path from `model`, `train` or `task` on."""
    grid: dict[Any, Any] = Field(default_factory=dict)
    """Lists of values by dotted path, with an arm for every combination."""
    leave_one_out: dict[Any, Any] = Field(default_factory=dict)
    """Parts to remove from the baseline, by name: arms without each and without all; `both_ways`: all but each too."""
    add_one_in: dict[Any, Any] = Field(default_factory=dict)
    """Parts to add to the baseline, by name: arms with each and with all; `both_ways`: all but each too."""
    factorial: dict[Any, Any] = Field(default_factory=dict)
    """Factors to cross, each a list of values or a named change; `fraction`: share of the combinations to run."""
    ladder: dict[Any, Any] = Field(default_factory=dict)
    """Scales at which every arm is repeated: a list of values for each dotted path, one value per scale."""
    tasks: Annotated[Any, Field(description="tasks on which every arm is repeated, or a suite: mad")] = None
    across: dict[Any, Any] = Field(default_factory=dict)
    """Settings under which every arm is repeated, one at a time: a list of values by dotted path, or a named change."""
    tune: Annotated[dict[Any, Any], Field(description="values to try for every arm, with separate `seeds`")] = Field(
        default_factory=dict
    )
    match: Annotated[
        tuple[Matching, ...],
        Field(description="quantities in which each arm is matched to the baseline, e.g. [flops, params]"),
    ] = ()
    measure: Measure = Measure()
    """How arms are compared."""
    goal: Annotated[
        GoalConfig | None, Field(description="threshold that the smallest of all candidates is asked to meet")
    ] = None
    trackers: Annotated[Any, Field(description="services that show the runs, e.g. [tensorboard]")] = None

    @field_validator("match", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else (value,)

    @field_validator(
        "base", "arms", "grid", "leave_one_out", "add_one_in", "factorial", "ladder", "across", "tune", mode="before"
    )
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        return {} if value is None else value  # a key without a value, for example with only comments after it

    @model_validator(mode="after")
    def _fits(self) -> "StudyFile":
        check_name(self.study, "study", ("study",))
        self._check_looks(len(self.seed_list()))
        if self.goal is not None:
            self._check_goal(len(self.seed_list()))
        return self

    def _check_goal(self, seeds: int) -> None:
        """Raise `UserError` if the study cannot have a goal: too few seeds, interim analyses, or dependent arms."""
        for path, set_ in (
            (("measure", "looks"), self.measure.looks),
            (("tune",), self.tune),
            (("across",), self.across),
            (("match",), set(self.match) - {"steps"}),
        ):
            if set_:
                problem = f"a study with a goal cannot have {'.'.join(path)}"
                raise UserError(problem, path=path, remedy=f"Remove {'.'.join(path)}, or the goal.")
        if seeds < MIN_GOAL_SEEDS:
            problem = f"a mean over {seeds} seed has no interval, so a goal needs at least {MIN_GOAL_SEEDS} seeds"
            raise UserError(problem, path=("seeds",), remedy="Use e.g. 5.")

    def _check_looks(self, seeds: int) -> None:
        """Raise `UserError` unless the numbers in `looks` increase and include the study's number of seeds."""
        looks, path = self.measure.looks, ("measure", "looks")
        if not looks:
            return
        if len(looks) > MAX_LOOKS or looks[0] < 2 or any(a >= b for a, b in pairwise(looks)):
            remedy = (
                f"List at most {MAX_LOOKS} increasing numbers from 2 on, e.g. [{max(seeds, 2)}, {2 * max(seeds, 2)}]."
            )
            raise UserError(f"interim analyses at {list(looks)} seeds cannot be planned", path=path, remedy=remedy)
        if seeds not in looks:
            problem = f"the study has {seeds} seeds, which is not one of the looks {list(looks)}"
            raise UserError(problem, path=path, remedy=f"Set seeds: {looks[0]}, or looks: [{seeds}, ...].")

    def seed_list(self) -> tuple[int, ...]:
        """Return the seeds of the study (see `parse_seeds`)."""
        return parse_seeds(self.seeds, ("seeds",))

    # What depends on the settings of the baseline.

    examples: ClassVar[Mapping[str, str]]
    """Examples for the remedies of messages: a `change`, and the values of `factorial` and `tune`."""

    def is_baseline(self, base: Mapping[str, Any], overrides: Mapping[str, Any], places: Mapping[str, KeyPath]) -> bool:
        """Return whether overrides leave the baseline unchanged.

        Args:
            base: The baseline's data.
            overrides: The overrides, by path.
            places: The place of each override in the study file.

        Raises:
            UserError: If an override is invalid. The error's path is the place of that override.
        """
        raise NotImplementedError

    def baseline_text(self, base: Mapping[str, Any], path: str) -> str:
        """Return the baseline's value of a setting as text, a component as its kind; empty if it has no such value."""
        return format_brief(value_at(base, path, ""))

    def paths_of_lists(self, base: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[str]:
        """Return the paths of overrides whose value is a list of values to try.

        For a setting that is a list, a plain list is one value, and a list of lists gives several values.

        Raises:
            UserError: If an override matches nothing.
        """
        raise NotImplementedError

    def check_tried(self, base: Mapping[str, Any], path: str, values: Sequence[Any]) -> None:
        """Raise `UserError` if a setting cannot be tuned, or has one of these values. The path is `tune.PATH`."""
        raise NotImplementedError

    @property
    def tuning_metric(self) -> str:
        """The metric by which `tune` selects values."""
        raise NotImplementedError


def parse_seeds(value: Any, path: KeyPath, first: int = 0) -> tuple[int, ...]:
    """Return the seeds that `value` lists or, if `value` is a number `n`, the seeds `first` to `first + n - 1`.

    Raises:
        UserError: If the value is neither a number nor a list, if there are too many seeds, or if a seed is invalid or
            listed twice.
    """
    value = normalize_value(value, integers=True)
    if type(value) is int and 0 < value <= MAX_SEEDS:
        return tuple(range(first, first + value))
    if not isinstance(value, tuple) or not 0 < len(value) <= MAX_SEEDS:
        problem = f"{format_value(value)} is neither a number of seeds from 1 to {MAX_SEEDS} nor a list of seeds"
        raise UserError(problem, path=path, remedy="Write e.g. 5, or [11, 12, 13].")
    seen = set[int]()
    for i, seed in enumerate(value):
        if type(seed) is not int or not 0 <= seed <= MAX_SEED:
            raise UserError(f"{seed!r} is not a seed", path=(*path, i), remedy=f"Use integers from 0 to {MAX_SEED}.")
        if seed in seen:
            raise UserError(f"seed {seed} is listed twice", path=(*path, i), remedy="Remove the duplicate.")
        seen.add(seed)
    return value


def check_name(name: str, what: str, path: KeyPath) -> str:
    """Return `name` if it is a valid folder name on every platform.

    Args:
        name: The name.
        what: The noun for the name in the error message.
        path: The path of the error.

    Raises:
        UserError: If the name is not a valid folder name.
    """
    if NAME.fullmatch(name):
        return name
    example = re.sub(r"[^A-Za-z0-9=.,+_-]+", "-", name)[:LONGEST_NAME].strip("=.,+_-") or f"my-{what}"
    remedy = (
        f"Use at most {LONGEST_NAME} letters, digits and = . , + _ -, starting with a letter or digit, e.g. {example}."
    )
    raise UserError(f"{what} name {name!r} is not a valid folder name", path=path, remedy=remedy)
