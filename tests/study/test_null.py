"""The rate of false verdicts in studies whose arms have the same distribution as the baseline."""

import numpy as np
import pytest
from scipy import stats
from tests.stats.conftest import made_study

from taetpu.stats.analyse import analyse

POOL, STUDIES, ARMS, SEEDS = 400, 40, 8, 5

STUDY = f"""\
study: pool
base:
  task: {{kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}}
  model: {{dim: 8, num_layers: 1, mixer: {{kind: attention, num_heads: 2}}}}
  train: {{steps: 30, batch_size: 4, eval_every: 30, log_every: 30, optimizer: {{kind: adamw, lr: 1e-2}}}}
seeds: {POOL}
"""


@pytest.mark.nightly
def test_null_studies_give_no_more_false_verdicts_than_stated(study, tmp_path):
    """Each study is drawn from a pool of trained runs of the baseline, which differ only in their seeds. Its arms
    therefore have the same distribution, with the noise of real training. A study errs with a probability of 5 %. The
    test fails for numbers of errors that occur by chance in one of a thousand such tests."""
    _, folder = study(STUDY)
    losses = np.array([run["value"] for run in folder.read_results()["arms"][0]["runs"]], float)
    assert np.isfinite(losses).all()
    assert losses.std() > 1e-4  # the runs do differ
    rng, wrong, noisy = np.random.default_rng(0), 0, 0
    for i in range(STUDIES):
        drawn = rng.choice(losses, (ARMS, SEEDS), replace=False).tolist()
        names = ["baseline", *(f"same{j}" for j in range(1, ARMS))]
        values = {name: dict(enumerate(row)) for name, row in zip(names, drawn, strict=True)}
        results = analyse(made_study(tmp_path / "null", values, name=f"null{i}", noise="moderated"))
        wrong += any(arm["verdict"] != "inconclusive" for arm in results["arms"][1:])
        noisy += bool(results["model"]["noisy"])
    most = int(stats.binom.isf(0.001, STUDIES, 0.05))
    print(f"{wrong} of {STUDIES} null studies gave a verdict, at most {most} may; {noisy} had an arm that seemed noisy")
    assert wrong <= most
