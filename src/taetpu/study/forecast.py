"""Predicting the duration of packs before they are compiled, as a range based on measurements of this machine."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from taetpu.spec.evaluation import TRAINING, Sample
from taetpu.spec.resolved_study import RunSpec, Sources
from taetpu.train.callbacks import Forecast, Span
from taetpu.train.layout import Workload
from taetpu.train.model_cost import flops_per_token
from taetpu.train.pack_plan import PackPlan
from taetpu.train.step_time import cpu_contention, efficiency_bounds, matmul_rate, remembered_step

# Duration of a step relative to an earlier measurement on this machine, which may also do other work.
REPEATED = Span(0.7, 1.6)
# Seconds per FLOP relative to a train step: for evaluation, and for sampling, which reads one window at a time.
EVALUATING, DRAWING = Span(0.6, 2.0), Span(0.8, 6.0)
# Seconds to store metrics, for each evaluation and checkpoint of a run.
STORING = Span(0.005, 0.15)
# Seconds to compile a program: CACHED if it was compiled before; otherwise at most COMPILED plus A_LAYER per layer,
# for up to UNROLLED layers.
CACHED, COMPILED, A_LAYER, UNROLLED = Span(0.3, 4.0), 8.0, 1.5, 8
# Seconds to start, check the arms, analyse and report.
AROUND = Span(2.0, 12.0)


BEFORE = "what such packs took on this machine"
"""Source of a forecast that is based on earlier steps."""

Pack = tuple[PackPlan, Sequence[RunSpec], int]
"""A pack, its runs, and the number of steps that the runs have already taken."""


def forecast(packs: Iterable[Pack], sources: Sources, sample: Sample) -> Forecast | None:
    """Return the predicted duration of packs trained one after another, or None if it cannot be predicted.

    The duration of a step was measured when such a pack was trained on this machine. Otherwise, on a CPU, it is
    estimated from the machine's matmul rate and the fraction of that rate that models of this width reach. On an
    accelerator there is no estimate. Only a matrix product is compiled.
    """
    steps = evaluating = storing = compiling = Span()
    run_steps, programs, sources_of = 0, set[str](), dict[str, None]()
    for plan, runs, taken in packs:
        source = sources.prepare(runs[0].config)
        work = plan.work(runs, source)
        a_step, origin = _step(work, plan)
        if a_step is None:
            return None
        sources_of[origin] = None
        train, total = runs[0].config.train, runs[0].config.train.total_steps(source.num_windows)
        left = max(total - taken, 0)
        evaluations = train.num_evaluations(total, taken)
        saves = left // train.checkpoint if isinstance(train.checkpoint, int) else 0
        in_windows = a_step.times(1 / (TRAINING * train.batch_size))  # forward pass over one window of each run
        drawn = train.sample.tokens if train.sample and runs[0].config.task.causal else 0
        steps += a_step.times(left)
        windows = in_windows.times(_windows(source, sample, evaluations))
        evaluating += windows.times(EVALUATING.low, EVALUATING.high)
        evaluating += in_windows.times(drawn * evaluations).times(DRAWING.low, DRAWING.high)
        storing += STORING.times(len(runs) * (evaluations + saves)).times(1, cpu_contention())
        program = plan.program_key(runs[0].config)
        if program not in programs:
            layers = min(len(runs[0].config.model.layers), UNROLLED)
            most = CACHED.high if origin == BEFORE else COMPILED + A_LAYER * layers
            compiling += Span(CACHED.low, most * cpu_contention())
            programs.add(program)
        run_steps += left * len(runs)
    around = AROUND.times(1, cpu_contention())
    return Forecast(steps, evaluating, storing, compiling, run_steps, len(programs), " and ".join(sources_of), around)


def _step(work: Workload, plan: PackPlan) -> tuple[Span | None, str]:
    """Return the duration of a step of a pack and the source of that duration, or None and ""."""
    timed = remembered_step(work, plan.layout)
    if timed is not None:
        return REPEATED.times(timed), BEFORE
    if jax.default_backend() != "cpu":
        return None, ""
    config, source = work.config, work.source
    a_run = config.train.batch_size * source.seq_len * flops_per_token(config.model, source.vocab_size, source.seq_len)
    rate, (least, most) = matmul_rate(), efficiency_bounds(config.model.dim)
    flops = plan.width * a_run
    span = Span(flops / (rate * cpu_contention() * most), flops / (rate * least))
    return span, f"this machine's matmul rate, {rate / 1e9:.0f} GFLOP/s"


def _windows(source: Any, sample: Sample, evaluations: int) -> int:
    """Return the number of windows that a run evaluates: the sample during training, both full splits at the end."""
    val, test = (0 if part is None else len(part.tokens) for part in map(source.evaluation, ("val", "test")))
    sampled = sample.size_within(val) if val else 0
    return max(evaluations - 1, 0) * sampled + val + test
