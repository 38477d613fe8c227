"""Checking the claims about a study in a claims file."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from taetpu.core.config import Config
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import Failed, UserError, change_errors
from taetpu.spec.document import Form, read_document
from taetpu.stats.claims import Finding, RepetitionClaim, check_claim, parse_claim
from taetpu.stats.repetitions import check_repetitions
from taetpu.stats.results import Results
from taetpu.stats.verify import recompute
from taetpu.store.addresses import Match, resolve
from taetpu.store.errors import NotStored
from taetpu.store.study import StudyFolder

FORM = Form(
    "claims",
    "Write `study: NAME` and `claims: [nope is worse by at least 0.02]`, as described in docs/statistics.md.",
)


class Claims(Config):
    """The content of a file of claims."""

    study: Annotated[str, Field(description="the study's address; a path is relative to this file")]
    claims: Annotated[tuple[Any, ...], Field(min_length=1, description="claims, e.g. `nope is worse by at least 0.02`")]


def check_claims(file: Path, root: str | None = None) -> tuple[Match, list[Finding]]:
    """Check every claim of a file against the stored runs, and return the study's match and a finding for each claim.

    Args:
        file: the file.
        root: the root of the studies; by default, `TAETPU_ROOT` or `runs`.

    Raises:
        UserError: if the file contains no claims, if a claim cannot be checked, or if the study has no results.
        Failed: if the stored results do not agree with the runs. In this case, no claim is checked.
    """
    document = read_document(file, FORM)
    with change_errors(document.locate):
        asked = load_config(Claims, document.data)
        claims = [parse_claim(text, ("claims", i)) for i, text in enumerate(asked.claims)]
        match = _find_study(asked.study, root, document.folder)
        results = _results(match.study)
        return match, [
            check_repetitions(claim, match.study, ("claims", i))
            if isinstance(claim, RepetitionClaim)
            else check_claim(claim, results, ("claims", i))
            for i, claim in enumerate(claims)
        ]


def _find_study(address: str, root: str | None, folder: Path) -> Match:
    """Return the study with an address. Raises `NotStored` with the remedy to run it."""
    try:
        return resolve(address, root, folder=folder)
    except NotStored as error:
        problem = f"{error.problem} in {error.file}" if error.file else error.problem
        remedy = f"Run the study first, or correct its name. {error.remedy}"
        raise NotStored(problem, path=("study",), remedy=remedy) from None


def _results(folder: StudyFolder) -> Results:
    """Return the results of a study, recomputed from its runs. Raises `Failed` if the stored results differ."""
    if folder.read_results() is None:
        remedy = f"Run `taetpu report {folder.where}`."
        raise UserError("this study has no results yet", path=("study",), file=folder.where, remedy=remedy)
    problems, results = recompute(folder)
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise Failed(
            f"no claim was checked, because the results of {folder.name} do not match its runs: {problems[0]}{more}\n"
            f"`taetpu report {folder.where} --verify` lists all differences, "
            f"and `taetpu report {folder.where}` recomputes results.json"
        )
    return results
