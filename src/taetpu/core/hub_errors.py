"""Errors of the Hugging Face hub, as errors of the user's input."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taetpu.core.errors import UserError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
"""Errors of files, not of the network."""


class HubUnreachable(UserError):
    """The hub did not answer, so what was downloaded before may be used."""


@contextmanager
def explain_hub_errors(
    name: str, revision: str | None, instead: str = "name a folder with the model's files", kind: str = "model"
) -> Iterator[None]:
    """Turn errors of huggingface_hub and of the network in the `with` block into a `UserError`.

    Args:
        name: The name of the model or dataset.
        revision: The branch, tag or commit; None for the main branch.
        instead: What to do without a network, for the remedy.
        kind: What the name names, for messages.

    Raises:
        HubUnreachable: if there is no answer.
        UserError: if the hub refuses.
    """
    from huggingface_hub import errors

    place = f"{name}@{revision}" if revision else name
    network: tuple[Any, ...] = (OSError, *errors.HfHubHTTPError.__bases__)  # the bases contain that of the HTTP library
    try:
        yield
    except errors.GatedRepoError:
        remedy = "Accept its terms on huggingface.co, and sign in with `hf auth login`."
        raise UserError(f"access to this {kind} is restricted", file=place, remedy=remedy) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        problem = f"{name!r} is neither a folder nor a {kind} on the hub"
        raise UserError(problem, remedy=f"Correct the name. Private {kind}s need `hf auth login`.") from None
    except errors.RevisionNotFoundError:
        remedy = f"Use a branch, tag or commit of the {kind}'s page on huggingface.co."
        raise UserError(f"the {kind} has no revision {revision!r}", file=name, remedy=remedy) from None
    except UserError:
        raise
    except network as error:
        causes = (error, error.__cause__)  # the client hides an answer of the hub behind that of its cache
        if {getattr(getattr(cause, "response", None), "status_code", None) for cause in causes} & {401, 403}:
            remedy = f"Sign in with `hf auth login`, with an account that may read the {kind}."
            raise UserError(f"the hub denies access to this {kind}", file=place, remedy=remedy) from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, OSError) and error.errno in DISK:
            remedy = "Free some space, or set HF_HOME to a folder on another disk."
            raise UserError(f"the hub's client cannot write: {reason}", file=place, remedy=remedy) from None
        remedy = f"Check the network, and HF_HUB_OFFLINE, or {instead}."
        raise HubUnreachable(f"the hub cannot be reached: {reason}", file=place, remedy=remedy) from None
