"""The structure of `study.yaml`, as far as other packages read it: roles of arms, designs, tuning, a judged table.

`spec` and `study` freeze these values with a study, `judging` those of a table, and `stats` and `report` read them.
A key that is not required is absent where it has no value, or from studies of earlier versions.
"""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

OneByOne: TypeAlias = Literal["leave_one_out", "add_one_in"]
MatchKind: TypeAlias = Literal["flops", "params", "time"]
Way: TypeAlias = Literal["without", "removed", "healed"]

# --- roles of arms ----------------------------------------------------------------------------------------------------


class RungRole(TypedDict, closed=True):
    """The place of an arm on a ladder, or among the repetitions of `tasks` or `across`."""

    rung: str  # the scale, task or setting
    arm: str  # the arm's name without it; `baseline` for its baseline


class MatchRole(TypedDict, extra_items=Any):
    """How an arm was matched. The further keys are the paths of the matched settings, with their values."""

    of: str  # the arm that was trained again
    by: MatchKind  # what equals that of the baseline


class TunedRole(TypedDict, extra_items=Any):
    """How an arm was tuned. The further keys are the paths of the tuned settings, with the best values."""

    of: str  # the arm that was trained again


class Role(TypedDict, total=False, closed=True):
    """The role of an arm: how it was derived, and what it is compared with. An arm that is written out has no keys."""

    against: str  # the arm with which it is compared, unless that is the study's baseline
    design: Literal["leave_one_out", "add_one_in", "factorial", "components"]  # the design that generated the arm
    part: str | None  # in `leave_one_out`, `add_one_in` and `components`: the part; None for all parts together
    part_left: str  # in `leave_one_out` and `add_one_in` with `both_ways`: the only part that does not change
    levels: dict[str, int]  # in `factorial`: the level of each factor, 0 for that of the baseline
    way: Way  # in `components`: how the part is removed
    ladder: RungRole
    match: MatchRole
    also: list[MatchRole]  # matches of other arms that gave the same config and baseline
    tuned: TunedRole


# --- designs and tuning -----------------------------------------------------------------------------------------------


class FactorialDesign(TypedDict):
    """A factorial design."""

    factors: dict[str, list[str]]  # the names of each factor's levels; that of the baseline's level is empty
    fraction: str  # such as `1/2`; `1` for all cells
    resolution: int | None  # of a fraction
    words: list[list[str]]  # the defining words of a fraction


class LadderDesign(TypedDict):
    """A ladder, tasks, or the settings of `across`: repetitions of every arm."""

    rungs: list[str]  # the names of the scales, tasks or settings, in the order of the study file
    own: str  # that of the baseline as written


class ComponentsDesign(TypedDict):
    """A study of a model's parts."""

    of: str  # the study whose baseline is examined
    what: str  # the kind of the parts
    steps: int  # the number of steps after the removal
    parts: list[str]  # the names of the parts


class StudyDesign(TypedDict, total=False, closed=True):
    """The designs of a study that are more than the roles of their arms."""

    factorial: FactorialDesign
    ladder: LadderDesign
    tasks: LadderDesign
    across: LadderDesign
    components: ComponentsDesign


class Trial(TypedDict, closed=True):
    """The outcome of an arm with one combination of tuned values."""

    arm: str  # the name of the trial's runs
    values: dict[str, Any]  # the tried values, by path
    mean: float | None  # the mean of the metric over the seeds; None if a run diverged
    by_seed: list[float | None]  # None for a run that diverged


class TunedArm(TypedDict, closed=True):
    """The trials of an arm."""

    trials: dict[str, Trial]  # by combination of values
    best: str | None  # the combination with the best mean; None if every combination has a diverged run
    edge: list[str]  # the paths whose best value is the smallest or largest value tried


class Tuning(TypedDict, closed=True):
    """The trials of all arms."""

    values: dict[str, list[Any]]  # the values tried, by path
    seeds: list[int]  # the seeds of the trials
    metric: NotRequired[str]  # the metric that decides; absent from studies of earlier versions: the primary metric
    arms: dict[str, TunedArm]


# --- tables of results ------------------------------------------------------------------------------------------------


class Asked(TypedDict):
    """What was asked of a table."""

    baseline: str
    primary: str
    direction: Literal["min", "max"]
    equivalence: float | None
    alpha: float
    table: dict[str, Any]  # the options by which the table was read, by name


class EarlierQuestion(Asked, closed=True):
    """What was asked of a table before."""

    seeds: int  # the number of seeds at that time
    changed: NotRequired[dict[str, int]]  # by arm: the number of judged values that are no longer in the table


class SourceTable(TypedDict):
    """The table of results from which a study was made, with the roles of its columns."""

    source: str  # the name of the file or folder
    path: NotRequired[str]
    sha256: str
    arm: list[str]  # the columns that name an arm
    seed: str  # the column of seeds; empty if there is none
    block: list[str]  # further columns within whose values runs are compared
    where: NotRequired[list[str]]  # the conditions that all runs satisfy
    labels: NotRequired[dict[str, list[str]]]  # the values of the columns of each block
    titles: NotRequired[dict[str, str]]  # the names in the table of arms that were renamed
    history: NotRequired[list[EarlierQuestion]]  # what was asked of the table before
    empty: NotRequired[dict[str, int]]  # the number of runs without a value, by arm, if runs are not paired
    disjoint: NotRequired[bool]  # whether an arm shares fewer than two seeds with the baseline
    strata: NotRequired[list[str]]  # the values of the block's columns, each with equal weight in an effect
    ends: NotRequired[dict[str, list[int]]]  # the first and last step at which runs of an arm ended


# --- the study --------------------------------------------------------------------------------------------------------


class PlannedContrast(TypedDict):
    """A contrast of the analysis plan. A comparison has the first two keys only, a spread has all."""

    compare: list[str]  # the arms of the first side
    to: list[str]  # the arms of the second side
    spread: NotRequired[str]  # the metric whose spread is compared
    over: NotRequired[str]  # the setting over whose values the metric varies
    by: NotRequired[str]  # the setting in which the sides differ
    level: NotRequired[str]  # the value of `by` on the first side; the second side has the baseline's


class PlannedThreshold(TypedDict):
    """A threshold of a goal."""

    metric: str
    side: str  # `at_most` or `at_least`
    level: float  # the threshold


class PlannedGoal(PlannedThreshold):
    """A goal: the candidate of the smallest cost whose metric meets a threshold (see `spec.goal`).

    With `tasks`, a candidate meets the threshold of every task. `metric`, `side` and `level` are those of the first.
    """

    minimise: str  # the cost, or the path of a setting
    monotone: bool  # whether a candidate of higher cost meets whatever a cheaper one does
    tasks: NotRequired[dict[str, PlannedThreshold]]


class SearchStep(TypedDict, closed=True):
    """A decision of a search: the candidates that it trained, and the seeds (see `study.search`)."""

    arms: list[str]
    seeds: list[int]


class PlannedTask(TypedDict, closed=True):
    """How arms are compared on one of several tasks."""

    primary: str
    direction: Literal["min", "max"]
    equivalence: float | None
    chance: float | None  # the value that counts as 0 in pooled effects; None if it is not known
    best: float | None  # the value that counts as 1
    metrics: dict[str, Any]  # what the metrics of the task are, by name


class PostHocSettings(TypedDict):
    """The settings of a post-hoc ablation table (see `spec.post_hoc.PostHocConfig`)."""

    knockout: str
    how: str
    split: str
    documents: int
    seed: int


class FrozenStudy(TypedDict, closed=True):
    """The content of `study.yaml`."""

    study: str  # the name
    schema: int  # of the identities of runs
    judged: NotRequired[SourceTable]  # the table from which the study was made; absent if taetpu trained it
    program: NotRequired[dict[str, Any]]  # the program whose runs these are; absent if taetpu trained them
    baseline: NotRequired[str]  # the name of the baseline, if the study was made from a table; otherwise `baseline`
    base: dict[str, Any]  # the baseline's config with its defaults
    data: NotRequired[str]  # the fingerprint of the baseline's data
    files: NotRequired[dict[str, str]]  # the digests of the data's files, by their paths from the study file's folder
    measure: NotRequired[dict[str, Any]]  # how arms are compared, as written in the study file
    seeds: list[int]
    blocks: NotRequired[list[int]]  # the block of each seed, if runs with equal seeds share nothing
    strata: NotRequired[list[int]]  # the stratum of each seed, such as its data set
    arms: dict[str, dict[str, Any]]  # the overrides of each arm, by path
    idle: NotRequired[dict[str, list[str]]]  # the paths of overrides without effect, by arm
    resets: NotRequired[dict[str, dict[str, list[Any]]]]  # by arm and path: fields that a replaced slot changes
    roles: NotRequired[dict[str, Role]]
    design: NotRequired[StudyDesign]
    evaluation: NotRequired[dict[str, Any]]  # the sample of the validation split
    starts: NotRequired[dict[str, dict[str, str]]]  # by arm and seed: the digest of the model that a run starts from
    post_hoc: NotRequired[dict[str, PostHocSettings]]
    items: NotRequired[dict[str, str]]  # the digests of the files of scores on items, by the name of the score
    goal: NotRequired[PlannedGoal]
    goal_costs: NotRequired[dict[str, float]]  # the cost of each candidate
    plan: dict[str, Any]  # the analysis plan with its hash (see `stats.plan`)
    planned_after: NotRequired[int]  # the number of runs that had ended before the plan was written
    judged_at: NotRequired[list[int]]  # the number of seeds at each earlier verdict
    matching: NotRequired[dict[str, int]]  # the number of steps of time-matched arms
    tuning: NotRequired[Tuning]
