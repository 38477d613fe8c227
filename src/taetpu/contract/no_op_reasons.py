"""The reasons why changes to a config have no effect, for error messages."""

from typing import Any

from taetpu.contract.allowed_changes import places
from taetpu.contract.traced_program import Computation
from taetpu.nn.mask import UNLIMITED, CausalConfig, FullConfig, LocalConfig, SlidingConfig, WindowConfig
from taetpu.spec.differences import difference
from taetpu.spec.document import format_brief
from taetpu.spec.study_config import ResolvedConfig

KNOWN = {
    "train.precision": "this device computes in float32 in any case",
    "train.loss_bound": "this bound only decides which runs count as diverged",
}


def find_wide_window(old: ResolvedConfig, new: ResolvedConfig, length: int) -> int | None:
    """Return the width of a window that changes no layer's mask, because it covers whole sequences.

    Args:
        old: The config without the change.
        new: The config with the change.
        length: The longest sequence in training and evaluation.

    Returns:
        The width; None if each changed mask hides other positions.
    """

    def width(mask: Any) -> int:
        """Return the width of a mask."""
        return mask.width if isinstance(mask, SlidingConfig) and mask.width is not None else UNLIMITED

    def reach(mask: Any) -> int:
        """Return the number of positions that a mask shows on one side at most, with that of the query."""
        return width(mask) if mask.causal else width(mask) // 2 + 1

    layers = zip(old.model.layers, new.model.layers, strict=False)
    masks = [(a.typed_mixer.effective_mask, b.typed_mixer.effective_mask) for a, b in layers]
    changed = [(a, b) for a, b in masks if a != b]
    idle = [min(width(a), width(b)) for a, b in changed if _are_windows(a, b) and min(reach(a), reach(b)) >= length]
    wide = [number for number in idle if number < UNLIMITED or len(idle) == len(changed)]
    return min(wide) if wide else None


def _are_windows(a: Any, b: Any) -> bool:
    """Return whether two masks differ at most in their width."""
    kinds = (CausalConfig, WindowConfig) if isinstance(a, CausalConfig | WindowConfig) else (FullConfig, LocalConfig)
    return isinstance(a, kinds) and isinstance(b, kinds)


def explain_no_op(old: ResolvedConfig, new: Computation) -> tuple[str, str]:
    """Return the reason why two different configs compute the same results, and the remedy.

    Args:
        old: The config without the change.
        new: The computation of the config with the change.
    """
    diff = difference(old, new.config)
    structural = [path for path in diff if not any(".".join(at) in new.numbers for at in places(path, new.config))]
    if not structural:
        return f"no trained or measured value depends on {next(iter(diff))}", "Remove it."
    path = structural[0]
    before, after = diff[path]
    same_program = f"{path}: {format_brief(before)} -> {format_brief(after)} compiles to the same program"
    if path in KNOWN:
        return f"{same_program}, because {KNOWN[path]}", "Remove it."
    if path.startswith(("train.hooks.", "model.heads.")):
        return f"{same_program}, because it changes no step", "Remove it, or change its settings."
    if before is None or after is None:
        value = format_brief(before if after is None else after)
        return f"{same_program}, because {value} is the default", "Remove it."
    return f"{same_program} with the same numbers", "Remove it, or check which setting or code should read it."
