"""Linear probes: how well a label of tokens or texts can be read from the activations at a site.

A probe is a softmax regression with an L2 penalty on activations that are standardised with the training folds. Its
accuracy is measured by cross-validation; all tokens of a text, and texts with the same tokens, are in one fold. The
error bar is the standard error over folds. Folds share training data, so it is only approximately the error of the
accuracy.

A probe may be accurate because it memorises, not because the activations represent the label. Therefore, it is compared
with a control task, in which each token type has a random label, drawn from the distribution of the labels. For labels
of texts, each text has a random label. The selectivity is the accuracy minus that of the control task.

Source: Hewitt and Liang 2019, "Designing and Interpreting Probes with Control Tasks", arXiv 1909.03368.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from jaxtyping import Float, Int

from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.lens.activations import check_site, sequences
from taetpu.lens.embed import choose_layer, embed
from taetpu.lens.opened import OpenedModel

Pool = Literal["mean", "last"]
PENALTY = 1e-3
"""Default factor of half the sum of squared weights, which is added to the mean loss."""
MAX_ITERATIONS = 200


@dataclass(frozen=True)
class LayerProbe:
    """The probe of one layer, with the values of each fold.

    Attributes:
        layer: The layer; None for a site outside the layers.
        accuracy: The share of correct labels.
        control: The share of correct labels of the control task.
        majority: The share of the label that is the most frequent one in the training folds.
    """

    __repr__ = short_repr

    layer: int | None
    accuracy: Float[np.ndarray, " fold"]
    control: Float[np.ndarray, " fold"]
    majority: Float[np.ndarray, " fold"]

    @property
    def selectivity(self) -> Float[np.ndarray, " fold"]:
        """The accuracy minus that of the control task."""
        return self.accuracy - self.control

    def row(self) -> dict[str, Any]:
        """Return means over folds and their standard errors."""
        row: dict[str, Any] = {"layer": self.layer}
        for name in ("accuracy", "control", "selectivity", "majority"):
            values = getattr(self, name)
            row |= {name: float(values.mean()), f"{name}_error": float(values.std(ddof=1) / len(values) ** 0.5)}
        return row


@dataclass(frozen=True)
class Probe:
    """Probes of the layers at a site.

    Attributes:
        model: The name of the model.
        site: The site.
        per: What has a label: `token` or `text`.
        labels: The different labels.
        examples: The number of labelled tokens or texts.
        folds: The number of folds.
        layers: The probe of each layer.
    """

    __repr__ = short_repr

    model: str
    site: str
    per: str
    labels: list[str]
    examples: int
    folds: int
    layers: list[LayerProbe]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each layer; see `LayerProbe.row`."""
        return [layer.row() for layer in self.layers]

    def to_dict(self) -> dict[str, Any]:
        """Return all values as plain data."""
        about = {name: getattr(self, name) for name in ("model", "site", "per", "labels", "examples", "folds")}
        return {**about, "layers": self.rows()}

    def chart(self) -> Any:
        """Return an Altair chart of the accuracy of the probe and of the control task by layer, with error bars."""
        from taetpu.report.token_charts import probe_chart

        return probe_chart(self.rows(), f"{self.site} of {self.model}")


def probe(
    opened: OpenedModel,
    inputs: Sequence[Any],
    labels: Sequence[Any],
    site: str = "residual",
    *,
    layer: int | None = None,
    pool: Pool = "mean",
    folds: int = 5,
    penalty: float = PENALTY,
    seed: int = 0,
) -> Probe:
    """Return probes for labels of tokens or texts.

    Args:
        opened: The model.
        inputs: Texts or token numbers; see `OpenedModel.encode`.
        labels: For each input, a label, or a list with a label for each token. Tokens with the label None are left out.
        site: The site.
        layer: The layer; by default, a probe for each layer that has the site.
        pool: For labels of texts, how activations are pooled over tokens (see `embed`).
        folds: The number of folds.
        penalty: The factor of half the sum of squared weights, which is added to the mean loss.
        seed: The seed of the folds and of the labels of the control task.

    Raises:
        UserError: if labels and inputs do not match, there are less than two labels or `folds` different inputs, or as
            in `embed`.
    """
    rows = sequences(opened, inputs)
    per_token = _check_labels(rows, labels)
    check_site(opened, site)
    layers = [choose_layer(opened, site, layer)] if layer is not None else opened.site_layers[site] or [None]
    if per_token:
        flat = [label for token_labels in labels for label in token_labels]
        owners, types = np.repeat(np.arange(len(rows)), [*map(len, rows)]), np.concatenate(rows)
    else:
        flat, owners = [*labels], np.arange(len(rows))
        types = _numbers([tuple(row.tolist()) for row in rows])
    used = np.array([label is not None for label in flat])
    names = sorted({str(label) for label in flat if label is not None})
    if len(names) < 2:
        problem = f"all labels are {names[0]!r}" if names else "all labels are missing"
        raise UserError(problem, path=("labels",), remedy="Use at least two different labels.")
    place = {name: number for number, name in enumerate(names)}
    y = np.array([place.get(str(label), 0) for label in flat])[used]
    rng = np.random.default_rng(seed)
    fold = _folds(rows, owners[used], folds, rng)
    # A random label for each type, drawn from the labels of the examples.
    control = rng.choice(y, size=int(types[used].max()) + 1)[types[used]]
    probes = []
    for number in layers:
        read = embed(opened, rows, site, layer=number, pool="none" if per_token else pool)
        x = read.matrix()[used].astype(np.float64)
        accuracy, majority = cross_validate(x, y, fold, penalty)
        probes.append(LayerProbe(number, accuracy, cross_validate(x, control, fold, penalty)[0], majority))
    return Probe(opened.name, site, "token" if per_token else "text", names, len(y), folds, probes)


def _check_labels(rows: Sequence[np.ndarray], labels: Sequence[Any]) -> bool:
    """Return whether tokens have labels, not texts.

    Raises:
        UserError: if the number of labels differs from the number of inputs or tokens.
    """
    if len(labels) != len(rows):
        problem = f"there are {len(labels)} labels for {len(rows)} texts"
        raise UserError(problem, path=("labels",), remedy="Give each text a label, or a list of labels of its tokens.")
    lists = [isinstance(label, Sequence | np.ndarray) and not isinstance(label, str) for label in labels]
    if not any(lists):
        return False
    for number, (row, row_labels) in enumerate(zip(rows, labels, strict=True)):
        if not lists[number]:
            problem = f"input {number} has a label for the whole text, and others have labels of tokens"
            raise UserError(problem, path=("labels", number), remedy="Use one form for all texts.")
        if len(row_labels) != len(row):
            problem = f"input {number} has {len(row_labels)} labels for {len(row)} tokens"
            raise UserError(problem, path=("labels", number), remedy="Give each token a label, or null for none.")
    return True


def _numbers(values: Sequence[Any]) -> Int[np.ndarray, " value"]:
    """Return a number for each value, equal for equal values."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values])


def _folds(
    rows: Sequence[np.ndarray], owners: Int[np.ndarray, " example"], folds: int, rng: np.random.Generator
) -> Int[np.ndarray, " example"]:
    """Return the fold of each example. Examples of one text, and of texts with equal tokens, share a fold."""
    groups = _numbers([tuple(row.tolist()) for row in rows])[owners]
    different = np.unique(groups)
    if not 2 <= folds <= len(different):
        problem = f"{folds} folds were requested for {len(different)} different texts with labels"
        most = f"2 to {len(different)}" if len(different) > 2 else "2"
        remedy = f"Use {most} folds, or more texts." if len(different) > 1 else "Use more texts."
        raise UserError(problem, path=("folds",), remedy=remedy)
    order = rng.permutation(different)
    fold = np.zeros(groups.max() + 1, int)
    fold[order] = np.arange(len(order)) % folds
    return fold[groups]


# --- regression -------------------------------------------------------------------------------------------------------


def cross_validate(
    x: Float[np.ndarray, "example size"],
    y: Int[np.ndarray, " example"],
    fold: Int[np.ndarray, " example"],
    penalty: float = PENALTY,
) -> tuple[Float[np.ndarray, " fold"], Float[np.ndarray, " fold"]]:
    """Return for each fold the accuracy of a probe that is trained on the other folds, and that of the majority label.

    Args:
        x: The activations.
        y: The labels, as numbers from 0.
        fold: The fold of each example.
        penalty: The factor of half the sum of squared weights.
    """
    accuracy, majority = [], []
    for number in range(int(fold.max()) + 1):
        test = fold == number
        mean, sd = x[~test].mean(0), x[~test].std(0)
        scaled = (x - mean) / np.where(sd > 1e-8 * (np.abs(mean) + 1e-30), sd, np.inf)
        weights, bias = fit_softmax(scaled[~test], y[~test], int(y.max()) + 1, penalty)
        accuracy.append((np.argmax(scaled[test] @ weights + bias, 1) == y[test]).mean())
        majority.append((np.bincount(y[~test]).argmax() == y[test]).mean())
    return np.array(accuracy), np.array(majority)


def fit_softmax(
    x: Float[np.ndarray, "example size"], y: Int[np.ndarray, " example"], labels: int, penalty: float
) -> tuple[Float[np.ndarray, "size label"], Float[np.ndarray, " label"]]:
    """Return the weights and biases with the least mean cross entropy plus penalty; biases have no penalty."""
    examples, size = x.shape
    target = np.zeros((examples, labels))
    target[np.arange(examples), y] = 1.0

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights, bias = flat[:-labels].reshape(size, labels), flat[-labels:]
        scores = x @ weights + bias
        scores -= scores.max(1, keepdims=True)
        total = np.log(np.exp(scores).sum(1, keepdims=True))
        apart = (np.exp(scores - total) - target) / examples
        slope = np.concatenate([(x.T @ apart + penalty * weights).ravel(), apart.sum(0)])
        return float(((total - scores) * target).sum() / examples + penalty / 2 * (weights**2).sum()), slope

    start = np.zeros((size + 1) * labels)
    solution = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": MAX_ITERATIONS}).x
    return solution[:-labels].reshape(size, labels), solution[-labels:]
