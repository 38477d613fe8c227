"""The notebooks install nothing that is there, use public names only, and store the outputs of one run.

What their text says about their results is tested in `test_notebook_results.py`.
"""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from tests.cli.commands import wrong
from tests.examples.notebooks import NAMES, NOTEBOOKS, OFFLINE, code_cells, outputs, pictures, read

ROOT = NOTEBOOKS.parent
MAX_BYTES = 500_000
"""Maximum size of a stored notebook, pictures included."""
PUBLIC = ("taetpu", "taetpu.plugin", "taetpu.testing")
"""The modules whose names are documented, and listed in `__all__`."""
WRITTEN = re.compile(r"%%writefile (\S+\.py)\n(.*)", re.DOTALL)


def sources(name: str) -> list[str]:
    """Return the code of a notebook, and of the Python files that it writes, without magics."""
    cells = [cell.source for cell in code_cells(read(name))]
    written = [match[2] for cell in cells if (match := WRITTEN.fullmatch(cell))]
    return [TransformerManager().transform_cell(cell) for cell in [*cells, *written]]


def private_names(source: str) -> list[str]:
    """Return the names of taetpu that code uses and that are not public, and attributes with leading underscores."""
    private = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            used = [alias.name for alias in node.names if alias.name.split(".")[0] == "taetpu"]
            private += [module for module in used if module not in PUBLIC]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "taetpu":
            names = import_module(node.module).__all__ if node.module in PUBLIC else []
            private += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            private.append(node.attr)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "taetpu":
            private += [] if node.attr in import_module("taetpu").__all__ else [f"taetpu.{node.attr}"]
    return private


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("import taetpu\ntaetpu.run('a.yaml')", []),
        ("from taetpu.plugin import Component", []),
        ("import taetpu.lens.generate", ["taetpu.lens.generate"]),
        ("from taetpu.lens.generate import Sampling", ["taetpu.lens.generate.Sampling"]),
        ("from taetpu.plugin import Annotated", ["taetpu.plugin.Annotated"]),
        ("import taetpu\ntaetpu.lens.generate", ["taetpu.lens"]),
        ("model._programs", ["_programs"]),
    ],
)
def test_names_that_are_not_public_are_found(source, private):
    assert private_names(source) == private


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_uses_public_names_only(name):
    assert [private for source in sources(name) for private in private_names(source)] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cell_names_all_that_it_installs(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [
        *project["dependencies"],
        *(line for lines in project["optional-dependencies"].values() for line in lines),
    ]
    known = {re.split(r"[^\w-]", line)[0] for line in required}
    cell = code_cells(read(name))[0].source
    needed = re.search(r"^needed = (\{.*\})$", cell, re.MULTILINE)[1]
    packages = ast.literal_eval(needed.replace("source", "'taetpu'"))
    assert packages.pop("taetpu") == "taetpu"
    assert set(packages.values()) <= known
    assert all(package in cell.splitlines()[0] for package in packages.values())
    imported = {
        module.split(".")[0]
        for source in sources(name)
        for node in ast.walk(ast.parse(source))
        for module in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    with_taetpu = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    assert imported <= {*sys.stdlib_module_names, *with_taetpu, *packages, "taetpu"}


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_notebook_exist(name):
    cells = [cell.source.splitlines() for cell in code_cells(read(name))]
    commands = [line.partition("!")[2] for lines in cells for line in lines if re.match(r"(\w+ = )?!taetpu ", line)]
    commands += [line.partition(" 2>")[0] for lines in cells for line in lines[1:] if lines[0] == "%%bash"]
    named = re.findall(r"`(taetpu [^`]*)`", "".join(cell.source for cell in read(name).cells))
    assert [problem for line in [*commands, *named] if (problem := wrong(line))] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_outputs_are_small_and_of_one_run(name):
    notebook = read(name)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == [*range(1, len(counts) + 1)]
    assert code_cells(notebook)[0].outputs == []
    assert any(pictures(notebook)) or any(
        "<svg" in output.get("data", {}).get("text/html", "") for output in outputs(notebook)
    )
    assert all(output.output_type != "error" and output.get("name") != "stderr" for output in outputs(notebook))
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < MAX_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_name_no_folder_of_the_machine_that_ran_them(name):
    texts = [
        str(output.get("text", "")) + str(output.get("data", {}).get("text/html", "")) for output in outputs(read(name))
    ]
    assert re.findall(r"(?:/tmp|/home|/root|/work|/dev/shm)/\S*", "\n".join(texts)) == []


def test_the_page_of_notebooks_lists_all_of_them_and_their_links_exist():
    page = (ROOT / "docs/notebooks.md").read_text()
    assert re.findall(r"\]\(\.\./notebooks/([\w-]+)\.ipynb\)", page) == NAMES
    assert [name[:2] for name in NAMES] == [f"{number:02}" for number in range(1, len(NAMES) + 1)]
    for name in NAMES:
        text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
        for link in re.findall(r"\]\(([^):]+?)(?:#[^)]*)?\)", text):
            assert (NOTEBOOKS / link).exists(), (name, link)


def test_other_machines_cannot_be_reached_offline():
    code = (
        "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 1)\nexcept PermissionError: print('refused')"
    )
    environ = {"PYTHONPATH": str(OFFLINE), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
