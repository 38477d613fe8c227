"""Post-hoc ablation tables of a study (`measure.post_hoc`): knock-outs of each part of every trained model.

The study computes the tables after training (`study.post_hoc`), and `stats.post_hoc` compares arms by them.
"""

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from taetpu.core.config import Config, to_data
from taetpu.core.errors import UserError, check_known

LAYERS, POSITIONS = "layers", "positions"
METHODS = ("zero", "mean", "resample", "noise", "optimal")
"""The methods of `taetpu lens knockout` that need nothing besides an evaluation set."""
COUNTERFACTUAL = "counterfactual"


class PostHocConfig(Config):
    """A post-hoc ablation table: which parts of each trained model are removed, one at a time, and how."""

    knockout: str
    """Parts that are removed: heads, kv-groups, mixers, ffns, layers, neurons, experts, states, or a site."""
    how: str = "mean"
    """What takes the place of a removed part: zero, mean, resample, noise or optimal."""
    split: str = "val"
    """Evaluation set on which the loss is measured."""
    documents: Annotated[int, Field(ge=1, description="maximum number of windows of the evaluation set")] = 64
    seed: Annotated[int, Field(ge=0, lt=2**31, description="seed of the draws of resample and noise")] = 0

    @field_validator("knockout")
    @classmethod
    def _of_the_model(cls, value: str) -> str:
        if value == POSITIONS:
            problem = "positions belong to documents, not to models, so arms cannot be compared by them"
            raise UserError(problem, path=("knockout",), remedy="Use another kind of part, e.g. heads.")
        return value

    @field_validator("how")
    @classmethod
    def _known_method(cls, value: str) -> str:
        if value == COUNTERFACTUAL:
            problem = "counterfactual needs a counterpart of each document, and evaluation sets have none"
            raise UserError(problem, path=("how",), remedy=f"Use one of: {', '.join(METHODS)}.")
        check_known(value, METHODS, f"unknown replacement {value!r}", path=("how",))
        return value

    @model_validator(mode="after")
    def _applicable(self) -> "PostHocConfig":
        if self.knockout == LAYERS and self.how != "zero":
            problem = f"layers are skipped, and a skipped layer has no {self.how} activation"
            raise UserError(problem, path=("how",), remedy="Set how: zero, or knockout: mixers or ffns.")
        if self.how == "resample" and self.documents < 2:
            problem = f"resample requires at least 2 documents, but documents is {self.documents}"
            raise UserError(problem, path=("documents",), remedy="Set documents to at least 2.")
        return self

    @property
    def name(self) -> str:
        """The name of the table, which contains all settings that differ from their defaults.

        Tables with equal names have equal settings.
        """
        usual = {name: field.default for name, field in type(self).model_fields.items()}
        parts = [f"{name}={value}" for name, value in to_data(self).items()
                 if name not in ("knockout", "how") and value != usual[name]]  # fmt: skip
        return "-".join([self.knockout, self.how, *parts])
