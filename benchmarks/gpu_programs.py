"""Programs that XLA compiles for an NVIDIA H100, on a machine without one. Nothing is measured.

`python -m benchmarks.gpu_programs`: for the defaults and each lever of `benchmarks.gpu_levers`, the kernels of a train
step of GPT-2, those that copy activations into arrays of all layers, physical transposes, the largest arrays, and the
memory of temporaries. It needs jax's plug-in for CUDA, in jaxlib's version and without further packages, and no driver:

    pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt

Products are not tuned, because that needs a card, so the kernels of products may differ there. A program of 12 layers
compiles in a minute or two.
"""

import argparse
import re
import time
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_levers import DEFAULTS, LEVERS, Lever

SIZES = {"dim": 768, "layers": 12, "heads": 12, "seq": 1024, "batch": 64, "vocab": 50257}
CUDNN = 91100  # the version of cuDNN that jax assumes, which it would ask a library for
# Of NVIDIA's H100 (SXM): the numbers by which XLA chooses fusions, and versions by which it records kernels.
TARGET = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 11 }
runtime_version { major: 12 minor: 9 }
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132 fpus_per_core: 128 threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84978434048
  driver_version: "12.9.0" runtime_version: "12.9.0" compile_time_toolkit_version: "12.9.0"
}
"""
KERNELS = ("fusion", "custom-call", "dot", "copy", "transpose", "reduce", "scatter", "gather", "sort", "convert")
ROOM = 1 << 36  # bytes that packs may use: those of a card with 80 GB or more


class Step(NamedTuple):
    """A compiled train step.

    Attributes:
        kernels: Kernels by name of their kind, with those of loops counted for each iteration.
        stacked: Kernels that copy into an array of all layers.
        transposes: Transposes of arrays in memory.
        largest: The largest arrays that kernels write, as `dtype[shape]`, with their number.
        temporary: Bytes of temporaries.
        attention: The layouts of queries, keys and values in calls to cuDNN.
        seconds: Seconds of compilation.
    """

    kernels: int
    stacked: int
    transposes: int
    largest: dict[str, int]
    temporary: int
    attention: set[str]
    seconds: float


def find_device() -> Any:
    """Return the compiler's description of an H100; None without the plug-in."""
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc("H100", "cuda", topology="1x1x1", target_config=TARGET).devices[0]
    except (NotImplementedError, RuntimeError, AssertionError):
        return None


def build(sizes: Mapping[str, int], compute: Mapping[str, Any], device: Any = None, **model: Any) -> tuple[Any, Any]:
    """Return the program of GPT-2 at the given sizes for a device, and the shapes of the arguments of its train step.

    Without a device, the program is for this machine, and can be lowered for others.
    """
    from taetpu.core.config_parsing import load_config
    from taetpu.core.static_dynamic import split
    from taetpu.data.synthetic.answers import SPECIALS
    from taetpu.spec.study_config import RunConfig
    from taetpu.train.choose_compute import choose_compute
    from taetpu.train.device_capabilities import Capabilities
    from taetpu.train.layout import Layout
    from taetpu.train.program import Program

    settings = {
        "dim": sizes["dim"], "num_layers": sizes["layers"], "position": "learned", "norm": "layer", "bias": True,
        "mixer": {"kind": "attention", "num_heads": sizes["heads"]}, "embedding": "tied",
        "ffn": {"kind": "gelu-tanh", "hidden": 4 * sizes["dim"]}, **model,
    }  # fmt: skip
    task = {"kind": "copy", "seq_len": sizes["seq"], "symbols": sizes["vocab"] - len(SPECIALS), "min_length": 2,
            "max_length": 6, "eval_size": 8}  # fmt: skip
    train = {"steps": 1000, "batch_size": sizes["batch"], "compute": dict(compute)}
    config = load_config(RunConfig, {"task": task, "model": settings, "train": train}).resolve()
    source = config.task.prepare(Path())
    structure, numbers = split(config, frozenset())
    execution = choose_compute(config, source, "bfloat16", platform="cuda", memory=ROOM)
    check, Capabilities.check_path = Capabilities.check_path, lambda self, attention, remedy="": None
    try:
        program = Program(
            structure, source, Layout(sizes.get("width", 1)), steps=1000, precision="bfloat16", execution=execution,
            on=None if device is None else [device],
        )  # fmt: skip
    finally:
        Capabilities.check_path = check
    return program, program.shapes(numbers).advance


def assume_cudnn() -> None:
    """Let jax lower calls to cuDNN without asking the library for its version."""
    import jax._src.cudnn.fused_attention_stablehlo as fused

    class Versions:
        @staticmethod
        def cudnn_get_version() -> int:
            return CUDNN

    setattr(fused, "cuda_versions", Versions)  # noqa: B010 (not exported)


def compile_step(sizes: Mapping[str, int], lever: Lever, device: Any, **model: Any) -> Step:
    """Return what is known of the compiled train step. Flags of a lever become options of the compiler."""
    assume_cudnn()
    program, shapes = build({**sizes, **lever.sizes}, lever.compute, device, **model)
    began = time.monotonic()
    options = {"xla_gpu_autotune_level": 0} | dict(
        flag.removeprefix("--").split("=", 1) for flag in lever.flags.split()
    )
    compiled = program.advance.lower(*shapes).compile(compiler_options=options)
    return read_step(compiled.as_text(), compiled.memory_analysis().temp_size_in_bytes, time.monotonic() - began)


def read_step(text: str, temporary: int, seconds: float = 0.0) -> Step:
    """Return what the text of a compiled program says of its train step, which is the body of its outermost loop."""
    bodies = {
        match[1]: match[2] for match in re.finditer(r"^(?:ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", text, re.M | re.S)
    }
    loops = {name: re.findall(r" while\(.*?body=%?([\w.\-]+)(.*)", body) for name, body in bodies.items()}
    inner = {body for found in loops.values() for body, _ in found if any(body in b for b in loops)}
    nested = {body for name in inner for body, _ in loops.get(name, ())}
    step = max(inner - nested, key=lambda name: len(bodies[name]))
    arrays, attention, counts = Counter[str](), set[str](), Counter[str]()

    def visit(name: str, times: int) -> None:
        for result, opcode, rest in re.findall(r" = (\(.*?\)|\S+) ([\w\-]+)\((.*)", bodies[name]):
            if opcode not in KERNELS:
                continue
            counts["kernels"] += times
            called = re.search(r"calls=%?([\w.\-]+)", rest)
            called = called[1] if called else ""
            counts["stacked"] += times * ("dynamic_update_slice" in called or "dynamic-update-slice" in called)
            within = bodies.get(called, "")
            counts["transposes"] += times * len(re.findall(r" transpose\(", within)) + times * (opcode == "transpose")
            if "fmhaSoftmax" in rest:
                attention.update(re.findall(r"bf16\[[\d,]+\]\{[\d,]+\}", result))
            arrays.update(re.findall(r"\w+\[[\d,]+\]", result))
        for body, about in loops[name]:
            count = re.search(r'known_trip_count":\{"n":"(\d+)"', about)
            visit(body, times * (int(count[1]) if count else 1))

    visit(step, 1)
    largest = sorted(arrays, key=array_bytes, reverse=True)[:4]
    return Step(
        counts["kernels"], counts["stacked"], counts["transposes"], {name: arrays[name] for name in largest}, temporary,
        attention, seconds,
    )  # fmt: skip


def array_bytes(name: str) -> int:
    """Return the bytes of an array `dtype[shape]`."""
    dtype, _, shape = name.rstrip("]").partition("[")
    width = 1 if dtype == "pred" else int(re.sub(r"\D", "", dtype)) // 8
    return width * prod(map(int, shape.split(",")))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=SIZES["layers"])
    parser.add_argument("--batch", type=int, default=SIZES["batch"])
    parser.add_argument("--lever", action="append", help="a lever by its name; all by default")
    options = parser.parse_args()
    device = find_device()
    if device is None:
        print("jax's plug-in for CUDA is not installed: nothing was compiled")
        return
    sizes = {**SIZES, "layers": options.layers, "batch": options.batch}
    print(f"{'':30}{'kernels':>9}{'stacked':>9}{'transposes':>12}{'GB':>7}{'s':>6}  largest arrays written")
    for lever in (DEFAULTS, *LEVERS):
        if options.lever and lever.name not in options.lever:
            continue
        step = compile_step(sizes, lever, device)
        print(
            f"{lever.name:30}{step.kernels:>9,}{step.stacked:>9,}{step.transposes:>12,}{step.temporary / 1e9:>7.1f}"
            f"{step.seconds:>6.0f}  {', '.join(step.largest)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
