"""The architecture page agrees with the code: its picture of the packages, and the modules that it names."""

import re
import tomllib
from pathlib import Path

import pytest

from taetpu.spec.train_config import TrainConfig

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "taetpu"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def layers() -> list[set[str]]:
    """Return the rows of packages that import-linter checks, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in settings if contract["type"] == "layers")
    return [{name.strip().removeprefix("taetpu.") for name in row.split("|")} for row in rows]


def test_the_picture_matches_the_import_layers():
    picture = PAGE[PAGE.index("┌") : PAGE.index("└")]
    known = set.union(*layers())
    rows = [set(re.findall(r"│ ([a-z]+) *(?=│|  )", row)) & known for row in picture.splitlines()]
    assert [row for row in rows if row] == layers()


def test_every_package_is_in_the_picture():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {"plugin"}
    assert packages == set.union(*layers())


@pytest.mark.parametrize("page", ["architecture.md", "internals.md"])
def test_modules_and_files_named_on_a_page_exist(page: str):
    packages = "|".join(set.union(*layers()))
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(rf"`((?:{packages})(?:[./]\w+)+)`", text)) - set(text_of_settings(text))
    assert len(named) > 10
    assert {name for name in named if not is_defined(name)} == set()


def text_of_settings(text: str) -> list[str]:
    """Return the paths of a study file that a page names, such as `train.hooks`."""
    return [
        name for name in re.findall(r"`(train(?:\.[\w-]+)+)`", text) if name.split(".")[1] in TrainConfig.model_fields
    ]


def is_defined(name: str) -> bool:
    """Return whether a path is a file of the package, or a dotted name a module or one of its definitions."""
    if (PACKAGE / name).exists():
        return True
    place, rest = PACKAGE, name.split(".")
    while rest and (place / rest[0]).is_dir():
        place, rest = place / rest[0], rest[1:]
    if rest and (place / f"{rest[0]}.py").exists():
        place, rest = place / f"{rest[0]}.py", rest[1:]
    source = (place / "__init__.py" if place.is_dir() else place).read_text()
    return all(re.search(rf"\b{part}\b", source) for part in rest)


def test_the_page_stays_short():
    assert len(PAGE.splitlines()) <= 200
