"""The key `program` of a study file."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator

from taetpu.core.config import Config
from taetpu.core.errors import UserError

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
BYTES = {"": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(BYTES)})")

Values = Literal["python", "json", "hydra"]
Booleans = Literal["written", "number", "flag", "flag-pair"]
Lists = Literal["written", "comma", "words", "repeat"]


class EachConfig(Config):
    """What each run of the program needs. As many runs as fit on the machine run at once."""

    gpus: Annotated[PositiveInt | None, Field(description="number of GPUs, chosen by CUDA_VISIBLE_DEVICES")] = None
    cpus: Annotated[PositiveInt | None, Field(description="number of cores, to which the program is bound")] = None
    memory: Annotated[Any, Field(description="memory, e.g. 16GiB; a program that uses more is killed")] = None

    @field_validator("memory", mode="after")
    @classmethod
    def _size(cls, value: Any) -> int | None:
        return None if value is None else parse_size(value, "memory")


class ConfigFileConfig(Config):
    """A file with the settings of a run, which is written before the program starts."""

    path: Annotated[str, Field(description="the file to write, e.g. '{folder}/config.yaml'")]
    format: Annotated[Literal["yaml", "json", "toml"] | None, Field(description="default: the ending of path")] = None
    template: Annotated[str | None, Field(description="a file of this format, which the settings change")] = None
    add: dict[str, Any] = Field(default_factory=dict)
    """Further entries by dotted path, e.g. `{seed: "{seed}", out: "{folder}"}`."""


class ProgramConfig(Config):
    """The program that each run starts: its command, its inputs, and how its metrics come back."""

    command: Annotated[tuple[str, ...], Field(min_length=1, description="the words of the command, without a shell")]
    cwd: Annotated[str, Field(description="working folder, relative to the study file")] = "."
    inputs: Annotated[
        tuple[str, ...], Field(description="files whose content is part of a run's identity; patterns relative to cwd")
    ] = ()
    metrics: Annotated[dict[str, Any], Field(description="how metrics come back, e.g. {jsonl: log.jsonl}")]
    time_limit: Annotated[Any, Field(description="longest time of a run, e.g. 2h or 90m")] = None
    each: Annotated[EachConfig | None, Field(description="what each run needs, e.g. {gpus: 1}")] = None
    resume: Annotated[bool, Field(description="whether an interrupted program continues in its folder")] = False
    config: Annotated[ConfigFileConfig | None, Field(description="a file with the settings, written for each run")] = (
        None
    )
    environment: Annotated[dict[str, Any], Field(description="environment variables, e.g. {SEED: '{seed}'}")] = Field(
        default_factory=dict
    )
    values: Annotated[Values, Field(description="how values are written: python, json or hydra")] = "python"
    booleans: Annotated[Booleans, Field(description="how booleans reach the command")] = "written"
    lists: Annotated[Lists, Field(description="how lists reach the command")] = "written"
    costs: Annotated[dict[str, str], Field(description="costs that the program prints: a pattern for each")] = Field(
        default_factory=dict
    )
    repeat: Annotated[int, Field(ge=0, le=1, description="1: run one baseline seed twice, and report the noise")] = 0
    output: Annotated[Any, Field(description="most bytes of output that are stored, e.g. 16MB")] = 16 * 10**6

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if not isinstance(value, tuple):
            problem = f"a command is a list of words, got {value!r}"
            words = [f'"{word}"' if "{" in word else word for word in str(value).split()]
            remedy = f"Write e.g. [{', '.join(words)}]. There is no shell: use [bash, -c, '...'] for one."
            raise UserError(problem, path=("command",), remedy=remedy)
        return tuple(word if isinstance(word, str) else _number_word(word, i) for i, word in enumerate(value))

    @field_validator("metrics", mode="before")
    @classmethod
    def _sources(cls, value: Any) -> Any:
        if isinstance(value, str):
            kind = next((kind for kind in ("jsonl", "csv") if value.endswith(f".{kind}")), "stdout")
            remedy = f"Write where they are read, e.g. metrics: {{{kind}: {value}}}."
            raise UserError(f"{value!r} is not a mapping", path=("metrics",), remedy=remedy)
        return value

    @field_validator("environment", mode="before")
    @classmethod
    def _variables(cls, value: Any) -> Any:
        for name, text in value.items() if isinstance(value, Mapping) else ():
            if quoted := name_in_braces(text):
                problem = f"{text!r} is not the value of a variable"
                raise UserError(problem, path=("environment", str(name)), remedy=f"Write it in quotes: {quoted!r}.")
        return value

    @field_validator("time_limit", mode="after")
    @classmethod
    def _time(cls, value: Any) -> float | None:
        return None if value is None else parse_duration(value, "time_limit")

    @field_validator("output", mode="after")
    @classmethod
    def _output(cls, value: Any) -> int:
        return parse_size(value, "output")


def parse_duration(value: Any, key: str) -> float:
    """Return a time such as `2h`, `90m`, `1h30m` or a number of seconds in seconds. Raises `UserError` otherwise."""
    if isinstance(value, str) and DURATION.fullmatch(value):
        return sum(float(number) * SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([smhd])", value))
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise UserError(f"{value!r} is not a time", path=(key,), remedy="Write e.g. 90m, 2h, or a number of seconds.")


def parse_size(value: Any, key: str) -> int:
    """Return a size such as `16GiB` or a number of bytes in bytes. Raises `UserError` otherwise."""
    if isinstance(value, str) and (match := SIZE.fullmatch(value)) and float(match[1]) > 0:
        return int(float(match[1]) * BYTES[match[2]])
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise UserError(f"{value!r} is not a size", path=(key,), remedy="Write e.g. 500MB, 16GiB, or a number of bytes.")


def _number_word(word: Any, place: int) -> str:
    if isinstance(word, int | float) and not isinstance(word, bool):
        return str(word)
    path, quoted = ("command", place), name_in_braces(word) or str(word)
    raise UserError(f"{word!r} is not a word of a command", path=path, remedy=f"Write it in quotes: {quoted!r}.")


def name_in_braces(value: Any) -> str | None:
    """Return the text `{seed}` for `{'seed': None}`, as YAML reads it without quotes; None for any other value."""
    return f"{{{next(iter(value))}}}" if isinstance(value, Mapping) and [*value.values()] == [None] else None
