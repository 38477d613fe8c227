"""What architectures with layer norms and feed-forward networks of two matrices have in common."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from taetpu.interop.families.base import MLPS, Exported, Family, choose_name, translate_choice

Rate = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Names:
    """The names of an architecture's settings. `dropouts` are the rates of branches, then those that are not read."""

    dim: str = "hidden_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    hidden: str = "intermediate_size"
    act: str = "hidden_act"
    eps: str = "layer_norm_eps"
    dropouts: tuple[str, ...] = ("hidden_dropout", "attention_dropout")


class LayerNormFamily(Family):
    """An architecture with layer norms and biases.

    Attributes:
        names: The names of settings.
        networks: The feed-forward networks by activation. An export of other networks has the first one.
    """

    names: ClassVar[Names] = Names()
    networks: ClassVar = MLPS
    choices: ClassVar = {"ffn.kind": tuple(dict.fromkeys(MLPS.values()))}

    def read(self) -> dict[str, Any]:
        """Convert the settings to the data of a `ModelConfig` with biases, without a position.

        The dropout rate is that of branches. The other rates act in training alone, like this one, and are not read.
        """
        names = self.names
        dim, act = getattr(self, names.dim), getattr(self, names.act)
        return {
            "dim": dim,
            "num_layers": getattr(self, names.num_layers),
            "mixer": {"kind": "attention", "num_heads": getattr(self, names.num_heads)},
            "norm": {"kind": "layer", "eps": getattr(self, names.eps)},
            "ffn": {
                "kind": translate_choice(names.act, act, self.networks),
                "hidden": getattr(self, names.hidden) or 4 * dim,
            },
            **self.data_around,
            "bias": True,
            "dropout": getattr(self, names.dropouts[0]),
        }

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """Convert the settings of a model to those of the architecture; see `read`."""
        names = cls.names
        return {
            "vocab_size": ours.get("vocab_size"),
            cls.seq_len: ours.get("seq_len"),
            names.dim: ours.get("dim"),
            names.num_layers: ours.get("num_layers"),
            names.num_heads: ours.get("mixer.num_heads", 1),
            names.hidden: ours.get("ffn.hidden", ours.get("dim")),
            names.act: choose_name(cls.networks, ours.get("ffn.kind")),
            names.eps: ours.get("norm.eps", 1e-5),
            "tie_word_embeddings": ours.get("embedding.kind") == "tied",
            **dict.fromkeys(names.dropouts, ours.get("dropout", 0.0)),
        }


SUMMARY = (
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
    "summary_last_dropout",
)
"""Settings of the class for multiple choice."""
