"""The benchmarked models: GPT-2's architecture at several sizes, on one text, described for all contestants."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taetpu.data import corpora
from taetpu.data.splitting import join_documents

VOCAB = 65  # characters, as in Tiny Shakespeare
LR, BETAS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.99), 0.1, 1.0
HELD_OUT = 0.1  # share of the text, at its end


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and its batches."""

    dim: int
    seq: int
    batch: int
    layers: int = 4
    heads: int = 4

    @property
    def tokens(self) -> int:
        """Tokens of one run in one step."""
        return self.seq * self.batch

    @property
    def data(self) -> dict[str, int]:
        return asdict(self)


SHAPES = {shape.dim: shape for shape in (Shape(32, 16, 16), Shape(64, 32, 16), Shape(128, 64, 12), Shape(256, 128, 8))}


def write_text(file: Path) -> Path:
    """Write the topics of Python's `help()`, limited to the 65 most common characters."""
    text = join_documents(corpora.python_docs())
    kept = {character for character, _ in Counter(text).most_common(VOCAB)}
    file.write_text("".join(character for character in text if character in kept))
    return file


def baseline(shape: Shape, text: Path, steps: int) -> dict[str, Any]:
    """Return GPT-2's architecture and the peers' training as the `base` of a study."""
    return {
        "task": {
            "kind": "text",
            "source": str(text),
            "tokenizer": {"kind": "char", "unseen": "error"},  # no extra token for unseen characters
            "seq_len": shape.seq,
            "val": HELD_OUT,
        },
        "model": {
            "dim": shape.dim,
            "num_layers": shape.layers,
            "mixer": {"kind": "attention", "num_heads": shape.heads},
            "position": "learned",
            "norm": "layer",
            "ffn": {"kind": "gelu-tanh", "hidden": 4 * shape.dim},
            "embedding": "tied",
            "bias": True,
        },
        "train": {
            "steps": steps,
            "batch_size": shape.batch,
            "optimizer": {"kind": "adamw", "lr": LR, "b1": BETAS[0], "b2": BETAS[1], "weight_decay": WEIGHT_DECAY},
            "schedule": {"kind": "constant", "warmup": 0},
            "clip": CLIP,
            "sample": None,
        },
    }
