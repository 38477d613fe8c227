"""Compile a study for a TPU on a machine without one: does it fit, how fast is it, what does it cost."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taetpu.core.chips import Slice
from taetpu.spec.resolved_study import RunSpec, Sources
from taetpu.tpu.compiler import Compiler, CompileRequest, Facts
from taetpu.tpu.estimate import Work, bill, estimate
from taetpu.tpu.group_plan import GroupPlan, plan_group
from taetpu.tpu.padding import advice, sizes
from taetpu.tpu.remedies import Compile, Larger, Remedy, helped, larger
from taetpu.train.compute import routed
from taetpu.train.flops import training_flops_per_token
from taetpu.train.layout import Packing, group


@dataclass(frozen=True)
class PreflightRequest:
    """What is to be known: how runs that are to be trained would do on slices.

    Attributes:
        runs: those to train; of each structure one stands for all.
        sources: their prepared tasks.
        folder, plugins: see `tpu.compiler.CompileRequest`.
    """

    runs: Sequence[RunSpec]
    sources: Sources
    packing: Packing
    folder: Path
    plugins: tuple[Path, ...]

    def request(self, planned: GroupPlan, tpu: Slice) -> CompileRequest:
        return CompileRequest(
            planned.first.config, planned.source, planned.group.live, planned.precision, planned.execution,
            planned.layout, tpu, self.folder, self.plugins,
        )  # fmt: skip

    def planned(self, tpu: Slice) -> list[GroupPlan]:
        """A program for each structure."""
        return [
            plan_group(tpu, members, self.sources.prepare(members.runs[0].config), self.packing)
            for members in group(self.runs)
        ]


def preflight(
    asked: PreflightRequest, tpus: Sequence[Slice], told: Callable[[int, int], None] = lambda done, of: None
) -> list[dict[str, Any]]:
    """What the compiler says of every program of a study, on each slice.

    Returns:
        For each slice its facts (`tpu, topology, chips, devices, hosts, hbm`), its `programs`, and what all of them
        take (`hours, usd_on_demand, usd_spot`, each `[low, high]`). A program has its `arms`, `runs`, `packs`, `width`
        and `devices`; where it fits what `tpu.estimate.estimate` says, where it does not `too_large`; an `error` where
        the compiler failed for another reason; `hazards` in words.

    Raises:
        UserError: the compiler is not installed.
    """
    with Compiler(told) as compiler:

        def compiled(planned: GroupPlan, tpu: Slice) -> Facts:
            return compiler.compile(asked.request(planned, tpu))

        planned = [(tpu, one) for tpu in tpus for one in asked.planned(tpu)]
        answers = compiler.compile_all([asked.request(one, tpu) for tpu, one in planned])
        found = []
        for tpu in tpus:
            pairs = [(one, answer) for (own, one), answer in zip(planned, answers, strict=True) if own is tpu]
            fitted = [_halved(one, answer, tpu, compiled) for one, answer in pairs]
            refused = [i for i, (_, facts) in enumerate(fitted) if "too_large" in facts]
            helps = dict(zip(refused, helped([fitted[i] for i in refused], tpu, compiled), strict=True))
            lost = [i for i, remedy in helps.items() if remedy is None and len(tpus) == 1]
            elsewhere = {i: larger(fitted[i][0], tpu, compiled) for i in lost}
            programs = [_program(*one, tpu, helps.get(i), elsewhere.get(i)) for i, one in enumerate(fitted)]
            found.append(_slice(tpu, programs))
    return found


def _halved(planned: GroupPlan, facts: Facts, tpu: Slice, compiled: Compile) -> tuple[GroupPlan, Facts]:
    """A program in packs that fit, as training would halve them; a run alone where none do."""
    narrower = planned.narrower()
    while "too_large" in facts and narrower is not None:
        planned, facts = narrower, compiled(narrower, tpu)
        narrower = planned.narrower()
    return planned, facts


def _program(
    planned: GroupPlan, facts: Facts, tpu: Slice, remedy: Remedy | None = None, elsewhere: Larger | None = None
) -> dict[str, Any]:
    config, source, layout = planned.first.config, planned.source, planned.layout
    tokens = config.train.batch_size * source.seq_len
    work = Work(
        packs=planned.packs,
        steps=config.train.total_steps(source.num_windows),
        runs=len(planned.group.runs),
        tokens=tokens,
        flops=tokens * training_flops_per_token(config, source, planned.execution.attention),
        width=layout.width,
        devices=layout.devices,
    )
    found: dict[str, Any] = {
        "arms": list(dict.fromkeys(run.arm for run in planned.group.runs)),
        "runs": work.runs,
        "packs": work.packs,
        **asdict(layout),
        "precision": planned.precision,
        **planned.execution.told,
        "routed": _routed(planned),
        "program": facts.get("program"),
        "compile_seconds": facts.get("compile_seconds"),
        "padding": [asdict(one) | {"filled": round(one.filled, 4)} for one in sizes(config, source)],
        "filled": facts.get("filled"),
        "loops": facts.get("loops"),
        "collectives": facts.get("collectives"),
        "hazards": _hazards(planned, facts, tpu),
    }
    if "too_large" in facts:
        return {**found, "too_large": {**facts["too_large"], **_way_out(remedy, elsewhere)}}
    if "memory" not in facts:
        return {**found, "error": facts["error"]}
    return {**found, "largest": facts["memory"]["largest"], **estimate(facts, work, tpu)}


def _way_out(remedy: Remedy | None, elsewhere: Larger | None) -> dict[str, Any]:
    """What makes a run fit: a `remedy` on the same slice, and what it `needs` then; or a `larger` slice."""
    found: dict[str, Any] = {"remedy": None, "needs": None, "larger": None}
    if remedy:
        found |= {"remedy": remedy.option, "needs": remedy.facts["memory"]["needed"]}
    if elsewhere:
        layout, facts = elsewhere.planned.layout, elsewhere.facts
        needs = facts["memory"]["needed"] if facts else None
        found["larger"] = {"tpu": elsewhere.tpu.name, "data": layout.data, "model": layout.model, "needs": needs}
    return found


def _hazards(planned: GroupPlan, facts: Facts, tpu: Slice) -> list[str]:
    """What costs time without need: compiles, idle devices, runs that only fill up, tiles that are not filled."""
    layout, runs = planned.layout, len(planned.group.runs)
    found = [f"compiled again: {why}" for why in facts.get("recompiles", ())]
    if layout.devices < tpu.devices:
        idle = tpu.devices - layout.devices
        are = "is" if idle == 1 else "are"
        sharing = "1 run has" if runs == 1 else f"{runs} runs share"
        found.append(f"{idle} of {tpu.devices} devices {are} idle: {sharing} this program")
    spare = planned.packs * layout.width - runs
    if spare:
        found.append(f"{spare} of {planned.packs * layout.width} places in packs are filled up with repeats")
    found += _routed(planned)
    found += advice(sizes(planned.first.config, planned.source))
    if endless := facts.get("endless"):
        loops = f"{endless} loop{'s' if endless > 1 else ''}"
        found.append(f"{loops} with products of a length that is not known before they run: counted as one round")
    if unknown := sorted(set(facts.get("loops", ())) - set(facts.get("scans", ()))):
        rounds = ", ".join(map(str, unknown))
        found.append(f"the program has loops of {rounds} rounds, that its source does not have: times may be wrong")
    return found


def _routed(planned: GroupPlan) -> list[str]:
    """What is computed otherwise than was chosen, or could have been."""
    config, divided = planned.first.config, planned.layout.divided
    found = routed(config, planned.source, planned.execution, planned.precision, platform="tpu", divided=divided)
    return [str(one) for one in found]


def _slice(tpu: Slice, programs: list[dict[str, Any]]) -> dict[str, Any]:
    compiling = sum(one["compile_seconds"] or 0.0 for one in programs)
    return {
        "tpu": tpu.name,
        "topology": tpu.topology_name,
        "chips": tpu.chips,
        "devices": tpu.devices,
        "hosts": tpu.hosts,
        "hbm": tpu.hbm_bytes_per_device,
        "fits": not any("too_large" in one or "error" in one for one in programs),
        "programs": programs,
        **bill([one.get("seconds") for one in programs], compiling, tpu),
        "rates": {"on_demand": tpu.usd_per_hour(False), "spot": tpu.usd_per_hour(True)},
    }


def refusals(found: Mapping[str, Any]) -> list[str]:
    """Why a slice's programs cannot be trained, in words: those that do not fit, those that do not compile."""
    refused = [program for program in found["programs"] if "too_large" in program]
    ways = {program["too_large"]["remedy"] for program in refused}
    (together,) = ways if len(refused) > len(ways) == 1 else (None,)
    large = [refusal(program, found["tpu"], together) for program in refused]
    if together:
        needs = max(program["too_large"]["needs"] for program in refused)
        large.append(f"with this all of them compile: {together}, with which the largest needs {_gib(needs)}")
    elif len(refused) > 1 and None not in ways:
        large.append("no setting that was tried makes all of them fit: give each arm its own, in the study")
    failed = [
        f"{', '.join(program['arms'])}: does not compile for {found['tpu']}: {program['error']}"
        for program in found["programs"]
        if "error" in program
    ]
    return [*large, *failed]


def refusal(program: Mapping[str, Any], tpu: str, together: str | None = None) -> str:
    """Why an arm does not fit, what takes most, and what would make it fit, unless that is said of all `together`."""
    large = program["too_large"]
    needed, available = _gib(large["needed"]), f"{_gib(large['available'])} on a device of {tpu}"
    why = f"a run alone needs {needed} of {available}, says the compiler"
    if "state" in large:
        why = f"a run's state alone, parameters and moments, takes {needed} of {available}"
    lines = [f"{', '.join(program['arms'])}: {why}"]
    for one in large["largest"]:
        times = f"{one['count']} x " if one["count"] > 1 else ""
        lines.append(f"  {times}{_gib(one['bytes'])}  {one['shape']}  {one['what']}".rstrip())
    if not together:
        lines.append(f"  {_advice(large, tpu)}")
    return "\n".join(lines)


def _advice(large: Mapping[str, Any], tpu: str) -> str:
    if large["remedy"]:
        return f"this compiles: {large['remedy']}, which needs {_gib(large['needs'])}"
    nothing = f"nothing that was tried makes it fit on {tpu}"
    if (other := large["larger"]) is None:
        return f"{nothing}; a smaller model, or another generation: taetpu chips"
    mesh = f"--tpu {other['tpu']} --set {shlex.quote(_mesh(other))}"
    if other["needs"] is None:
        return f"{nothing}; by its state it should fit with {mesh}, which was not compiled"
    return f"{nothing}; this compiles: {mesh}, which needs {_gib(other['needs'])} a device"


def _mesh(other: Mapping[str, Any]) -> str:
    return f"train.compute.mesh={{data: {other['data']}, model: {other['model']}}}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
