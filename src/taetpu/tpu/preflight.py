"""Would a study run on this TPU, how fast, and at what price? Asked of the compiler, on a machine without one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from taetpu.core.chips import Slice
from taetpu.spec.design import RunSpec, Sources
from taetpu.tpu.compiler import Compiler, Facts, Request
from taetpu.tpu.estimate import Work, bill, estimate
from taetpu.tpu.layouts import Planned, plan_for
from taetpu.tpu.padding import advice, sizes
from taetpu.tpu.remedies import Remedy, remedies
from taetpu.train.compute import routed
from taetpu.train.count import flops_per_token
from taetpu.train.plan import Packing, group


@dataclass(frozen=True)
class Asked:
    """What is to be known: how runs that are to be trained would do on slices.

    Attributes:
        runs: those to train; of each structure one stands for all.
        sources: their prepared tasks.
        folder, plugins: see `tpu.compiler.Request`.
    """

    runs: Sequence[RunSpec]
    sources: Sources
    packing: Packing
    folder: Path
    plugins: tuple[Path, ...]

    def request(self, planned: Planned, tpu: Slice) -> Request:
        return Request(
            planned.first.config, planned.source, planned.group.live, planned.precision, planned.execution,
            planned.layout, tpu, self.folder, self.plugins,
        )  # fmt: skip

    def planned(self, tpu: Slice) -> list[Planned]:
        """A program for each structure."""
        return [
            plan_for(tpu, members, self.sources.of(members.runs[0].config), self.packing)
            for members in group(self.runs)
        ]


def preflight(
    asked: Asked, tpus: Sequence[Slice], told: Callable[[int, int], None] = lambda done, of: None
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
        planned = [(tpu, one) for tpu in tpus for one in asked.planned(tpu)]
        answers = compiler.answers([asked.request(one, tpu) for tpu, one in planned])
        found = []
        for tpu in tpus:
            pairs = [(one, answer) for (own, one), answer in zip(planned, answers, strict=True) if own is tpu]
            fitted = [_fitted(asked, compiler, one, answer, tpu) for one, answer in pairs]
            found.append(_slice(asked, tpu, [_program(*fit, tpu) for fit in fitted]))
    return found


def _fitted(
    asked: Asked, compiler: Compiler, planned: Planned, facts: Facts, tpu: Slice
) -> tuple[Planned, Facts, Remedy | None]:
    """A program in packs that fit, as training would halve them; or alone, with what would make it fit."""
    narrower = planned.narrower()
    while "too_large" in facts and narrower is not None:
        planned, facts = narrower, compiler.answer(asked.request(narrower, tpu))
        narrower = planned.narrower()
    if "too_large" not in facts:
        return planned, facts, None
    for remedy in remedies(planned, tpu):
        tried = compiler.answer(asked.request(remedy.planned, tpu))
        if "memory" in tried:
            return planned, facts, replace(remedy, facts=tried)
    return planned, facts, None


def _program(planned: Planned, facts: Facts, remedy: Remedy | None, tpu: Slice) -> dict[str, Any]:
    config, source, layout = planned.first.config, planned.source, planned.layout
    tokens = config.train.batch_size * source.seq_len
    work = Work(
        packs=planned.packs,
        steps=config.train.total_steps(source.num_windows),
        runs=len(planned.group.runs),
        tokens=tokens,
        flops=tokens * flops_per_token(config.model, source.vocab_size, source.seq_len),
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
        return {**found, "too_large": {**facts["too_large"], "remedy": remedy.facts_in_words() if remedy else None}}
    if "memory" not in facts:
        return {**found, "error": facts["error"]}
    return {**found, "largest": facts["memory"]["largest"], **estimate(facts, work, tpu)}


def _hazards(planned: Planned, facts: Facts, tpu: Slice) -> list[str]:
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
    if unknown := sorted(set(facts.get("loops", ())) - set(facts.get("scans", ()))):
        rounds = ", ".join(map(str, unknown))
        found.append(f"the program has loops of {rounds} rounds, that its source does not have: times may be wrong")
    return found


def _routed(planned: Planned) -> list[str]:
    """What is computed otherwise than was chosen, or could have been."""
    config, divided = planned.first.config, planned.layout.divided
    found = routed(config, planned.source, planned.execution, planned.precision, platform="tpu", divided=divided)
    return [str(one) for one in found]


def _slice(asked: Asked, tpu: Slice, programs: list[dict[str, Any]]) -> dict[str, Any]:
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
    large = [refusal(program, found["tpu"]) for program in found["programs"] if "too_large" in program]
    failed = [
        f"{', '.join(program['arms'])}: does not compile for {found['tpu']}: {program['error']}"
        for program in found["programs"]
        if "error" in program
    ]
    return [*large, *failed]


def refusal(program: Mapping[str, Any], tpu: str) -> str:
    """Why an arm does not fit, what takes most, and what would make it fit."""
    large = program["too_large"]
    amount = f"{_gib(large['needed'])} of {_gib(large['available'])}"
    lines = [f"{', '.join(program['arms'])}: a run alone needs {amount} on a device of {tpu}, says the compiler"]
    for one in large["largest"]:
        times = f"{one['count']} x " if one["count"] > 1 else ""
        lines.append(f"  {times}{_gib(one['bytes'])}  {one['shape']}  {one['what']}".rstrip())
    lines.append(f"  this compiles: {large['remedy']}" if large["remedy"] else "  nothing that was tried makes it fit")
    return "\n".join(lines)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
