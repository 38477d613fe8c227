"""Config files of programs, written for each run: YAML, JSON or TOML, with a template that the settings change.

Every text is quoted and every number is unambiguous, so that YAML 1.1 and 1.2 and all readers give the same values.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from taetpu.core.errors import KeyPath, UserError
from taetpu.spec.document import Form, read_document
from taetpu.spec.programs.program_config import ConfigFileConfig

TEMPLATE = Form("template", "Write a mapping of keys to values.")
FORMATS = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
YAML_WORDS = re.compile(r"(?i)true|false|yes|no|on|off|null|none|y|n|nan|inf")


def file_format(config: ConfigFileConfig) -> str:
    """Return the format of a config file: that of its ending, unless it is set. Raises `UserError` if it is unknown."""
    if config.format is not None:
        return config.format
    ending = Path(config.path).suffix
    if ending in FORMATS:
        return FORMATS[ending]
    problem = f"the ending {ending!r} of {config.path} is that of no format"
    raise UserError(problem, path=("config", "path"), remedy=f"Set config.format: {', '.join(set(FORMATS.values()))}.")


def check_nulls(config: ConfigFileConfig, settings: Mapping[str, Any], place: KeyPath) -> None:
    """Raise `UserError` if a list has an item that the format cannot express. `place` is near the settings."""
    if file_format(config) == "toml":
        for path, value in settings.items():
            if isinstance(value, list | tuple) and _has_null(value):
                remedy = "Write another value, or use a config file in YAML or JSON."
                raise UserError(f"TOML has no null, and {path} has one in a list", path=place, remedy=remedy)


def _has_null(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else value.values() if isinstance(value, Mapping) else ()
    return any(item is None or _has_null(item) for item in items)


def read_template(config: ConfigFileConfig, cwd: Path) -> dict[str, Any]:
    """Return the content of the template; empty without one. Raises `UserError` if it cannot be read."""
    if config.template is None:
        return {}
    file, kind = cwd / config.template, file_format(config)
    if kind == "yaml":
        return read_document(file, TEMPLATE).data
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if kind == "json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        problem, remedy = f"cannot read the template: {error}", f"Write valid {kind.upper()}."
        raise UserError(problem, path=("config", "template"), file=file, remedy=remedy) from None
    if not isinstance(content, dict):
        problem = f"the template is a {type(content).__name__}, not a mapping"
        raise UserError(problem, path=("config", "template"), file=file, remedy=TEMPLATE.start)
    return content


def merge(template: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a template in which nested settings replace or extend its values."""
    merged = deepcopy(dict(template))
    for key, value in settings.items():
        inside = merged.get(key)
        merged[key] = merge(inside, value) if isinstance(inside, Mapping) and isinstance(value, Mapping) else value
    return merged


def encode(content: Mapping[str, Any], kind: str) -> bytes:
    """Return nested settings as the text of a file in a format.

    TOML has no null: such settings are left out. Lists must not contain any (`check_nulls`).
    """
    if kind == "json":
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    lines = _yaml_lines(content, "") if kind == "yaml" else _toml_lines(content, ())
    return "".join(f"{line}\n" for line in lines).encode()


def _yaml_lines(content: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in content.items():
        plain = BARE_KEY.fullmatch(str(key)) and not YAML_WORDS.fullmatch(str(key))
        name = key if plain else _quote(key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_on_one_line(value, _quote, ': ')}"


def _on_one_line(value: Any, key: Callable[[Any], str], sign: str) -> str:
    """Return a value in YAML or TOML, where `key` writes keys and `sign` is between a key and its value."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_on_one_line(item, key, sign) for item in value)}]"
    if isinstance(value, Mapping):
        items = (f"{key(name)}{sign}{_on_one_line(item, key, sign)}" for name, item in value.items())
        return "{" + ", ".join(items) + "}"
    return _scalar(value)


def _quote(value: Any) -> str:
    """Return text in double quotes, for YAML and TOML. Characters that are not printable are escaped."""
    return "".join(
        sign if sign.isprintable() else f"\\u{ord(sign):04x}" if ord(sign) < 2**16 else f"\\U{ord(sign):08x}"
        for sign in json.dumps(str(value), ensure_ascii=False)
    )


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quote(value)
    return _float(value) if isinstance(value, float) else json.dumps(value)


def _float(value: float) -> str:
    """Return a number that YAML 1.1 reads as one: with a point before the exponent, which has a sign."""
    digits, sign, exponent = repr(value).partition("e")
    point = digits if "." in digits else f"{digits}.0"
    return f"{point}e{exponent if exponent[0] in '+-' else f'+{exponent}'}" if sign else point


def _toml_lines(content: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    tables = {key: value for key, value in content.items() if isinstance(value, Mapping) and value}
    for key, value in content.items():
        if key not in tables and value is not None:
            yield f"{_toml_key(key)} = {_on_one_line(value, _toml_key, ' = ')}"
    for key, value in tables.items():
        yield f"[{'.'.join(map(_toml_key, (*above, key)))}]"
        yield from _toml_lines(value, (*above, key))


def _toml_key(key: Any) -> str:
    return str(key) if BARE_KEY.fullmatch(str(key)) else _quote(key)
