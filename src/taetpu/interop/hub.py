"""Downloads of models from the Hugging Face hub: JSON files, safetensors files and those of the tokenizer only.

It needs the extra `taetpu[hub]`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.core.hub_errors import explain_hub_errors
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
    with explain_hub_errors(name, revision):
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
