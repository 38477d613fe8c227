"""Models with active edits: activations are edited in every call, with a cache too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from taetpu.core.errors import UserError
from taetpu.core.sites import Edit, capture
from taetpu.nn.common import Fixed, is_fixed
from taetpu.nn.lm import LM

BEHIND = ("final", "logits")
"""Sites behind the last part of a model that is edited."""


class Constant(Fixed):
    """An array of an edit, which is not trained. It keeps its dtype."""

    def __init__(self, value: Any):
        self.value = jnp.asarray(value)


class EditedLM(LM):
    """A model with active edits: they apply to each call of the model and of its parts, before those of a capture.

    Attributes:
        before: The edits of sites before the first layer.
        within: The edits of sites in layers.
        after: The edits of sites of the final norm.
        values: The values of the edits by name, as `Constant`. New values do not cause recompilation.
    """

    before: tuple[Edit, ...] = eqx.field(static=True, default=())
    within: tuple[Edit, ...] = eqx.field(static=True, default=())
    after: tuple[Edit, ...] = eqx.field(static=True, default=())
    values: dict[str, Any] = eqx.field(default_factory=dict)

    def start(self, *args: Any, **options: Any) -> Any:
        """Return what `LM.start` returns, with the edits before the first layer."""
        return self._edit(super().start, self.before)(*args, **options)

    def run(self, *args: Any, **options: Any) -> Any:
        """Return what `LM.run` returns, with the edits in layers."""
        return self._edit(super().run, self.within)(*args, **options)

    def read_out(self, *args: Any, **options: Any) -> Any:
        """Return what `LM.read_out` returns, with the edits of the final norm."""
        return self._edit(super().read_out, self.after)(*args, **options)

    def _edit(self, fn: Callable[..., Any], edits: tuple[Edit, ...]) -> Callable[..., Any]:
        if not edits:
            return fn
        values = jax.tree.map(lambda fixed: fixed.value, self.values, is_leaf=is_fixed)

        def edited(*args: Any, **options: Any) -> Any:
            return capture(fn, (), edits)(*args, values=values, **options)[0]

        return edited


def edit_model(
    model: LM, edits: Sequence[Edit], values: Mapping[str, Any], layers: Mapping[str, tuple[int, ...]]
) -> EditedLM:
    """Return a model with further active edits, which are applied after those that it has.

    Args:
        model: The model.
        edits: The edits.
        values: The values of the edits by name.
        layers: The layers of each site of the model; see `core.sites.find_sites`.

    Raises:
        UserError: if a site is behind the final norm.
    """
    if not isinstance(model, EditedLM):
        model = EditedLM(**{entry.name: getattr(model, entry.name) for entry in fields(model)})
    parts = {"before": model.before, "within": model.within, "after": model.after}
    for edit in edits:
        if edit.site in BEHIND:
            problem = f"site {edit.site!r} is after all layers, where active edits are not supported"
            raise UserError(problem, remedy="Edit residual in the last layer.")
        part = "within" if layers[edit.site] else "after" if edit.site.startswith("final_norm.") else "before"
        parts[part] = (*parts[part], edit)
    return replace(model, **parts, values={**model.values, **jax.tree.map(Constant, dict(values))})


def check_unedited(model: LM) -> None:
    """Raise `UserError` if a model has active edits, which files of weights do not hold."""
    if isinstance(model, EditedLM):
        problem = "this model lacks parts because of active edits, which files of weights cannot store"
        raise UserError(problem, remedy="Write the model before parts are removed (without).")
