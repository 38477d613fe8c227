"""Tokenizers of SentencePiece: a Unigram model or BPE in a `.model` file. They need the extra `sentencepiece`."""

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers

from taetpu.core.errors import UserError, change_errors
from taetpu.core.json_files import RESTORE
from taetpu.core.registry import register
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.crop import merge_steps
from taetpu.data.tokenizers.files import LocalTokenizerConfig
from taetpu.data.tokenizers.library import SPACE, wrap_tokenizer

CHECKED = 2**18
"""The number of characters at the start of the training text whose tokens are compared with SentencePiece's."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)  # `ModelProto.SentencePiece.Type`
UNIGRAM, BPE = 1, 2  # `TrainerSpec.ModelType`


@register("tokenizer", "sentencepiece")
class SentencePieceConfig(LocalTokenizerConfig):
    """A `.model` file of SentencePiece: a Unigram model or BPE. Needs `taetpu[sentencepiece]`.

    It is converted to a `tokenizer.json`. The start of the training text is encoded in both forms, and a model for
    which they differ is refused. No tokens are added before or after texts.

    Source: Kudo and Richardson 2018, "SentencePiece: A simple and language independent subword tokenizer and
    detokenizer for Neural Text Processing", arXiv 1808.06226.
    """

    format: ClassVar[str] = "sentencepiece"
    example: ClassVar = {"path": "tokenizer.model"}

    @property
    def sample(self) -> int:
        """See `TokenizerConfig.sample`."""
        return max(super().sample, CHECKED)

    def parse(self, data: bytes, place: str, text: str) -> Tokenizer:
        """See `LocalTokenizerConfig.parse`."""
        try:
            from sentencepiece import SentencePieceProcessor
            from sentencepiece import sentencepiece_model_pb2 as proto
        except ImportError as error:
            remedy = "Run: pip install 'taetpu[sentencepiece]'"
            raise UserError(f"this kind requires {error.name}, which is not installed", remedy=remedy) from None
        try:
            model: Any = proto.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
            model.ParseFromString(data)
            theirs = SentencePieceProcessor(model_proto=data)
        except Exception as error:  # protobuf and SentencePiece raise classes of their own
            raise UserError(f"{place}: not a SentencePiece model: {error}", remedy=RESTORE) from None
        with change_errors(lambda error: UserError(f"{place}: {error.problem}", remedy=error.remedy)):
            tokenizer = wrap_tokenizer(_library_tokenizer(model))
            _compare(tokenizer, theirs, text)
        return tokenizer


def _library_tokenizer(model: Any) -> hf.Tokenizer:
    """Return the tokenizer of the library for a `ModelProto`.

    Raises:
        UserError: If the model's settings have no counterpart.
    """
    trainer, rules = model.trainer_spec, model.normalizer_spec
    names = [piece.piece for piece in model.pieces]
    kind = trainer.model_type
    if kind not in (UNIGRAM, BPE) or trainer.treat_whitespace_as_suffix or not rules.escape_whitespaces:
        what = f"model_type {trainer.ModelType.Name(kind)}" if kind not in (UNIGRAM, BPE) else "spaces after words"
        raise UserError(f"SentencePiece models with {what} are not supported", remedy="Use one of type unigram or bpe.")
    if kind == UNIGRAM:
        scored = [(piece.piece, piece.score) for piece in model.pieces]
        library: Any = models.Unigram(scored, trainer.unk_id, byte_fallback=trainer.byte_fallback)
    else:
        scores = {piece.piece: -piece.score for piece in model.pieces if piece.type == NORMAL}
        library = models.BPE(
            vocab={name: number for number, name in enumerate(names)},
            merges=_merges(scores),
            unk_token=names[trainer.unk_id],
            fuse_unk=True,
            byte_fallback=trainer.byte_fallback,
            ignore_merges=any(piece.type == USER_DEFINED for piece in model.pieces),
        )
    inner = hf.Tokenizer(library)
    inner.normalizer = normalizers.Sequence([*_normalizers(rules)])
    inner.pre_tokenizer = pre_tokenizers.Sequence([*_splits(model)])
    strip = [decoders.Strip(" ", 1, 0)] if rules.add_dummy_prefix else []
    inner.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    special = [piece.piece for piece in model.pieces if piece.type in (UNKNOWN, CONTROL)]
    inner.add_special_tokens([hf.AddedToken(name, special=True, normalized=False) for name in special])
    return inner


def _splits(model: Any) -> Iterator[pre_tokenizers.PreTokenizer]:
    """Yield the steps that divide normalized text into parts whose tokens are independent."""
    names = [piece.piece for piece in model.pieces]
    if all(f"{a}{SPACE}" not in name for name in names for a in {*name} - {SPACE}):  # no token contains two words
        yield pre_tokenizers.Split(hf.Regex(f"{SPACE}*[^{SPACE}]+|{SPACE}+"), "isolated")
    defined = sorted((piece.piece for piece in model.pieces if piece.type == USER_DEFINED), key=len, reverse=True)
    if defined:
        yield pre_tokenizers.Split(hf.Regex("|".join(map(re.escape, defined))), "isolated")
    if defined or model.trainer_spec.model_type == UNIGRAM:
        # The library would find pieces such as `<s>` and `<0x0A>`, which stand for no text, in the text.
        names = [piece.piece for piece in model.pieces if piece.type in (UNKNOWN, CONTROL, BYTE)]
        inside = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names if len(name) > 1)
        yield pre_tokenizers.Split(hf.Regex(inside), "merged_with_previous")


def _normalizers(rules: Any) -> list[normalizers.Normalizer]:
    """Return the normalizers for the `NormalizerSpec` of a model."""
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps.append(normalizers.Replace(hf.Regex(rf"\A +|[ {SPACE}]+\z"), ""))
        steps.append(normalizers.Replace(hf.Regex(" {2,}"), " "))
    if rules.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    return [*steps, normalizers.Replace(" ", SPACE)]


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the merges of a BPE that merges the two neighbours whose token has the lowest value in `scores`.

    As in tiktoken, only the last pair that is merged when a token alone is encoded is ever merged to this token.
    """
    merges = []
    for name in sorted((name for name in scores if len(name) > 1), key=lambda name: scores[name]):
        steps = merge_steps([*name], lambda a, b: scores.get(a + b))
        if steps and "".join(steps[-1]) == name:
            merges.append(steps[-1])
    return merges


def _compare(tokenizer: Tokenizer, theirs: Any, text: str) -> None:
    """Raise `UserError` if the lines at the start of a text have other tokens than in SentencePiece."""
    for line in text[:CHECKED].splitlines(keepends=True):
        ours, wanted = tokenizer.encode(line).tolist(), theirs.encode(line)
        if ours != wanted:
            at = next((i for i, pair in enumerate(zip(ours, wanted, strict=False)) if len({*pair}) > 1), len(ours))
            shown = json.dumps(theirs.decode(wanted[max(0, at - 3) : at + 4]), ensure_ascii=False)
            problem = f"as a tokenizer.json, this model encodes text near {shown} differently than SentencePiece"
            raise UserError(problem, remedy="Use the tokenizer.json of the model, with `kind: file`.")
