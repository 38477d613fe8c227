"""The stages of a study of a program: runs, tuning, searches, then the analysis and the report."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from taetpu.core.errors import UserError
from taetpu.programs.output import read_output
from taetpu.report.build import build_report
from taetpu.spec.goal import path_costs
from taetpu.spec.programs.loading import derive_arm
from taetpu.spec.programs.study import ProgramRun, ProgramStudy
from taetpu.stats.analyse import analyse
from taetpu.store.backend import move_to_damaged, open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.claiming import waiting_claim
from taetpu.study.outcome import Failure, Outcome
from taetpu.study.programs.events import Events
from taetpu.study.programs.freezing import freeze_program
from taetpu.study.programs.pool import Pool, machine_pool
from taetpu.study.programs.run_files import RunFiles
from taetpu.study.search import search_steps
from taetpu.study.shares import Shard, ShareLoop
from taetpu.study.tuning import choose_values, trial_study, tuned_arms
from taetpu.trackers.feed import Trackers

REPEAT = "repeat"
"""The folder, within a study's folder, of the baseline's run that is repeated with the same seed."""


@dataclass
class ProgramRunner:
    """Runs, analyses and reports a study up to its next interim analysis.

    Attributes:
        folder: the study's folder.
        events: receives what happens.
        shard: the share of this process; None if it runs all.
        staged: whether more runs may be planned once all current runs are done.
        wait: whether a shard waits for the runs of others if `staged` is set.
        study_claim: holds the study's claim.
        make_pool: returns what runs the programs of a study, in a folder, for a number of runs.
    """

    folder: StudyFolder
    events: Events
    shard: Shard | None = None
    staged: bool = False
    wait: bool = True
    study_claim: ExitStack = field(default_factory=ExitStack)
    make_pool: Callable[[ProgramStudy, StudyFolder, int, Events], Pool] = machine_pool

    def run_until_analysis(self, study: ProgramStudy) -> Outcome:
        """Run the programs of the arms, of tuning trials and of tuned arms, then analyse and report."""
        self.freeze(study)
        failed = self.run_programs(study, study.runs())
        if study.tune is not None:
            trials: ProgramStudy = trial_study(study, derive_arm)
            failed += self.run_programs(trials, trials.runs())
            best = choose_values(study, [(run.arm, self.record(run)) for run in trials.runs()])
            if best is not None:
                tuned = study.changed(arms=(*study.arms, *tuned_arms(study, best, derive_arm)))
                freeze_program(tuned, self.folder, tuning=best)
                failed += self.run_programs(tuned, tuned.runs())
        return self.conclude(study, failed)

    def search(self, study: ProgramStudy, max_runs: int | None) -> Outcome:
        """Run the candidates of the goal one by one (see `search_steps`), then analyse and report."""
        failed = list[Failure]()
        self.freeze(study)
        for step in search_steps(study, self.folder, max_runs):
            runs = [run for run in study.runs() if run.arm in step["arms"] and run.seed in step["seeds"]]
            if failed := self.run_programs(study, runs):
                break
        return self.conclude(study, failed)

    def freeze(self, study: ProgramStudy) -> None:
        """Freeze the study, with the costs of its candidates as far as they are known."""
        freeze_program(study, self.folder, **self.costs(study))

    def conclude(self, study: ProgramStudy, failed: list[Failure]) -> Outcome:
        """Record the costs that programs printed, analyse and report."""
        if costs := self.costs(study):
            self.folder.write_study({**self.folder.read_study(), **costs}, replace=True)
        if study.program.repeat and not failed:
            failed = self.repeat_baseline(study)
        results = analyse(self.folder)
        if not failed:
            self.folder.delete_claims()
        return Outcome(results, build_report(self.folder), failed, folder=self.folder.where)

    def costs(self, study: ProgramStudy) -> dict[str, Any]:
        """Return the costs of the candidates of a goal, if there is one, as an entry of `study.yaml`."""
        if study.goal is None:
            return {}
        minimise, known = study.goal["minimise"], dict[str, float]()
        if minimise not in study.program.costs:
            known = path_costs(minimise, [(arm.name, arm.settings) for arm in study.arms], [])
        else:
            for run in study.runs():
                cost = None if run.arm in known else self.printed_cost(study, run, minimise)
                known |= {} if cost is None else {run.arm: cost}
        return {"goal_costs": known}

    def printed_cost(self, study: ProgramStudy, run: ProgramRun, name: str) -> float | None:
        """Return a cost that a finished run's program printed last; None if the run is not finished.

        Raises:
            UserError: If the program printed no such cost.
        """
        record = self.record(run)
        if record.status() != "done":
            return None
        files = RunFiles(self.folder, record)
        text = read_output(files.output(files.attempts()[-1])).decode(errors="replace")
        matches = list(re.finditer(study.program.costs[name], text))
        try:
            return float(matches[-1][1].replace(",", ""))
        except (IndexError, ValueError):
            problem = f"no number matches the pattern of {name!r} in the output of {run.title}"
            remedy = "Write a pattern with one group that matches the number."
            path = ("program", "costs", name)
            raise study.document.locate(UserError(problem, path=path, remedy=remedy)) from None

    def repeat_baseline(self, study: ProgramStudy) -> list[Failure]:
        """Run the baseline's program a second time on the first seed, and store both values of the primary metric.

        Their difference is the noise that remains with equal seeds. The second run is no run of the study.
        """
        run, metric = study.run(study.arms[0], study.seeds[0]), study.measure.primary
        if self.folder.read_repeat() is not None or self.record(run).status() != "done":
            return []
        again = StudyFolder(open_store(self.folder.where), REPEAT)
        finished = again.run(run.arm, run.seed, run.id).status() == "done"
        failed = [] if finished else self.make_pool(study, again, 1, self.events).run([run])
        if not failed:
            results = [record.result() or {} for record in (self.record(run), again.run(run.arm, run.seed, run.id))]
            values = [result["metrics"].get(metric) for result in results]
            self.folder.write_repeat({"arm": run.arm, "seed": run.seed, "metric": metric, "values": values})
        return failed

    # Runs.

    def run_programs(self, study: ProgramStudy, runs: Sequence[ProgramRun]) -> list[Failure]:
        """Run the programs of runs that have no result. Return the runs whose programs failed.

        Raises:
            SharesLeft: If runs are left to other processes and this process does not wait for them.
        """
        todo = self.missing(runs)
        self.set_aside(todo)
        pool = self.make_pool(study, self.folder, len(todo), self.events)
        self.events.on_study_begin(study, len(todo), pool.at_once)
        with self.tracked(study) as trackers:
            if not todo:
                return []
            if study.trackers:
                pool.tick = trackers.follow
            failed = pool.run(todo) if self.shard is None else self.run_share(study, pool, runs, self.shard)
            if study.trackers:
                trackers.finish([self.record(run) for run in todo])
        return failed

    def run_share(self, study: ProgramStudy, pool: Pool, runs: Sequence[ProgramRun], shard: Shard) -> list[Failure]:
        """Run the programs of this share and of runs that others abandoned (see `ShareLoop`)."""
        share = {run.id for run in shard.select(runs)}
        loop = ShareLoop(self.folder, shard, self.staged, self.wait, self.events.on_wait, self.has_begun, what="run")
        self.study_claim.close()
        failed = loop.run(
            lambda: self.missing(runs),
            lambda missing: [run for run in missing if run.id in share],
            lambda todo: (pool.run(todo), set(pool.held)),
        )
        self.events.on_wait("")
        self.acquire()
        return failed

    def acquire(self) -> None:
        """Wait for the study's claim and hold it."""
        self.study_claim.enter_context(waiting_claim(self.folder.claim, self.events.on_wait))

    def has_begun(self, run: ProgramRun) -> bool:
        """Return whether a process has begun a run."""
        return run.id in self.folder.claimed_packs()

    def missing(self, runs: Iterable[ProgramRun]) -> list[ProgramRun]:
        """Return the runs without a result."""
        return [run for run in runs if self.record(run).status() != "done"]

    def record(self, run: ProgramRun) -> RunFolder:
        """Return the record of a run."""
        return self.folder.run(run.arm, run.seed, run.id)

    def set_aside(self, todo: Sequence[ProgramRun]) -> None:
        """Move away the unfinished runs of an earlier version of the program, in whose place these runs are."""
        planned = {(run.arm, run.seed): run.id[:8] for run in todo}
        for record in self.folder.runs():
            if planned.get((record.arm, record.seed), record.id) != record.id and record.status() != "done":
                move_to_damaged(self.folder.store, self.folder.name, record.key)

    @contextmanager
    def tracked(self, study: ProgramStudy) -> Iterator[Trackers]:
        """Yield the study's trackers, which have received the runs that are stored."""
        trackers = Trackers(self.folder, dict(study.trackers), self.events.on_tracker_failed)
        try:
            if study.trackers:
                trackers.catch_up()
            yield trackers
        finally:
            trackers.close()
