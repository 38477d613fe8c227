"""SmolLM 3: Llama in which some layers have no positions.

Source: modeling_smollm3.py and configuration_smollm3.py in transformers.
"""

from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.llama import BiasedFamily
from taetpu.interop.families.rope import RopeReader, write_plain_rope
from taetpu.interop.families.windows import FULL, SLIDING, layer_keys, read_layer_types, with_windows, write_windows


class SmolLM3(BiasedFamily):
    """SmolLM 3.

    `no_rope_layers` has a 1 for each layer with RoPE, and a 0 for others. By default, every fourth layer has none.
    """

    model_type = "smollm3"
    architecture = "SmolLM3ForCausalLM"
    about = "SmolLM 3"
    rope = RopeReader(2_000_000.0)
    harmless = ("max_window_layers",)

    bos_token_id: TokenNumbers = 128000
    eos_token_id: TokenNumbers = 128001
    pad_token_id: TokenNumbers = 128004
    num_key_value_heads: Count | None = 4
    max_position_embeddings: Count | None = 32768
    tie_word_embeddings: bool = True
    use_sliding_window: bool = False
    sliding_window: Count | None = None
    layer_types: tuple[str, ...] | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Count = 4

    def read(self) -> dict[str, Any]:
        """See `Family.read`.

        Raises:
            UserError: If `no_rope_layers` does not have an entry for each layer.
        """
        number, every = self.num_hidden_layers, self.no_rope_layer_interval
        given = self.no_rope_layers
        rotated = [bool((i + 1) % every) for i in range(number)] if given is None else [bool(entry) for entry in given]
        if len(rotated) != number:
            problem = f"no_rope_layers has {len(rotated)} entries, expected one for each of {number} layers"
            raise UserError(problem, path=("no_rope_layers",), remedy="Correct no_rope_layers or num_hidden_layers.")
        windows = self.use_sliding_window and self.sliding_window is not None
        types = read_layer_types(self, [SLIDING if windows and not rope else FULL for rope in rotated])
        made = with_windows(super().read(), types, self.sliding_window)
        if not any(rotated):
            return {**made, "position": "none"}
        plain = [i for i, rope in enumerate(rotated) if not rope]
        return {**made, "layers": {key: {"position": "none"} for key in layer_keys(plain, number)}} if plain else made

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        types, width = write_windows(ours)
        rotated = [layer.get("position.kind") != "none" for layer in ours.layers]
        first = next((layer for layer, rope in zip(ours.layers, rotated, strict=True) if rope), ours.model)
        made = super().write(ours)
        made.pop("rope_scaling", None)
        return {
            **made,
            **write_plain_rope(first),
            "use_sliding_window": width is not None,
            "sliding_window": width,
            "layer_types": types,
            "no_rope_layers": [int(rope) for rope in rotated],
        }
