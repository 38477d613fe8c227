"""The arms of a study, proved before any is trained: those that it names, and those matched to the baseline."""

from taetpu.contract.check import Progress, check
from taetpu.contract.computation import Computation
from taetpu.core.errors import UserError
from taetpu.nn.execution import AS_BUILT
from taetpu.spec.design import Arm, Study
from taetpu.study.matching import beside, matched
from taetpu.study.tuning import trials
from taetpu.train.place import Place, first_device, here
from taetpu.train.plan import partitionable
from taetpu.train.sharding import check_mesh


def proved(
    study: Study, told: Progress = lambda done, of: None, elsewhere: Place | None = None
) -> tuple[Study, dict[str, Computation]]:
    """A study with its matched arms, those by time apart, and what each arm computes.

    Args:
        told: called with how many arms are proved, and of how many.
        elsewhere: where runs are to be trained, if not here.

    Raises:
        UserError: the devices lack what the study asks for; data cannot be used; an arm cannot be matched, breaks the
            contract, or cannot be tuned.
    """
    first_device()  # before data is prepared, which may take jax already
    study.runs()
    refuse_place(study, elsewhere)
    study = beside(study, matched(study))
    computed = check(study, told)
    for arm in study.arms:
        refuse_mesh(study, arm)
    if study.tune is not None:
        trials(study).runs()
    return study, computed


def refuse_place(study: Study, elsewhere: Place | None) -> None:
    """Raise `UserError` where devices cannot do what the study asks for, which is the same for all arms.

    Here there may be too few to divide a run over, as long as none is to be trained: see `train.plan.divided_layout`.
    """
    baseline = study.arms[0]
    compute = baseline.config.train.compute
    try:
        (elsewhere or here()).check_path(compute.attention)
        if elsewhere and compute.mesh != "auto":
            elsewhere.check_devices(compute.mesh.data, compute.mesh.model)
    except UserError as error:
        raise baseline.explain(error) from None


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
