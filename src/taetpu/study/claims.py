"""A file of claims about a study."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from taetpu.core.config import Config
from taetpu.core.errors import UserError
from taetpu.core.loading import load
from taetpu.spec.document import read
from taetpu.stats.claims import Finding, check, parse
from taetpu.store.index import one_study


class Claims(Config):
    """What the file says."""

    study: Annotated[str, Field(description="the study's folder, from the file's own on")]
    claims: Annotated[tuple[Any, ...], Field(min_length=1, description="e.g. `nope is worse by at least 0.02`")]


def check_claims(file: Path) -> list[Finding]:
    """Check every claim of a file against the results that are stored.

    Raises:
        UserError: the file is no list of claims, a claim cannot be checked, or the study has no results.
    """
    document = read(file)
    try:
        asked = load(Claims, document.data)
        claims = [parse(text, ("claims", i)) for i, text in enumerate(asked.claims)]
        folder = one_study(str(document.file.resolve().parent / asked.study))
        results = folder.read_results()
        if results is None:
            remedy = f"taetpu report {folder.where}"
            raise UserError("this study has no results yet", path=("study",), file=folder.where, remedy=remedy)
        return [check(claim, results, ("claims", i)) for i, claim in enumerate(claims)]
    except UserError as error:
        raise document.located(error) from None
