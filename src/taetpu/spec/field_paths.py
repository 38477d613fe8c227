"""The fields of a study file by path, such as `train.schedule` and `model.mixer.num_heads`."""

from typing import NamedTuple

from taetpu.core.config import Config, config_class_of, has_entries, slot_of
from taetpu.core.errors import UserError, suggest
from taetpu.core.registry import kinds
from taetpu.nn.block import LayerConfig
from taetpu.spec.study_config import RunConfig
from taetpu.spec.study_spec import EXAMPLES, StudySpec


class Place(NamedTuple):
    """A field of a config class. If the class is a component, `kind` is its kind; otherwise, `kind` is empty."""

    owner: type[Config]
    name: str
    kind: str = ""

    @property
    def example(self) -> str | None:
        """An example value in the notation of a study file; None if there is no example."""
        return EXAMPLES.get(self.name) if self.owner is StudySpec else None

    @property
    def section(self) -> type[Config] | None:
        """The config class of the settings that this field contains; None for a single value or a slot."""
        if self.owner is StudySpec and self.name == "base":
            return RunConfig
        if slot_of(self.owner, self.name) is not None:
            return None
        return LayerConfig if _by_layer(self) else config_class_of(self.owner, self.name)


def known_paths() -> list[str]:
    """Return all paths that consist of a single name: the top-level fields and the sections of the baseline."""
    return [*StudySpec.model_fields, *RunConfig.model_fields]


def find_fields(path: str) -> list[Place]:
    """Return the fields with a given path: one field, or one field for each kind that can fill a slot on the path.

    Args:
        path: A dotted path. The prefix `base.` is optional. All layer numbers and all names of hooks and metrics are
            valid.

    Raises:
        UserError: If no field has this path. The remedy lists similar names.
    """
    first, *rest = path.removeprefix("base.").split(".")
    root = StudySpec if first in StudySpec.model_fields and path == path.removeprefix("base.") else RunConfig
    matches = [Place(root, first)]
    if first not in root.model_fields:
        problem = f"no field of a study file is called {first!r}"
        raise UserError(problem, path=(path,), remedy=suggest(first, known_paths()))
    done = first
    while rest:
        places, rest = _below(matches, rest)
        part, *rest = rest or [""]
        known = {place.name for place in places}
        matches = [place for place in places if place.name == part] if part else places
        if not matches:
            remedy = suggest(part, known) if known else f"Run `taetpu catalog {done}`."
            problem = f"{done} has no field {part!r}" if part else f"{done} has no fields"
            raise UserError(problem, path=(path,), remedy=remedy)
        done = f"{done}.{part}"
    return matches


def list_fields(cls: type[Config], kind: str = "") -> list[Place]:
    """Return the place of each field of a config class. `kind` is the kind of the class if it is a component."""
    return [Place(cls, name, kind) for name in cls.model_fields]


def _below(places: list[Place], rest: list[str]) -> tuple[list[Place], list[str]]:
    """Return the fields one level below the given fields, and the rest of the path.

    If the first part of `rest` is the name of an entry (such as a hook) or the number of a layer, it is removed.
    """
    below: list[Place] = []
    skipped = False
    for place in places:
        mark = slot_of(place.owner, place.name)
        if mark is not None:
            known = kinds(mark.name)
            skipped = mark.many
            chosen = {rest[0]: known[rest[0]]} if mark.many and rest[0] in known else known
            below += [field for kind, cls in chosen.items() for field in list_fields(cls, kind)]
        elif place.section is not None:
            skipped = _by_layer(place) or has_entries(place.owner, place.name)
            below += list_fields(place.section)
    return below, rest[1:] if skipped else rest


def _by_layer(place: Place) -> bool:
    return place.name == "layers" and "num_layers" in place.owner.model_fields
