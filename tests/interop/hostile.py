"""Damage folders of Hugging Face models at random, and open them: they are read, or refused by a `UserError`.

`python -m tests.interop.hostile BASES --cases 300 --seed 0` opens that many damaged copies of the folders in BASES, in
this process: files with other values, deep or large content, changed headers and bytes, and folders, pipes and links in
their place. A case that raises anything but a `UserError`, takes 10 s or 1 GB, is printed with its number; `--first N
--cases 1` repeats it.
"""

import argparse
import faulthandler
import json
import os
import random
import shutil
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.families import FAMILIES
from taetpu.interop.families.base import HARMLESS
from taetpu.interop.families.rope import RopeParameters
from taetpu.lens.opening import open_run

SLOWEST, LARGEST = 10, 2**30
"""The time of a case in seconds, and the memory of the process in bytes, beyond that before the first case."""
NAMES = sorted(
    {name for family in FAMILIES.values() for name in (*family.model_fields, *family.fixed)}
    | {"quantization_config", "text_config", "architectures", *list(HARMLESS)[:5], "x", ""}
)
SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 5, 16, 64, 2**15, 2**24, 2**31, 2**63, 10**400, 0.5, 1.5, -2.0, 1e-300, 1e300,
    1e39, float("nan"), float("inf"), "", "x", "none", "linear", "llama3", "yarn", "dynamic", "default", "silu", "gelu",
    "1e3", "\0", "a" * 10_000, "\u2028", "\x1b[31m", "../x", *FAMILIES, "gemma3", "sliding_attention", "full_attention",
]  # fmt: skip
RAW = [
    b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"{}", b'{"a": ' + b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a":1}' + b" " * 2**20, b'{"a": "\\ud800"}', b"\xef\xbb\xbf{}", b"[" * 2**20 + b"]" * 2**20,
]  # fmt: skip
DTYPES = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "I8", "U64", "BOOL", "C64", "X", 3]


def value(at: random.Random, depth: int = 0) -> Any:
    """Return random JSON data."""
    if depth < 3 and at.random() < 0.2:
        if at.random() < 0.5:
            return [value(at, depth + 1) for _ in range(at.randrange(5))]
        keys = [*RopeParameters.model_fields, "full_attention", "sliding_attention", *at.sample(NAMES, 3)]
        return {at.choice(keys): value(at, depth + 1) for _ in range(at.randrange(5))}
    return at.choice(SCALARS)


def place_in(at: random.Random, content: Any) -> tuple[Any, Any]:
    """Return a random container in JSON data and a key of it."""
    where = content
    while True:
        key = at.choice(list(where) if isinstance(where, dict) else range(len(where)))
        inner = where[key]
        if not isinstance(inner, dict | list) or not inner or at.random() < 0.3:
            return where, key
        where = inner


def change_json(file: Path, at: random.Random) -> None:
    """Set, remove or add values of a JSON file."""
    content = json.loads(file.read_bytes())
    for _ in range(at.choice([1, 1, 2, 4])):
        if not content:
            break
        where, key = place_in(at, content)
        how = at.random()
        if how < 0.6:
            where[key] = value(at)
        elif how < 0.8 and isinstance(where, dict):
            del where[key]
        elif isinstance(where, dict):
            where[at.choice(NAMES)] = value(at)
        else:
            where.append(value(at))
    file.write_text(json.dumps(content))


def change_config(file: Path, at: random.Random) -> None:
    """Set settings of a config that exist in some architecture."""
    if file.name != "config.json":
        return change_json(file, at)
    content = json.loads(file.read_bytes())
    for _ in range(at.choice([1, 1, 2, 3])):
        content[at.choice(["rope_parameters", "rope_scaling", *NAMES])] = value(at)
    file.write_text(json.dumps(content))
    return None


def change_header(file: Path, at: random.Random) -> None:
    """Change the header of a safetensors file: names, types, shapes, offsets or its length."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    name = at.choice([key for key in header if key != "__metadata__"])
    entry = header[name]
    what = at.randrange(6)
    if what == 0:
        entry["dtype"] = at.choice(DTYPES)
    elif what == 1:
        entry["shape"] = at.choice([[], [0], [0, 2**40], [2**62, 4], [-1], entry["shape"][::-1], [*entry["shape"], 1]])
    elif what == 2:
        entry["data_offsets"] = at.choice([[0, 0], [0, 2**63], [-1, 4], [8, 4], "x", [entry["data_offsets"][1]] * 2])
    elif what == 3:
        header[at.choice([*header, "x", "\0", "lm_head.weight", name.partition(".")[2]])] = header.pop(name)
    elif what == 4:
        header["__metadata__"] = value(at)
    else:
        header[name] = value(at)
    text = json.dumps(header).encode()
    length = at.choice([0, 2**40, 2**63, len(text) + 1]) if at.random() < 0.15 else len(text)
    file.write_bytes(struct.pack("<Q", length) + text + data[8 + size :])


def change_bytes(file: Path, at: random.Random) -> None:
    """Flip, remove or replace bytes of a file, or all of them."""
    data = bytearray(file.read_bytes())
    how = at.randrange(4)
    if how == 0 and data:
        for _ in range(at.choice([1, 5, 50])):
            data[at.randrange(min(len(data), 4000))] ^= 1 << at.randrange(8)
    elif how == 1:
        data = data[: at.randrange(len(data) + 1)]
    elif how == 2:
        data = bytearray(at.choice(RAW))
    else:
        data[at.randrange(len(data) + 1) :] = at.randbytes(at.choice([1, 100]))
    file.write_bytes(data)


def change_place(file: Path, at: random.Random) -> None:
    """Put something else in the place of a file."""
    file.unlink()
    makers: list[Callable[[], object]] = [
        lambda: None,
        file.mkdir,
        lambda: os.mkfifo(file),
        lambda: file.symlink_to("/dev/zero"),
        lambda: file.symlink_to("/dev/urandom"),
        lambda: file.symlink_to(file.name),
        lambda: file.symlink_to("missing"),
        lambda: (file.touch(), os.truncate(file, 2**33)),
    ]
    at.choice(makers)()


def damage(folder: Path, at: random.Random) -> list[str]:
    """Damage one or two files of a folder; return what was done."""
    done = []
    for _ in range(at.choice([1, 1, 1, 2])):
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
        files = [path for path in files if path.stat().st_size < 2**24]
        if not files:
            break
        weighted = [path for path in files for _ in range(4 if path.name == "config.json" else 1)]
        file = at.choice(weighted)
        changes = [change_bytes, change_place]
        changes += [change_header] * 5 if file.suffix == ".safetensors" else []
        changes += [change_config] * 5 + [change_json] * 3 if file.suffix == ".json" else []
        change = at.choice(changes)
        try:
            change(file, at)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, struct.error):
            # The file was damaged before.
            change = change_bytes
            change(file, at)
        done.append(f"{change.__name__} {file.name}")
    return done


def open_folder(folder: Path) -> str:
    """Open a folder and encode a text; return `read` or `refused`.

    Raises:
        AssertionError: If the refusal has no remedy, or a message that no terminal shows.
    """
    try:
        opened = open_run(folder)
        if opened.tokenizer is not None:
            opened.tokenizer.encode("the cat and the dog")
        assert all(type(token) is int for token in opened.end_tokens), opened.end_tokens
    except UserError as error:
        refusal = str(error)
    else:
        return "read"
    assert len(refusal) < 10_000, "a long message"
    return "refused"


def memory() -> int:
    """Return the largest memory of this process since `forget_memory`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bases", type=Path, help="a folder with folders of models")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    bases = sorted(given.bases.iterdir())
    outcomes = {"read": 0, "refused": 0, "broken": 0}
    for base in bases:
        assert open_folder(base) == "read", base
    forget_memory()
    before = memory()
    for number in range(given.first, given.first + given.cases):
        at = random.Random(f"{given.seed} {number}")
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
            folder = Path(shutil.copytree(at.choice(bases), Path(place) / "model"))
            done = f"case {number} of seed {given.seed}: {', '.join(damage(folder, at))}"
            print(done, file=sys.stderr, flush=True)
            faulthandler.dump_traceback_later(SLOWEST, exit=True)
            try:
                outcomes[open_folder(folder)] += 1
                if (more := memory() - before) > LARGEST:
                    raise AssertionError(f"{more / 2**20:,.0f} MB")
            except Exception:
                outcomes["broken"] += 1
                print(f"{done}\n{traceback.format_exc(limit=-8)}", flush=True)
            finally:
                faulthandler.cancel_dump_traceback_later()
                forget_memory()
    print(json.dumps(outcomes))
    return 1 if outcomes["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
