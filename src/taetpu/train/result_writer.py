"""Writing metrics, models and results into the folders of a pack's runs."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from taetpu.core.distributed import multi_process
from taetpu.core.xla_flags import program_flags
from taetpu.data.mixture import facts_of_run
from taetpu.optim.selection import SELECTION
from taetpu.spec.resolved_study import RunSpec
from taetpu.spec.start import StoredParameters
from taetpu.train.evaluator import Evaluator
from taetpu.train.memory import kv_bytes, run_bytes
from taetpu.train.metric_series import Points, sum_blocks
from taetpu.train.model_cost import named_shapes, num_params
from taetpu.train.pack_plan import Pack
from taetpu.train.program import Program
from taetpu.train.training_flops import training_flops_per_token

Files = Mapping[str, bytes]


@dataclass
class ResultWriter:
    """Writes the metrics, models and results of a pack's runs.

    If a process was killed while it wrote the results of a pack, some runs of the pack already have a result. These
    runs are trained together with the others, but their files are not changed.

    Args:
        pack: the pack.
        program: the program of the pack.
        environment: the versions and devices that are recorded in each result.
        starts: the stored models that the runs start from; None for runs whose parameters are drawn.
    """

    pack: Pack
    program: Program
    environment: Mapping[str, Any]
    starts: Sequence[StoredParameters | None] = ()

    def __post_init__(self) -> None:
        self.open = {i: run.folder for i, run in enumerate(self.pack.runs) if not run.done}
        self.facts = dict(self.program.source.facts)
        self.store = self.pack.runs[0].folder.store

    def truncate(self, step: int) -> None:
        """Delete everything that was logged after a step. Training computes and logs the same values again."""
        for folder in self.open.values():
            folder.truncate(step)

    def digests(self) -> dict[str, Any]:
        """Return the digests of the stored files of each run without a result, by run key."""
        return {folder.key: folder.digests() for folder in self.open.values()}

    def verify(self, about: Mapping[str, Any]) -> None:
        """Raise `Damaged` if a file of the runs differs from its digest in a checkpoint.

        Args:
            about: the document of the checkpoint, with the digests of the files.
        """
        for folder in self.open.values():
            if folder.key in about.get("runs", {}):
                folder.verify_files(about["runs"][folder.key])
            else:  # a checkpoint of an earlier version has no digests
                folder.metrics()

    def append(
        self, start: int, end: int, points: Sequence[Points], times: Mapping[str, float],
        stopped_at: Int[np.ndarray, " run"],
    ) -> None:  # fmt: skip
        """Append the points measured from `start` to `end`, and the wall times at `end`, to each run's metrics.

        Args:
            start: the step of the previous call.
            end: the current step.
            points: the points of each run in the program.
            times: the wall times by name.
            stopped_at: the step at which each run stopped; negative for the others. Its metrics end there.
        """
        ends = {i: end if stopped_at[i] < 0 else int(stopped_at[i]) for i in self.open}
        self.store.run_concurrently(
            partial(folder.append, start, ends[i], points[i], {name: ([ends[i]], [v]) for name, v in times.items()})
            for i, folder in self.open.items() if ends[i] > start or not self.program.steps
        )  # fmt: skip

    def write_texts(self, step: int, texts: Mapping[int, str]) -> None:
        """Write the texts sampled at a step; `texts` is keyed by index in the pack."""
        for place, text in texts.items():
            self.pack.runs[place].folder.write_sample(step, text)

    def write_checkpoints(self, step: int, models: Mapping[int, Files]) -> None:
        """Write the models at a step. The study keeps these checkpoints."""
        for place, files in models.items():
            self.open[place].write_checkpoint(step, files)

    def write_models(self, models: Mapping[int, Files]) -> None:
        """Write the final models."""
        self.store.run_concurrently((partial(self.open[place].write_model, files) for place, files in models.items()))

    def read_models(self) -> dict[int, Files]:
        """Read the final models back from the store."""
        return {place: folder.read_model() for place, folder in self.open.items()}

    def finish(
        self,
        places: Sequence[int],
        evaluator: Evaluator,
        final: Sequence[Mapping[str, float]],
        diverged: Int[np.ndarray, " run"],
        selected: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write the results of the runs at the given indices.

        Args:
            places: the indices of the runs in the pack.
            evaluator: the evaluator of the pack.
            final: the metrics on whole evaluation sets, by index.
            diverged: the step at which each run diverged, by index; negative for runs that did not diverge.
            selected: the choices of each run (see `train.selection.selection_facts`), by index.
        """
        self.store.run_concurrently(
            partial(self._finish_run, i, evaluator, final[i], int(diverged[i]), selected[i])
            for i in places if i in self.open
        )  # fmt: skip

    def _finish_run(
        self, place: int, evaluator: Evaluator, final: Mapping[str, float], diverged: int, selected: Mapping[str, Any]
    ) -> None:
        """Write the evaluation of one run, then its result. A run is done once it has a result."""
        run, folder, source = self.pack.runs[place], self.open[place], self.program.source
        kept = {entry for entry, metric in run.config.train.eval_metrics.items() if metric.keeps_sequences}
        folder.write_evaluation(
            {f"{split}/{name}": values[place] if name.partition(".")[0] in kept else sum_blocks(values[place])
             for split, sums in evaluator.sums.items() for name, values in sums.items()}
            | evaluator.items.stored(place)
        )  # fmt: skip
        stopped_at = selected.get("stopped_at")
        steps = self.program.steps if stopped_at is None else stopped_at
        spent = cost(self.program, run, steps)
        series = folder.metrics()
        beside = {SELECTION, *run.config.train.metrics}
        observed = {*spent, *(name for name in series if name.split("/")[0] in beside)}
        last = {name: float(s.value[-1]) for name, s in series.items() if name not in observed}
        bad = diverged >= 0 or not all(math.isfinite(v) for v in last.values())
        windows = steps * run.config.train.batch_size
        data = {**self.facts, **facts_of_run(source, run.seed, windows)}
        memory = run_bytes(run.config, source, self.pack.plan.compute, self.pack.plan.precision)
        folder.finish(
            {
                "outcome": "diverged" if bad else "finished" if stopped_at is None else "stopped",
                "diverged_at": diverged if diverged >= 0 else None,
                **selected,
                "steps": steps,
                "metrics": {**last, **final},
                "val_sample": {"windows": evaluator.sampled, "of": evaluator.val_windows},
                **({"items": evaluator.items.facts} if evaluator.items.scores else {}),
                "params": num_params(run.config.model, source.interface, source.seq_len),
                "memory": {"training": memory, "kv_cache": kv_bytes(run.config, source)},
                **spent,
                "pack": self.pack.plan.facts,
                "environment": {**self.environment, "data": data, **self._start(place)},
            }
        )

    def _start(self, place: int) -> dict[str, Any]:
        """Return what the run at an index loads from a stored model (see `StoredParameters.facts`)."""
        start, source = self.starts[place] if self.starts else None, self.program.source
        if start is None:
            return {}
        model = self.pack.runs[place].config.model
        return {"start": start.facts(named_shapes(model, source.interface, source.seq_len))}


class NoWriter:
    """Replaces `ResultWriter` in the processes that do not write.

    Args:
        open: the indices in the pack of the runs that have no result yet.
    """

    def __init__(self, open: Sequence[int] = ()):
        self.open = open


def cost(program: Program, run: RunSpec, step: int) -> dict[str, float]:
    """Return the number of tokens that a run has been trained on after `step` steps, and the training FLOPs used."""
    tokens = step * run.config.train.batch_size * program.source.seq_len
    return {"tokens": tokens, "flops": tokens * training_flops_per_token(run.config, program.source)}


def environment() -> dict[str, Any]:
    """Return the devices and versions used for training, which are recorded in results."""
    device = jax.devices()[0]
    names = ("taetpu", "jax", "jaxlib", "equinox", "optax", "numpy")
    processes = {"processes": jax.process_count()} if multi_process() else {}
    return {
        **processes,
        "device": device.device_kind,
        "platform": device.platform,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "matmul_precision": str(getattr(jax.config, "jax_default_matmul_precision", None) or "default"),
        **program_flags(),
        "versions": {name: version(name) for name in names},
    }
