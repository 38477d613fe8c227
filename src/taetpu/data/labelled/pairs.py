"""Task `pairs`: find the second text of a pair among those of other pairs."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.core.registry import register
from taetpu.data.base import BatchSpec
from taetpu.data.labelled.base import Examples, LabelledSource, LabelledTask
from taetpu.data.labelled.labels import Pooling, one_target_batch
from taetpu.data.labelled.rows import read_text
from taetpu.data.labelled.sequences import Frame
from taetpu.data.tokenizers.base import Tokenizer


@register("task", "pairs")
class PairsTask(LabelledTask):
    """Embed two texts such that those of a pair are closer than those of different pairs.

    Each text is a sequence, and its embedding has `size` numbers: the outputs at one position, or their mean. In
    training, the other pairs of the batch are the negatives (objective `contrastive`). In evaluation, the partner of a
    text is found among those of `candidates` pairs, for any size of training batches, and accuracy is recall at 1. Rows
    with the same first text are in one split. `model.embedding` has to be `untied`. Attention may be causal, unless
    `pooling` is `first`.
    """

    objective = "contrastive"
    scored_unit = "pair"

    second_text: str = "second_text"
    """Column or key of the text that belongs to the first one."""
    size: Size = 64
    """Number of elements of an embedding."""
    pooling: Pooling = "last"
    """Position whose outputs are the embedding: `first`, `last` before the padding, or the `mean` of all outputs."""
    candidates: Annotated[Size, Field(ge=2)] = 32
    """Number of pairs among which one is found in evaluation."""
    temperature: Annotated[float, Field(gt=0)] = 0.05
    """Divisor of the cosines in evaluation, and in training unless `train.objective.temperature` names another one."""

    @property
    def needs_later(self) -> bool:
        """See `Task.needs_later`."""
        return self.pooling == "first"

    @property
    def eval_group(self) -> int:
        """See `Task.eval_group`."""
        return self.candidates

    @property
    def batch(self) -> BatchSpec:
        """See `Task.batch`."""
        return BatchSpec(lengths=True, second=True)

    @property
    def named(self) -> tuple[str, ...]:
        """See `LabelledTask.named`."""
        return ("text", "second_text")

    def parse(self, row: Mapping[str, Any], place: str) -> tuple[tuple[str, ...], Any, str]:
        """See `LabelledTask.parse`."""
        texts = tuple(read_text(row[getattr(self, name)], name, place) for name in self.named)
        return texts, None, texts[0]

    def build(self, rows: Examples, tokenizer: Tokenizer, frame: Frame) -> LabelledSource:
        """See `LabelledTask.build`."""
        sides, parts = [], {}
        for number in range(2):
            alone = {
                name: [replace(e, texts=e.texts[number : number + 1]) for e in part] for name, part in rows.items()
            }
            sides.append(self.encode_all(alone, tokenizer, frame))
        (first, about), (second, others) = sides
        for name, part in first.items():
            nothing = np.zeros(len(part[0]), np.int32)
            batch = one_target_batch(part, nothing, np.ones(len(nothing)), self.pooling, self.types or 1)
            parts[name] = batch._replace(second=second[name][0], second_lengths=second[name][2])
        for fact in ("longest", "cropped"):
            if isinstance(of := others.get(fact), dict):
                both = about.setdefault(fact, dict.fromkeys(of, 0))
                join = max if fact == "longest" else sum
                about[fact] = {name: join((both[name], of[name])) for name in of}
        for name, part in rows.items():
            if len(part) == 1:
                problem = f"the {name} split has one pair, and its second text cannot be found among others"
                raise UserError(problem, path=("source",), remedy="Use more rows, or a larger share.")
        count = len(rows["val"]) or len(rows["train"])
        groups = [min(self.candidates, count - start) for start in range(0, count, self.candidates)]
        facts = {
            "chance_loss": sum(n * math.log(n) for n in groups) / count,
            "chance_accuracy": len(groups) / count,
            "bayes_loss": None,
            **about,
        }
        interface = Interface(tokenizer.vocab_size, self.size, types=self.types or 1, pooling=self.pooling)
        source = LabelledSource(parts, facts, interface, tokenizer, rows, "pairs")
        changed = "" if self.temperature == type(self).model_fields["temperature"].default else f" {self.temperature}"
        among = f"{source.evaluated} among {self.candidates}{changed}"
        source.evaluated = hashlib.sha256(among.encode()).hexdigest()
        return source
