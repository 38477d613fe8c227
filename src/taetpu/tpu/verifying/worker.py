"""`python -m taetpu.tpu.verifying.worker CHECK ...`: makes checks one after another, for a parent that may end it.

Says on stdout, a JSON line each, when a check begins (`{"check"}`) and what came of it (`{"check", "finding"}`).
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from taetpu.tpu.verifying.checks import CHECKS


def plain(value: Any) -> Any:
    """Numpy's numbers as Python's."""
    return value.item()


def main() -> None:
    """Make the checks that are named in the arguments."""
    from taetpu.core.runtime import prepare_jax

    prepare_jax()
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    by_name = {check.name: check for check in CHECKS}
    for name in sys.argv[1:]:
        print(json.dumps({"check": name}), file=answers, flush=True)
        finding = asdict(by_name[name].make())
        print(json.dumps({"check": name, "finding": finding}, default=plain), file=answers, flush=True)


if __name__ == "__main__":
    main()
