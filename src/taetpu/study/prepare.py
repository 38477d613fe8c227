"""The arms of a study, proved before any is trained: those that it names, and those matched to the baseline."""

import jax

from taetpu.contract.check import Progress, check
from taetpu.contract.computation import Computation
from taetpu.core.errors import UserError
from taetpu.nn.execution import AS_BUILT
from taetpu.spec.design import Arm, Study
from taetpu.study.matching import beside, matched
from taetpu.study.tuning import trials
from taetpu.train.compute import AUTO_TAKES, check_path, platform_of
from taetpu.train.plan import partitionable
from taetpu.train.sharding import check_mesh


def proved(study: Study, told: Progress = lambda done, of: None) -> tuple[Study, dict[str, Computation]]:
    """A study with its matched arms, those by time apart, and what each arm computes.

    Args:
        told: called with how many arms are proved, and of how many.

    Raises:
        UserError: the device here lacks the path of attention that is asked for; data cannot be used; an arm cannot
            be matched, breaks the contract, or cannot be tuned.
    """
    study.runs()
    baseline = study.arms[0]
    try:
        check_path(baseline.config.train.compute.attention, platform_of(jax.devices()[0]), AUTO_TAKES)
    except UserError as error:
        raise baseline.explain(error) from None
    study = beside(study, matched(study))
    computed = check(study, told)
    for arm in study.arms:
        refuse_mesh(study, arm)
    if study.tune is not None:
        trials(study).runs()
    return study, computed


def refuse_mesh(study: Study, arm: Arm) -> None:
    """Raise `UserError` where an arm's runs cannot be divided over devices as the study asks."""
    mesh = arm.config.train.compute.mesh
    if mesh != "auto":
        try:
            if mesh.data * mesh.model > 1:
                partitionable(AS_BUILT, arm.config)
            check_mesh(arm.config, study.source(arm).vocab_size, mesh.data, mesh.model)
        except UserError as error:
            raise arm.explain(error) from None
