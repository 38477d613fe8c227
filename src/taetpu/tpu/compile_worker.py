"""Compile train steps for a TPU on a machine without one: `python -m taetpu.tpu.compile_worker`.

libtpu, which contains the compiler, can be loaded only once per process, and only before jax uses another device. A
program that libtpu cannot compile may kill the process. Therefore, `tpu.compile_client` runs this module in a child
process, which reads requests and prints answers, each as one line of JSON, and exits at the end of its input.
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

from taetpu.core.child_process import read_requests
from taetpu.core.chips import LANES, Slice, parse_slice
from taetpu.core.config_parsing import load_config
from taetpu.core.plugins import load_plugins
from taetpu.core.static_dynamic import split
from taetpu.core.tree import leaves_by_path
from taetpu.data.base import Source
from taetpu.lens.conversion import Converter
from taetpu.nn.compute_options import ComputeOptions
from taetpu.spec.resolved_study import Sources
from taetpu.spec.study_config import ResolvedConfig
from taetpu.tpu import buffers, hlo
from taetpu.train.layout import Layout
from taetpu.train.matmul_count import (
    Matmul,
    count_unbounded_loops,
    kernel_matmuls,
    list_matmuls,
    matmul_flops,
)
from taetpu.train.memory import program_bytes
from taetpu.train.program import Program

Json = dict[str, Any]
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
OUT_OF_MEMORY = (
    r"total memory required for HLO temporaries \(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)",
    r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm",
)


def compile_request(request: Json) -> Json:
    """Compile a request's program and return the compiler's report.

    Args:
        request: `tpu.compile_client.CompileRequest` as data.

    Returns:
        `program`, the program's hash; `flops` and `padded_flops`; `kernel_flops`, by kernel; `endless`, the number of
        loops without a known trip count; and `compile_seconds`. If the program compiles, the report also has `memory`
        and the costs (see `read_costs`). Otherwise, the report also has an `error`, and `too_large` if the program
        exceeds the device's memory. If the state alone exceeds this memory, the report has only `error`, `too_large`
        and `compile_seconds`.
    """
    start = time.process_time()  # CPU time of all threads: independent of other load on this machine
    program, shapes = build(request)
    step: Any = program.advance
    if too_large := check_state_fits(shapes[0], parse_slice(request["tpu"])):
        return {"error": "the state exceeds the device's memory", "too_large": too_large, "compile_seconds": 0.0}
    traced = step.trace(*shapes)
    lowered = traced.lower()
    parts = program.mesh.size if program.partitioned else 1  # XLA partitions the program after tracing
    facts: Json = {
        "program": sha256(lowered.as_text().encode()).hexdigest(),
        "flops": matmul_flops(traced.jaxpr) // parts,
        "padded_flops": sum(map(padded_flops, list_matmuls(traced.jaxpr))) // parts,
        "kernel_flops": {
            name: sum(map(kernel_flops, of)) // parts for name, of in kernel_matmuls(traced.jaxpr).items()
        },
        "endless": max(
            0, count_unbounded_loops(traced.jaxpr) - 1
        ),  # excludes the loop over steps, whose length is an input
    }
    with tempfile.TemporaryDirectory() as dump:
        options = {"xla_dump_to": dump, "xla_dump_hlo_as_text": True}
        try:
            executable = lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            facts |= {"error": first_line(error), **parse_out_of_memory(str(error), Path(dump))}
        else:
            facts |= {"memory": read_memory(executable, Path(dump)), **read_costs(Path(dump))}
    return {**facts, "compile_seconds": round(time.process_time() - start, 2)}


def build(request: Json) -> tuple[Program, Any]:
    """Return a request's program, and the shapes of the arguments to the program's train step."""
    load_plugins([Path(file) for file in request["plugins"]])
    config = load_config(ResolvedConfig, request["config"])
    source = _prepare_task(json.dumps(request["config"]), request["folder"], request["seed"])
    structure, numbers = split(config, frozenset(request["live"]))
    program = Program(
        structure, source, Layout(**request["layout"]), steps=config.train.total_steps(source.num_windows),
        precision=request["precision"], execution=ComputeOptions(**request["execution"]), on=_devices(request["tpu"]),
    )  # fmt: skip
    return program, program.shapes(numbers).advance


@cache
def _devices(name: str) -> list[Any]:
    """Return the compiler's descriptions of the devices in a slice."""
    tpu = parse_slice(name)
    topology = topologies.get_topology_desc(platform="tpu", topology_name=tpu.topology_name, **tpu.topology_options)
    return list(topology.devices)


@cache
def _prepare_task(config: str, folder: str, seed: int) -> Source:
    return Sources(Path(folder), seed, Converter()).prepare(load_config(ResolvedConfig, json.loads(config)))


def padded_flops(matmul: Matmul) -> int:
    """Return the FLOPs of a matmul with its sides padded to the matrix unit.

    Depth is padded to 128. Either rows are padded to 8 and columns to 128, or rows to 128 and columns to 8, whichever
    gives fewer FLOPs. A matmul with a side of 1, such as a depthwise convolution, is not padded, because the vector
    unit may compute it.
    """
    if min(matmul.rows, matmul.columns, matmul.depth) <= 1:
        return matmul.operations
    area = min(
        _round_up(matmul.rows, 8) * _round_up(matmul.columns, LANES),
        _round_up(matmul.rows, LANES) * _round_up(matmul.columns, 8),
    )
    return 2 * matmul.times * matmul.many * area * _round_up(matmul.depth, LANES)


def kernel_flops(matmul: Matmul) -> int:
    """Return the FLOPs of a matmul in a kernel with every side padded to 128, because kernels process blocks."""
    sides = matmul.rows, matmul.columns, matmul.depth
    return 2 * matmul.times * matmul.many * prod(_round_up(side, LANES) for side in sides)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def read_memory(executable: Any, dump: Path) -> Json:
    """Return the bytes of device memory that a program needs, and its largest buffers."""
    return {**program_bytes(executable), "largest": _largest(dump)}


def _largest(dump: Path) -> list[Json]:
    return [asdict(buffer) for buffer in buffers.largest_buffers(dump)]


def read_costs(dump: Path) -> Json:
    """Return the cycles, memory traffic and loops of a step from the compiler's dump.

    If the dump has no program text, the result contains only `missing`, a message.
    """
    file = next(dump.glob("*after_codegen.txt"), None)
    if file is None:
        return {"missing": "the compiler wrote no program text, so cycles and memory traffic are unknown"}
    module = hlo.parse(file.read_text(encoding="utf-8", errors="replace"))
    return {
        "cycles": module.step.cycles,
        "bytes": module.step.bytes,
        "kernels": module.kernels,
        "loops": sorted(trips for trips in module.loops.values() if trips is not None),
    }


def check_state_fits(state: Any, tpu: Slice) -> Json | None:
    """Return the value of `too_large` if the state alone exceeds a device's memory; otherwise None.

    Args:
        state: shapes of the state's arrays, with shardings.
    """
    available, arrays = int(tpu.generation.program_gib * 2**30), leaves_by_path(state)
    shards = {path: array.sharding.shard_shape(array.shape) for path, array in arrays.items()}
    sizes = {path: prod(shard) * arrays[path].dtype.itemsize for path, shard in shards.items()}
    if sum(sizes.values()) <= available:
        return None
    largest = [
        asdict(buffers.Buffer(sizes[path], f"{arrays[path].dtype}{list(shards[path])}", buffers.display_path(path), 1))
        for path in sorted(sizes, key=lambda path: -sizes[path])[: buffers.LIMIT]
    ]
    return {"needed": sum(sizes.values()), "available": available, "state": True, "largest": largest}


def parse_out_of_memory(message: str, dump: Path) -> Json:
    """Return `too_large` for the error message of a program that exceeds HBM; {} for any other message.

    `too_large` has the bytes needed, the bytes available, and the largest buffers.
    """
    match = next(filter(None, (re.search(pattern, message) for pattern in OUT_OF_MEMORY)), None)
    if match is None:  # another memory is full, such as a kernel's vector memory, so narrower packs do not help
        return {}
    needed, unit, available, available_unit = match.groups()
    sizes = {"needed": float(needed) * UNITS[unit], "available": float(available) * UNITS[available_unit]}
    return {"too_large": {**{name: int(size) for name, size in sizes.items()}, "largest": _largest(dump)}}


def first_line(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def main() -> None:
    """Answer the requests of the parent process.

    If a request fails with an exception, its answer has only `error` and `trace`.
    """
    warnings.simplefilter("ignore")  # the parent process has already shown the warnings
    answers, sys.stdout = sys.stdout, sys.stderr  # plug-ins may print; only answers go to stdout
    for request in map(json.loads, read_requests(sys.stdin)):
        try:
            answer = compile_request(request)
        except Exception as error:
            answer = {"error": first_line(error), "trace": traceback.format_exc(limit=-4)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
