"""Repetitions of a study in which no arm matters: its seeds in groups, each of which is analysed as a study.

A verdict of better or worse on such an arm is false. Any study has one with a probability of at most `alpha`, so the
number of repetitions with a false verdict follows a binomial distribution.
"""

from collections.abc import Mapping
from dataclasses import replace

from taetpu.core.errors import KeyPath, UserError
from taetpu.stats import verdict
from taetpu.stats.analyse import baselines, fit_groups
from taetpu.stats.claims import Finding, RepetitionClaim
from taetpu.stats.load import read_study
from taetpu.stats.plan import Plan, read_plan
from taetpu.stats.results_table import Table, read_table
from taetpu.store.study import StudyFolder

FALSE = ("better", "worse")


def check_repetitions(claim: RepetitionClaim, folder: StudyFolder, where: KeyPath) -> Finding:
    """Check a claim about the number of repetitions with a false verdict.

    Args:
        claim: the claim.
        folder: the study's folder. The seeds are divided in their order.
        where: the claim's location in the claims file, for messages.

    Raises:
        UserError: If the number of seeds is not a multiple of the number of repetitions, a repetition has fewer than
            two seeds, or arms have roles that belong together, such as those of a ladder.
    """
    study = read_study(folder)
    seeds = list(study["seeds"])
    size = len(seeds) // max(claim.number, 1)
    if size < 2 or size * claim.number != len(seeds):
        problem = f"{len(seeds)} seeds cannot be divided into {claim.number} repetitions of at least 2 seeds"
        raise UserError(problem, path=where, remedy=f"Use {3 * claim.number} seeds, or another number of repetitions.")
    plan, against = read_plan(study, folder.where), baselines(study)
    if len({*against.values()}) > 1:
        problem = "repetitions are analysed with one baseline, and the arms of this study have several"
        raise UserError(problem, path=where, remedy="Use a study without ladder, tasks and across.")
    table = read_table(folder, study, plan.primary)
    if not table.complete:
        return Finding(claim, False, "not all runs have ended")
    wrong = {}
    for number in range(claim.number):
        part = seeds[number * size : (number + 1) * size]
        if arms := judge_repetition(table, part, against, plan):
            wrong[number] = arms
    listed = "; ".join(f"repetition {number}: {', '.join(arms)}" for number, arms in wrong.items())
    evidence = f"{len(wrong)} of {claim.number} repetitions of {size} seeds have one" + f" ({listed})" * bool(wrong)
    return Finding(claim, len(wrong) <= claim.most, evidence)


def judge_repetition(table: Table, seeds: list[int], against: Mapping[str, str], plan: Plan) -> list[str]:
    """Return the arms with a verdict of better or worse, each with its verdict, in an analysis of some of the seeds.

    Args:
        table: the study's runs.
        seeds: the seeds.
        against: the baseline of each arm that is not a baseline.
        plan: the study's plan. The seeds are its only planned analysis.
    """
    rows = {arm: [cell for cell in row if cell.seed in seeds] for arm, row in table.cells.items()}
    part, plan = replace(table, cells=rows), replace(plan, seeds=tuple(seeds), looks=(len(seeds),))
    (group,) = fit_groups(part, against, plan, ())
    counts = {arm: part.count(arm) for arm in rows}
    evidence = verdict.collect_evidence(group.fit.effects, group.imputed.effects, counts, against, plan, len(seeds), {})
    judged = {arm: verdict.decide_verdict(each, plan) for arm, each in evidence.items()}
    return [f"{arm} is {judged[arm]}" for arm in judged if judged[arm] in FALSE]
