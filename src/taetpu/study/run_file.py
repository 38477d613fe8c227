"""Running a study file from Python, whether it trains models or starts the user's command.

JAX is imported for studies of models only, so that a program keeps all devices for itself.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.core.errors import UserError
from taetpu.spec.programs.loading import is_program_study
from taetpu.spec.sets import Sets
from taetpu.study.outcome import Outcome
from taetpu.study.programs.running import ProgramOptions, run_program_file
from taetpu.study.shares import parse_shard

if TYPE_CHECKING:
    from taetpu.train.callbacks import Callback


def run(
    file: Path | str | Mapping[str, Any],
    sets: Sets = (),
    *,
    root: str | None = None,
    pack: str | int = "auto",
    reuse: Iterable[str] = (),
    audit: float = 0.0,
    until_resolved: bool = False,
    profile: int = 0,
    retrain_damaged: bool = False,
    search: bool = False,
    max_runs: int | None = None,
    shard: str | None = None,
    wait: bool = True,
    ray: str | None = None,
    callback: "Callback | None" = None,
) -> Outcome:
    """Load a study file and run it under a root, as `taetpu run` does.

    Args:
        file: the study file, or a dictionary with its content (see `taetpu.load_study`).
        sets: changes to the baseline: texts of the form `path=value`, or a dictionary of values by path.
        root: the folder of all studies. The default is `TAETPU_ROOT` if set, otherwise `./runs`.
        pack: `auto` (a rule of thumb), the maximum number of runs in a pack, or `off` (one run per pack). Packs that
            are already planned keep their plan.
        reuse: see `study.run.Options`.
        audit: see `study.run.Options`.
        until_resolved: see `study.run.Options`.
        profile: see `study.run.Options`.
        retrain_damaged: see `study.run.Options`.
        search: see `study.run.Options`.
        max_runs: see `study.run.Options`.
        shard: the share of the packs that this process trains, in the form `I/N`; see `study.shards`.
        wait: whether a shard waits for the other shards if more packs will be planned after they finish.
        ray: the address of the Ray cluster that trains the packs, or runs the programs. With "", a cluster on this host
            is used, and one is started if none is running.
        callback: receives the training events.

    Raises:
        UserError: if `load_study` or `run_study` raises it, if the shard is invalid, if there is no Ray cluster, or if
            there are several processes that were not started by `taetpu run`, or a dictionary of a study of models is
            given with `ray`.
        SharesLeft: if this shard is trained but other shards are not.
    """
    if is_program_study(file):
        given = {"pack": pack != "auto", "reuse": bool(tuple(reuse)), "audit": bool(audit), "profile": bool(profile),
                 "callback": callback is not None}  # fmt: skip
        if unused := [name for name, is_given in given.items() if is_given]:
            problem = f"{unused[0]} is for studies of models, and this study has a program"
            raise UserError(problem, path=(unused[0],), remedy=f"Remove {unused[0]}.")
        share = None if shard is None else parse_shard(shard)
        chosen = ProgramOptions(until_resolved, retrain_damaged, search, max_runs, share, wait, ray)
        return run_program_file(file, sets, root=root, options=chosen)
    from taetpu.study.run import Options, parse_audit, parse_profile, run_model_file
    from taetpu.train.layout import parse_packing

    trained = parse_packing(pack), tuple(reuse), parse_audit(audit), parse_profile(profile)
    options = Options(until_resolved, retrain_damaged, search, max_runs, *trained)
    machines = {"shard": shard, "wait": wait, "ray": ray}
    return run_model_file(file, sets, root=root, options=options, callback=callback, **machines)
