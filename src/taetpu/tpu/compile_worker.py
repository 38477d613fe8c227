"""Compile train steps for a TPU on a machine without one: `python -m taetpu.tpu.compile_worker`.

libtpu holds the compiler, and can be loaded once in a process, before jax meets another device; a program that it
cannot compile may end the process. So a parent (`tpu.compiler`) asks, a line of JSON for each program, and hears a line
for each: what the compiler said of it. It ends when its input does.
"""

import json
import re
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from taetpu.core.child import requests
from taetpu.core.chips import LANES, Slice, resolve
from taetpu.core.loading import load
from taetpu.core.plugins import load_plugins
from taetpu.core.static_dynamic import split
from taetpu.core.tree import leaves_by_path
from taetpu.data.batches import Source
from taetpu.nn.compute_options import Execution
from taetpu.spec.schema import ResolvedConfig
from taetpu.tpu import buffers, hlo
from taetpu.train.layout import Layout
from taetpu.train.matmul_count import Sides, endless, inner, kernels, products, sides
from taetpu.train.pack import Program

Json = dict[str, Any]
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
TOO_MUCH = (
    r"total memory required for HLO temporaries \(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)",
    r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm",
)


@cache
def devices(name: str) -> list[Any]:
    """The devices of a slice, as the compiler describes them."""
    tpu = resolve(name)
    described = topologies.get_topology_desc(
        platform="tpu", topology_name=tpu.topology_name, **tpu.topology_options
    ).devices
    return list(described)


@cache
def source_of(task: str, folder: str) -> Source:
    """A prepared task, by its config as JSON."""
    return load(ResolvedConfig, json.loads(task)).task.prepare(Path(folder))


def built(request: Json) -> tuple[Program, Any]:
    """A request's program, and the shapes that a train step of it takes."""
    load_plugins([Path(file) for file in request["plugins"]])
    config = load(ResolvedConfig, request["config"])
    source = source_of(json.dumps(request["config"]), request["folder"])
    structure, numbers = split(config, frozenset(request["live"]))
    program = Program(
        structure, source, Layout(**request["layout"]), steps=config.train.total_steps(source.num_windows),
        precision=request["precision"], execution=Execution(**request["execution"]), on=devices(request["tpu"]),
    )  # fmt: skip
    return program, program.shapes(numbers).advance


def compiled(request: Json) -> Json:
    """What the compiler says of a request (see `tpu.compiler.CompileRequest`)."""
    began = time.process_time()  # of all threads: how busy this machine is does not matter
    program, shapes = built(request)
    step: Any = program.advance
    if too_much := state_too_large(shapes[0], resolve(request["tpu"])):
        return {"error": "its state alone does not fit", "too_large": too_much, "compile_seconds": 0.0}
    traced = step.trace(*shapes)
    lowered = traced.lower()
    parts = program.mesh.size if program.partitioned else 1  # what XLA divides is traced whole
    facts: Json = {
        "program": text_hash(lowered),
        "flops": products(traced.jaxpr) // parts,
        "padded_flops": sum(map(padded, sides(traced.jaxpr))) // parts,
        "kernel_flops": {name: sum(map(filled, of)) // parts for name, of in kernels(traced.jaxpr).items()},
        "endless": max(0, endless(traced.jaxpr) - 1),  # without the loop over steps, whose number is an input
        "scans": sorted(rounds(traced.jaxpr.jaxpr)),
        "recompiles": [*changing(step, shapes), *(rebuilt(request, lowered) if request["plugins"] else [])],
    }
    with tempfile.TemporaryDirectory() as dump:
        options = {"xla_dump_to": dump, "xla_dump_hlo_as_text": True}
        try:
            ready = lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            facts |= {"error": first_line(error), **too_large(str(error), Path(dump))}
        else:
            facts |= {"memory": memory(ready, Path(dump)), **costs(Path(dump))}
    return {**facts, "compile_seconds": round(time.process_time() - began, 2)}


def text_hash(lowered: Any) -> str:
    return sha256(lowered.as_text().encode()).hexdigest()


def rounds(jaxpr: Any) -> set[int]:
    """The lengths of all loops that a jaxpr has."""
    found = {eqn.params["length"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"}
    return found.union(*(rounds(part) for eqn in jaxpr.eqns for part in inner(eqn.params)))


def padded(one: Sides) -> int:
    """Operations of a product with its sides filled up to what a matrix unit of 128 takes in at once: columns and
    summed length to 128, rows to 8, whichever side the compiler takes for which. Where a side is 1, as in a convolution
    of each channel alone, the vector unit may compute it, which fills nothing up.
    """
    if min(one.rows, one.columns, one.depth) <= 1:
        return one.operations
    edges = min(
        up(one.rows, 8) * up(one.columns, LANES),
        up(one.rows, LANES) * up(one.columns, 8),
    )
    return 2 * one.times * one.many * edges * up(one.depth, LANES)


def filled(one: Sides) -> int:
    """The same with every side filled up to 128, as kernels work on blocks."""
    return 2 * one.times * one.many * up(one.rows, LANES) * up(one.columns, LANES) * up(one.depth, LANES)


def up(size: int, edge: int) -> int:
    return -(-size // edge) * edge


def changing(step: Any, shapes: Any) -> list[str]:
    """Arrays of the state that a dispatch gives back as another type than it takes: the next one is compiled anew."""
    given, _ = jax.eval_shape(step, *shapes)
    before, after = map(jax.tree_util.tree_leaves_with_path, (shapes[0], given))
    return [
        f"{jax.tree_util.keystr(path, simple=True, separator='.')} is {old.dtype} {old.shape} before a step and "
        f"{new.dtype} {new.shape} after it"
        for (path, old), (_, new) in zip(before, after, strict=True)
        if (old.shape, old.dtype, old.weak_type) != (new.shape, new.dtype, new.weak_type)
    ]


def rebuilt(request: Json, first: Any) -> list[str]:
    """Is the program another one when it is built again, as plug-ins may make it?"""
    program, shapes = built(request)
    step: Any = program.advance
    if text_hash(step.lower(*shapes)) == text_hash(first):
        return []
    return ["the program is another one each time it is built: a plug-in draws from time, chance or a counter"]


def memory(ready: Any, dump: Path) -> Json:
    """Bytes of a device's memory that the program needs, and its largest buffers."""
    said = ready.memory_analysis()
    parts = {
        "arguments": said.argument_size_in_bytes,
        "results": said.output_size_in_bytes - said.alias_size_in_bytes,
        "temporaries": said.temp_size_in_bytes,
        "code": said.generated_code_size_in_bytes,
    }
    return {"needed": sum(parts.values()), **parts, "largest": [asdict(one) for one in buffers.largest(dump)]}


def costs(dump: Path) -> Json:
    """What a step costs by the compiler's own text; without what could not be read, and then why."""
    file = next(dump.glob("*after_codegen.txt"), None)
    if file is None:
        return {"missing": "the compiler wrote no text of its program: no cycles, no memory traffic"}
    module = hlo.parse(file.read_text())
    step = module.step
    given = sum(plain for _, plain, _ in hlo.waste(module, module.step_loop or module.entry))
    padded = sum(size for *_, size in hlo.waste(module, module.step_loop or module.entry))
    return {
        "cycles": step.cycles,
        "bytes": step.bytes,
        "collectives": module.collectives,
        "kernels": module.kernels,
        "loops": sorted(trips for trips in module.loops.values() if trips is not None),
        "filled": round(given / padded, 4) if padded else 1.0,
    }


def state_too_large(state: Any, tpu: Slice) -> Json | None:
    """Of a state that alone is more than a device has, as `too_large` says it, and what is the most of it.

    Args:
        state: as shapes, each with its place.
    """
    available, arrays = int(tpu.generation.program_gib * 2**30), leaves_by_path(state)
    parts = {path: array.sharding.shard_shape(array.shape) for path, array in arrays.items()}
    held = {path: prod(part) * arrays[path].dtype.itemsize for path, part in parts.items()}
    if sum(held.values()) <= available:
        return None
    most = sorted(held, key=lambda path: -held[path])[: buffers.MOST]
    largest = [
        buffers.Buffer(held[path], f"{arrays[path].dtype}{list(parts[path])}", buffers.called(path), 1) for path in most
    ]
    return {
        "needed": sum(held.values()), "available": available, "state": True, "largest": [asdict(one) for one in largest]
    }  # fmt: skip


def too_large(message: str, dump: Path) -> Json:
    """Of a program that does not fit into HBM: what it needs, what there is, what takes most."""
    found = next(filter(None, (re.search(pattern, message) for pattern in TOO_MUCH)), None)
    if found is None:  # another kind of memory, such as a kernel's vector memory: packing cannot mend that
        return {}
    needed, unit, there, of = found.groups()
    sizes = {"needed": int(float(needed) * UNITS[unit]), "available": int(float(there) * UNITS[of])}
    return {"too_large": {**sizes, "largest": [asdict(one) for one in buffers.largest(dump)]}}


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def main() -> None:
    """Answer the parent, a line for each that it says; `{"error", "trace"}` for what could not be tried at all."""
    warnings.simplefilter("ignore")  # the parent has shown them
    answers, sys.stdout = sys.stdout, sys.stderr  # what a plug-in prints is no answer
    for request in requests():
        try:
            answer = compiled(request)
        except Exception as error:
            answer = {"error": first_line(error), "trace": traceback.format_exc(limit=-4)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
