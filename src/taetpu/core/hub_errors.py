"""Errors of the Hugging Face hub, as errors of the user's input."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taetpu.core.errors import UserError


@contextmanager
def explain_hub_errors(
    name: str, revision: str | None, instead: str = "name a folder with the model's files"
) -> Iterator[None]:
    """Turn errors of huggingface_hub and of the network in the `with` block into a `UserError`.

    Args:
        name: The name of the model.
        revision: The branch, tag or commit; None for the main branch.
        instead: What to do without a network, for the remedy.
    """
    from huggingface_hub import errors

    place = f"{name}@{revision}" if revision else name
    network: tuple[Any, ...] = (OSError, *errors.HfHubHTTPError.__bases__)  # the bases contain that of the HTTP library
    try:
        yield
    except errors.GatedRepoError:
        remedy = "Accept its terms on huggingface.co, and sign in with `hf auth login`."
        raise UserError("access to this model is restricted", file=place, remedy=remedy) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        problem = f"{name!r} is neither a folder nor a model on the hub"
        raise UserError(problem, remedy="Correct the name. Private models need `hf auth login`.") from None
    except errors.RevisionNotFoundError:
        remedy = "Use a branch, tag or commit of the model's page on huggingface.co."
        raise UserError(f"the model has no revision {revision!r}", file=name, remedy=remedy) from None
    except UserError:
        raise
    except network as error:
        causes = (error, error.__cause__)  # the client hides an answer of the hub behind that of its cache
        if {getattr(getattr(cause, "response", None), "status_code", None) for cause in causes} & {401, 403}:
            remedy = "Sign in with `hf auth login`, with an account that may read the model."
            raise UserError("the hub denies access to this model", file=place, remedy=remedy) from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = f"Check the network, and HF_HUB_OFFLINE, or {instead}."
        raise UserError(f"the hub cannot be reached: {reason}", file=place, remedy=remedy) from None
