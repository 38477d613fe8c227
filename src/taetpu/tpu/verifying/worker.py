"""Run checks in a child process: `python -m taetpu.tpu.verifying.worker CHECK ...`.

The process prints a line of JSON when a check starts (`{"check"}`) and another with the result
(`{"check", "finding"}`).
"""

import json
import sys
from dataclasses import asdict

from taetpu.tpu.verifying.checks import CHECKS


def main() -> None:
    """Run the checks named in the arguments."""
    from taetpu.core.jax_setup import prepare_jax

    prepare_jax()
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print; only answers go to stdout
    by_name = {check.name: check for check in CHECKS}
    for name in sys.argv[1:]:
        print(json.dumps({"check": name}), file=answers, flush=True)
        finding = asdict(by_name[name].run())
        text = json.dumps({"check": name, "finding": finding}, default=lambda scalar: scalar.item())  # of numpy
        print(text, file=answers, flush=True)


if __name__ == "__main__":
    main()
