"""Conversion of Hugging Face models to folders of taetpu, for `taetpu model import` and for `train.start`."""

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from taetpu.core.atomic_files import UNFINISHED, explain_os_error, make_folder
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cache_folder
from taetpu.core.output_files import write_new_folder
from taetpu.data.digests import digest_file
from taetpu.interop.hub import NAME, download_model
from taetpu.interop.huggingface import ImportedModel, import_folder
from taetpu.interop.peft import read_adapter
from taetpu.train.model_io import CONFIG, to_files

VERSION = 1
"""Raised whenever the same files give another model."""
READ = (".json", ".safetensors", ".txt", ".model")
"""Endings of the files that decide the model and its tokenizer, or that are refused."""


def model_files(made: ImportedModel) -> dict[str, bytes]:
    """Return the files of an imported model by name. The last one is `config.json`: without it, there is no model."""
    files = to_files(
        made.model,
        made.config.resolve(),
        interface=made.interface,
        seq_len=made.seq_len,
        tokenizer=made.tokenizer,
        special_tokens=made.special_tokens,
    )
    return dict(sorted(files.items(), key=lambda file: file[0] == CONFIG))


def find_folder(name: str, revision: str | None) -> Path:
    """Return a local folder with the files of a model, downloaded if `name` is no folder.

    Raises:
        UserError: If the folder does not exist, and the name cannot be that of a model on the hub.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            problem = f"revision {revision!r} requires a model on the hub, but {name} is a folder"
            raise UserError(problem, path=("--revision",), remedy="Remove the revision.")
        return folder
    if folder.exists() or not NAME.fullmatch(name):
        remedy = "Name a folder with config.json, or a model on the hub such as EleutherAI/pythia-70m."
        raise UserError("no such folder", file=name, remedy=remedy)
    return download_model(name, revision)


class Converter:
    """Converts Hugging Face models to folders in the cache, each content once.

    Args:
        log: Receives a line about each model that is converted.
    """

    def __init__(self, log: Callable[[str], None] = lambda line: None):
        self.log = log

    def __call__(self, name: str, revision: str | None) -> Path:
        """Return the folder of the converted model, from the model's folder, or its name on the hub and a revision.

        Raises:
            UserError: If the model cannot be read or converted, or the cache cannot be written.
        """
        folder = download_model(name, revision) if revision is not None else Path(name)
        target = cache_folder() / "models" / _digest(folder)
        if not (target / CONFIG).is_file():
            made = import_folder(folder)
            files = model_files(made)
            with explain_os_error("convert the model", target, option="TAETPU_CACHE"):
                make_folder(target.parent)
                written = target.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
                write_new_folder(written, files, needed=sum(map(len, files.values())))
                rename_or_remove(written, target)
            self.log(f"converted {name} ({made.family.about}) to {target}")
        return target


def rename_or_remove(written: Path, target: Path) -> None:
    """Rename a folder, or remove it if another process has written the same content to the target."""
    try:
        written.rename(target)
    except OSError:
        shutil.rmtree(written)
        if not (target / CONFIG).is_file():
            raise


def _digest(folder: Path) -> str:
    """Return a digest of the files that decide a model, and those of its base if it is an adapter."""
    adapter = read_adapter(folder)
    folders = [folder] if adapter is None else [folder, adapter.base]
    files = [
        [(file.name, digest_file(file)) for file in sorted(place.iterdir()) if file.suffix in READ and file.is_file()]
        for place in folders
    ]
    return hashlib.sha256(json.dumps([VERSION, files]).encode()).hexdigest()[:32]
