"""Run notebooks without a network, and read their outputs.

`python -m tests.examples.notebooks [NAME ...]` runs the notebooks, or those named, and stores their outputs.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
OFFLINE = Path(__file__).parent / "offline"
"""A folder whose module refuses connections to other machines."""
NAMES = sorted(file.stem for file in NOTEBOOKS.glob("*.ipynb"))


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def execute(notebook: nbformat.NotebookNode, folder: Path | str) -> nbformat.NotebookNode:
    """Run the cells in a new kernel, whose working folder is `folder`, without a network.

    The commands `taetpu` and `python` are those of this interpreter, and jax has a device for each core.
    """
    environ = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PYTHONSTARTUP")}
    environ["PYTHONPATH"] = os.pathsep.join([str(OFFLINE), *filter(None, [environ.get("PYTHONPATH")])])
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    environ |= {"COLUMNS": "100", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    about = {"metadata": {"path": str(folder)}}
    settings = {"timeout": 1800, "resources": about, "record_timing": False, "coalesce_streams": True}
    return NotebookClient(notebook, **settings).execute(env=environ)


def values(name: str, expression: str, folder: Path | str) -> tuple[nbformat.NotebookNode, Any]:
    """Return a notebook after running it, and the value of an expression in its last state, as plain data."""
    notebook = read(name)
    notebook.cells.append(nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({expression}))"))
    execute(notebook, folder)
    return notebook, json.loads(notebook.cells.pop().outputs[0].text)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def pictures(notebook: nbformat.NotebookNode) -> list[bool]:
    """Return whether each code cell has a picture."""
    return [any("image/png" in output.get("data", {}) for output in cell.outputs) for cell in code_cells(notebook)]


def store(name: str) -> None:
    """Run a notebook and store its outputs, without the version of Python."""
    notebook, start = read(name), time.perf_counter()
    about = dict(notebook.metadata)
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, folder)
    notebook.metadata = nbformat.from_dict(about)
    nbformat.write(notebook, NOTEBOOKS / f"{name}.ipynb")
    print(f"{name}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    for named in sys.argv[1:] or NAMES:
        store(named)
