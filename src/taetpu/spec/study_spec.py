"""The keys of a study file that trains models."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from taetpu.core.config import to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import KeyPath, UserError, dotted_path, errors_at
from taetpu.spec.goal import EXAMPLE as GOAL_EXAMPLE
from taetpu.spec.overrides import apply_overrides, takes_list
from taetpu.spec.study_config import RunConfig
from taetpu.spec.study_file import StudyFile

# Example values for the keys whose values are mappings, for the catalog.
EXAMPLES = {
    "base": "{task: ..., model: ..., train: ...}",
    "arms": "{nope: {model.position: none}}",
    "grid": "{model.norm: [rms, layer], model.bias: [false, true]}",
    "leave_one_out": "{rope: {model.position: none}}",
    "add_one_in": "{bias: {model.bias: true}}",
    "factorial": "{model.norm: [rms, layer], model.position: [rope, none]}",
    "ladder": "{model.dim: [32, 64]}",
    "tune": "{train.optimizer.lr: [1e-3, 3e-3]}",
    "goal": GOAL_EXAMPLE,
    "tasks": "{text: {}, recall: {task: {kind: mqar}}}",
    "across": "{model.init: [scaled-fan-in, fan-in]}",
}


class StudySpec(StudyFile):
    """The top level of a study file."""

    examples: ClassVar[Mapping[str, str]] = {"change": "{model.position: none}", **EXAMPLES}

    def is_baseline(self, base: Mapping[str, Any], overrides: Mapping[str, Any], places: Mapping[str, KeyPath]) -> bool:
        """See `StudyFile.is_baseline`."""
        try:
            baseline, changed = (
                load_config(RunConfig, data).resolve() for data in (base, apply_overrides(base, overrides))
            )
        except UserError as error:
            there = f"{dotted_path(error.path)}."
            place = next((place for path, place in places.items() if there.startswith(f"{path}.")), None)
            raise UserError(error.problem, path=place or next(iter(places.values())), remedy=error.remedy) from None
        return baseline == changed

    def baseline_text(self, base: Mapping[str, Any], path: str) -> str:
        """See `StudyFile.baseline_text`. Defaults are included."""
        return super().baseline_text(to_data(load_config(RunConfig, base)), path)

    def paths_of_lists(self, base: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[str]:
        """See `StudyFile.paths_of_lists`."""
        given = [path for path, value in overrides.items() if isinstance(value, list)]
        if not given:
            return []
        # Which fields are valid depends on kinds, and which layers are valid depends on the number of layers. A list of
        # kinds or of numbers of layers is represented by its first value.
        shaping = {
            path: value[0] if isinstance(value, list) and value else value
            for path, value in overrides.items()
            if path.endswith(".kind") or path == "model.num_layers"
        }
        shaped = apply_overrides(base, shaping)
        nested = [path for path in given if any(isinstance(value, list) for value in overrides[path])]
        return [path for path in given if path in nested or not takes_list(shaped, path)]

    def check_tried(self, base: Mapping[str, Any], path: str, values: Sequence[Any]) -> None:
        """See `StudyFile.check_tried`."""
        for i, value in enumerate(values):
            with errors_at("tune", path, i):
                load_config(RunConfig, apply_overrides(base, {path: value}))

    @property
    def tuning_metric(self) -> str:
        """The primary metric on the validation split. Selection on the test split would bias the results on it."""
        return f"val/{self.measure.primary.rpartition('/')[2]}"
