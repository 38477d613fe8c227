"""The tokenizer of a model on the Hugging Face hub. It needs the extra `hub`."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from taetpu.core.errors import UserError, change_errors
from taetpu.core.hub_errors import explain_hub_errors
from taetpu.core.registry import register
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.files import LARGEST, ReadTokenizerConfig, check_format, name_file, read_library_file

FILE = "tokenizer.json"


@register("tokenizer", "hub")
class HubConfig(ReadTokenizerConfig):
    """The `tokenizer.json` of a model on the Hugging Face hub. Needs `taetpu[hub]`.

    No other file is downloaded, and no code of the model is run. A file that was downloaded before is reused, also
    without a network. Its digest, not the name, is part of the identity of runs.
    """

    example: ClassVar = {"name": "EleutherAI/pythia-70m"}

    name: Annotated[str, Field(description="name of the model on the hub, e.g. EleutherAI/pythia-70m")]
    revision: str = "main"
    """Branch, tag or commit."""

    def read(self, text: str, folder: Path) -> Tokenizer:
        """See `ReadTokenizerConfig.read`."""
        with change_errors(partial(name_file, "name")):
            file = self._download()
            size = file.stat().st_size
            if size > LARGEST:
                problem = f"{FILE} of {self.name} has {size:,} bytes, but the limit is {LARGEST:,}"
                raise UserError(problem, remedy="Use another model's.")
            data = file.read_bytes()
            check_format(data, "file", str(file))
            tokenizer = read_library_file(data, str(file))
        tokenizer.origin = {"sha256": hashlib.sha256(data).hexdigest(), "commit": file.parent.name}
        return tokenizer

    def _download(self) -> Path:
        """Return the file in the cache of the hub's client, whose folder is the commit of the revision."""
        try:
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
        except ImportError:
            problem = f"downloading {FILE} of {self.name!r} requires huggingface_hub, which is not installed"
            raise UserError(problem, remedy="Run: pip install 'taetpu[hub]'") from None
        place = f"{self.name}/resolve/{self.revision}/{FILE}"
        instead = f"download https://huggingface.co/{place} on another machine, and write {{kind: file, path: {FILE}}}"
        with explain_hub_errors(self.name, self.revision, instead):
            try:
                return Path(hf_hub_download(self.name, FILE, revision=self.revision))
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError:
                remedy = "If it has tokenizer.model, download it, and use `kind: sentencepiece`; else another model's."
                raise UserError(
                    f"the model has no {FILE}", file=f"{self.name}@{self.revision}", remedy=remedy
                ) from None
