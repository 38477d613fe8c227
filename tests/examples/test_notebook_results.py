"""The notebooks run from top to bottom without a network, and show what their text says.

`python -m tests.examples.notebooks` runs them and stores their outputs.
"""

from typing import Any

import pytest
from tests.examples.notebooks import code_cells, outputs, pictures, read, values

VERDICTS = '{arm["name"]: arm["verdict"] for arm in outcome.results["arms"]}'
INSPECT = """{
    "accuracy": model.result["metrics"]["val/accuracy"],
    "induction": [layer, head, score],
    "uniform": scores.uniform["induction"],
    "previous-token": scores.best("previous-token"),
    "keys": best.patterns[layer][0][len(symbols) + 1 : 2 * len(symbols)].argmax(-1).tolist(),
    "length": len(symbols),
    "largest contribution": [int(table.loc[table["contribution"].idxmax()][place]) for place in ("layer", "head")],
    "shares": table.groupby("layer")["share of the logit"].sum().tolist(),
    "logits": parts.logits[second].tolist(),
}"""
KNOCKOUT = """{
    "accuracy": model.result["metrics"]["val/accuracy"],
    "effects": found.rows(),
    "pairs": pairs.rows(),
    "constants": table.to_dict("list"),
    "positions": positions.cells()[0, 5] * positions.cells()[1, 14],
    "heads": sum(score for (layer, _), score in patches.cells().items() if layer == 1),
    "right": list(right.values()),
}"""


def run(name: str, expression: str, folder: Any) -> Any:
    """Run a notebook, and return the value of an expression; the run has the pictures that are stored."""
    notebook, found = values(name, expression, folder)
    stored = read(name)
    assert pictures(notebook) == pictures(stored)
    assert code_cells(notebook)[0].outputs == []  # nothing was installed
    assert all(output.get("name") != "stderr" for output in outputs(notebook))
    return found


@pytest.mark.slow
def test_first_study(tmp_path):
    found = run("01-first-study", f"[{VERDICTS}, outcome.results['arms'][1]['mean'], len(text.text)]", tmp_path)
    assert found[0].items() >= {"no-attention": "worse", "no-position": "worse"}.items()
    assert found[2] > 100


@pytest.mark.slow
def test_the_component_is_compared(tmp_path):
    effects = "{arm['name']: arm['effect'] for arm in outcome.results['arms']}"
    verdicts, effects, shape = run("02-own-component", f"[{VERDICTS}, {effects}, taps.shape]", tmp_path)
    assert verdicts["conv-first"] == "better"
    assert effects["conv"] > 0 > effects["conv-first"]
    assert shape == [4, 32]


@pytest.mark.slow
def test_inspect_finds_the_heads_that_the_logits_come_from(tmp_path):
    found = run("04-inspect", INSPECT, tmp_path)
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


@pytest.mark.slow
def test_the_heads_that_knockout_removes_do_what_it_says(tmp_path):
    found = run("05-knockout", KNOCKOUT, tmp_path)
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


ANY_SCRIPT = """{
    "verdicts": {arm["name"]: arm["verdict"] for arm in outcome.results["arms"]},
    "effects": {arm["name"]: arm["effect"] for arm in outcome.results["arms"]},
    "losses": study.runs.pivot(index="arm", columns="seed", values="loss").T.to_dict("list"),
    "judged": {arm["name"]: arm["verdict"] for arm in judged.results["arms"]},
    "apart": {arm["name"]: arm["verdict"] for arm in apart.results["arms"]},
}"""


@pytest.mark.slow
def test_the_changes_of_a_function_and_of_a_script_have_the_verdicts_of_the_text(tmp_path):
    found = run("12-any-script", ANY_SCRIPT, tmp_path)
    assert found["verdicts"].items() >= {"no-momentum": "worse", "relu": "inconclusive"}.items()
    assert found["effects"]["no-momentum"] > 5 * abs(found["effects"]["relu"])
    between_seeds = max(found["losses"]["baseline"]) - min(found["losses"]["baseline"])
    assert between_seeds > 2 * abs(found["effects"]["relu"])
    assert found["judged"].items() >= {"dropout": "better", "mixup": "inconclusive"}.items()
    assert found["apart"].items() >= {"dropout": "inconclusive", "mixup": "inconclusive"}.items()


@pytest.mark.slow
def test_own_tokens_are_those_of_the_text(tmp_path):
    lengths = "{row['arm']: row['tokens'] for row in rows}"
    verdicts, tokens, chosen = run("03-own-data-and-tokenizer", f"[{VERDICTS}, {lengths}, text.text]", tmp_path)
    assert verdicts.keys() == {"baseline", "bytes", "pairs", "own"}
    assert verdicts["own"] == "better"
    assert tokens["own"] < tokens["baseline"] / 2
    assert tokens["baseline"] < tokens["bytes"]  # a letter such as ł has two bytes
    assert "wind comes from" in chosen


@pytest.mark.slow
def test_a_model_of_transformers_is_fine_tuned_and_returned(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    final = "float(np.abs(tuned(sample.numpy()).logits - theirs).max())"
    first = "float(np.abs(model(sample.numpy()).logits - gpt2(sample).logits.detach().numpy()).max())"
    verdicts, *differences = run("06-fine-tune", f"[{VERDICTS}, {first}, {final}]", tmp_path)
    assert verdicts["scratch"] == "worse"
    assert max(differences) < 1e-4


@pytest.mark.slow
def test_intents_are_classified(tmp_path):
    expression = f"[{VERDICTS}, {{arm['name']: arm['mean'] for arm in outcome.results['arms']}}, len(intents)]"
    verdicts, means, number = run("07-classify", expression, tmp_path)
    assert number == 77
    assert means["baseline"] > 0.7
    assert verdicts["no-attention"] == "worse"


@pytest.mark.slow
def test_the_compiler_of_a_tpu_plans_the_study(tmp_path):
    pytest.importorskip("libtpu")
    found = {row["arm"]: row for row in run("08-plan-for-a-tpu", "programs.to_dict('records')", tmp_path)}
    assert found.keys() == {"baseline", "narrow-heads", "lstm"}
    assert found["lstm"]["step to (ms)"] > 5 * found["baseline"]["step to (ms)"]
    assert found["lstm"]["step from (ms)"] < 5 * found["baseline"]["step from (ms)"]
    assert all(row["step from (ms)"] < row["step to (ms)"] for row in found.values())


@pytest.mark.slow
def test_eight_devices_compute_what_one_does(tmp_path):
    largest = "float(losses['difference'].abs().max())"
    found = run("09-eight-devices", f"[len(jax.devices()), len(losses), {largest}, shards.device.nunique()]", tmp_path)
    assert found[:2] == [8, 8]
    assert found[2] < 1e-4
    assert found[3] == 8


@pytest.mark.slow
def test_times_are_measured(tmp_path):
    shares = "[sum(profile[what] for what in ('compute', 'transfer', 'idle')) for profile in profiles]"
    found = run("10-where-the-time-goes", f"[{shares}, compiled.program.tolist()]", tmp_path)
    assert found[0] == pytest.approx([1] * 3)
    assert "advance" in found[1]


@pytest.mark.slow
def test_pytorch_and_jax_learn_the_same(tmp_path):
    pytest.importorskip("torch")
    agree = "float(np.abs(jax.vmap(copied)(images) - logits).max())"
    means = "table.groupby('library').accuracy.mean().to_dict()"
    difference, accuracies = run("11-pytorch-and-jax", f"[{agree}, {means}]", tmp_path)
    assert difference < 1e-5
    assert min(accuracies.values()) > 0.7
