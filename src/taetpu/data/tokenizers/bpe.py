"""Byte-level BPE that is trained on the corpus."""

import threading
from collections.abc import Callable
from typing import Annotated

import tokenizers as hf
from pydantic import Field
from tokenizers import decoders, models, pre_tokenizers, trainers

from taetpu.core.config import MAX_SIZE
from taetpu.core.registry import register
from taetpu.data.tokenizers.base import Tokenizer, TokenizerConfig
from taetpu.data.tokenizers.cutting import cut
from taetpu.data.tokenizers.library import LibraryTokenizer

LONGEST_WORD = 4096
"""The length in bytes from which training a BPE divides a word. Its time is quadratic in the length of words."""
PROGRESS = 500_000
"""The number of characters from which training a BPE shows its progress in a terminal."""


@register("tokenizer", "bpe")
class BPEConfig(TokenizerConfig):
    """Byte-level BPE trained on the training split, with GPT-2's word splitting. Radford et al. 2019.

    All 256 bytes are in the vocabulary, so no character is unknown. A short text may yield fewer than `vocab_size`
    tokens. For training, words longer than 4,096 bytes, as in DNA or base64, are divided every 4,096 bytes, because the
    time is quadratic in the length of a word.

    Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", arXiv 1508.07909;
    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """

    vocab_size: Annotated[int, Field(ge=256, le=MAX_SIZE, description="size of the vocabulary, including 256 bytes")]

    def train(self, text: str) -> Tokenizer:
        """See `TokenizerConfig.train`."""
        inner, words = hf.Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(length=LONGEST_WORD)])
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=len(text) >= PROGRESS,
        )
        _run_interruptible(lambda: inner.train_from_iterator(cut(text), trainer))
        inner.pre_tokenizer, inner.decoder = words, decoders.ByteLevel()
        return LibraryTokenizer(inner)


def _run_interruptible(work: Callable[[], None]) -> None:
    """Run native code that does not react to Ctrl-C in a thread, so that Ctrl-C stops the wait for it."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # without a limit, the wait would not end with Ctrl-C on all platforms
    if errors:
        raise errors[0]
