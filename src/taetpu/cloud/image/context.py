"""What an image is made of: a Dockerfile, the package that runs here, the versions that it was tested with.

The same package and the same arguments give the same tag everywhere, installed from source or from a wheel, so that
nothing is built twice. What a tag was once built from does not change; what it is built from may: the base image and
the dependencies without an exact version are those of the day. An image's digest names its bytes; use that.
"""

import base64
import gzip
import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal, cast, get_args

from taetpu.core.chips import Chip
from taetpu.core.errors import UserError, suggest

Torch = Literal["none", "torch_xla", "torch_tpu"]

SUITS: dict[str, tuple[Torch, ...]] = {
    "v2": ("torch_xla",),
    "v3": ("torch_xla",),
    "v4": ("torch_xla",),
    "v5e": ("torch_xla", "torch_tpu"),
    "v5p": ("torch_tpu", "torch_xla"),
    "v6e": ("torch_tpu", "torch_xla"),
    "tpu7x": ("torch_tpu",),
}
"""Which PyTorch a generation is known to suit, the usual one first. From documentation; none was run on a TPU.

torch_xla 2.9 is the last on PyPI (2025-11). torch_tpu 0.2's own documentation and vllm-torchtpu's name v6e and TPU7x,
the latter calls v5e experimental; nothing was found on v2 to v4 with it, nor on TPU7x with torch_xla.
"""

OLDEST = (3, 12)
"""Of Python: torch_tpu asks for it, and no older one was tried in an image."""

ELSEWHERE = ("libtpu",)
"""Pinned by what needs it, not by our lock: its libtpu is the compiler that `plan` asks, and jax[tpu] has another."""

LOCK = "taetpu/cloud/image/requirements.lock"
"""Where a wheel keeps requirements.lock; in a checkout it lies in the root."""


@dataclass(frozen=True)
class Recipe:
    """What can be chosen of an image.

    Attributes:
        torch: which PyTorch is in it, in an environment of its own.
        torch_index: one more index of packages for it, e.g. one with builds for CPUs.
        python: the base image; "" for the Dockerfile's.
        python_digest: of the base image, `sha256:...`; "" for whatever the tag means on the day.
    """

    torch: Torch = "none"
    torch_index: str = ""
    python: str = ""
    python_digest: str = ""

    def arguments(self) -> dict[str, str]:
        """The build arguments, as the Dockerfile names them; what is left to its defaults is not among them."""
        digest = f"@{self.python_digest}" if self.python_digest else ""
        given = {"PYTHON": self.python, "PYTHON_DIGEST": digest, "TORCH_INDEX": self.torch_index, "TORCH": self.torch}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class Context:
    """The folder that an image is built from: its files by name, and the build arguments."""

    version: str
    files: Mapping[str, bytes]
    arguments: Mapping[str, str]

    @cached_property
    def tag(self) -> str:
        """The version and 16 hexadecimal digits that differ where files or arguments do."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()}
        text = json.dumps([digests, dict(self.arguments)], sort_keys=True)
        return f"{self.version.replace('+', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))

    def archive(self) -> bytes:
        """The files as a .tar.gz without times and owners."""
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as tar:
            for name in sorted(self.files):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(self.files[name]), 0o644
                tar.addfile(entry, io.BytesIO(self.files[name]))
        return packed.getvalue()

    def write(self, folder: Path) -> None:
        """Lay the files into a folder."""
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


def context(recipe: Recipe) -> Context:
    """What an image is built from, of the package that runs here.

    Raises:
        UserError: the package is not installed, or its lock is not to be found.
    """
    package = Path(__file__).parents[2]
    lock = _lock(package)
    name, wheel, version = _wheel(package, lock)
    cloud = package / "cloud"
    files = {
        "Dockerfile": (cloud / "vm" / "Dockerfile").read_bytes(),
        "constraints.txt": _constraints(lock),
        "torch_xla.txt": (cloud / "image" / "torch_xla.txt").read_bytes(),
        "torch_tpu.txt": (cloud / "image" / "torch_tpu.txt").read_bytes(),
        name: wheel,
    }
    return Context(version, files, recipe.arguments())


def check_python(image: str) -> str:
    """A base image: one whose Python is not known to be too old.

    Raises:
        UserError: it is none, or an older Python's.
    """
    newer = "python:3.13-slim-bookworm"
    if re.fullmatch(r"[\d.]+", image):
        remedy = f"an image, as in {newer}"
        raise UserError(f"{image!r} is a version and no image", path=("--python",), remedy=remedy)
    if not re.fullmatch(r"([\w.-]+(:\d+)?/)?[a-z0-9._/-]+(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?", image, re.ASCII):
        raise UserError(f"{image!r} cannot be the name of an image", path=("--python",), remedy=f"as in {newer}")
    found = re.search(r"(?:^|/)python:(\d+)(?:\.(\d+))?", image)
    if found and (int(found[1]), int(found[2] or 99)) < OLDEST:
        problem = f"{image!r} has a Python below {OLDEST[0]}.{OLDEST[1]}, which the image was not made for"
        raise UserError(problem, path=("--python",), remedy=f"as in {newer}")
    return image


def torch_of(word: str, chip: Chip | None) -> Torch:
    """The PyTorch of a word: its name, or "auto" for the one that suits a generation.

    Raises:
        UserError: there is no such one, or "auto" without a generation.
    """
    if word == "auto":
        if chip is None:
            raise UserError("--torch auto needs to know the TPU", remedy="add --type, e.g. --type v6e-8")
        return SUITS[chip.name][0]
    if word not in get_args(Torch):
        raise UserError(f"there is no PyTorch {word!r}", remedy=suggest(word, [*get_args(Torch), "auto"]))
    return cast(Torch, word)


def doubts(torch: Torch, chip: Chip | None) -> str:
    """What speaks against a PyTorch on a generation; "" for nothing that is known."""
    if chip is None or torch == "none" or torch == SUITS[chip.name][0]:
        return ""
    if torch in SUITS[chip.name]:
        return f"{SUITS[chip.name][0]} is the usual one for {chip.name}; {torch} is said to run there too"
    return f"nothing that we found says that {torch} runs on {chip.name}; {SUITS[chip.name][0]} does"


def _lock(package: Path) -> bytes:
    for file in (package.parent / LOCK, package.parents[1] / "requirements.lock"):
        if file.is_file():
            return file.read_bytes()
    remedy = "install taetpu again, from a wheel or a checkout"
    raise UserError("requirements.lock is not to be found, so no version can be pinned", file=package, remedy=remedy)


def _constraints(lock: bytes) -> bytes:
    """The lock without what the image pins otherwise."""
    lines = lock.decode().splitlines(keepends=True)
    return "".join(line for line in lines if line.partition("==")[0].strip().lower() not in ELSEWHERE).encode()


def _wheel(package: Path, lock: bytes) -> tuple[str, bytes, str]:
    """The package that runs here as a wheel, the same bytes from the same files: its file name, itself, its version.

    Nothing is compressed, since how well that is done differs between machines. The format is PyPA's "Binary
    distribution format".
    """
    try:
        installed = distribution("taetpu")
    except PackageNotFoundError:
        raise UserError("taetpu runs here without being installed", remedy="pip install -e . in its folder") from None
    version = installed.version
    info = f"taetpu-{version}.dist-info"
    files = {LOCK: lock}
    for file in package.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            files[file.relative_to(package.parent).as_posix()] = file.read_bytes()
    about = (installed.read_text("METADATA") or "").partition("\n\n")[0]  # what follows is the README
    files[f"{info}/METADATA"] = f"{about}\n".encode()
    files[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    head = "Wheel-Version: 1.0\nGenerator: taetpu\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/WHEEL"] = head.encode()
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(files.items())]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files, key=lambda name: (name.startswith(info), name)):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return f"taetpu-{version}-py3-none-any.whl", packed.getvalue(), version


def _digest(data: bytes) -> str:
    """As a RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
