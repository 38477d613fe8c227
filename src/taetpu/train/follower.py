"""Training in the non-primary processes of a cluster. They train the packs that the primary process announces.

The primary process runs the study as if it were the only process. Before each pack, it broadcasts the pack's plan and
the configs of its runs. After the last pack, it broadcasts the exit code.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import SIGINT
from typing import Any

from taetpu.core.config_parsing import load_config
from taetpu.core.distributed import PeerFailed, broadcast, find_local_failure, in_every_process, multi_process
from taetpu.core.errors import UserError
from taetpu.core.signals import record_signal
from taetpu.spec.eval_sample import Sample
from taetpu.spec.resolved_study import RunSpec, Sources
from taetpu.spec.run_ids import run_ids
from taetpu.spec.study_config import ResolvedConfig
from taetpu.store.study import StudyFolder
from taetpu.train.callbacks import Callback
from taetpu.train.evaluator import Evaluator
from taetpu.train.pack_plan import Pack, PackPlan, Run
from taetpu.train.program_cache import ProgramCache
from taetpu.train.reload_check import NotReproduced
from taetpu.train.result_writer import NoWriter
from taetpu.train.trainer import PackTrainer

USER_ERROR, INTERRUPTED = 2, 130  # exit codes


@contextmanager
def announce_end() -> Iterator[None]:
    """Broadcast the exit code to the other processes at the end of the block."""
    try:
        yield
    except BaseException as error:
        if find_local_failure(error):  # the other processes are waiting in a different collective
            raise
        interrupted = isinstance(error, KeyboardInterrupt)
        _end(INTERRUPTED if interrupted else getattr(error, "exit_code", USER_ERROR))
        raise
    _end(0)


def _end(code: int) -> None:
    if multi_process():
        broadcast({"pack": None, "exit_code": code})


def follow(folder: StudyFolder, sources: Sources) -> int:
    """Train the packs that the primary process announces, until the primary process ends.

    Args:
        folder: the study's folder, shared by all processes.
        sources: the object that prepares tasks from this process's files.

    Returns:
        The exit code of the primary process.

    Raises:
        UserError: if the runs have different IDs in this process, because its data or plug-ins differ.
    """
    programs, refused = ProgramCache(), list[UserError]()
    with record_signal(SIGINT):  # Ctrl-C takes effect in all processes at the next dispatch
        while (message := broadcast())["pack"] is not None:
            with suppress(UserError, PeerFailed, NotReproduced, KeyboardInterrupt):  # reported by the primary process
                try:
                    runs = in_every_process(lambda message=message: tuple(_load_runs(message, sources, folder)))
                except UserError as error:  # the primary process ends too
                    refused.append(error)
                    continue
                pack = Pack.of(PackPlan.from_data(message["pack"]), runs)
                program = programs.get(pack, sources.prepare(pack.config))
                items = sources.items(pack.config)
                evaluator = Evaluator(program, runs, Sample(**message["sample"]), items)
                starts = [sources.start(run.config, run.seed) for run in runs]
                writer = NoWriter(message["open"])
                PackTrainer(pack, program, folder, writer, evaluator, Callback(), starts=starts).run()
    if refused:
        raise refused[0]
    return message["exit_code"]


def _load_runs(message: dict[str, Any], sources: Sources, folder: StudyFolder) -> Iterator[Run]:
    for entry in message["runs"]:
        config = load_config(ResolvedConfig, entry["config"])
        data = sources.prepare(config).fingerprint
        stored = sources.start(config, entry["seed"])
        start = "" if stored is None else stored.digest
        if run_ids(config, {entry["seed"]: start}, data) != [entry["id"]]:
            problem = f"the run of arm {entry['arm']!r} has different IDs in this process and in the primary process"
            raise UserError(problem, remedy="Use the same data, plug-ins and package versions in all processes.")
        digests = {name: items.file.sha256 for name, items in sources.items(config).items()}
        if different := [name for name, digest in digests.items() if message["items"].get(name) != digest]:
            problem = f"the items of {different[0]!r} differ in this process and in the primary process"
            raise UserError(problem, remedy="Use the same files in all processes.")
        yield Run.at(RunSpec(entry["arm"], entry["seed"], config, entry["id"], data, start), folder)
