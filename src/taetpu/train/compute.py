"""What `train.compute` comes to for the runs of a pack: decided when they are planned, then kept."""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax

from taetpu.data.batches import Source
from taetpu.nn.attention import Attention
from taetpu.nn.compute_options import ComputeOptions, uses_plain_attention
from taetpu.nn.kernels import PATHS, describe_call
from taetpu.nn.stack import REMAT
from taetpu.optim.hooks import hooks_reading_logits
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.device_capabilities import Capabilities, first_device, platform_of
from taetpu.train.memory import memory_bytes, state_bytes, step_bytes
from taetpu.train.model_cost import model_shapes

# The kernel that `attention: auto` tries on a device, and from which length on. The length is from the TPU compiler's
# cycles (docs/log.md); cuDNN's has not been measured.
KERNELS = {"tpu": ("splash", 512), "cuda": ("cudnn", 1)}
DIVIDED = "a kernel cannot be divided over devices as this run is"
OWN_PATH = "its component brings that path, which no kernel replaces"
LARGE, SMALL = 1 / 16, 1 / 64  # parts of the memory: logits above the one are computed in chunks of the other


@dataclass(frozen=True)
class Fallback:
    """What is not computed in the way that was chosen.

    Attributes:
        layers: the numbers of the layers; empty where it is not about layers.
        when: `always`, or only in `training`.
        reason: why, as a clause: `dropout on its pattern is drawn in training`.
        path: the class of the attention path that the layers' component brings; empty for the plain path.
    """

    layers: tuple[int, ...]
    when: str
    reason: str
    path: str = ""

    def __str__(self) -> str:
        if not self.layers:
            return f"logits exist whole: {self.reason}"
        what = f"layer{'s' if len(self.layers) > 1 else ''} {', '.join(map(str, self.layers))}"
        path = f"the path {self.path}" if self.path else "the plain path"
        return f"attention of {what} takes {path}{' in training' * (self.when != 'always')}: {self.reason}"


def choose_compute(
    config: ResolvedConfig,
    source: Source,
    precision: str,
    *,
    platform: str | None = None,
    memory: int | None = None,
) -> ComputeOptions:
    """How runs of a config are to be computed.

    Args:
        precision: of activations and products.
        platform: as `platform_of` says; that of this process's devices unless given.
        memory: bytes that a device has for packs; of this one unless given.

    Raises:
        UserError: a path of attention is asked for that this platform does not have.
    """
    asked, platform = config.train.compute, platform or platform_of(first_device())
    attention, chunk, remat = asked.attention, asked.loss_chunk, asked.remat
    if attention == "auto":
        attention = _attention(config, source, precision, platform)
    else:
        Capabilities(platform).check_path(attention)
    room = memory_bytes() if memory is None else memory
    if platform == "cpu":  # nothing is computed twice to save memory, of which there is enough for what a CPU can train
        room = math.inf
    chosen = ComputeOptions(attention=attention, loss_chunk=_chunk(config, source, room) if chunk == "auto" else chunk)
    ways = [replace(chosen, remat=kept) for kept in (REMAT if remat == "auto" else (remat,))]
    room -= state_bytes(config, source)
    return next((way for way in ways[:-1] if step_bytes(config, source, way, precision) <= room), ways[-1])


def list_fallbacks(
    config: ResolvedConfig,
    source: Source,
    execution: ComputeOptions,
    precision: str,
    *,
    platform: str | None = None,
    divided: bool = False,
) -> list[Fallback]:
    """What of a run is computed otherwise than `execution` says, and why; and where `auto` could have no kernel.

    What is decided call by call is not listed: whoever looks at scores or patterns, or at logits, has them computed the
    plain way in that call, and so are samples, of other lengths and in float32.

    Args:
        platform: as `platform_of` says; that of this process's devices unless given.
        divided: XLA divides the run over devices (see `train.layout.without_kernels`).
    """
    auto = config.train.compute.attention == "auto" and execution.attention == "plain"
    kernel = _kernel(source, platform or platform_of(first_device())) if auto else execution.attention
    layers_by = dict[tuple[str, str, str], list[int]]()
    for attention, layers in attentions(config, source) if kernel != "plain" else ():
        training, evaluation = (_refusal(kernel, attention, source, precision, training) for training in (True, False))
        own = "" if uses_plain_attention(attention) else type(attention.path).__name__
        if divided and not own:
            training = evaluation = DIVIDED
        if reason := training or evaluation:
            when = "always" if evaluation or auto else "training"  # of a plain run evaluation is plain, too
            layers_by.setdefault((when, reason, own), []).extend(layers)
    found = [Fallback(tuple(layers), when, reason, own) for (when, reason, own), layers in layers_by.items()]
    if execution.loss_chunk is not None:
        found += [
            Fallback((), "training", f"hook {name!r} reads them") for name in hooks_reading_logits(config.train.hooks)
        ]
    return found


def attentions(config: ResolvedConfig, source: Source) -> list[tuple[Attention, tuple[int, ...]]]:
    """The attention modules of a model, as shapes, each with the layers that have it."""

    def is_attention(node: Any) -> bool:
        return isinstance(node, Attention)

    stacks = model_shapes(config.model, source.vocab_size, source.seq_len).stacks
    return [
        (node, tuple(range(stack.start, stack.start + stack.size)))
        for stack in stacks
        for node in jax.tree.leaves(stack.block, is_leaf=is_attention)
        if is_attention(node)
    ]


def _attention(config: ResolvedConfig, source: Source, precision: str, platform: str) -> str:
    """The kernel of this platform, where the sequences are long enough and a layer takes it in training."""
    name = _kernel(source, platform)
    parts = (part for part, _ in attentions(config, source))
    return name if any(_refusal(name, part, source, precision, training=True) is None for part in parts) else "plain"


def _refusal(kernel: str, attention: Attention, source: Source, precision: str, training: bool) -> str | None:
    """Why attention as it is built does not take a kernel; None where it does."""
    if not uses_plain_attention(attention):
        return OWN_PATH
    return PATHS[kernel].refusal(describe_call(attention, source.seq_len, precision, training=training))


def _kernel(source: Source, platform: str) -> str:
    """The kernel that `attention: auto` tries; `plain` where there is none, or none for sequences as short."""
    name, least = KERNELS.get(platform, ("plain", 0))
    return name if source.seq_len >= least else "plain"


def _chunk(config: ResolvedConfig, source: Source, memory: float) -> int | None:
    """Tokens of a chunk, where the logits of a microbatch are large; None where they are not, or are read anyway."""
    sequences, token = config.train.batch_size // config.train.accumulate, 4 * source.vocab_size
    if hooks_reading_logits(config.train.hooks) or sequences * source.seq_len * token <= LARGE * memory:
        return None
    return max(sequences, int(SMALL * memory) // token)
