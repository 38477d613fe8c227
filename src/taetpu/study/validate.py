"""Checks of a study before its runs are trained."""

from collections.abc import Sequence
from typing import Any

from taetpu.contract.check import Progress, check_arms
from taetpu.contract.traced_program import Computation
from taetpu.core.errors import ErrorList, UserError, change_errors
from taetpu.nn.compute_options import DEFAULT_OPTIONS
from taetpu.spec.resolved_study import Arm, Study
from taetpu.study.arm_stages import ArmStages
from taetpu.study.post_hoc import check_tables
from taetpu.train.device_capabilities import Capabilities, first_device, local_capabilities
from taetpu.train.layout import memory_shortfall, without_kernels
from taetpu.train.model_cost import num_params
from taetpu.train.pack_plan import Run
from taetpu.train.sharding import check_mesh


def check_study(
    study: Study, progress: Progress = lambda done, total: None, place: Capabilities | None = None
) -> tuple[ArmStages, dict[str, Computation]]:
    """Check the arms of a study that are known without measurements, and the tuning trials of these arms.

    Time-matched arms and tuned arms are not checked, because they depend on measurements.

    Args:
        study: the study as loaded from its file.
        progress: called with the number of checked arms and the number of all arms.
        place: the devices that train the runs, or None if the devices of this process train them.

    Returns:
        The stages of the study's arms, and the computation of each checked arm, by name.

    Raises:
        UserError: if the devices do not support the requested attention or mesh, if the data cannot be used, or if an
            arm cannot be matched, breaks the contract or cannot be tuned, or if a post-hoc ablation table cannot be
            computed for a baseline.
    """
    stages = stage_study(study, place)
    return stages, check_stages(stages, progress)


def stage_study(study: Study, place: Capabilities | None = None) -> ArmStages:
    """Return the stages of a study's arms, whose data is prepared. The arms are not checked yet; see `check_study`."""
    first_device()  # must be called before the data is prepared, because preparing the data may use JAX
    study.runs()
    refuse_place(study, place)
    stages = ArmStages.of(study)
    for arm in stages.sized.arms:
        stages.sized.items(arm)
    return stages


def check_stages(stages: ArmStages, progress: Progress = lambda done, total: None) -> dict[str, Computation]:
    """Check the arms of a study with prepared data, and return their computations by name; see `check_study`."""
    checked = stages.sized
    computed = check_arms(checked, progress)
    check_tables(checked)
    for arm in checked.arms:
        refuse_mesh(checked, arm)
    if stages.trials is not None:
        stages.trials.runs()
    return computed


def refuse_place(study: Study, place: Capabilities | None) -> None:
    """Raise `UserError` if the devices do not support the compute options of the study, which all arms share.

    The mesh is only checked against `place`. This process may have fewer devices if it trains no runs itself.
    """
    compute = study.arms[0].config.train.compute
    with change_errors(study.arms[0].explain):
        (place or local_capabilities()).check_path(compute.attention)
        if place and compute.mesh != "auto":
            place.check_devices(compute.mesh.data, compute.mesh.model)


def refuse_too_large(study: Study, runs: Sequence[Run]) -> None:
    """Raise `UserError` if an unfinished run does not fit into the memory of the devices."""
    mistakes = ErrorList()
    for group in too_large(study, {run.arm for run in runs if not run.done}):
        problem = (
            f"{', '.join(group['arms'])}: a run needs {group['needed']:,} bytes for parameters, gradients and the "
            f"optimizer's moments, but {group['where']} has only {group['available']:,}"
        )
        first = next(arm for arm in study.arms if arm.name == group["arms"][0])
        source = study.source(first)
        params = num_params(first.config.model, source.interface, source.seq_len)
        fitting = group["available"] * params // group["needed"]
        remedy = (
            f"Use a model of at most about {fitting:,} parameters, or a machine with more memory. "
            "`taetpu plan --tpu all` lists the TPUs on which the runs fit."
        )
        mistakes.append(first.explain(UserError(problem, path=("model",), remedy=remedy)))
    mistakes.raise_all()


def too_large(study: Study, names: set[str]) -> list[dict[str, Any]]:
    """Find the arms among `names` whose runs do not fit into memory.

    Returns:
        One entry for each size: its `arms`, the bytes `needed` and `available`, and the name `where` of the machine or
        device.
    """
    where = "this machine" if first_device().platform == "cpu" else "a device here"
    arms_by_size: dict[tuple[int, int], list[str]] = {}
    for arm in study.arms:
        short = memory_shortfall(arm.config, study.source(arm)) if arm.name in names else None
        if short is not None:
            arms_by_size.setdefault(short, []).append(arm.name)
    return [
        {"arms": arms, "needed": needed, "available": available, "where": where}
        for (needed, available), arms in arms_by_size.items()
    ]


def refuse_mesh(study: Study, arm: Arm) -> None:
    """Raise `UserError` if an arm's runs cannot be sharded over the mesh that the study requests."""
    mesh = arm.config.train.compute.mesh
    if mesh != "auto":
        with change_errors(arm.explain):
            if mesh.data * mesh.model > 1:
                without_kernels(DEFAULT_OPTIONS, arm.config)
            check_mesh(arm.config, study.source(arm).vocab_size, mesh.data, mesh.model)
