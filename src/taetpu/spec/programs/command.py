"""The words of a program's command, its environment and the files it reads, filled in with the settings of a run.

`{key}` and `{value}` stand for each setting that nothing else names. The word with them is repeated, or the run of
neighbouring words. `{seed}`, `{folder}`, `{arm}`, `{study}`, `{config}` and the name of a setting in braces are
replaced. `{{` and `}}` are braces. No shell is involved, so values reach the program unchanged.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from taetpu.core.errors import KeyPath, UserError, suggest
from taetpu.spec.programs.program_config import ProgramConfig, Values

PLACES = ("seed", "folder", "arm", "study", "config")
"""Names in braces that are no settings."""
KEY, VALUE = "key", "value"
TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
HYDRA_PLAIN = re.compile(r"[A-Za-z0-9_/.:@%+-]+")
HYDRA_WORDS = ("true", "false", "null", "inf", "nan")


@dataclass(frozen=True)
class Text:
    """A text with names in braces.

    Attributes:
        parts: pairs of whether the part is a name, and the name or the literal text.
    """

    parts: tuple[tuple[bool, str], ...]

    @property
    def names(self) -> set[str]:
        """The names in braces."""
        return {part for is_name, part in self.parts if is_name}

    @property
    def repeated(self) -> bool:
        """Whether the text stands for each setting."""
        return bool(self.names & {KEY, VALUE})

    def fill(self, known: Mapping[str, str]) -> str:
        """Return the text with names replaced."""
        return "".join(known[part] if is_name else part for is_name, part in self.parts)

    def before_value(self) -> "Text":
        """Return the text before `{value}`, without a sign such as `=` at its end."""
        parts = list(self.parts)
        if (True, VALUE) in parts:
            parts = parts[: parts.index((True, VALUE))]
            if parts and not parts[-1][0]:
                parts[-1] = (False, parts[-1][1].rstrip("=: "))
        return Text(tuple(parts))


def parse_text(text: str, known: Sequence[str], place: KeyPath) -> Text:
    """Parse a text with names in braces.

    Args:
        text: the text.
        known: the names that may stand in braces.
        place: the place of the text, for messages.

    Raises:
        UserError: If a brace has no partner, or a name is unknown.
    """
    parts: list[tuple[bool, str]] = []
    end = 0
    for match in TOKEN.finditer(text):
        parts.append((False, text[end : match.start()]))
        token, end = match[0], match.end()
        if token in ("{{", "}}"):
            parts.append((False, token[0]))
        elif match[1] is None:
            remedy = f"Write {token}{token} for the character {token}."
            raise UserError(f"the brace in {text!r} has no partner", path=place, remedy=remedy)
        elif match[1] not in known:
            remedy = f"{suggest(match[1], known)} Write {{{{{match[1]}}}}} for the text itself."
            raise UserError(f"{token} in {text!r} names nothing", path=place, remedy=remedy)
        else:
            parts.append((True, match[1]))
    parts.append((False, text[end:]))
    return Text(tuple(part for part in parts if part[1]))


@dataclass(frozen=True)
class Command:
    """The command and the environment of a program, parsed.

    Attributes:
        words: the words of the command.
        environment: pairs of a variable and its value.
        rules: how values are written.
    """

    words: tuple[Text, ...]
    environment: tuple[tuple[Text, Text], ...]
    rules: ProgramConfig

    @property
    def named(self) -> set[str]:
        """All names in braces, of words and of the environment."""
        return set[str]().union(
            *(text.names for text in (*self.words, *(t for pair in self.environment for t in pair)))
        )

    @property
    def passes_all(self) -> bool:
        """Whether the words or the environment stand for each setting."""
        return any(word.repeated for word in self.words) or any(name.repeated for name, _ in self.environment)

    def fill_words(self, settings: Mapping[str, Any], places: Mapping[str, str]) -> list[str]:
        """Return the words of the command for a run.

        Args:
            settings: the run's settings.
            places: the values of `PLACES`.
        """
        named = set[str]().union(*(word.names for word in self.words))
        rest = {path: value for path, value in settings.items() if path not in named}
        known = {**self._texts(settings), **places}
        filled: list[str] = []
        for repeated, group in groupby(self.words, key=lambda word: word.repeated):
            texts = list(group)
            if repeated:
                filled += [word for path, value in rest.items() for word in self._repeat(texts, path, value, known)]
            else:
                filled += [text.fill(known) for text in texts]
        return filled

    def fill_environment(self, settings: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a run. The key of a setting has upper case, and underscores for signs."""
        known = {**self._texts(settings), **places}
        filled: dict[str, str] = {}
        for name, value in self.environment:
            if not name.repeated:
                filled[name.fill(known)] = value.fill(known)
                continue
            for path, setting in settings.items():
                if setting is not None:
                    entry = {**known, KEY: variable_name(path), VALUE: write_value(setting, self.rules.values)}
                    filled[name.fill(entry)] = value.fill(entry)
        return filled

    def _texts(self, settings: Mapping[str, Any]) -> dict[str, str]:
        return {path: write_value(value, self.rules.values) for path, value in settings.items()}

    def _repeat(self, texts: Sequence[Text], path: str, value: Any, known: Mapping[str, str]) -> Iterator[str]:
        """Yield the words of a setting. Those of None are left out, unless `null` is written."""
        rules, known = self.rules, {**known, KEY: path}
        if value is None and rules.values != "hydra":
            return
        if isinstance(value, bool) and rules.booleans in ("flag", "flag-pair"):
            yield from _flags(texts, known, value, pair=rules.booleans == "flag-pair")
            return
        if isinstance(value, bool) and rules.booleans == "number":
            value = int(value)
        items = value if isinstance(value, list) and rules.lists in ("words", "repeat") else [value]
        written = [write_value(item, rules.values, comma=rules.lists == "comma") for item in items]
        if rules.lists == "words":
            for text in texts:
                whole = text.parts == ((True, VALUE),)
                yield from written if whole else [text.fill({**known, VALUE: written[0] if written else ""})]
            return
        for item in written:
            yield from (text.fill({**known, VALUE: item}) for text in texts)


def _flags(texts: Sequence[Text], known: Mapping[str, str], value: bool, pair: bool) -> Iterator[str]:
    words = [word for text in texts if (word := text.before_value().fill({**known, VALUE: ""}))]
    if value:
        yield from words
    elif pair:
        yield from (f"--no-{word.removeprefix('--')}" for word in words)


def variable_name(path: str) -> str:
    """Return the name of a setting in an environment variable: `optimizer.lr` as `OPTIMIZER_LR`."""
    return re.sub(r"[^A-Za-z0-9]", "_", path).upper()


def write_value(value: Any, rule: Values, comma: bool = False) -> str:
    """Return a value as text: text as it is, and anything else in the notation of Python, JSON or Hydra.

    Args:
        value: the value.
        rule: the notation.
        comma: whether a list is written as its items, separated by commas.
    """
    if comma and isinstance(value, list):
        return ",".join(write_value(item, rule) for item in value)
    if rule == "hydra":
        return _write_hydra(value)
    if isinstance(value, str):
        return value
    return repr(value) if rule == "python" else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _write_hydra(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides, where other texts than plain words are quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_write_hydra, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_write_hydra(item)}' for key, item in value.items())}}}"
    if not isinstance(value, str) or (HYDRA_PLAIN.fullmatch(value) and not _reads_as_other(value)):
        return str(value)
    escaped = re.sub(r"\\+(?=')|\\+$", lambda signs: signs[0] * 2, value).replace("'", "\\'")
    return f"'{escaped}'"


def _reads_as_other(text: str) -> bool:
    """Return whether Hydra would read a text as a number or as a word such as `true`."""
    try:
        float(text)
    except ValueError:
        return text.lower() in HYDRA_WORDS
    return True
