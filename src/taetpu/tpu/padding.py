"""Report the sizes in a model that fill a TPU's tiles only in part.

Arrays are stored in tiles of 8 (float32) or 16 (bfloat16) by 128 elements, and matrix units have 128 or 256 rows and
columns. Smaller sizes are padded (docs.cloud.google.com/tpu/docs/performance-guide).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from taetpu.core.chips import LANES
from taetpu.core.tree import leaves_by_path
from taetpu.data.base import Source
from taetpu.nn.common import partition_trainable
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.model_cost import model_shapes

MIN_FILLED = 0.75
"""Sizes that use less than this share of their tiles are reported."""


@dataclass(frozen=True)
class Size:
    """A size in a model, with and without padding.

    Attributes:
        name: `model.dim`, `task.seq_len`, `head_dim`, or the path of a parameter whose last axis has this size.
    """

    name: str
    size: int
    padded: int

    @property
    def filled(self) -> float:
        """Share of the tiles that is not padding."""
        return self.size / self.padded


def tiled_sizes(config: ResolvedConfig, source: Source) -> list[Size]:
    """Return the distinct sizes of the last axes of a model's arrays."""
    names: dict[int, str] = {}
    for name, size in _named_sizes(config, source):
        names.setdefault(size, name)
    return [Size(name, size, -(-size // LANES) * LANES) for size, name in names.items()]


def _named_sizes(config: ResolvedConfig, source: Source) -> Iterator[tuple[str, int]]:
    model = config.model
    yield "model.dim", model.dim
    yield "task.seq_len", source.seq_len
    for layer in model.layers:
        if heads := layer.typed_mixer.heads(model.dims(source.interface, source.seq_len)):
            yield "head_dim", heads.head_dim
    parameters, _ = partition_trainable(model_shapes(model, source.interface, source.seq_len))
    for path, leaf in leaves_by_path(parameters).items():
        if leaf.ndim > 1:
            yield path.partition(".block.")[2] or path, leaf.shape[-1]


def describe_padding(sizes: list[Size]) -> list[str]:
    """Return a sentence for each size that fills less than `MIN_FILLED` of its tiles, least filled first."""
    return [
        f"{dim.name} {dim.size} is padded to {dim.padded}, so {dim.filled:.0%} of its tiles is used"
        for dim in sorted(sizes, key=lambda dim: dim.filled)
        if dim.filled < MIN_FILLED
    ]
