"""Models in the form that Hugging Face's architectures have: without adapters, and without layers that are skipped."""

from taetpu.core.model_interface import Interface
from taetpu.interop.blank import blank_model
from taetpu.nn.adapter import NoAdapter, merge_adapters
from taetpu.nn.lm import LM, LMConfig
from taetpu.nn.named_arrays import named_parameters, with_parameters


def to_plain(config: LMConfig, model: LM, sizes: Interface, seq_len: int) -> tuple[LMConfig, LM]:
    """Return a model that computes the same with adapters added to the weights, and without layers that are dropped.

    Layers whose parameters other layers share are not removed.

    Args:
        config: The config of the model.
        model: The model.
        sizes: The sizes of inputs and outputs.
        seq_len: The sequence length.
    """
    if any(not isinstance(layer.adapter, NoAdapter) for layer in config.layers):
        config, model = merge_adapters(config, model)
    kept = [number for number, layer in enumerate(config.layers) if "layer" not in layer.drop]
    if len(kept) in (0, len(config.layers)) or any(layer.same_as is not None for layer in config.layers):
        return config, model
    arrays = named_parameters(model)
    new = {f"layers.{number}.": f"layers.{place}." for place, number in enumerate(kept)}
    renamed = {name: array for name, array in arrays.items() if not name.startswith("layers.")}
    for name, array in arrays.items():
        prefix = ".".join(name.split(".")[:2]) + "."
        if prefix in new:
            renamed[new[prefix] + name.removeprefix(prefix)] = array
    plain = config.model_copy(update={"layers": tuple(config.layers[number] for number in kept)})
    return plain, with_parameters(blank_model(plain, sizes, seq_len), renamed)
