"""The keys of a study file whose runs are the user's command, and the keys that such a study cannot have."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, get_args

from pydantic import Field, model_validator

from taetpu.core.errors import KeyPath, UserError, errors_at
from taetpu.core.metric_spec import Direction
from taetpu.spec.measure import Measure
from taetpu.spec.programs.program_config import ProgramConfig
from taetpu.spec.programs.settings import apply_settings
from taetpu.spec.study_file import StudyFile

MODEL_KEYS = {
    "match": "FLOPs, parameters and step times are those of models that taetpu builds",
    "tasks": "the tasks are those of models that taetpu trains",
    "plugins": "plug-ins are parts of models that taetpu builds",
}
"""Keys of a study of models that a program's study cannot have, with the reason."""
INSTEAD = {
    "match": "Remove match.",
    "tasks": "Use `across` with a setting of the program.",
    "plugins": "List files in program.inputs.",
}
MODEL_MEASURES = {
    "post_hoc": "the program's models are not opened",
    "worth": "the FLOPs of a program are not known",
}


class ProgramMeasure(Measure):
    """How arms of a program are compared."""

    primary: Annotated[  # pyright: ignore[reportGeneralTypeIssues]  # pydantic allows required fields after others
        str, Field(description="the metric by which arms are compared, as the program names it")
    ]
    better: Annotated[Direction, Field(description="min if lower values are better, max if higher values are")]

    @model_validator(mode="before")
    @classmethod
    def _direction(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "direction" in data:
            problem = "the direction of a program's metric is better"
            raise UserError(problem, path=("direction",), remedy=f"Write better: {data['direction']}.")
        known = isinstance(data, Mapping) and data.get("better") in get_args(Direction)  # others are an error of better
        return {**data, "direction": data["better"]} if known else data

    @model_validator(mode="after")
    def _without_models(self) -> "ProgramMeasure":
        for name, reason in MODEL_MEASURES.items():
            if getattr(self, name):
                raise UserError(f"{name} is not possible: {reason}", path=(name,), remedy=f"Remove {name}.")
        if self.by != "steps":
            raise UserError(f"by={self.by}: the program reports steps only", path=("by",), remedy="Use by: steps.")
        return self

    @property
    def measured(self) -> str:
        """The primary metric."""
        return self.primary


class ProgramFile(StudyFile):
    """The top level of a study file whose runs are the user's command."""

    base: Annotated[dict[str, Any], Field(description="the program's settings in the baseline")] = Field(
        default_factory=dict
    )
    program: Annotated[ProgramConfig, Field(description="the program that each run starts")]
    measure: Annotated[  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]  # frozen
        ProgramMeasure, Field(description="how arms are compared, e.g. {primary: val_loss, better: min}")
    ]

    examples: ClassVar[Mapping[str, str]] = {
        "change": "{lr: 0.1}", "factorial": "{lr: [0.1, 0.2], dropout: [0.0, 0.1]}", "tune": "{lr: [1e-3, 3e-3]}",
    }  # fmt: skip

    @model_validator(mode="after")
    def _without_models(self) -> "ProgramFile":
        for name, reason in MODEL_KEYS.items():
            if getattr(self, name):
                raise UserError(f"{name} is not possible with program: {reason}", path=(name,), remedy=INSTEAD[name])
        if "chinchilla" in self.ladder:
            problem = "ladder.chinchilla is not possible with program: it counts the parameters of models"
            raise UserError(problem, path=("ladder", "chinchilla"), remedy="List the settings of each rung.")
        return self

    def is_baseline(self, base: Mapping[str, Any], overrides: Mapping[str, Any], places: Mapping[str, KeyPath]) -> bool:
        """See `StudyFile.is_baseline`."""
        try:
            return repr(apply_settings(base, overrides)) == repr(dict(base))
        except UserError as error:
            place = places.get(str(error.path[0])) if error.path else None
            raise UserError(error.problem, path=place or next(iter(places.values())), remedy=error.remedy) from None

    def paths_of_lists(self, base: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[str]:
        """See `StudyFile.paths_of_lists`."""
        apply_settings(base, overrides)
        given = [path for path, value in overrides.items() if isinstance(value, list)]
        nested = [path for path in given if any(isinstance(item, list) for item in overrides[path])]
        return [path for path in given if path in nested or not isinstance(base.get(path), list)]

    def check_tried(self, base: Mapping[str, Any], path: str, values: Sequence[Any]) -> None:
        """See `StudyFile.check_tried`."""
        with errors_at("tune", path):
            apply_settings(base, {path: values[0]})

    @property
    def tuning_metric(self) -> str:
        """The primary metric."""
        return self.measure.primary
