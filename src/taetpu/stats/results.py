"""The structure of `results.json`, and the function that reads stored results.

`stats.analyse` computes these values, and `report`, `cli`, `ui`, `judging` and `study` read them. docs/statistics.md
explains the statistics. In files, NaN and infinities are null. Numbers that may be undefined have the type `X | None`.
A key that is not required is absent where it has no value, so that the results of earlier studies do not change.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from taetpu.core.errors import UserError
from taetpu.core.metric_spec import Direction
from taetpu.stats.effect_results import BothWays as BothWays
from taetpu.stats.effect_results import EstimatedEffect, Interval, JudgedEffect, Parts, TestedEffect
from taetpu.stats.effect_results import Excess as Excess
from taetpu.stats.effect_results import Verdict as Verdict
from taetpu.stats.goal_results import GoalAnswer
from taetpu.stats.item_results import ItemScore
from taetpu.stats.ladder_results import Ladder
from taetpu.stats.plan import NoiseModel
from taetpu.store import frozen_study
from taetpu.store.study import StudyFolder

Label = Literal["single seed", "screening"]
Robustness = Literal["holds", "depends", "reverses", "unclear"]
"""Whether a verdict holds under other settings (see `stats.repeats.classify`)."""

# --- effects and arms -------------------------------------------------------------------------------------------------


class Choice(TypedDict, closed=True):
    """What a run chose by its validation loss."""

    seed: int
    steps: int  # the number of steps that the run was trained
    stopped: bool  # whether the run ended before its last step
    chosen: int | None  # the number of steps after which the evaluated model was chosen; None if it was not
    averaged: int | None  # the number of models whose mean is evaluated; None if it is no mean
    factor: float | None  # the factor of the learning rate at the end; None without the schedule `plateau`


class Run(TypedDict, closed=True):
    """A run of an arm."""

    seed: int
    id: str | None  # the first 8 characters of its identity; None if it has not ended
    outcome: Literal["finished", "stopped", "diverged", "unfinished", "missing", "untrained"]
    value: float | None  # what arms are compared by; None unless the run finished or stopped
    measured: NotRequired[float | None]  # the primary metric, if `value` is another outcome (see `stats.outcomes`)
    reached: NotRequired[bool]  # whether the run solved its task, or arrived at the value of the plan


class Memory(TypedDict, closed=True):
    """The computed memory of a run, in bytes."""

    training: float
    kv_cache: float


class PairedTest(TestedEffect, closed=True):
    """The paired t-test."""


class Sensitivity(TypedDict, closed=True):
    """Alternative analyses of an effect. Each is None if it needs more seeds or more variation."""

    paired: PairedTest | None
    sign_flip_p: float | None
    correlation: float | None  # of the arm and the baseline over seeds
    without_a_seed: Interval | None  # the smallest and largest effect if one seed is left out
    log_rank_p: NotRequired[float | None]  # of times to a value


class Ratio(TypedDict, closed=True):
    """A geometric mean of ratios over seeds."""

    ratio: float
    ci95: Interval | None


class Efficiency(TypedDict, closed=True):
    """The cost at which an arm reaches the baseline's final value, divided by the baseline's total cost."""

    seeds: int  # the number of compared seeds
    reached: int  # the number of seeds on which the arm reached the value
    steps: Ratio | None  # None unless the arm reached it on all seeds
    flops: Ratio | None


class EvaluationNoise(TypedDict, closed=True):
    """The variation of an effect between evaluation texts of the same size."""

    sd: float
    ci95: Interval
    blocks: int  # the number of blocks of the evaluation set


class Stratum(TypedDict, closed=True):
    """The effect of an arm in one stratum of a judged table, such as a data set."""

    stratum: int  # its place in `JudgedTable.strata`
    effect: float
    pairs: int  # the number of pairs; of the arm's runs, if runs are not paired


class Arm(JudgedEffect, closed=True):
    """An arm; the study's baseline is the first."""

    name: str
    against: str | None  # the arm with which it is compared; None for a baseline
    planned: bool  # whether the plan has it
    role: frozen_study.Role
    diff: dict[str, Any]  # the effective overrides, by path
    change: str  # the same in words
    runs: list[Run]
    diverged: int  # the number of diverged runs
    mean: float | None  # of the primary metric over the finished runs
    sd: float | None  # None for fewer than two finished runs
    params: float | None  # costs of a run; None without a run that has ended, and for judged tables
    flops: float | None  # of the whole training
    tokens: float | None
    memory: Memory | None
    sensitivity: Sensitivity | None  # None without a verdict, and if runs are not paired
    efficiency: Efficiency | None  # None without curves that can be compared
    reached: NotRequired[int]  # the number of runs that solved their task, or arrived at the value of the plan
    choices: NotRequired[list[Choice]]  # absent unless a run of the arm chooses (`optim.selection`)
    strata: NotRequired[list[Stratum]]  # absent unless the study was made from a table with strata
    evaluation_noise: EvaluationNoise | None  # None unless the metric is a mean over positions
    metrics: Mapping[str, float | None]  # the mean of each metric over the finished runs; None if one is undefined


class Contrast(frozen_study.PlannedContrast, JudgedEffect, closed=True):
    """A planned contrast."""

    name: str
    means: list[float | None]  # the mean of each side, or its mean spread


# --- plan and noise ---------------------------------------------------------------------------------------------------


class FrozenPlan(TypedDict, closed=True):
    """The analysis plan as it was frozen (see `stats.plan.Plan`). Keys at their default are absent."""

    primary: str
    direction: Direction
    arms: list[str]
    seeds: list[int]
    looks: list[int]
    equivalence: float | None
    alpha: float
    contrasts: NotRequired[dict[str, frozen_study.PlannedContrast]]
    post_hoc: NotRequired[dict[str, frozen_study.PostHocSettings]]
    rules: NotRequired[int]
    known_metric: NotRequired[bool]
    noise: NotRequired[NoiseModel]
    table: NotRequired[dict[str, Any]]
    metrics: NotRequired[dict[str, Any]]  # what the metrics are, by name (see `stats.plan.describe_metric`)
    goal: NotRequired[frozen_study.PlannedGoal]
    tasks: NotRequired[dict[str, frozen_study.PlannedTask]]
    pool: NotRequired[str]
    across: NotRequired[dict[str, list[str]]]
    solved: NotRequired[float]
    reach: NotRequired[float]
    by: NotRequired[str]
    eval_every: NotRequired[int]
    eval_windows: NotRequired[int | str]
    worth: NotRequired[str]
    sha256: str  # the hash of all keys above
    error_rate: float  # the chance of a false verdict at this number of seeds
    written_after: NotRequired[int]  # the number of runs that had ended before, if the plan was written after them


class NoiseFloor(TypedDict, closed=True):
    """The noise of the baseline."""

    sd: float | None  # None for fewer than two finished runs
    seeds: int  # the number of finished runs
    resolves: float | None  # the smallest effect that the study detects with 80 % power


class Model(TypedDict):
    """The model fitted to a baseline and its arms (see `stats.linear_model.Fit`)."""

    residual_sd: float | None  # the standard deviation of one run's noise
    df: float
    levene_p: float | None  # of equal noise of all arms
    noisy: list[str]  # arms that seem noisier than the others
    copies: bool  # whether the noise of runs is correlated between arms
    completers_only: bool  # whether a run diverged, so that the model has the finished runs only
    sds: NotRequired[Mapping[str, float | None]]  # with the noise model `moderated`: the standard deviation of each arm
    apart: NotRequired[Mapping[str, float | None]]  # and the probability that an arm is noisier than most


class Group(Model, closed=True):
    """A baseline, its arms and their model."""

    baseline: str
    arms: list[str]
    horizon: NotRequired[float]  # of times to a value, in the plan's unit


# --- computation ------------------------------------------------------------------------------------------------------


class Hardware(TypedDict, closed=True):
    """A kind of device."""

    device: str
    machine: str
    runs: int  # the number of runs that it trained


class Reused(TypedDict, closed=True):
    """Runs that were taken from other studies."""

    runs: int
    audited: int  # the number of those that were trained again as a check


# --- designs ----------------------------------------------------------------------------------------------------------


class Term(TestedEffect, closed=True):
    """A factor, or a pair of factors. It has no effect if a factor has more than two levels."""

    factors: list[str]
    aliases: list[list[str]]  # the terms that cannot be told from it
    df: int
    p_holm: float | None
    share: float | None  # of the variance within seeds


class FactorialScale(TypedDict, closed=True):
    """The analysis of a factorial design at one rung."""

    terms: list[Term]
    seeds: int  # the number of seeds with a value of every arm
    missing: list[str]  # arms without a value


class Factorial(frozen_study.FactorialDesign, closed=True):
    """The analysis of a factorial design."""

    scales: dict[str, FactorialScale]  # by rung, `` without a ladder


class TasksArm(TypedDict, closed=True):
    """An arm on several tasks."""

    rungs: dict[str, str]  # its name on each task
    scores: dict[str, float | None]  # the mean over seeds of its score on each task
    mean: float | None  # of the tasks' scores; None unless runs of all tasks finished
    iqm: float | None  # the interquartile mean over all runs
    pooled: JudgedEffect | None  # None for the baseline
    p_differs: float | None  # of equal effects on all tasks
    p_differs_holm: float | None  # corrected for the number of arms
    profile: list[float] | None  # the share of runs that reach each level, a mean over tasks; None for ranks


class TasksDesign(frozen_study.LadderDesign, closed=True):
    """The analysis of arms on several tasks (see `stats.repeats`)."""

    pool: str  # how effects are pooled: `iqm` or `mean`
    scale: Literal["normalised", "ranks"]
    levels: list[float]  # the scores of the profiles
    arms: dict[str, TasksArm]  # by the arm's name without the task, the baseline too


class AcrossArm(TypedDict, closed=True):
    """An arm under several settings."""

    rungs: dict[str, str]  # its name under each setting
    holds: Robustness
    on: list[str]  # the names of what the effect depends on
    p_differs: dict[str, float | None]  # of equal effects, by the name of what is changed
    p_differs_holm: dict[str, float | None]  # corrected for arms and names


class Across(frozen_study.LadderDesign, closed=True):
    """The analysis of arms under several settings (see `stats.repeats.classify`)."""

    factors: dict[str, list[str]]  # the settings by the name of what they change, without the baseline's
    arms: dict[str, AcrossArm]


class Experiment(EstimatedEffect, closed=True):
    """One of the three experiments on a part."""

    arm: str
    says: str  # what the absence of the part does: hurts, equivalent, helps or unclear


class Part(TypedDict, closed=True):
    """A part of a model."""

    part: str
    name: str | None  # necessary, redundant, compensated or unclear; None for a pattern without a name
    without: Experiment
    removed: Experiment
    healed: Experiment


class Components(frozen_study.ComponentsDesign, closed=True):
    """The analysis of a model's parts."""

    rows: list[Part]


class Designs(TypedDict, closed=True):
    """The analyses of the study's designs. Only `limits` is present unless the results are final."""

    limits: list[str]  # what the arms and designs do not show
    leave_one_out: NotRequired[Parts]
    add_one_in: NotRequired[Parts]
    factorial: NotRequired[Factorial]
    ladder: NotRequired[Ladder]
    tasks: NotRequired[TasksDesign]
    across: NotRequired[Across]
    components: NotRequired[Components]


# --- post-hoc ablation tables -----------------------------------------------------------------------------------------


class TableComparison(TestedEffect):
    """The difference of an arm to its baseline in a measure of a table."""

    p_holm: float | None  # corrected for all comparisons of the table
    guarded: bool
    verdict: Literal["higher", "lower", "inconclusive"] | None


class TableMeasure(TableComparison, closed=True):
    """A measure of an arm's tables."""

    number: int  # the number of runs that have it
    mean: float | None
    sd: float | None


class Ranks(TypedDict, closed=True):
    """The effects of a layer's parts in descending order, averaged over runs."""

    layer: int | None  # None outside the layers
    effects: list[float]


class TableArm(TypedDict, closed=True):
    """An arm in a table."""

    name: str
    against: str | None
    tables: int  # the number of runs with a table
    finished: int  # numbers of runs
    diverged: int
    runs: int
    absent: str | None  # why the arm is not compared
    components: int  # the number of parts of its model
    values: dict[str, TableMeasure]
    ranked: list[Ranks]


class TableArms(TypedDict):
    """The comparisons of a table."""

    final: bool  # whether the table has verdicts
    compared: int  # the number of comparisons that are corrected together
    measures: list[str]
    arms: list[TableArm]


class PostHoc(frozen_study.PostHocSettings, TableArms, closed=True):
    """A post-hoc ablation table."""

    name: str
    planned: bool  # whether the plan has it


# --- the study --------------------------------------------------------------------------------------------------------


class ProgramFacts(TypedDict, closed=True):
    """The program whose runs a study has."""

    command: list[str]  # its words as in the study file
    inputs: int  # the number of its inputs
    data: str  # the digest of the command and the inputs


class RepeatedRun(TypedDict, closed=True):
    """A baseline's run of a program that was repeated with the same seed."""

    arm: str
    seed: int
    metric: str
    values: list[float | None]  # of the run and of its repetition; None for a run that diverged


class JudgedTable(frozen_study.SourceTable, closed=True):
    """What is known of the table from which a study was made."""

    blocks: NotRequired[list[int]]  # the block of each run, if runs are not paired
    stratum_of: NotRequired[dict[str, int]]  # the stratum of each seed
    missing: dict[str, list[int]]  # the seeds or blocks without a run, by arm


class Results(TypedDict, closed=True):
    """The content of `results.json`."""

    study: str  # the name
    program: NotRequired[ProgramFacts]  # absent unless the runs are a program
    repeat: NotRequired[RepeatedRun]  # absent unless `program.repeat` is set
    judged: NotRequired[JudgedTable]  # absent if taetpu trained the study
    primary: str  # the metric by which arms are compared
    direction: Direction
    plan: FrozenPlan
    departures: list[str]  # of the study from its plan
    alpha: float
    seeds: list[int]
    complete: bool  # whether all runs have ended
    final: bool  # whether there are verdicts: an analysis is planned at this number of seeds
    label: Label | None
    noise_floor: NoiseFloor
    model: Model  # of the first group
    groups: list[Group]  # the study's baseline first
    packs: list[dict[str, Any]]  # the layouts of packs, each with its number of `runs`
    hardware: list[Hardware]
    reused: Reused
    tuning: frozen_study.Tuning | None
    designs: Designs
    arms: list[Arm]
    contrasts: NotRequired[list[Contrast]]
    goal: NotRequired[GoalAnswer]
    searched: NotRequired[bool]  # whether candidates were left untrained; then there are no verdicts
    post_hoc: NotRequired[list[PostHoc]]
    scores: NotRequired[list[ItemScore]]  # absent without scores on items


def read_results(folder: StudyFolder) -> Results | None:
    """Return the stored results of a study; None if there are none.

    Raises:
        UserError: If keys are missing that this version reads. Results of schema 1 had no groups, for example.
    """
    stored = folder.read_results()
    if stored is None:
        return None
    parts = {Results: [stored], Arm: stored.get("arms", ()), Group: stored.get("groups", ())}
    missing = {key for form, entries in parts.items() for entry in entries for key in form.__required_keys__ - {*entry}}
    if missing:
        problem = f"results.json has no {min(missing)!r}, because an earlier version of taetpu wrote it"
        raise UserError(problem, file=folder.where, remedy="Compute the results again with `taetpu report`.")
    return cast(Results, stored)
