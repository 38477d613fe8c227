"""Do a study's verdicts survive the rounding of other processors?

The same runs, trained with other rounding, end at slightly different results. For each arm, the standard deviation of
these changes is measured from further folders of the study. Then results are changed by random numbers of that size,
and judged again. Use:

    taetpu demo --root a
    XLA_FLAGS="--xla_cpu_max_isa=AVX --xla_force_host_platform_device_count=2" taetpu demo --root b
    XLA_FLAGS=--xla_force_host_platform_device_count=1 taetpu demo --root c
    python -m benchmarks.rounding a/quickstart b/quickstart c/quickstart
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from taetpu import judge
from taetpu.core.errors import UserError
from taetpu.stats.load import read_study
from taetpu.stats.results_table import read_table
from taetpu.store.addresses import find_study

ROUNDS = 1000


def read_results(folder: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the final primary metric of each run, with its arm and seed, and the columns' options for `judge`."""
    opened = find_study(folder)
    study = read_study(opened)
    metric, better = study["plan"]["primary"], study["plan"]["direction"]
    table = read_table(opened, study, metric)
    rows = [(arm, seed, value) for arm in study["arms"] for seed, value in table.values(arm).items()]
    frame = pd.DataFrame(rows, columns=["arm", "seed", metric])
    return frame, {"metric": metric, "better": better, "baseline": study.get("baseline", "baseline")}


def verdicts(frame: pd.DataFrame, options: dict[str, str]) -> dict[str, str]:
    """Return the verdict of each arm."""
    judged = judge(frame, arm="arm", seed="seed", **options)
    return {row["name"]: row["verdict"] for row in judged.results["arms"] if row["name"] != options["baseline"]}


def rounding_sds(first: pd.DataFrame, others: Sequence[pd.DataFrame], metric: str) -> dict[str, float]:
    """Return the root mean square of the changes of each arm's results from one folder to the others."""
    keys = ["arm", "seed"]
    changes = [(first.set_index(keys)[metric] - other.set_index(keys)[metric]).dropna() for other in others]
    return (pd.concat(changes) ** 2).groupby("arm").mean().pow(0.5).to_dict()


def main() -> None:
    """Print the share of each verdict among the changed results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the study's folder")
    parser.add_argument("others", type=Path, nargs="*", help="folders of the same study, trained with other rounding")
    parser.add_argument("--sd", type=float, default=0.0, help="the least standard deviation of the changes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    try:
        frame, options = read_results(asked.folder)
        others = [read_results(folder)[0] for folder in asked.others]
    except UserError as error:
        parser.error(str(error))
    if not asked.sd and not asked.others:
        parser.error("name further folders of the study, or --sd")
    metric = options["metric"]
    sds = {arm: max(asked.sd, sd) for arm, sd in rounding_sds(frame, others, metric).items()} if others else {}
    scale = frame["arm"].map(lambda arm: sds.get(arm, asked.sd))
    rng = np.random.default_rng(0)
    counts: dict[str, Counter[str]] = {arm: Counter() for arm in frame["arm"] if arm != options["baseline"]}
    for _ in range(asked.rounds):
        changed = frame.assign(**{metric: frame[metric] + scale * rng.normal(size=len(frame))})
        for arm, verdict in verdicts(changed, options).items():
            counts[arm][verdict] += 1
    print(f"{metric}, changed {asked.rounds} times\n{'arm':24s} {'sd of changes':14s} {'verdict':14s} with changes")
    for arm, verdict in verdicts(frame, options).items():
        shares = ", ".join(f"{changed} {count / asked.rounds:.1%}" for changed, count in counts[arm].most_common())
        print(f"{arm:24s} {sds.get(arm, asked.sd):<14.2g} {verdict:14s} {shares}")


if __name__ == "__main__":
    main()
