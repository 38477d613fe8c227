"""The tokenizers of Hugging Face models: `tokenizer.json`, or `vocab.json` and `merges.txt` of GPT-2 and GPT-NeoX.

The result encodes texts as the tokenizer of transformers does. With `tokenizer.json`, its post-processor alone decides
which tokens start and end texts.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, check_regular, is_missing, read_bytes, read_object
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.library import read_content, wrap_tokenizer
from taetpu.interop.files import CONFIG, TOKENIZER, TOKENIZER_CONFIG

VOCAB, MERGES = "vocab.json", "merges.txt"
LARGEST_TOKENIZER = 3 * 2**24
"""The size up to which a file of a tokenizer is read, in bytes. That of Gemma 3 has 33 MB."""
UNREAD = (VOCAB, MERGES, "tokenizer.model", "spiece.model", "tekken.json", "tiktoken.model", "vocab.txt")
"""Files of tokenizers from which transformers can write `tokenizer.json`."""
BYTE_LEVEL = {"GPT2Tokenizer": {"gpt2", "phi"}, "GPTNeoXTokenizer": {"gpt_neox", "olmo", "olmoe"}}
"""The classes whose `vocab.json` and `merges.txt` are read, with the models that use them without a stated class."""
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
TOKENS_MAP, ADDED = "special_tokens_map.json", "added_tokens.json"


def select_files(files: Collection[str]) -> list[str]:
    """Return the names among those of a model's files that `read_tokenizer` reads or refuses."""
    vocabulary = (TOKENIZER,) if TOKENIZER in files else UNREAD
    return [name for name in (*vocabulary, TOKENIZER_CONFIG, TOKENS_MAP, ADDED) if name in files]


def read_tokenizer(folder: str | Path) -> Tokenizer | None:
    """Return the tokenizer in the folder of a Hugging Face model; None if it has no files of a tokenizer.

    Tokens may have numbers beyond the model's vocabulary. They are refused where a text uses them.

    Raises:
        UserError: If a file is damaged, or the tokenizer is in files that are not read.
    """
    folder = Path(folder)
    if all(is_missing(folder / name) for name in (TOKENIZER, *UNREAD)):
        return None
    settings = _read_if_exists(folder, TOKENIZER_CONFIG)
    if "added_tokens_decoder" not in settings:
        settings |= _read_if_exists(folder, TOKENS_MAP)
    if settings.get("split_special_tokens"):
        problem = "split_special_tokens=True is not supported"
        raise UserError(problem, file=folder / TOKENIZER_CONFIG, remedy="Set it to false.")
    file = folder / TOKENIZER
    try:
        if not is_missing(file):
            inner = read_content(read_bytes(file, RESTORE, LARGEST_TOKENIZER).decode("utf-8-sig"))
        else:
            file = folder / VOCAB
            inner, settings = _read_vocab(folder, settings)
        inner.add_tokens([*_added_tokens(folder, settings)])
        return wrap_tokenizer(inner)
    except UnicodeDecodeError:
        raise UserError("not a tokenizer: the text is not UTF-8", file=file, remedy=RESTORE) from None
    except UserError as error:
        raise error.within(file=file) from None


def _read_if_exists(folder: Path, name: str) -> dict[str, Any]:
    return {} if is_missing(folder / name) else read_object(folder / name, RESTORE)


# --- tokens beside the vocabulary ------------------------------------------------------------------------------------


def _added_tokens(folder: Path, settings: dict[str, Any]) -> Iterator[hf.AddedToken]:
    """Yield the tokens that the settings of a tokenizer name. The library ignores those that it has already."""
    try:
        listed = {int(number): _token(token) for number, token in (settings.get("added_tokens_decoder") or {}).items()}
        if "added_tokens_decoder" not in settings:
            others = {str(token) for token in settings.values()}
            for text, number in _read_if_exists(folder, ADDED).items():
                special = text in others
                listed[number] = hf.AddedToken(text, special=special, normalized=not special)
        yield from (listed[number] for number in sorted(listed))
        named = {key: settings.get(key) for key in (*SPECIAL, *settings) if key.endswith("_token")}
        yield from (_token(value, special=True) for value in named.values() if isinstance(value, (str, dict)))
        extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or ()
        yield from map(_token, extra.values() if isinstance(extra, dict) else extra)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"the special tokens cannot be read: {error}"
        raise UserError(problem, file=folder / TOKENIZER_CONFIG, remedy=RESTORE) from None


def _token(value: Any, **flags: bool) -> hf.AddedToken:
    """Return a token from a text or from the data of an `AddedToken`, with some flags replaced."""
    if isinstance(value, str):
        return hf.AddedToken(value, special=True, normalized=False)
    return hf.AddedToken(value["content"], **{**{name: value[name] for name in FLAGS if name in value}, **flags})


# --- vocab.json and merges.txt ---------------------------------------------------------------------------------------


def _read_vocab(folder: Path, settings: dict[str, Any]) -> tuple[hf.Tokenizer, dict[str, Any]]:
    """Return the byte-level BPE in `vocab.json` and `merges.txt`, and its settings with their defaults.

    Raises:
        UserError: If the files are damaged or missing, or the tokenizer is of another class.
    """
    config = _read_if_exists(folder, CONFIG)
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    by_model = next((known for known, types in BYTE_LEVEL.items() if config.get("model_type") in types), None)
    name = name.removesuffix("Fast") if isinstance(name, str) else by_model
    have = [file for file in UNREAD if not is_missing(folder / file)]
    if not {VOCAB, MERGES} <= {*have} or name not in BYTE_LEVEL:
        problem = f"the tokenizer is in {' and '.join(have)}, from which this model's tokenizer is not read"
        remedy = f"Write {TOKENIZER}, in an environment with transformers and sentencepiece: "
        remedy += "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        raise UserError(problem, file=folder, remedy=remedy)
    for file in (VOCAB, MERGES):
        check_regular(folder / file, RESTORE, LARGEST_TOKENIZER)
    try:
        inner = hf.Tokenizer(models.BPE.from_file(str(folder / VOCAB), str(folder / MERGES)))
    except Exception as error:  # the library raises plain exceptions
        raise UserError(f"not a tokenizer: {error}", file=folder / VOCAB, remedy=RESTORE) from None
    defaults: dict[str, str] = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
    if name == "GPTNeoXTokenizer":
        inner.normalizer, defaults["pad_token"] = normalizers.NFC(), "<|padding|>"
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    inner.decoder = decoders.ByteLevel()
    settings = {**defaults, **settings}
    _add_template(inner, settings)
    return inner, settings


def _add_template(inner: hf.Tokenizer, settings: dict[str, Any]) -> None:
    """Let a tokenizer start or end every text with a token, if its settings state this."""
    start, end = (
        _token(settings[f"{name}_token"]) if settings.get(f"add_{name}_token") is True else None
        for name in ("bos", "eos")
    )
    used = [token for token in (start, end) if token is not None]
    if used:
        inner.add_tokens(used)
        template = [token.content if token is not None else "" for token in (start, end)]
        numbers = [(token.content, inner.token_to_id(token.content)) for token in used]
        single = f"{template[0]} $A {template[1]}".strip()
        inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=numbers)
