"""Slot `tokenizer`. Every kind is stored as a `tokenizer.json` file for the `tokenizers` library."""

from taetpu.data.tokenizers.base import Tokenizer, TokenizerConfig, check_unicode
from taetpu.data.tokenizers.bpe import LONGEST_WORD, BPEConfig
from taetpu.data.tokenizers.characters import UNK, ByteConfig, ByteTokenizer, CharConfig, CharTokenizer
from taetpu.data.tokenizers.files import FileConfig, StartTokenizerConfig
from taetpu.data.tokenizers.hub import HubConfig
from taetpu.data.tokenizers.library import LibraryTokenizer, load_tokenizer, read_content, wrap_tokenizer
from taetpu.data.tokenizers.pieces import SentencePieceConfig
from taetpu.data.tokenizers.ranks import TiktokenConfig

__all__ = [
    "LONGEST_WORD",
    "UNK",
    "BPEConfig",
    "ByteConfig",
    "ByteTokenizer",
    "CharConfig",
    "CharTokenizer",
    "FileConfig",
    "HubConfig",
    "LibraryTokenizer",
    "SentencePieceConfig",
    "StartTokenizerConfig",
    "TiktokenConfig",
    "Tokenizer",
    "TokenizerConfig",
    "check_unicode",
    "load_tokenizer",
    "read_content",
    "wrap_tokenizer",
]
