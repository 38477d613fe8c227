"""Do a study's verdicts survive the rounding of other processors?

The same runs, trained with other rounding, end at slightly different results. The standard deviation of these changes
is measured from further folders of the study; then results are changed by random numbers of that size, and judged
again. Use:

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
    return {row["arm"]: row["verdict"] for row in judged.results["arms"] if row["arm"] != options["baseline"]}


def rounding_sd(first: pd.DataFrame, others: Sequence[pd.DataFrame], metric: str) -> float:
    """Return the root mean square of the changes of results from one folder to the others."""
    keys = ["arm", "seed"]
    changes = [(first.set_index(keys)[metric] - other.set_index(keys)[metric]).dropna() for other in others]
    return float(np.sqrt(np.mean(np.concatenate(changes) ** 2)))


def main() -> None:
    """Print the share of each verdict among the changed results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the study's folder")
    parser.add_argument("others", type=Path, nargs="*", help="folders of the same study, trained with other rounding")
    parser.add_argument("--sd", type=float, help="the standard deviation of changes, if it is known")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    frame, options = read_results(asked.folder)
    if asked.sd is None and not asked.others:
        parser.error("name further folders of the study, or --sd")
    others = [read_results(folder)[0] for folder in asked.others]
    sd = rounding_sd(frame, others, options["metric"]) if asked.sd is None else asked.sd
    rng = np.random.default_rng(0)
    counts: dict[str, Counter[str]] = {arm: Counter() for arm in verdicts(frame, options)}
    for _ in range(asked.rounds):
        changed = frame.assign(**{options["metric"]: frame[options["metric"]] + rng.normal(0, sd, len(frame))})
        for arm, verdict in verdicts(changed, options).items():
            counts[arm][verdict] += 1
    print(f"{options['metric']}: changes of sd {sd:.4g}, {asked.rounds} times")
    for arm, first in verdicts(frame, options).items():
        shares = ", ".join(f"{verdict} {count / asked.rounds:.1%}" for verdict, count in counts[arm].most_common())
        print(f"{arm:24s} {first:14s} {shares}")


if __name__ == "__main__":
    main()
