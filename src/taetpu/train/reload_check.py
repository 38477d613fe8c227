"""The check at the end of training that models loaded from their files reproduce the losses of training.

The check detects corrupted files, and state that is missing from the files, such as module state outside the config and
the parameters, or random numbers drawn while the model is built. The model is loaded as in `taetpu.open_run` (with
`train.model_io.from_files`), and evaluated with the pack's compute options and compiled function. Like the trained
model, it has a mask of ones if another run of the pack needs a mask, unless a plug-in is part of it: whether the masks
of plug-ins change nothing where they are neutral is checked by leaving them out. Otherwise nothing is compiled.
"""

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from taetpu.core.config import iter_components
from taetpu.core.errors import Failed
from taetpu.core.static_dynamic import traced_paths
from taetpu.data.base import Batch
from taetpu.nn.lm import LM
from taetpu.train.model_io import from_files
from taetpu.train.program import Program

# The maximum allowed difference between two losses of a sequence: in nats per token, or relative for losses above 1. If
# the loaded model has the structure of the trained model, the same compiled function computes both losses, and they are
# equal. Otherwise, two programs compute the losses and round differently. In reduced precision, the bound covers the
# total rounding error: in models with 3 to 12 layers, bfloat16 changed the loss of a sequence by up to 0.54 % of the
# float32 loss.
FULL, REDUCED = 1e-4, 1e-2

Losses = Float[np.ndarray, " sequence"]


class NotReproduced(Failed):
    """Raised if saved models do not reproduce the losses of training.

    Args:
        problems: descriptions of the problems, by run ID.
    """

    def __init__(self, problems: Mapping[str, str]):
        cause = (
            "the model depends on state outside its config and its parameters, or its files are damaged; "
            "`python -m taetpu.testing PLUGIN` checks a plug-in's components"
        )
        super().__init__("\n".join([*problems.values(), f"  cause:  {cause}"]))
        self.runs, self.problems = frozenset(problems), dict(problems)

    def __reduce__(self) -> tuple[type["NotReproduced"], tuple[dict[str, str]]]:
        """Return how the error is unpickled: with the problems, not with the message."""
        return NotReproduced, (self.problems,)


def mismatches(
    program: Program,
    trained: LM,
    stored: Mapping[int, Mapping[str, bytes]],
    windows: Mapping[str, Batch | None],
    measured: Mapping[str, Mapping[str, np.ndarray]],
) -> dict[int, str]:
    """Return the problems of stored models that do not reproduce the losses of training, by index in the pack.

    Args:
        program: the program of the pack.
        trained: the trained models of the pack, with a leading run axis.
        stored: the files of each stored model, by index in the pack.
        windows: evaluation sets by split. The first split in `measured` is used.
        measured: the sums of each sequence in the first batch of a split for the trained models, `(width, batch)`.
    """
    split = next((name for name in windows if name in measured), None)
    batch = windows[split] if split is not None else None
    if split is None or batch is None or not stored:
        return {}
    trained_config = program.structure.model
    built_in = all(component.is_built_in() for component in iter_components(trained_config))
    live = traced_paths(trained_config) if built_in else frozenset[str]()
    models = {place: load_stored_model(program, files, live) for place, files in stored.items()}
    losses, problems = sequence_losses(measured[split]), {}
    for place, saved in saved_losses(program, models, batch).items():
        same_program = structure_and_shapes(models[place]) == structure_and_shapes(trained, lead=1)
        bound = FULL if same_program or is_exact(program) else REDUCED
        apart = loss_differences(losses[place], saved)
        worst = int(apart.argmax())
        if apart[worst] > bound:
            problems[place] = (
                f"the saved model does not give the stored {split}/loss: the loss of sequence {worst} is "
                f"{losses[place][worst]:.6g} in training and {saved[worst]:.6g} from the files "
                f"(allowed difference: {bound:g})"
            )
    return problems


def saved_losses(program: Program, models: Mapping[int, LM], windows: Batch) -> dict[int, Losses]:
    """Return each model's loss on every sequence in the first batch of `windows`, by the keys of `models`.

    Models with the same structure are evaluated together, padded with copies to the width of the pack.
    """
    alike = dict[Hashable, list[int]]()
    for place, model in models.items():
        alike.setdefault(structure_and_shapes(model), []).append(place)
    by_place = dict[int, Losses]()
    for places in alike.values():
        padded = [*places, *places[:1] * (program.width - len(places))]
        stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *(models[place] for place in padded))
        sums = program.evaluate_on_host(stacked, windows, count=1)
        losses = sequence_losses({name: values[:, : windows.tokens.shape[1]] for name, values in sums.items()})
        by_place |= zip(places, losses, strict=False)
    return by_place


def load_stored_model(program: Program, files: Mapping[str, bytes], live: frozenset[str]) -> LM:
    """Return a stored model as host arrays, with the program's compute options. See `from_files` for `live`.

    Raises:
        UserError: if the files do not contain a model.
    """
    with default_to_host():
        model = program.execution.apply(from_files(files, live=live).model)
        return jax.tree.map(np.asarray, model)


def default_to_host() -> AbstractContextManager[object]:
    """Return a context in which JAX creates arrays in host memory if possible, since the devices may be full."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS does not include the CPU
        return nullcontext()


def structure_and_shapes(model: LM, lead: int = 0) -> Hashable:
    """Return a key that is equal for models that share a compiled function; `lead` axes of each array are ignored."""
    return jax.tree.structure(model), tuple((a.shape[lead:], a.dtype) for a in jax.tree.leaves(model))


def sequence_losses(sums: Mapping[str, np.ndarray]) -> Float[np.ndarray, "run sequence"]:
    """Return the loss of each sequence in nats per weighted token; 0 for sequences without weight.

    Args:
        sums: the sums over the positions of each sequence.
    """
    return sums["nll"] / np.maximum(sums["weight"], 1.0)


def is_exact(program: Program) -> bool:
    """Return whether matrix products use float32; on TPUs and GPUs this depends on JAX's matmul precision."""
    on_cpu = program.mesh.devices.flat[0].platform == "cpu"
    asked = getattr(jax.config, "jax_default_matmul_precision", None)
    return program.dtype == jnp.float32 and (on_cpu or asked in ("highest", "float32"))


def loss_differences(trained: Losses, saved: Losses) -> Losses:
    """Return the differences between losses as defined at `FULL`.

    Two NaNs are equal; the difference between NaN and a number is infinite.
    """
    same = (trained == saved) | (np.isnan(trained) & np.isnan(saved))
    with np.errstate(invalid="ignore"):
        apart = np.abs(trained - saved) / np.maximum(1.0, np.abs(trained))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
