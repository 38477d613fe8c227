"""The inputs of a program: the files whose content is part of a run's identity."""

import glob
import hashlib
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.core.identity import canonical_json
from taetpu.spec.programs.program_config import ProgramConfig

MOST_INPUTS = 10_000
SCRIPT = re.compile(r"[\w./-]+\.(py|sh|bash|pl|R|jl|js|lua)")
"""A word of a command that names a script."""


def input_digests(program: ProgramConfig, cwd: Path, known: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each input by its path: the files that the command names, the template, and `inputs`.

    Args:
        program: the program.
        cwd: its working folder.
        known: the digests of inputs that are not files.

    Raises:
        UserError: If a pattern matches no file, a file cannot be read, or there are no inputs or too many.
    """
    names = {word for word in program.command if _is_file(cwd, word)}
    if program.config is not None and program.config.template is not None:
        names |= set(_matches(program.config.template, cwd, ("config", "template")))
    for number, pattern in enumerate(program.inputs):
        names |= set(_matches(pattern, cwd, ("inputs", number)))
    if not names and not known:
        _check_scripts(program.command, cwd)
        problem = "no input is known, so runs would stay valid when the program changes"
        raise UserError(problem, path=("inputs",), remedy='List the files of the program, e.g. inputs: ["*.py"].')
    if len(names) > MOST_INPUTS:
        remedy = "Name the files of the program only, e.g. *.py."
        raise UserError(f"{len(names)} inputs are more than {MOST_INPUTS}", path=("inputs",), remedy=remedy)
    return {**known, **{name: _digest(cwd / name) for name in sorted(names)}}


def fingerprint(program: ProgramConfig, digests: dict[str, str]) -> str:
    """Return the digest of a program: of its command as written and of its inputs."""
    return hashlib.sha256(canonical_json({**hashed_program(program), "inputs": digests}).encode()).hexdigest()


def hashed_program(program: ProgramConfig) -> dict[str, object]:
    """Return what of a program determines its runs: the command, and how settings reach it."""
    config = program.config
    told = {name: value for name in ("values", "booleans", "lists")
            if (value := getattr(program, name)) != type(program).model_fields[name].default}  # fmt: skip
    file = {"path": config.path, "format": config.format, "add": config.add} if config else None
    return {"command": list(program.command), **told, **({"config": file} if file else {})}


def _is_file(cwd: Path, word: str) -> bool:
    """Return whether a word of the command names a file in the working folder."""
    try:
        return not Path(word).is_absolute() and (cwd / word).is_file()
    except (OSError, ValueError):  # a word that no file can be named
        return False


def _matches(pattern: str, cwd: Path, place: tuple[str | int, ...]) -> Sequence[str]:
    if (cwd / pattern).is_file():
        return [pattern]
    names = glob.glob(pattern, root_dir=cwd, recursive=True)
    files = [name for name in names if (cwd / name).is_file()]
    if files:
        return files
    near = get_close_matches(Path(pattern).name, _names_near(cwd, pattern), n=3)
    remedy = f"Did you mean {near[0]!r}?" if near else f"Patterns are relative to {cwd}."
    raise UserError(f"{pattern!r} matches no file", path=place, remedy=remedy)


def _check_scripts(command: Sequence[str], cwd: Path) -> None:
    """Raise `UserError` if a word of the command has the form of a script's name and names no file."""
    for number, word in enumerate(command):
        if SCRIPT.fullmatch(word) and not (cwd / word).is_file():
            near = get_close_matches(Path(word).name, _names_near(cwd, word), n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Paths are relative to {cwd}."
            raise UserError(f"there is no file {word!r}", path=("command", number), remedy=remedy)


def _names_near(cwd: Path, pattern: str) -> list[str]:
    folder = (cwd / pattern).parent
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def changed_inputs(cwd: Path, digests: Mapping[str, str]) -> list[str]:
    """Return the files among inputs whose content is no longer that of their digest."""
    return [name for name, digest in digests.items() if (cwd / name).is_file() and _digest(cwd / name) != digest]


def _digest(file: Path) -> str:
    try:
        about = file.stat()
        return _digest_of(file, about.st_size, about.st_mtime_ns, about.st_ino)
    except OSError as error:
        problem = f"cannot read this input: {error.strerror}"
        raise UserError(problem, path=("inputs",), file=file, remedy="Make the file readable.") from None


@lru_cache(maxsize=MOST_INPUTS)
def _digest_of(file: Path, *_: int) -> str:
    """Return the digest of a file. It is read again if the further arguments differ, which tell versions apart."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
