"""The notebooks run from top to bottom, and show what their text says.

`python -m tests.examples.test_notebooks` runs each notebook and stores its outputs.
"""

import json
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MAX_BYTES = 400_000
"""Maximum size of a stored notebook, pictures included."""
FACTS = """
import json
pattern, n = best.patterns[layer][0], len(symbols)
top = table.loc[table["contribution"].idxmax()]
print(json.dumps({
    "accuracy": model.result["metrics"]["val/accuracy"],
    "induction": [layer, head, score],
    "uniform": scores.uniform["induction"],
    "previous-token": scores.best("previous-token"),
    "keys": pattern[n + 1 : 2 * n].argmax(-1).tolist(),
    "length": n,
    "largest contribution": [int(top["layer"]), int(top["head"])],
    "shares": table.groupby("layer")["share of the logit"].sum().tolist(),
    "logits": parts.logits[second].tolist(),
}))
"""
"""A cell that prints values of `inspect.ipynb`."""
KNOCKOUT_FACTS = """
import json
print(json.dumps({
    "accuracy": model.result["metrics"]["val/accuracy"],
    "effects": found.rows(),
    "pairs": pairs.rows(),
    "constants": table.to_dict("list"),
    "positions": positions.cells()[0, 5] * positions.cells()[1, 14],
    "heads": sum(score for (layer, _), score in patches.cells().items() if layer == 1),
    "right": list(right.values()),
}))
"""
"""A cell that prints values of `knockout.ipynb`."""
ABLATE_FACTS = """
import json
print(json.dumps({
    "verdicts": {arm["name"]: arm["verdict"] for arm in outcome.results["arms"]},
    "effects": {arm["name"]: arm["effect"] for arm in outcome.results["arms"]},
    "losses": study.runs.pivot(index="arm", columns="seed", values="loss").T.to_dict("list"),
}))
"""
"""A cell that prints values of `ablate.ipynb`."""


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / name, as_version=4)


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run the cells of a notebook in a new kernel, in this order."""
    folder = {"metadata": {"path": str(NOTEBOOKS)}}
    return NotebookClient(notebook, timeout=600, resources=folder, record_timing=False).execute(env=dict(os.environ))


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def pictures(notebook: nbformat.NotebookNode) -> list[bool]:
    """Return whether each code cell has a picture."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [any("image/png" in output.get("data", {}) for output in cell.outputs) for cell in cells]


@pytest.mark.slow
def test_the_notebook_finds_the_heads_that_the_logits_come_from() -> None:
    notebook, stored = read("inspect.ipynb"), read("inspect.ipynb")
    notebook.cells.append(nbformat.v4.new_code_cell(FACTS))
    execute(notebook)
    found = json.loads(notebook.cells.pop().outputs[0].text)
    assert found["accuracy"] > 0.99
    layer, head, score = found["induction"]
    assert layer == 1
    assert score > 0.5 > 10 * found["uniform"]
    assert found["previous-token"][0] == 0
    assert found["previous-token"][2] > 0.4
    # Position n + 1 + i has symbol i of the second pass, and position i + 2 the symbol that followed it.
    right = [key == i + 2 for i, key in enumerate(found["keys"])]
    assert len(right) == found["length"] - 1
    assert sum(right) >= 0.7 * len(right)
    assert found["largest contribution"] == [layer, head]
    assert found["shares"][1] > 0.8 > 0.2 > abs(found["shares"][0])
    assert min(found["logits"]) > 3
    assert pictures(notebook) == pictures(stored)
    assert [output.get("name") for output in outputs(notebook)] == [output.get("name") for output in outputs(stored)]


@pytest.mark.slow
def test_the_heads_that_are_removed_do_what_the_notebook_says() -> None:
    notebook, stored = read("knockout.ipynb"), read("knockout.ipynb")
    notebook.cells.append(nbformat.v4.new_code_cell(KNOCKOUT_FACTS))
    execute(notebook)
    found = json.loads(notebook.cells.pop().outputs[0].text)
    assert found["accuracy"] > 0.99
    effects = {row["component"]: row for row in found["effects"]}
    largest = found["effects"][0]
    assert largest["component"].startswith("0.")  # the model needs layer 0
    assert largest["low"] > 0.5
    assert all(abs(row["direct"]) < 0.02 * largest["effect"] for name, row in effects.items() if name < "1")
    assert max(row["effect"] for name, row in effects.items() if name > "1") < 0.5 * largest["effect"]
    between = [row for row in found["pairs"] if row["pair"].count("1.") == 2]
    assert len(between) == 6
    assert max(row["low"] for row in between) > 0.1  # heads of layer 1 replace each other
    zero, mean, optimal = (found["constants"][how] for how in ("zero", "mean", "optimal"))
    assert all(best <= min(pair) + 1e-6 for best, *pair in zip(optimal, zero, mean, strict=True))
    assert found["positions"] > 0.95
    assert found["heads"] > 0.5
    assert found["right"][0] == 8
    assert max(found["right"][1:]) <= 3
    assert pictures(notebook) == pictures(stored)


@pytest.mark.slow
def test_the_changes_of_a_function_have_the_verdicts_that_the_notebook_says() -> None:
    notebook, stored = read("ablate.ipynb"), read("ablate.ipynb")
    notebook.cells.append(nbformat.v4.new_code_cell(ABLATE_FACTS))
    execute(notebook)
    found = json.loads(notebook.cells.pop().outputs[0].text)
    assert found["verdicts"] == {"baseline": "baseline", "no-momentum": "worse", "relu": "inconclusive"}
    assert found["effects"]["no-momentum"] > 5 * abs(found["effects"]["relu"])
    between_seeds = max(found["losses"]["baseline"]) - min(found["losses"]["baseline"])
    assert between_seeds > 2 * abs(found["effects"]["relu"])
    assert pictures(notebook) == pictures(stored)
    assert any("<svg" in output.get("data", {}).get("text/html", "") for output in outputs(notebook))
    assert {output.get("name") for output in outputs(notebook)} == {"stdout", None}


@pytest.mark.parametrize(("name", "drawn"), [("inspect.ipynb", 5), ("knockout.ipynb", 2), ("ablate.ipynb", 1)])
def test_the_stored_notebooks_have_small_outputs_of_one_run(name: str, drawn: int) -> None:
    notebook = read(name)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == [*range(1, len(counts) + 1)]
    assert sum(pictures(notebook)) == drawn
    assert all(output.output_type != "error" and output.get("name") != "stderr" for output in outputs(notebook))
    assert (NOTEBOOKS / name).stat().st_size < MAX_BYTES


if __name__ == "__main__":
    for file in NOTEBOOKS.glob("*.ipynb"):
        notebook = read(file.name)
        about = dict(notebook.metadata)
        execute(notebook)
        notebook.metadata = nbformat.from_dict(about)  # without the version of Python
        nbformat.write(notebook, file)
