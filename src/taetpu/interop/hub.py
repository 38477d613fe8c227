"""Downloads of models from the Hugging Face hub: JSON files, safetensors files and those of the tokenizer only.

It needs the extra `taetpu[hub]`.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.files import CONFIG, GENERATION
from taetpu.interop.tokenizer_files import select_files
from taetpu.interop.weights import CONVERT, INDEX, PICKLES, WEIGHTS, read_index

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
"""The pattern of names of models on the hub."""


def download_model(name: str, revision: str | None = None) -> Path:
    """Return a local folder with a model of the hub. Files that were downloaded before are reused.

    Args:
        name: The name of the model, such as `EleutherAI/pythia-70m`.
        revision: A branch, tag or commit, such as `step3000` of Pythia; by default, the main branch.

    Raises:
        UserError: If the hub cannot be reached, or it has no such model, no such revision, or no safetensors files.
    """
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        problem = f"{name!r} is not a folder, and downloading a model requires huggingface_hub, which is not installed"
        raise UserError(problem, remedy="Name a folder, or run: pip install 'taetpu[hub]'") from None
    with _explained(name, revision):
        files = HfApi().list_repo_files(name, revision=revision)
        wanted = _wanted(files, name, revision)
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
        if INDEX in wanted:
            shards = sorted({*read_index(folder / INDEX).values()})
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=[*wanted, *shards]))
    return folder


def _wanted(files: Sequence[str], name: str, revision: str | None) -> list[str]:
    """Return the files to download first, from all files of a model. Shards are named by the index.

    Raises:
        UserError: If the model has no config or no safetensors files.
    """
    place = f"{name}@{revision}" if revision else name
    if CONFIG not in files:
        raise UserError(f"the model has no {CONFIG}", file=place, remedy="Use a model of transformers.")
    weights = next((file for file in (WEIGHTS, INDEX) if file in files), None)
    if weights is None:
        pickles = [file for file in files if file.endswith(PICKLES)]
        if pickles:
            problem = f"the weights are in {pickles[0]}, a pickle, which could execute any code and is never read"
            raise UserError(problem, file=place, remedy=CONVERT)
        raise UserError(f"the model has neither {WEIGHTS} nor {INDEX}", file=place, remedy="Use another revision.")
    return [CONFIG, *({GENERATION} & {*files}), weights, *select_files(files)]


@contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    """Turn errors of huggingface_hub and of the network in the `with` block into a `UserError`."""
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
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "Check the network, and HF_HUB_OFFLINE, or name a folder with the model's files."
        raise UserError(f"the hub cannot be reached: {reason}", file=place, remedy=remedy) from None
