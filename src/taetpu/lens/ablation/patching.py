"""Activation patching: which activations of a clean run restore the answer in a corrupted run?

A clean and a corrupted text have the same length and different answers. The model reads the corrupted text, and one
activation takes its value from the clean text. The measure is the logit of the clean answer minus that of the wrong one
after the last token, or the log-probability of the clean answer without a wrong answer. A component's score is the
share of the difference between the clean and the corrupted run that it restores: 0 for nothing, 1 for everything.

`attribution_patching` estimates all scores from one gradient. It fails where the measure is far from linear, such as in
saturated attention, so its correlation with the exact scores is always computed too.

Sources: Meng et al. 2022, arXiv 2202.05262 (activation patching); Nanda 2023, "Attribution patching"; Syed et al. 2023,
    arXiv 2310.10348; Kramar et al. 2024, arXiv 2403.00745 (AtP*).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from taetpu.core.errors import UserError
from taetpu.core.progress import Progress
from taetpu.core.short_repr import short_repr
from taetpu.lens.ablation.components import Components, column_name, find_components
from taetpu.lens.ablation.documents import Documents
from taetpu.lens.ablation.knockout import losses_of_sets, without_nan
from taetpu.lens.ablation.replacements import Method, make_replacements
from taetpu.lens.ablation.sweep import mask_slopes, read_values
from taetpu.lens.activations import sequences
from taetpu.lens.opened import OpenedModel
from taetpu.lens.token_texts import read_token
from taetpu.stats.document_effects import Effects, estimate_effects

SMALLEST = 1e-6
"""The smallest difference of clean and corrupted runs, relative to the measure, whose shares have a meaning."""
CLEAR = 2.0
"""The number of standard errors from which a difference between clean and corrupted runs is clear."""
LARGE = 2.0
"""The absolute score above which the difference between clean and corrupted runs is small beside a patch's change."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of clean and corrupted texts.

    Attributes:
        clean: The clean texts, with the clean answers as last targets.
        corrupted: The corrupted texts, with the same targets.
    """

    __repr__ = short_repr

    clean: Documents
    corrupted: Documents


def read_pairs(
    opened: OpenedModel,
    clean: Any,
    corrupted: Any,
    answers: Sequence[str | int],
    wrong: Sequence[str | int] | None = None,
) -> Pairs:
    """Return pairs of texts.

    Args:
        opened: The model.
        clean: The clean texts or token numbers.
        corrupted: A corrupted text for each clean one, with as many tokens.
        answers: The answer to each clean text: a token, named as in `token_texts.read_token`.
        wrong: A wrong answer for each text; None to measure log-probabilities.

    Raises:
        UserError: if texts cannot be read, or their numbers or lengths differ.
    """
    clean_rows, corrupted_rows = sequences(opened, clean), sequences(opened, corrupted)
    counts = {"clean texts": len(clean_rows), "corrupted texts": len(corrupted_rows), "answers": len(answers)}
    counts |= {} if wrong is None else {"wrong answers": len(wrong)}
    if len(set(counts.values())) > 1:
        problem = "there are " + ", ".join(f"{count} {name}" for name, count in counts.items())
        raise UserError(problem, path=("corrupted",), remedy="Pass equal numbers of texts and answers.")
    for number, (a, b) in enumerate(zip(clean_rows, corrupted_rows, strict=True)):
        if len(a) != len(b):
            problem = f"clean text {number} has {len(a)} tokens, and the corrupted one has {len(b)}"
            remedy = "Use texts with equal numbers of tokens."
            raise UserError(problem, path=("corrupted", number), remedy=remedy)
    ends = [read_token(opened, answer, "answers") for answer in answers]
    others = None if wrong is None else [read_token(opened, answer, "wrong") for answer in wrong]
    return Pairs(_ending(clean_rows, ends, others), _ending(corrupted_rows, ends, others))


def _ending(rows: list[np.ndarray], answers: list[int], wrong: list[int] | None) -> Documents:
    """Return texts as documents in which the answer after the last token is scored."""

    def last(row: np.ndarray, token: int) -> np.ndarray:
        return np.append(row[1:], token).astype(np.int32)

    weights = [np.append(np.zeros(len(row) - 1), 1).astype(np.float32) for row in rows]
    targets = [last(row, answer) for row, answer in zip(rows, answers, strict=True)]
    others = None if wrong is None else [last(row, token) for row, token in zip(rows, wrong, strict=True)]
    return Documents(rows, targets, weights, None, others)


@dataclass(frozen=True)
class Patches:
    """The scores of components.

    Attributes:
        model: The name of the model.
        components: The components.
        measure: What is measured: `logit difference` or `log-probability`.
        clean: The mean measure of the clean runs.
        corrupted: The mean measure of the corrupted runs.
        difference_error: The standard error of their difference over pairs; NaN for a single pair.
        effects: The changes of the measure by each patch, over pairs.
        estimates: The changes as attribution patching estimates them; None if they were not computed.
    """

    __repr__ = short_repr

    model: str
    components: Components
    measure: str
    clean: float
    corrupted: float
    difference_error: float
    effects: Effects
    estimates: Float[np.ndarray, " component"] | None = None

    @property
    def scores(self) -> Float[np.ndarray, " component"]:
        """The share of the difference between clean and corrupted runs that each component restores."""
        return self.effects.estimate / (self.clean - self.corrupted)

    @property
    def warning(self) -> str | None:
        """Why scores are unreliable: they divide by a small difference. None if the difference is clear."""
        whole, error = self.clean - self.corrupted, self.difference_error
        largest = float(np.abs(self.effects.estimate).max(initial=0))
        about = f"scores divide by the difference between clean and corrupted runs, {whole:+.3g}"
        if abs(whole) < CLEAR * error:
            return f"{about}, which is less than {CLEAR:g} standard errors ({error:.3g}) over pairs"
        if whole < 0:
            return f"{about}: the clean runs favour the answer less than the corrupted runs"
        if largest > LARGE * whole:
            return f"{about}, and patches change the {self.measure} by up to {largest:.3g}"
        return None

    @property
    def correlation(self) -> float | None:
        """The correlation of the estimated and the exact changes over components; None if it is not defined."""
        if self.estimates is None or len(self.estimates) < 2 or min(np.std(self.estimates), np.std(self.scores)) == 0:
            return None
        return float(np.corrcoef(self.estimates, self.effects.estimate)[0, 1])

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each component, the largest absolute score first."""
        order = np.argsort(-np.abs(self.scores), kind="stable")
        whole, effects = self.clean - self.corrupted, self.effects
        rows = []
        for number in order.tolist():
            low, high = sorted((effects.low[number] / whole, effects.high[number] / whole))
            row = {"component": self.components.each[number].name, "score": float(self.scores[number]),
                   "low": float(low), "high": float(high)}  # fmt: skip
            if self.estimates is not None:
                row["estimate"] = float(self.estimates[number] / whole)
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; missing intervals are null."""
        error = self.difference_error
        about = {"model": self.model, "what": self.components.what, "measure": self.measure, "clean": self.clean,
                 "corrupted": self.corrupted, "difference_error": error if error == error else None,
                 "warning": self.warning, "pairs": self.effects.documents}  # fmt: skip
        return {**about, "correlation": self.correlation, "components": without_nan(self.rows())}

    def cells(self) -> dict[tuple[int, int], float]:
        """Return the score by layer and head, group or position; empty for other components."""
        return self.components.cells(self.scores)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        from taetpu.report.notebook import effects_html

        about = (
            f"{self.measure} of {self.effects.documents:,} pairs, {self.clean:.3f} clean and {self.corrupted:.3f} "
            f"corrupted; score: the share of the difference that each of the {self.components.what} restores"
        )
        about += "" if self.warning is None else f"; warning: {self.warning}"
        return effects_html(self.model, about, self.rows(), self.chart)

    def chart(self) -> Any:
        """Return an Altair chart: a picture of layers and heads or positions, or a bar for each component."""
        from taetpu.report.charts import themed
        from taetpu.report.token_charts import effect_chart, head_picture

        title = "restored share of the difference between clean and corrupted runs"
        if cells := self.cells():
            return themed(head_picture(title, cells, signed=True, columns=column_name(self.components)))
        names = [component.name for component in self.components.each]
        whole, effects = self.clean - self.corrupted, self.effects
        return effect_chart(names, self.scores, effects.low / whole, effects.high / whole, title, self.components.what)


def patch(
    opened: OpenedModel,
    pairs: Pairs,
    what: str | Components = "heads",
    *,
    attribution: bool = False,
    progress: Progress | None = None,
) -> Patches:
    """Return how much of the clean answer each component restores.

    Args:
        opened: The model.
        pairs: The texts.
        what: The kind of the components (see `components.find_components`), or the components.
        attribution: Whether to estimate the changes by attribution patching too.
        progress: A function that is called with the number of batches done and of all batches.

    Raises:
        UserError: if the model has no such components, or clean and corrupted runs have the same measure.
    """
    longest = max(map(len, pairs.clean.inputs))
    components = what if isinstance(what, Components) else find_components(opened, what, positions=longest)
    check_activations(components)
    method = Method("counterfactual", counterparts=pairs.clean)
    replacements = make_replacements(opened, components, pairs.corrupted, method)
    sets = [(), *((number,) for number in range(len(components)))]
    measured = signed(pairs, losses_of_sets(replacements, sets, progress=progress))
    clean = clean_measure(opened, pairs, components)
    estimates = attribution_patching(opened, pairs, components) if attribution else None
    return make_patches(opened, pairs, components, clean, measured, estimates)


def check_activations(components: Components) -> None:
    """Raise `UserError` if the components are skipped layers, which have no activation to patch."""
    if components.site is None:
        problem = f"{components.what} are skipped as a whole, so they have no activation to patch"
        raise UserError(problem, path=("what",), remedy="Use --what residual, mixers or ffns.")


def clean_measure(opened: OpenedModel, pairs: Pairs, components: Components) -> Float[np.ndarray, " pair"]:
    """Return the measure of each clean run."""
    method = Method("counterfactual", counterparts=pairs.clean)
    replacements = make_replacements(opened, components, pairs.clean, method)
    return signed(pairs, losses_of_sets(replacements, [()]))[0]


def signed(pairs: Pairs, values: np.ndarray) -> np.ndarray:
    """Return measures of which larger ones are better: losses change their sign."""
    return values if pairs.clean.others is not None else -values


def make_patches(
    opened: OpenedModel,
    pairs: Pairs,
    components: Components,
    clean: Float[np.ndarray, " pair"],
    measured: Float[np.ndarray, "set pair"],
    estimates: Float[np.ndarray, " component"] | None = None,
) -> Patches:
    """Return the scores of components.

    Args:
        opened: The model.
        pairs: The texts.
        components: The components.
        clean: The measure of each clean run.
        measured: The measure of the corrupted runs without a patch, and with each component's patch.
        estimates: See `Patches`.

    Raises:
        UserError: if clean and corrupted runs have the same measure.
    """
    mean, corrupted = float(clean.mean()), float(measured[0].mean())
    if abs(mean - corrupted) <= SMALLEST * max(1.0, abs(mean), abs(corrupted)):
        problem = f"clean and corrupted texts have the same measure, {mean:.4g}, so that nothing can be restored"
        raise UserError(
            problem, path=("corrupted",), remedy="Use texts or answers between which the model distinguishes."
        )
    effects = estimate_effects(measured[1:] - measured[0], np.ones(measured.shape[1]))
    measure = "log-probability" if pairs.clean.others is None else "logit difference"
    error = float((clean - measured[0]).std(ddof=1) / len(clean) ** 0.5) if len(clean) > 1 else float("nan")
    return Patches(opened.name, components, measure, mean, corrupted, error, effects, estimates)


# --- attribution patching ---------------------------------------------------------------------------------------------


def attribution_patching(opened: OpenedModel, pairs: Pairs, components: Components) -> Float[np.ndarray, " component"]:
    """Return first-order estimates of the mean change of the measure by patching each component.

    The estimate is the sum over the component of (A_clean - A_corrupted) times the gradient of the measure with respect
    to the activation A, in the corrupted run.

    Raises:
        UserError: if the components are skipped layers.
    """
    check_activations(components)
    site = components.site
    assert site is not None
    totals = np.zeros(len(components))
    nothing = jax.tree.map(lambda mask: mask[0].astype(np.float32), components.masks([()]))
    for batch, clean in zip(pairs.corrupted.batches(), pairs.clean.batches(), strict=True):
        totals += components.gather(mask_slopes(opened, components, batch, read_values(opened, site, clean), nothing))
    sign = 1.0 if pairs.clean.others is not None else -1.0
    return sign * totals / len(pairs.corrupted)
