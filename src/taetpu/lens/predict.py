"""Predictions of models that do not continue texts: a class or a number of a text, labels of words, masked tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Float

from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.data.document_encoding import split_rows
from taetpu.data.labelled.sequences import Frame, frame_of
from taetpu.data.objective_sources import MASK_NAMES
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.lens.opened import OpenedModel


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for a text.

    Attributes:
        what: What is predicted: `class`, `number`, `label` or `token`.
        places: What each row of `outputs` is about: the text, a word, or a masked token by number.
        names: The names of the outputs: classes or labels; those of tokens are read from the model.
        outputs: Probabilities `(places, outputs)`, or numbers `(1, 1)`.
        opened: The model.
    """

    __repr__ = short_repr

    what: str
    places: tuple[str, ...]
    names: tuple[str, ...]
    outputs: Float[np.ndarray, "places outputs"]
    opened: OpenedModel

    def rows(self, top: int = 5) -> list[dict[str, Any]]:
        """Return the numbers, or the most likely outputs of each place, as rows of a table."""
        if self.what == "number":
            return [{"number": float(value)} for value in self.outputs[0]]
        rows = []
        for place, values in zip(self.places, self.outputs, strict=True):
            order = np.argsort(-values, kind="stable")[:top].tolist()
            names = self.opened.token_texts(order) if self.what == "token" else [self.names[i] for i in order]
            column = {"label": "word", "token": "mask"}.get(self.what)
            rows += [
                {**({column: place} if column else {}), self.what: name, "probability": float(values[i])}
                for i, name in zip(order, names, strict=True)
            ]
        return rows

    def to_dict(self, top: int = 5) -> dict[str, Any]:
        """Return the predictions as plain data."""
        return {"predicts": self.what, "predictions": self.rows(top)}


def predict(opened: OpenedModel, text: str, second: str | None = None) -> Predictions:
    """Return what a classifier, a regression or a masked language model predicts for a text.

    Args:
        opened: The model.
        text: The text. Of a masked language model, it contains the mask token, such as `[MASK]`.
        second: The second text, for a model of pairs of texts.

    Raises:
        UserError: if the model predicts next tokens or embeds texts, has no tokenizer, or does not fit the texts.
    """
    at, tokenizer = opened.interface, opened.tokenizer
    task = None if opened.run is None else opened.run_config.task
    if tokenizer is None:
        raise UserError(f"{opened.name} has no tokenizer", remedy="Use a model of texts.")
    if at.outputs is None:
        return _fill_masks(opened, text, second, getattr(getattr(task, "objective", None), "mask_token", None))
    if at.pooling and getattr(task, "kind", "") == "pairs":
        raise UserError("this model embeds texts, and predicts no class", remedy="Use `taetpu lens embed`.")
    if not at.pooling:
        if not at.labels:
            raise UserError(f"{opened.name} has {at}, which no text names", remedy="Use a model of labelled texts.")
        return _label_words(opened, tokenizer, text, second, getattr(task, "scored", "first"))
    wanted = getattr(task, "num_texts", None)
    given = 1 if second is None else 2
    if wanted is not None and given != wanted:
        remedy = "Add a second text (--second)." if given < wanted else "Remove the second text (--second)."
        problem = f"the model reads {['one text', 'two texts'][wanted - 1]}, and the input has {given}"
        raise UserError(problem, path=("second",), remedy=remedy)
    texts = [text] if second is None else [text, second]
    tokens = split_rows(*tokenizer.encode_all(texts))
    outputs = _outputs(opened, frame_of(tokenizer, len(texts)), tuple(tokens))
    place = {"first": outputs[0], "last": outputs[-1], "mean": outputs.mean(0)}[at.pooling]
    if at.outputs == 1:
        return Predictions("number", (text,), (), place[None], opened)
    names = at.labels or tuple(f"LABEL_{number}" for number in range(at.outputs))
    return Predictions("class", (text,), names, scipy.special.softmax(place[None], axis=-1), opened)


def _outputs(opened: OpenedModel, frame: Frame, texts: tuple[np.ndarray, ...]) -> Float[np.ndarray, "seq outputs"]:
    """Return the outputs of a model at all positions of texts with their special tokens."""
    ids, types = frame.join(texts)
    typed = jnp.asarray(types[None]) if opened.interface.types > 1 else None
    return np.asarray(opened([ids.tolist()], types=typed).logits)[0]


def _label_words(
    opened: OpenedModel, tokenizer: Tokenizer, text: str, second: str | None, scored: str
) -> Predictions:  # fmt: skip
    """Return the labels of the words of a text, which are separated by white space."""
    words = text.split()
    if second is not None or not words:
        problem = "the text has no words" if second is None else "the model labels the words of one text"
        raise UserError(problem, path=("text",), remedy="Give one text with words.")
    parts = [tokenizer.encode_part(" " * (i > 0) + word) for i, word in enumerate(words)]
    frame = frame_of(tokenizer, 1)
    outputs = _outputs(opened, frame, (np.concatenate(parts),))
    sizes = np.array([*map(len, parts)])
    ends = len(frame.special[0]) + np.cumsum(sizes)
    places = ends - 1 if scored == "last" else ends - sizes
    return Predictions(
        "label", tuple(words), opened.interface.labels, scipy.special.softmax(outputs[places], axis=-1), opened
    )


def _fill_masks(opened: OpenedModel, text: str, second: str | None, mask: str | int | None) -> Predictions:
    """Return the tokens that a masked language model predicts at the mask tokens of a text."""
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    if opened.predicts_next:
        raise UserError(f"{opened.name} predicts next tokens", remedy="Use `taetpu lens sample`.")
    if second is not None:
        raise UserError("a masked language model reads one text", path=("second",), remedy="Remove the second text.")
    names: Sequence[str | int] = MASK_NAMES if mask is None else (mask,)
    known = [name if isinstance(name, int) else tokenizer.number(name) for name in names]
    number = next((number for number in known if number is not None), None)
    if number is None:
        raise UserError(f"{opened.name} has no mask token", remedy="Use a masked language model.")
    (ids,) = opened.as_sequences(text)
    places = np.flatnonzero(ids == number)
    if not len(places):
        problem, remedy = "the text has no mask", f"Write {tokenizer.token(number)} where a token is to be predicted."
        raise UserError(problem, path=("text",), remedy=remedy)
    types = jnp.zeros((1, len(ids)), jnp.int32) if opened.interface.types > 1 else None
    logits = np.asarray(opened([ids.tolist()], types=types).logits)[0, places]
    return Predictions(
        "token", tuple(str(i + 1) for i in range(len(places))), (), scipy.special.softmax(logits, axis=-1), opened
    )  # fmt: skip
