"""What architectures with layer norms and feed-forward networks of two matrices have in common."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from taetpu.interop.families.base import MLPS, Exported, Settings, choose_name, translate_choice

Rate = Annotated[float, Field(ge=0, lt=1)]
MLP_CHOICES = {"ffn.kind": tuple(dict.fromkeys(MLPS.values()))}


@dataclass(frozen=True)
class Names:
    """The names of an architecture's settings. `dropouts` are the rates of branches, then those that are not read."""

    dim: str = "hidden_size"
    num_layers: str = "num_hidden_layers"
    num_heads: str = "num_attention_heads"
    hidden: str = "intermediate_size"
    act: str = "hidden_act"
    eps: str = "layer_norm_eps"
    seq_len: str = "max_position_embeddings"
    std: str = "initializer_range"
    dropouts: tuple[str, ...] = ("hidden_dropout", "attention_dropout")

    def read(self, config: Settings) -> dict[str, Any]:
        """Convert settings to the data of a `ModelConfig` with biases, without a position.

        The dropout rate is that of branches. The other rates act in training alone, like this one, and are not read.
        """
        return {
            "dim": config[self.dim],
            "num_layers": config[self.num_layers],
            "mixer": {"kind": "attention", "num_heads": config[self.num_heads]},
            "norm": {"kind": "layer", "eps": config[self.eps]},
            "ffn": {
                "kind": translate_choice(config, self.act, MLPS),
                "hidden": config[self.hidden] or 4 * config[self.dim],
            },
            "embedding": "tied" if config["tie_word_embeddings"] else "untied",
            "init": {"kind": "normal", "std": config[self.std]},
            "bias": True,
            "dropout": config[self.dropouts[0]],
        }

    def write(self, ours: Exported) -> dict[str, Any]:
        """Convert the settings of a model to those of the architecture; see `read`."""
        return {
            "vocab_size": ours.get("vocab_size"),
            self.seq_len: ours.get("seq_len"),
            self.dim: ours.get("dim"),
            self.num_layers: ours.get("num_layers"),
            self.num_heads: ours.get("mixer.num_heads", 1),
            self.hidden: ours.get("ffn.hidden", ours.get("dim")),
            self.act: choose_name(MLPS, ours.get("ffn.kind")),
            self.eps: ours.get("norm.eps", 1e-5),
            "tie_word_embeddings": ours.get("embedding.kind") == "tied",
            **dict.fromkeys(self.dropouts, ours.get("dropout", 0.0)),
        }


GPT = Names(
    dim="n_embd",
    num_layers="n_layer",
    num_heads="n_head",
    hidden="n_inner",
    act="activation_function",
    eps="layer_norm_epsilon",
    seq_len="n_positions",
    dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
)
"""The names of GPT-2 and GPT-J."""
GPT_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
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
