"""The squared error of the first output."""

from taetpu.plugin import Objective, register


@register("objective", "test-squared-error")
class SquaredError(Objective):
    """The squared difference of the first output and the target."""

    real_targets = True

    def position_losses(self, logits, targets, weights):
        return {"nll": (logits[..., 0] - targets) ** 2 * weights, "weight": weights}
