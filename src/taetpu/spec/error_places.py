"""Places in a study file that cause errors in a resolved config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taetpu.core.errors import KeyPath, UserError
from taetpu.nn.layer_overrides import select_layers
from taetpu.spec.document import Document
from taetpu.spec.study_file import BASELINE


@dataclass(frozen=True)
class Origins:
    """The places of one arm's overrides in the study file.

    Attributes:
        document: The study file.
        arm: The name of the arm.
        places: The path in the study file of each override. For the baseline, the overrides are `--set` options.
    """

    document: Document
    arm: str
    places: Mapping[str, KeyPath] = field(default_factory=dict)

    def explain(self, error: UserError, num_layers: int = 0) -> UserError:
        """Return an error with the file, line and path of its cause in the study file.

        If no override contains the error's path, the cause depends on the arm. For the baseline, the cause is the
        setting under `base`. For another arm, the cause is the arm's entry under `arms` if the arm has an entry there
        and several overrides. Otherwise, the cause is the first override.

        Args:
            error: An error whose path is a path in the resolved config or starts with an override.
            num_layers: The number of layers, to which negative layer numbers are relative.
        """

        def moved(arm_error: UserError) -> UserError:
            there = self._place(arm_error.path, num_layers)
            return UserError(
                arm_error.problem, path=there, file=arm_error.file, line=arm_error.line, remedy=arm_error.remedy
            )

        return self.document.locate(error.map(moved))

    def _place(self, path: KeyPath, num_layers: int) -> KeyPath:
        if path and path[0] in self.places:
            return (*self.places[str(path[0])], *path[1:])
        for override, place in self.places.items():
            rest = _below(override, path, num_layers)
            if rest is not None:
                return (*place, *rest)
        if self.arm == BASELINE:
            return ("base", *self._in_baseline(path, num_layers))
        whole = ("arms", self.arm)
        return whole if len(self.places) > 1 and whole in self.document.lines else next(iter(self.places.values()))

    def _in_baseline(self, path: KeyPath, num_layers: int) -> KeyPath:
        """Return the path in the study file for a path in a resolved layer.

        The returned path is in the settings of the single layer if these settings contain the value. Otherwise, the
        path is in the settings of the model.
        """
        if not _in_layer(path) or ("base", *path[:3]) in self.document.lines:
            return path
        layers = self.document.data["base"]["model"].get("layers") or {}
        for where, settings in layers.items():
            if _selects(where, path[2], num_layers) and (len(path) == 3 or path[3] in settings):
                return ("model", "layers", where, *path[3:])
        return ("model", *path[3:])


def _below(override: str, path: KeyPath, num_layers: int) -> KeyPath | None:
    """Return the rest of a config path after an override's path.

    Returns:
        The rest of the config path. It is empty if the config path is the override's path or a prefix of that path, and
        None if neither path is a prefix of the other.
    """
    parts: list[Any] = override.split(".")
    layered = parts[:2] == ["model", "layers"] and len(parts) > 2
    if layered and _in_layer(path) and _selects(parts[2], path[2], num_layers):
        parts[2] = path[2]
    elif _in_layer(path) and not layered:
        path = ("model", *path[3:])
    shared = min(len(parts), len(path))
    return path[len(parts) :] if shared and tuple(parts[:shared]) == path[:shared] else None


def _in_layer(path: KeyPath) -> bool:
    return path[:2] == ("model", "layers") and len(path) > 2


def _selects(where: Any, layer: Any, num_layers: int) -> bool:
    try:
        return layer in select_layers(where, num_layers)
    except UserError:
        return False
