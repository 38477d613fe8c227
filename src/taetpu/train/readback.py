"""The check at the end of a run: the model loaded from its files reproduces the losses of training.

It detects state that is in no file of the run, such as module state outside of config and parameters or numbers drawn
while the model is built, and files written wrongly. The model is loaded like in `taetpu.open_run`
(`train.model_io.from_files`), and evaluated with the pack's compute options and compiled function; nothing is compiled
if the loaded model has the structure of the trained one.
"""

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from taetpu.core.errors import Failed
from taetpu.data.batches import Batch
from taetpu.nn.lm import LM
from taetpu.train.model_io import from_files
from taetpu.train.program import Program

# The largest difference between two losses of a sequence, in nats per token, or relative for losses above 1. If the
# loaded model has the structure of the trained one, one compiled function computes both, and they are equal. Otherwise
# (a mask of ones that training needed for another run of the pack is in no file) two programs round differently. In
# reduced precision the bound is the total rounding error: in models of 3 to 12 layers, bfloat16 changed the loss of a
# sequence by up to .0054 of its float32 value.
FULL, REDUCED = 1e-4, 1e-2

Losses = Float[np.ndarray, " sequence"]


class NotReproduced(Failed):
    """Saved models do not reproduce the losses of training.

    Args:
        problems: the problem of each run, by run ID.
    """

    def __init__(self, problems: Mapping[str, str]):
        cause = (
            "the model depends on state outside its config and its parameters, or its files are damaged; "
            "`python -m taetpu.testing PLUGIN` checks a plug-in's components"
        )
        super().__init__("\n".join([*problems.values(), f"  cause:  {cause}"]))
        self.runs = frozenset(problems)


def mismatches(
    program: Program,
    trained: LM,
    stored: Mapping[int, Mapping[str, bytes]],
    windows: Mapping[str, Batch | None],
    measured: Mapping[str, Mapping[str, np.ndarray]],
) -> dict[int, str]:
    """Return the problems of stored models by the places of their runs in the pack; empty if they reproduce the losses.

    Args:
        program: the program of the pack.
        trained: the models of the pack, with a leading run axis.
        stored: the files of each model by place.
        windows: evaluation sets by split; the first that was evaluated is used.
        measured: the sums of each sequence of a split's first batch for the trained models, `(width, batch)`.
    """
    split = next((name for name in windows if name in measured), None)
    batch = windows[split] if split is not None else None
    if split is None or batch is None or not stored:
        return {}
    models = {place: load_stored_model(program, files) for place, files in stored.items()}
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
    """Return the loss of each sequence of the first batch of `windows`, by the keys of the models.

    Models of one structure are evaluated together, padded with copies to the width of the pack.
    """
    alike = dict[Hashable, list[int]]()
    for place, model in models.items():
        alike.setdefault(structure_and_shapes(model), []).append(place)
    found = dict[int, Losses]()
    for places in alike.values():
        padded = [*places, *places[:1] * (program.width - len(places))]
        stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *(models[place] for place in padded))
        sums = program.evaluate_on_host(stacked, windows, count=1)
        losses = sequence_losses({name: values[:, : windows.tokens.shape[1]] for name, values in sums.items()})
        found |= zip(places, losses, strict=False)
    return found


def load_stored_model(program: Program, files: Mapping[str, bytes]) -> LM:
    """Return a stored model on the host, with the program's compute options.

    Raises:
        UserError: the files are not those of a model.
    """
    with default_to_host():
        model = program.execution.apply(from_files(files).model)
        return jax.tree.map(np.asarray, model)


def default_to_host() -> AbstractContextManager[object]:
    """Return a context in which JAX puts new arrays into host memory if it can, since the devices may be full."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names an accelerator alone
        return nullcontext()


def structure_and_shapes(model: LM, lead: int = 0) -> Hashable:
    """Return a key that is equal for models that share a compiled function, without `lead` axes of every array."""
    return jax.tree.structure(model), tuple((a.shape[lead:], a.dtype) for a in jax.tree.leaves(model))


def sequence_losses(sums: Mapping[str, np.ndarray]) -> Float[np.ndarray, "run sequence"]:
    """Return nats per weighted token from an evaluation's sums; 0 for sequences without weight."""
    return sums["nll"] / np.maximum(sums["weight"], 1.0)


def is_exact(program: Program) -> bool:
    """Return whether matrix products are float32; on TPUs and GPUs this depends on JAX's matmul precision."""
    on_cpu = program.mesh.devices.flat[0].platform == "cpu"
    asked = getattr(jax.config, "jax_default_matmul_precision", None)
    return program.dtype == jnp.float32 and (on_cpu or asked in ("highest", "float32"))


def loss_differences(trained: Losses, saved: Losses) -> Losses:
    """Return the differences of losses as defined at `FULL`. NaN equals NaN, and differs infinitely from a number."""
    same = (trained == saved) | (np.isnan(trained) & np.isnan(saved))
    with np.errstate(invalid="ignore"):
        apart = np.abs(trained - saved) / np.maximum(1.0, np.abs(trained))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
