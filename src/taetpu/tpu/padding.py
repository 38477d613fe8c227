"""What a TPU fills up: sizes of a model that are no multiples of its tiles, and how much of them is padding.

Arrays lie in tiles of 8 (float32) or 16 (bfloat16) by 128 elements, and products go through a matrix unit of 128 or 256
rows and columns; what is smaller is filled up (docs.cloud.google.com/tpu/docs/performance-guide).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from taetpu.core.chips import LANES
from taetpu.core.tree import leaves_by_path
from taetpu.data.batches import Source
from taetpu.nn.common import trainable
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.count import shapes


@dataclass(frozen=True)
class Size:
    """One size of a model beside the tiles that hold it.

    Attributes:
        name: what has it: `model.dim`, `head_dim`, or a parameter whose last axis it is.
        padded: the size with its tiles filled up.
    """

    name: str
    size: int
    padded: int

    @property
    def filled(self) -> float:
        return self.size / self.padded


def sizes(config: ResolvedConfig, source: Source) -> list[Size]:
    """The sizes of a model that lie along a tile's last axis, each once."""
    names: dict[int, str] = {}
    for name, size in _sizes(config, source):
        names.setdefault(size, name)
    return [Size(name, size, -(-size // LANES) * LANES) for size, name in names.items()]


def _sizes(config: ResolvedConfig, source: Source) -> Iterator[tuple[str, int]]:
    model = config.model
    yield "model.dim", model.dim
    yield "task.seq_len", source.seq_len
    for layer in model.layers:
        if heads := getattr(layer.mixer, "num_heads", None):
            yield "head_dim", getattr(layer.mixer, "head_dim", None) or model.dim // heads
    parameters, _ = trainable(shapes(model, source.vocab_size, source.seq_len))
    for path, leaf in leaves_by_path(parameters).items():
        if leaf.ndim > 1:
            yield path.partition(".block.")[2] or path, leaf.shape[-1]


def advice(found: list[Size], least: float = 0.75) -> list[str]:
    """A sentence for each size that fills its tiles less than `least`."""
    return [
        f"{one.name} {one.size} is filled up to {one.padded}: {one.filled:.0%} of its tiles is used"
        for one in sorted(found, key=lambda one: one.filled)
        if one.filled < least
    ]
