"""Memory: the limit of a device, the requirements of a run, and out-of-memory errors."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from taetpu.core.errors import UserError
from taetpu.core.tree import count_elements
from taetpu.data.base import Source, array_shapes
from taetpu.nn.cache import empty_cache
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.optim.hooks import hooks_reading_logits
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.model_cost import activation_bytes, kept_shapes, model_shapes

SHARE_OF_MEMORY = 0.5
CGROUPS = Path("/sys/fs/cgroup")
TABLE_BYTES = 64 << 20  # maximum size on a device of a table of training data (see `train.data_feed`)
TABLES = 3  # the table that is being filled, the current one, and the one that the last dispatch still reads


def memory_bytes() -> int:
    """Return the number of bytes per device that packs may use. The devices of a CPU share one memory."""
    return int(device_bytes_limit() * SHARE_OF_MEMORY)


def device_bytes_limit() -> int:
    """Return the memory of a device in bytes; for a CPU, the memory of this machine."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("bytes_limit") or host_bytes()


def state_bytes(config: ResolvedConfig, source: Source) -> int:
    """Return the bytes that a run keeps between steps; see `kept_shapes`."""
    shapes = jax.tree.leaves(kept_shapes(config, source.interface, source.seq_len))
    return sum(shape.size * shape.dtype.itemsize for shape in shapes)


def step_bytes(
    config: ResolvedConfig, source: Source, execution: ComputeOptions = DEFAULT_OPTIONS, precision: str = "float32"
) -> int:
    """Return an upper estimate of the activation bytes that a train step of a run needs.

    All results of a microbatch's forward pass are counted, except the results that are rematerialised or chunked
    according to `execution`.
    """
    sequences = config.train.batch_size // config.train.accumulate
    if execution.loss_chunk is not None:  # the chunk size is in tokens of the whole microbatch
        chunk = None if hooks_reading_logits(config.train.hooks) else max(1, execution.loss_chunk // sequences)
        execution = replace(execution, loss_chunk=chunk)
    return sequences * activation_bytes(config.model, source.interface, source.seq_len, execution, precision)


def run_bytes(
    config: ResolvedConfig, source: Source, execution: ComputeOptions = DEFAULT_OPTIONS, precision: str = "float32"
) -> int:
    """Return an upper estimate of the bytes that the training of a run needs: `state_bytes` and `step_bytes`."""
    return state_bytes(config, source) + step_bytes(config, source, execution, precision)


def program_bytes(executable: Any) -> dict[str, int]:
    """Return the bytes of device memory that a compiled program needs, by part, and their sum `needed`."""
    analysis = executable.memory_analysis()
    parts = {
        "arguments": analysis.argument_size_in_bytes,
        "results": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "code": analysis.generated_code_size_in_bytes,
    }
    return {"needed": sum(parts.values()), **parts}


def array_bytes(source: Source) -> int:
    """Return the size of a task's arrays in bytes; 0 if data is generated."""
    return sum(shape.size * shape.dtype.itemsize for shape in array_shapes(source).values())


def data_bytes(source: Source, execution: ComputeOptions) -> int:
    """Return an upper bound of the bytes of training data on a device."""
    return TABLES * TABLE_BYTES if execution.feed == "host" else array_bytes(source)


def kv_bytes(config: ResolvedConfig, source: Source) -> int | None:
    """Return the bytes of a 16-bit cache for one sequence of the training length; None if they are not known.

    The arrays of `nn.cache` are counted: keys and values of attention, states and windows of recurrent mixers. If the
    model cannot extend a sequence, the sizes count that its mixers declare.
    """
    model = model_shapes(config.model, source.interface, source.seq_len)
    try:
        cache = jax.eval_shape(lambda model: empty_cache(model, 1, source.seq_len), model)
    except UserError:
        dims = config.model.dims(source.interface, source.seq_len)
        sizes = [layer.typed_mixer.cache_size(dims) for layer in config.model.layers]
        known = [size for size in sizes if size is not None]
        return 2 * source.seq_len * sum(known) if len(known) == len(sizes) else None
    return 2 * count_elements(cache.stacks)


def host_bytes(cgroups: Path = CGROUPS, member: Path = Path("/proc/self/cgroup")) -> int:
    """Return this machine's memory in bytes, or the limit of the process's control group (v2) if this limit is lower.

    Containers and services usually run in a control group with a limit.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    lines = member.read_text(encoding="utf-8").splitlines() if member.exists() else []
    for group in (line.removeprefix("0::/") for line in lines if line.startswith("0::/")):
        for folder in (cgroups / group, *(cgroups / group).parents):  # a group's limit also applies to its subgroups
            file = folder / "memory.max"
            text = file.read_text().strip() if file.is_file() else "max"
            limits += [] if text == "max" else [int(text)]
    return min(limits)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error is an out-of-memory error."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
    return isinstance(error, MemoryError)
