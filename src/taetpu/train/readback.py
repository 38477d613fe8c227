"""The check that ends a run: the model read back from its files computes the losses that training measured.

It finds what is in no file of a run and still decides its losses: state that a component keeps outside its config and
its parameters, numbers drawn while a model is built, a file that was written wrong. The model is opened as
`taetpu.open_run` opens it (`train.model_io.from_files`), computed as in training (`nn.compute_options`), and evaluated
by the pack's own function: where the opened model has the structure of the trained one, nothing is compiled.
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

# How far apart two losses of a sequence may be, in nats per token, or as a share of a loss above 1. Where the opened
# model has the trained one's structure, one compiled function computes both, and they are equal. Elsewhere (a mask of
# ones, there in training for another run of the pack, is in no file) two programs round differently. In reduced
# precision that is at most what rounding does altogether: in models of 3 to 12 layers, bfloat16 moved the loss of a
# sequence by up to .0054 of itself from float32's.
FULL, REDUCED = 1e-4, 1e-2

Losses = Float[np.ndarray, " sequence"]


class NotReproduced(Failed):
    """Saved models do not give the losses that were measured in training.

    Args:
        problems: by the id of each run.
    """

    def __init__(self, problems: Mapping[str, str]):
        cause = (
            "the model depends on what is neither in its config nor in its parameters, or its files are damaged; "
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
    """What is wrong with stored models, by the places of their runs in the pack; nothing where all are right.

    Args:
        trained: the models of the pack, with a leading run axis.
        stored: the files of each model, by name.
        windows: evaluation sets by split, of which the first that was evaluated is used.
        measured: sums of each sequence of a split's first batch, as the trained models gave them: `(width, batch)`.
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
                f"the saved model does not give the stored {split}/loss: sequence {worst} has a loss of "
                f"{losses[place][worst]:.6g} in training and of {saved[worst]:.6g} from its files "
                f"(allowed difference: {bound:g})"
            )
    return problems


def saved_losses(program: Program, models: Mapping[int, LM], windows: Batch) -> dict[int, Losses]:
    """The loss of each sequence of the first batch of `windows`, by the keys of the models.

    Models of one structure are evaluated together, in a pack that is padded with copies.
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
    """A stored model on the host, to be computed as the program does.

    Raises:
        UserError: the files are not those of a model.
    """
    with default_to_host():
        model = program.execution.apply(from_files(files).model)
        return jax.tree.map(np.asarray, model)


def default_to_host() -> AbstractContextManager[object]:
    """Has jax put new arrays into the host's memory, where it can: a model may not fit beside the state of its pack."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names an accelerator alone
        return nullcontext()


def structure_and_shapes(model: LM, lead: int = 0) -> Hashable:
    """Equal for models that one compiled function takes; `lead` axes of every array count runs."""
    return jax.tree.structure(model), tuple((a.shape[lead:], a.dtype) for a in jax.tree.leaves(model))


def sequence_losses(sums: Mapping[str, np.ndarray]) -> Float[np.ndarray, "run sequence"]:
    """Nats per weighted token from an evaluation's sums; 0 where nothing counts."""
    return sums["nll"] / np.maximum(sums["weight"], 1.0)


def is_exact(program: Program) -> bool:
    """Whether products are computed in float32: on TPUs and GPUs only where jax's matmul precision says so."""
    on_cpu = program.mesh.devices.flat[0].platform == "cpu"
    asked = getattr(jax.config, "jax_default_matmul_precision", None)
    return program.dtype == jnp.float32 and (on_cpu or asked in ("highest", "float32"))


def loss_differences(trained: Losses, saved: Losses) -> Losses:
    """How far apart losses are, as `FULL` measures it. A NaN equals a NaN, and differs infinitely from a number."""
    same = (trained == saved) | (np.isnan(trained) & np.isnan(saved))
    with np.errstate(invalid="ignore"):
        apart = np.abs(trained - saved) / np.maximum(1.0, np.abs(trained))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
