"""The other processes of a cluster: they train along the packs that the primary process announces.

The primary runs the study as a process alone does. Before each pack it broadcasts the pack's plan, with the runs'
configs; in the end, that there are no more.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from taetpu.core.distributed import LocalFailure, PeerFailed, broadcast, in_every_process, multi_process
from taetpu.core.errors import UserError
from taetpu.core.loading import load_config
from taetpu.core.signals import record_interrupts
from taetpu.spec.evaluation import Sample
from taetpu.spec.identity import run_id
from taetpu.spec.resolved_study import RunSpec, Sources
from taetpu.spec.schema import ResolvedConfig
from taetpu.store.study import StudyFolder
from taetpu.train.callbacks import Callback
from taetpu.train.evaluator import Evaluator
from taetpu.train.pack_plan import Pack, PackPlan, Run
from taetpu.train.program import ProgramCache
from taetpu.train.readback import NotReproduced
from taetpu.train.results import NoWriter
from taetpu.train.trainer import PackTrainer

USER_ERROR, INTERRUPTED = 2, 130  # exit codes


@contextmanager
def announce_end() -> Iterator[None]:
    """Tell the other processes, in the end, that no pack follows, and the exit code."""
    try:
        yield
    except LocalFailure:  # they wait in another collective
        raise
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        _end(INTERRUPTED if interrupted else getattr(error, "exit_code", USER_ERROR))
        raise
    _end(0)


def _end(code: int) -> None:
    if multi_process():
        broadcast({"pack": None, "exit_code": code})


def follow(folder: StudyFolder, sources: Sources) -> int:
    """Train along the packs that the primary process announces, until it ends.

    Args:
        folder: the study's, which all processes share.
        sources: prepares tasks from this process's files.

    Returns:
        The exit code of the primary.

    Raises:
        UserError: this process's data or plug-ins give other runs than the primary's.
    """
    programs, refused = ProgramCache(), list[UserError]()
    with record_interrupts():  # Ctrl-C counts at the next dispatch, where all processes hear of it
        while (message := broadcast())["pack"] is not None:
            with suppress(PeerFailed, NotReproduced, KeyboardInterrupt):  # the primary tells the user
                try:
                    runs = in_every_process(lambda message=message: tuple(_load_runs(message["runs"], sources, folder)))
                except UserError as error:  # the primary hears of it, and ends
                    refused.append(error)
                    continue
                pack = Pack(PackPlan.from_data(message["pack"]), runs)
                program = programs.get(pack, sources.prepare(pack.config))
                evaluator = Evaluator(program, runs, Sample.from_data(message["sample"]))
                PackTrainer(pack, program, folder, NoWriter(message["open"]), evaluator, Callback()).run()
    if refused:
        raise refused[0]
    return message["exit_code"]


def _load_runs(entries: Sequence[dict[str, Any]], sources: Sources, folder: StudyFolder) -> Iterator[Run]:
    for entry in entries:
        config = load_config(ResolvedConfig, entry["config"])
        data = sources.prepare(config).fingerprint
        if run_id(config, entry["seed"], data) != entry["id"]:
            problem = f"this process would train another run as arm {entry['arm']!r} than the primary process"
            raise UserError(problem, remedy="Give all processes the same data, plug-ins and versions.")
        yield Run.at(RunSpec(entry["arm"], entry["seed"], config, entry["id"], data), folder)
