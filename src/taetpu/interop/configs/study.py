"""From a config to study files: lists of values become a grid or arms, and data settings a study for each value."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError, check_known
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY
from taetpu.interop.configs.config_file import ConfigFile, Note, System, Translation, read_text
from taetpu.interop.configs.lm_springboard import LM_SPRINGBOARD
from taetpu.interop.configs.nanochat import NANOCHAT
from taetpu.interop.configs.nanogpt import NANOGPT
from taetpu.spec.study_file import LONGEST_NAME, NAME
from taetpu.store.documents import to_yaml

SYSTEMS = {"lm-springboard": LM_SPRINGBOARD, "nanogpt": NANOGPT, "nanochat": NANOCHAT}
SEEDS = "TrainParams.random_seed"
DEFAULT_SEEDS = 3
MAX_RUNS = 256
"""Largest number of combinations of a config's lists."""
WIDTH = 120


@dataclass(frozen=True)
class TranslatedStudy:
    """A study that has the settings of a config.

    Attributes:
        name: The name of the study.
        source: The config.
        title: The system whose config it is.
        data: The content of the study file.
        notes: The settings that have no counterpart, or differ.
    """

    name: str
    source: Path
    title: str
    data: dict[str, Any]
    notes: tuple[Note, ...]

    @property
    def text(self) -> str:
        """The text of the study file, with the notes as comments."""
        lines = [f"Translated from {self.source.name} ({self.title})."]
        lines += [format_note(note) for note in self.notes]
        comments = (
            textwrap.fill(line, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
            for line in lines
        )
        return "\n".join([*comments, to_yaml(self.data).decode()])


def format_note(note: Note) -> str:
    """Return a note in one line."""
    return f"{f'line {note.line}: ' if note.line else ''}{note.setting}: {note.reason}"


def find_configs(name: str) -> list[Path]:
    """Return the file of this name, or the family of a prefix: `NAME.txt` and `NAME-*.txt`, in lexical order.

    Raises:
        UserError: If there is none.
    """
    file = Path(name)
    if file.exists():
        return [file]
    family = sorted({*file.parent.glob(f"{file.name}-*.txt"), *file.parent.glob(f"{file.name}.txt")})
    if not family:
        remedy = f"Name a file, or the prefix of a family ({file.name}.txt and {file.name}-*.txt)."
        raise UserError("there is no such config", file=file, remedy=remedy)
    return family


def translate_config(file: Path, kind: str = "") -> list[TranslatedStudy]:
    """Translate the configs in a file.

    Args:
        file: The file.
        kind: A key of `SYSTEMS`; "" to recognise the format.

    Raises:
        UserError: If the file cannot be read, is in none of the formats, or has too many combinations of values.
    """
    text = read_text(file)
    if kind:
        check_known(kind, SYSTEMS, f"unknown format {kind!r}", path=("--format",))
        system = SYSTEMS[kind]
    else:
        system = next((known for known in SYSTEMS.values() if known.recognises(file, text)), None)
        if system is None:
            problem = f"this file is not a config of {', '.join(known.title for known in SYSTEMS.values())}"
            remedy = f"Name its format: --format {'|'.join(SYSTEMS)}."
            raise UserError(problem, file=file, remedy=remedy)
    return [study for config in system.read(file, text) for study in _studies(system, config, file)]


def _studies(system: System, config: ConfigFile, file: Path) -> Iterator[TranslatedStudy]:
    """Yield a study for each combination of the listed values that change the data."""
    lists = {name: value for name, value in config.given.items()
             if isinstance(value, list | tuple) and name not in system.whole}  # fmt: skip
    if empty := next((name for name, value in lists.items() if not value), None):
        raise UserError(f"{empty} is an empty list", file=file, line=config.lines.get(empty), remedy="List a value.")
    seeds = lists.pop(SEEDS, DEFAULT_SEEDS)
    first = {**system.defaults, **config.given, **{name: value[0] for name, value in lists.items()}, SEEDS: None}
    number = prod(map(len, lists.values()))
    if number > MAX_RUNS:
        problem = f"the lists have {number:,} combinations, and at most {MAX_RUNS} are translated"
        raise UserError(problem, file=file, remedy="Divide the config into several.")
    plain = _call(system, first, config, file)
    divided = {name: values for name, values in lists.items() if any(
        _call(system, {**first, name: value}, config, file).task != plain.task for value in values)}  # fmt: skip
    crossed = {name: values for name, values in lists.items() if name not in divided}
    for cell in product(*divided.values()):
        chosen = {**first, **dict(zip(divided, cell, strict=True))}
        base = _call(system, chosen, config, file)
        name = _study_name("-".join([config.name, *map(str, cell)]))
        arms = _arms(system, chosen, crossed, config, file)
        data = {"study": name, "base": base.base, "seeds": [*seeds] if isinstance(seeds, list | tuple) else seeds,
                **arms, **base.more}  # fmt: skip
        notes = sorted(config.notes.values(), key=lambda note: note.line or 0)
        yield TranslatedStudy(name, file, system.title, data, tuple(notes))


def _call(system: System, values: Mapping[str, Any], config: ConfigFile, file: Path) -> Translation:
    """Translate values. An error because of their types becomes a `UserError`."""
    try:
        return system.translate(values, config)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        problem = f"a setting has a value of another type than its default: {error}"
        remedy = "Compare the values with those of the system's own configs."
        raise UserError(problem, file=file, remedy=remedy) from None


def _arms(
    system: System, first: Mapping[str, Any], lists: Mapping[str, Any], config: ConfigFile, file: Path
) -> dict[str, Any]:
    """Return `grid` if each list changes one path of the study, alone; else an arm for each combination."""

    def computed(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the baseline without the fields of `train` that arms must not change."""
        base = _call(system, {**first, **values}, config, file).base
        train = {name: value for name, value in base["train"].items() if name not in FIELDS_OUTSIDE_IDENTITY}
        return {**base, "train": train}

    def find_changes(values: Mapping[str, Any]) -> dict[str, Any]:
        return changes(base, computed(values))

    base = computed({})
    single = {name: [find_changes({name: value}) for value in values] for name, values in lists.items()}
    for name in [name for name, alone in single.items() if not any(alone)]:
        config.note(name, "it changes no number that a run computes, so only its first value is used")
        lists, single = ({key: value for key, value in part.items() if key != name} for part in (lists, single))
    cells = {cell: find_changes(dict(zip(lists, cell, strict=True))) for cell in product(*lists.values())}
    paths = [{path for change in alone for path in change} for alone in single.values()]
    apart = all(
        cells[cell] == {path: value for change in parts for path, value in change.items()}
        for cell, parts in zip(product(*lists.values()), product(*single.values()), strict=True)
    )
    if apart and all(len(changed) == 1 for changed in paths) and _all_present(base, paths):
        values = {path: [change[path] for change in alone if change]
                  for (path,), alone in zip(paths, single.values(), strict=True)}  # fmt: skip
        return {"grid": {path: [at(base, path), *others] for path, others in values.items()}} if values else {}
    arms = {}
    for cell, change in cells.items():
        if change:
            title = ",".join(f"{name.rpartition('.')[2]}={value}" for name, value in zip(lists, cell, strict=True))
            arms[_study_name(title)] = change
    return {"arms": arms}


def changes(old: Any, new: Any, path: str = "") -> dict[str, Any]:
    """Return the overrides by dotted path that lead from one baseline to another.

    A component of another kind, or with other fields, is replaced as a whole.
    """
    if old == new:
        return {}
    nested = isinstance(old, dict) and isinstance(new, dict)
    section = "." not in path  # the baseline, its task, its model or its training
    if not nested or not (section or (old.keys() == new.keys() and old.get("kind") == new.get("kind"))):
        return {path: "none" if new is None else new}
    return {
        place: value
        for key in dict.fromkeys([*old, *new])
        for place, value in changes(old.get(key), new.get(key), f"{path}.{key}" if path else key).items()
    }


def _all_present(base: Mapping[str, Any], paths: Sequence[set[str]]) -> bool:
    """Return whether the baseline has a value at each path, and no two lists change the same path."""
    listed = [path for changed in paths for path in changed]
    return len({*listed}) == len(listed) and all(at(base, path) is not None for path in listed)


def at(data: Any, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _study_name(text: str) -> str:
    """Return a valid name that is like a text."""
    name = "".join(char if NAME.fullmatch(f"a{char}") else "-" for char in text).strip("-")[:LONGEST_NAME]
    return name if NAME.fullmatch(name) else f"study-{name}"[:LONGEST_NAME].rstrip("-")
