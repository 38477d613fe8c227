"""`taetpu check` and `report --verify`: what is claimed, and what is stored, against what was measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.options import AsJson
from taetpu.cli.output import filled, say, show_json

if TYPE_CHECKING:
    from taetpu.store.study import StudyFolder

SHOWN = 10  # differences; what explains the others comes first


def check(
    file: Annotated[Path, typer.Argument(metavar="CLAIMS", help="A YAML file: a study's folder, and claims about it.")],
    as_json: AsJson = False,
) -> None:
    """Check claims about a study: exit code 3 unless all hold.

    The file says `study: runs/quickstart` and `claims: [nope is worse by at least 0.02, layernorm is equivalent]`.

    Example: taetpu check claims.yaml
    """
    from taetpu.core.errors import Failed
    from taetpu.study.claims import check_claims

    try:
        found = check_claims(file)
    except Failed as failed:
        raise Failed("\n".join(map(filled, str(failed).splitlines()))) from None
    if as_json:
        show_json([{"claim": one.claim.text, "holds": one.holds, "evidence": one.evidence} for one in found])
    else:
        for one in found:
            say(f"{'holds' if one.holds else 'FAILS'}  {one.claim.text}", hanging=7)
            say(one.evidence, first=7, hanging=7)
    if failed := sum(not one.holds for one in found):
        raise Failed(f"{failed} of {len(found)} claims do not hold")


def verify_study(study: "StudyFolder", as_json: bool) -> None:
    """Print what differs from the raw metrics. Raises `Failed` when anything does."""
    from taetpu.core.errors import Failed
    from taetpu.stats.verify import verify

    problems = verify(study)
    if as_json:
        show_json({"study": study.name, "problems": problems})
    elif problems:
        for problem in problems[:SHOWN]:
            say(problem, hanging=2)
        if len(problems) > SHOWN:
            say(f"and {len(problems) - SHOWN} more; --json has all of them")
    else:
        typer.echo(f"{study.name}: results.json is what the raw metrics of {len(list(study.runs()))} runs come to")
    if problems:
        raise Failed(f"{study.name}: {len(problems)} differences from the raw metrics")
