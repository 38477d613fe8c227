"""The choice of compute options for a pack. The choice is made once and stored in the plan of the pack."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from taetpu.core.errors import UserError
from taetpu.data.base import Source
from taetpu.nn.attention import Attention
from taetpu.nn.attention_kernels import PATHS, describe_call
from taetpu.nn.compute_options import ComputeOptions, uses_plain_attention
from taetpu.nn.stack import REMAT
from taetpu.optim.hooks import hooks_reading_logits
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.device_capabilities import Capabilities, first_device, platform_of
from taetpu.train.memory import array_bytes, data_bytes, memory_bytes, state_bytes, step_bytes
from taetpu.train.model_cost import model_shapes

# The kernel that `attention: auto` selects on each platform, and the minimum sequence length for it. The minimum for
# TPUs is based on the compiler's cycle counts (docs/log.md); the minimum for cuDNN has not been measured.
KERNELS = {"tpu": ("splash", 512), "cuda": ("cudnn", 1)}
DIVIDED = "the run is divided over devices, which kernels do not support"
OWN_PATH = "the component defines its own path"
RESIDENT = 256 << 20  # bytes of training data above which `feed: auto` selects `host`
LARGE, SMALL = 1 / 16, 1 / 64  # shares of memory: logits larger than LARGE are computed in chunks of size SMALL


def choose_compute(
    config: ResolvedConfig,
    source: Source,
    precision: str,
    *,
    platform: str | None = None,
    memory: int | None = None,
) -> ComputeOptions:
    """Return the compute options for the runs of a pack.

    Args:
        config: the config of one of the runs.
        source: the prepared task of the runs.
        precision: dtype of activations and matrix products.
        platform: the platform (see `platform_of`); the platform of this process's devices by default.
        memory: the number of bytes per device that packs may use; determined from this process's devices by default.

    Raises:
        UserError: if this platform lacks the requested attention path, or the source the requested feed.
    """
    asked, platform = config.train.compute, platform or platform_of(first_device())
    attention, chunk, remat = asked.attention, asked.loss_chunk, asked.remat
    if attention == "auto":
        attention = _attention(config, source, precision, platform)
    else:
        Capabilities(platform).check_path(attention)
    room = memory_bytes() if memory is None else memory
    if platform == "cpu":  # rematerialisation would only cost time: any model that a CPU can train fits into memory
        room = math.inf
    chunk, feed = _chunk(config, source, room) if chunk == "auto" else chunk, _feed(asked.feed, source)
    unroll = asked.unroll
    if isinstance(unroll, str):
        unroll = {"auto": 1, "all": len(config.model.layers)}[unroll]
    chosen = ComputeOptions(
        attention=attention, loss_chunk=chunk, feed=feed, unroll=unroll, logits=asked.logits, cast=asked.cast,
        pad_vocab=asked.pad_vocab,
    )  # fmt: skip
    ways = [replace(chosen, remat=kept) for kept in (REMAT if remat == "auto" else (remat,))]
    room -= state_bytes(config, source) + data_bytes(source, chosen)
    return next((way for way in ways[:-1] if step_bytes(config, source, way, precision) <= room), ways[-1])


def list_fallbacks(
    config: ResolvedConfig,
    source: Source,
    execution: ComputeOptions,
    precision: str,
    *,
    platform: str | None = None,
    divided: bool = False,
) -> list[str]:
    """Describe the parts of a run that are not computed as its compute options specify.

    If `attention: auto` selected the plain path, the layers that cannot use the platform's kernel are listed as well.
    Sampling, and calls that read scores, patterns or logits, always use the plain path and are not listed.

    Args:
        config: the config of the run.
        source: the prepared task of the run.
        execution: the compute options of the run.
        precision: dtype of activations and matrix products.
        platform: the platform (see `platform_of`); the platform of this process's devices by default.
        divided: whether the run is divided over devices (see `train.layout.without_kernels`).
    """
    auto = config.train.compute.attention == "auto" and execution.attention == "plain"
    kernel = _kernel(source, platform or platform_of(first_device())) if auto else execution.attention
    layers_by = dict[str, list[int]]()
    for attention, layers in attentions(config, source) if kernel != "plain" else ():
        training, evaluation = (_refusal(kernel, attention, source, precision, training) for training in (True, False))
        kernel_name = "" if uses_plain_attention(attention) else type(attention.path).__name__
        if divided and not kernel_name:
            training = evaluation = DIVIDED
        if reason := training or evaluation:
            path = f"the path {kernel_name}" if kernel_name else "the plain path"
            when = "" if evaluation or auto else " in training"  # without a kernel, evaluation is plain too
            layers_by.setdefault(f"uses {path}{when}: {reason}", []).extend(layers)
    reasons = [
        f"attention of layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} {clause}"
        for clause, layers in layers_by.items()
    ]
    hooks = hooks_reading_logits(config.train.hooks)
    if execution.loss_chunk is not None:
        reasons += [f"the logits are not chunked: hook {name!r} reads them" for name in hooks]
    if execution.logits != "float32" or execution.pad_vocab is not None:
        reasons += [f"the logits are in float32 and not padded: hook {name!r} reads them" for name in hooks]
        if not hasattr(model_shapes(config.model, source.interface, source.seq_len).embedding, "form"):
            kind = config.model.embedding.kind
            reasons.append(f"the logits have the form that embedding {kind!r} gives them")
    if execution.cast == "step":
        reasons += [f"weights are cast at each use: hook {name!r} receives them" for name in hooks]
    return reasons


def attentions(config: ResolvedConfig, source: Source) -> list[tuple[Attention, tuple[int, ...]]]:
    """Return the attention modules of a model as shapes, each with the numbers of the layers that use it."""

    def is_attention(node: Any) -> bool:
        return isinstance(node, Attention)

    stacks = model_shapes(config.model, source.interface, source.seq_len).stacks
    return [
        (node, tuple(range(stack.start, stack.start + stack.size)))
        for stack in stacks
        for node in jax.tree.leaves(stack.block, is_leaf=is_attention)
        if is_attention(node)
    ]


def _attention(config: ResolvedConfig, source: Source, precision: str, platform: str) -> str:
    """Return the platform's kernel if at least one layer supports it in training; otherwise `plain`."""
    name = _kernel(source, platform)
    parts = (part for part, _ in attentions(config, source))
    return name if any(_refusal(name, part, source, precision, training=True) is None for part in parts) else "plain"


def _refusal(kernel: str, attention: Attention, source: Source, precision: str, training: bool) -> str | None:
    """Return the reason why an attention module cannot use a kernel; None if the module can use the kernel."""
    if not uses_plain_attention(attention):
        return OWN_PATH
    return PATHS[kernel].refusal(describe_call(attention, source.seq_len, precision, training=training))


def _kernel(source: Source, platform: str) -> str:
    """Return the kernel that `attention: auto` selects by platform and sequence length, or `plain` for no kernel."""
    name, least = KERNELS.get(platform, ("plain", 0))
    return name if source.seq_len >= least else "plain"


def _feed(asked: str, source: Source) -> str:
    """Return the feed of a task: `host` if it is asked for, or if `auto` finds that the training data is large.

    Data that is generated on the device has no arrays, and its feed is `resident`.
    """
    size, can_gather = array_bytes(source), source.can_gather
    if asked == "host" and size and not can_gather:
        problem, path = f"{type(source).__name__} cannot `gather` windows", ("train", "compute", "feed")
        raise UserError(problem, path=path, remedy="Use auto or resident, or add the method (`data.base.Source`).")
    return "host" if size and (asked == "host" or (asked == "auto" and can_gather and size > RESIDENT)) else "resident"


def _chunk(config: ResolvedConfig, source: Source, memory: float) -> int | None:
    """Return the number of tokens per loss chunk; None if a microbatch's logits are small or a hook reads logits."""
    width = jnp.dtype(config.train.compute.logits).itemsize
    sequences, token = config.train.batch_size // config.train.accumulate, width * source.interface.output_size
    if hooks_reading_logits(config.train.hooks) or sequences * source.seq_len * token <= LARGE * memory:
        return None
    return max(sequences, int(SMALL * memory) // token)
