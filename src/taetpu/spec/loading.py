"""From a study file to a `Study`: every arm resolved and checked before anything is trained."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from taetpu.core.config import load, to_data
from taetpu.core.errors import UserError, Where
from taetpu.spec.arms import Candidate, candidates
from taetpu.spec.design import Arm, Study, difference, relocated
from taetpu.spec.document import Document, parse_value, read
from taetpu.spec.identity import canonical
from taetpu.spec.overrides import apply, show
from taetpu.spec.schema import BASELINE, ResolvedConfig, RunConfig, check_primary, load_spec


def load_study(file: Path | str, sets: Iterable[str] = ()) -> Study:
    """Read a study file, apply `--set` changes to its baseline, and resolve all arms. No data is read.

    Args:
        sets: changes of the baseline as on the command line, `path=value` each.

    Raises:
        UserError: with the file, the line and the path of what is wrong.
    """
    file = Path(file)
    document = read(file)
    try:
        return _study(document, list(sets))
    except UserError as error:
        raise document.located(error) from None


def _study(document: Document, sets: list[str]) -> Study:
    spec = load_spec(document.data)
    base, baseline, first = _baseline(spec.base, sets, document)
    check_primary(spec.measure.primary, first.config.metrics())
    arms = [first]
    for candidate in candidates(spec, base):
        arm = _arm(candidate, base, first.config, document)
        if arm is not None:
            arms.append(arm)
    for arm in arms[1:]:
        if spec.measure.primary not in arm.config.metrics():
            problem = f"arm {arm.name!r} does not measure {spec.measure.primary}, which arms are compared by"
            raise UserError(problem, path=arm.place(("task",)), remedy="change measure.primary or the arm")
    _refuse_twins(arms)
    return Study(
        name=spec.study,
        file=document.file,
        folder=document.file.resolve().parent,
        base=base,
        baseline=baseline,
        arms=tuple(arms),
        seeds=spec.seed_list(),
        measure=spec.measure,
        document=document,
    )


def _baseline(data: dict[str, Any], sets: list[str], document: Document) -> tuple[dict[str, Any], RunConfig, Arm]:
    overrides, origins = _parse_sets(sets)
    try:
        base = apply(data, overrides)
        baseline = load(RunConfig, base)
        config = baseline.resolve()
        config.check()
    except UserError as error:
        raise _relocated_by_hand(error, origins, document) from None
    return base, baseline, Arm(BASELINE, {}, config, {}, origins)
