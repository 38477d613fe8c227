"""Compile a study for TPUs on a machine without a TPU, to estimate the memory, speed and cost of training."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taetpu.core.chips import Slice
from taetpu.core.errors import UserError
from taetpu.spec.resolved_study import RunSpec, Sources
from taetpu.tpu.compile_client import Compiler, CompileRequest, Facts
from taetpu.tpu.estimate import Work, bill, estimate
from taetpu.tpu.group_plan import GroupPlan, plan_group
from taetpu.tpu.padding import describe_padding, tiled_sizes
from taetpu.tpu.remedies import Compile, find_advice
from taetpu.train.choose_compute import list_fallbacks
from taetpu.train.layout import Packing, group_runs
from taetpu.train.training_flops import training_flops_per_token


@dataclass(frozen=True)
class PreflightRequest:
    """Runs to compile. Runs with the same structure share a program.

    Attributes:
        runs: the runs to train.
        sources: prepared tasks of the runs.
        packing: limit on the number of runs per pack.
        folder: base folder for relative paths in the tasks.
        plugins: the study's plug-in files.
    """

    runs: Sequence[RunSpec]
    sources: Sources
    packing: Packing
    folder: Path
    plugins: tuple[Path, ...]

    def plans(self, tpu: Slice) -> list[GroupPlan]:
        """Return the plans for a slice: one plan for each group of runs with the same structure."""
        return [
            plan_group(tpu, members, self.sources.prepare(members.runs[0].config), self.packing)
            for members in group_runs(self.runs)
        ]

    def compile_request(self, plan: GroupPlan, tpu: Slice) -> CompileRequest:
        """Return the request to compile a plan for a slice."""
        return CompileRequest(
            plan.first.config, plan.source, plan.group.live, plan.precision, plan.execution, plan.layout, tpu,
            self.folder, self.plugins, self.sources.seed,
        )  # fmt: skip


def preflight(
    request: PreflightRequest,
    tpus: Sequence[Slice],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Compile every program of a study for each slice.

    Args:
        on_progress: called with the number of compiled programs and the total number of programs.

    Returns:
        For each slice: its properties (`tpu, topology, chips, devices, hosts, hbm`), its `programs`, and totals over
        all programs (`hours, usd_on_demand, usd_spot`, each `[low, high]`). A program has `arms`, `runs`, `packs`,
        `width`, `devices` and `hazards`. If the program fits, it also has the result of `tpu.estimate.estimate`. If it
        does not fit, it has `too_large`. If it does not compile for another reason, it has an `error`.

    Raises:
        UserError: if the compiler is not installed, or the study has no train step.
    """
    if any(run.config.train.steps == 0 for run in request.runs):
        problem = "train.steps is 0, so there is no train step to compile"
        raise UserError(problem, path=("--tpu",), remedy="Remove --tpu, or set train.steps above 0.")
    with Compiler(on_progress) as compiler:

        def compile_plan(plan: GroupPlan, tpu: Slice) -> Facts:
            return compiler.compile(request.compile_request(plan, tpu))

        plans = [(tpu, plan) for tpu in tpus for plan in request.plans(tpu)]
        answers = compiler.compile_all([request.compile_request(plan, tpu) for tpu, plan in plans])
        results = []
        for tpu in tpus:
            compiled = [(plan, facts) for (slice_, plan), facts in zip(plans, answers, strict=True) if slice_ is tpu]
            fitted = [_halve_until_fitting(plan, facts, tpu, compile_plan) for plan, facts in compiled]
            advice = [
                find_advice(plan, facts, tpu, compile_plan) if "too_large" in facts else {} for plan, facts in fitted
            ]
            programs = [_describe_program(*pair, tpu, advised) for pair, advised in zip(fitted, advice, strict=True)]
            results.append(_describe_slice(tpu, programs))
    return results


def _halve_until_fitting(plan: GroupPlan, facts: Facts, tpu: Slice, compile_plan: Compile) -> tuple[GroupPlan, Facts]:
    """Halve the number of runs per pack, as training does, until packs fit or cannot be halved."""
    while "too_large" in facts and (half := plan.halve()) is not None:
        plan, facts = half, compile_plan(half, tpu)
    return plan, facts


def _describe_program(plan: GroupPlan, facts: Facts, tpu: Slice, advice: Mapping[str, Any]) -> dict[str, Any]:
    config, source, layout = plan.first.config, plan.source, plan.layout
    tokens, sizes = config.train.batch_size * source.seq_len, tiled_sizes(config, source)
    fallbacks = list_fallbacks(config, source, plan.execution, plan.precision, platform="tpu", divided=layout.divided)
    work = Work(
        packs=plan.packs,
        steps=config.train.total_steps(source.num_windows),
        runs=len(plan.group.runs),
        tokens=tokens,
        flops=tokens * training_flops_per_token(config, source, plan.execution.attention),
        width=layout.width,
        devices=layout.devices,
    )
    row: dict[str, Any] = {
        "arms": list(dict.fromkeys(run.arm for run in plan.group.runs)),
        "runs": work.runs,
        "packs": work.packs,
        **asdict(layout),
        "precision": plan.precision,
        **plan.execution.non_default,
        "routed": [str(fallback) for fallback in fallbacks],
        "program": facts.get("program"),
        "compile_seconds": facts.get("compile_seconds"),
        "padding": [asdict(size) | {"filled": round(size.filled, 4)} for size in sizes],
        "loops": facts.get("loops"),
        "hazards": [*_hazards(plan, tpu), *map(str, fallbacks), *describe_padding(sizes), *_uncertainties(facts)],
    }
    if "too_large" in facts:
        return {**row, "too_large": {**facts["too_large"], **advice}}
    if "memory" not in facts:
        return {**row, "error": facts["error"]}
    return {**row, "largest": facts["memory"]["largest"], **estimate(facts, work, tpu)}


def _hazards(plan: GroupPlan, tpu: Slice) -> list[str]:
    """Describe avoidable losses of time: idle devices and padded packs."""
    layout, runs, hazards = plan.layout, len(plan.group.runs), list[str]()
    if layout.devices < tpu.devices:
        idle = tpu.devices - layout.devices
        sharing = "1 run uses" if runs == 1 else f"{runs} runs share"
        hazards.append(
            f"{idle} of {tpu.devices} devices {'is' if idle == 1 else 'are'} idle, because {sharing} this program"
        )
    if spare := plan.packs * layout.width - runs:
        hazards.append(f"{spare} of {plan.packs * layout.width} slots in packs are padding")
    return hazards


def _uncertainties(facts: Facts) -> list[str]:
    """Describe the loops that make time estimates uncertain."""
    if not (endless := facts.get("endless")):
        return []
    loops = f"{endless} loop{'s' if endless > 1 else ''}"
    return [f"the trip count of {loops} with matmuls is unknown before execution and is counted as 1"]


def _describe_slice(tpu: Slice, programs: list[dict[str, Any]]) -> dict[str, Any]:
    compiling = sum(program["compile_seconds"] or 0.0 for program in programs)
    return {
        "tpu": tpu.name,
        "topology": tpu.topology_name,
        "chips": tpu.chips,
        "devices": tpu.devices,
        "hosts": tpu.hosts,
        "hbm": tpu.hbm_bytes_per_device,
        "fits": not any("too_large" in program or "error" in program for program in programs),
        "programs": programs,
        "compile_seconds": compiling,
        **bill([program.get("seconds") for program in programs], tpu),
        "rates": {"on_demand": tpu.usd_per_hour(False), "spot": tpu.usd_per_hour(True)},
    }


def describe_failures(compiled: Mapping[str, Any]) -> list[str]:
    """Return messages that explain why programs cannot be trained on a slice.

    Programs that do not fit are listed first, then programs that do not compile for another reason.
    """
    too_large = [
        _describe_too_large(program, compiled["tpu"]) for program in compiled["programs"] if "too_large" in program
    ]
    failed = [
        f"{', '.join(program['arms'])}: does not compile for {compiled['tpu']}: {program['error']}"
        for program in compiled["programs"]
        if "error" in program
    ]
    return [*too_large, *failed]


def _describe_too_large(program: Mapping[str, Any], tpu: str) -> str:
    """Return a message about a program that does not fit, with its largest buffers and a remedy."""
    large = program["too_large"]
    needed, available = _gib(large["needed"]), f"{_gib(large['available'])} on a device of {tpu}"
    subject = "the state (parameters and moments) of one run" if "state" in large else "one run"
    lines = [f"{', '.join(program['arms'])}: {subject} needs {needed} of {available}"]
    for buffer in large["largest"]:
        times = f"{buffer['count']} x " if buffer["count"] > 1 else ""
        lines.append(f"  {times}{_gib(buffer['bytes'])}  {buffer['shape']}  {buffer['what']}".rstrip())
    return "\n".join([*lines, f"  {_recommend(large, tpu)}"])


def _recommend(large: Mapping[str, Any], tpu: str) -> str:
    if large["remedy"]:
        return f"Use {large['remedy']}, with which the run needs {_gib(large['needs'])}."
    nothing = f"No setting that was tried makes the run fit on {tpu}."
    if (larger := large["larger"]) is None:
        return f"{nothing} Use a smaller model or another generation (`taetpu chips`)."
    mesh = f"train.compute.mesh={{data: {larger['data']}, model: {larger['model']}}}"
    option = f"--tpu {larger['tpu']} --set {shlex.quote(mesh)}"
    return f"{nothing} Try {option}. The state fits there, but the program was not compiled."


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
