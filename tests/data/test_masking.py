"""Masks have their exact shares, whole words and spans; given the same mask, inputs and labels are transformers'."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as hf
from tests.tokenizer_files import train_bpe, train_pieces
from tokenizers import decoders, models, pre_tokenizers, processors

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.data.masking import draw_mask, find_words, fixed_mask, hide
from taetpu.data.tokenizers.characters import ByteConfig, CharConfig
from taetpu.data.tokenizers.library import wrap_tokenizer
from taetpu.data.tokenizers.pieces import SentencePieceConfig

TEXT = "the lower towers were lowered by the low power\nof flowers " * 20
SHAPE = (4000, 32)


@cache
def draw(span):
    return jit_once(partial(draw_mask, span=span))


def drawn(share, span=None, starts=None, apart=None, shape=SHAPE):
    starts = np.ones(shape, bool) if starts is None else starts
    apart = np.zeros(shape, bool) if apart is None else apart
    return map(np.asarray, draw(span)(root_key(0), starts, apart, share))


def within(values, expected, blocks=40):
    """Assert that the mean of independent rows is an expectation, within 5 standard errors."""
    means = values.reshape(blocks, -1).mean(1)
    assert abs(means.mean() - expected) < 5 * means.std(ddof=1) / np.sqrt(blocks)


@pytest.mark.parametrize("span", [None, 1.0, 3.8])
@pytest.mark.parametrize("share", [0.15, 0.4])
def test_shares_are_exact_at_every_position(share, span):
    starts = np.arange(SHAPE[1]) % 3 == 0
    for units in (np.ones(SHAPE, bool), np.broadcast_to(starts, SHAPE)):
        masked, _ = drawn(share, span, units)
        for place in (0, 1, 2, 17, 31):
            within(masked[:, place], share)


def test_special_tokens_are_never_masked_and_do_not_change_the_share_of_others():
    apart = np.random.default_rng(0).random(SHAPE) < 0.2
    for span in (None, 3.0):
        masked, _ = drawn(0.3, span, apart=apart)
        assert not masked[apart].any()
        after = np.zeros(SHAPE, bool)
        after[:, 1:] = apart[:, :-1]
        within(masked[after & ~apart][:16_000], 0.3)


def runs_of(masked):
    """Return the lengths of the runs of masked positions that end within their row."""
    lengths = []
    for row in masked:
        edges = np.flatnonzero(np.diff(np.r_[0, row.astype(int), 0]))
        lengths += [end - start for start, end in edges.reshape(-1, 2) if start > 0 and end < len(row)]
    return np.array(lengths)


def test_spans_have_geometric_lengths():
    masked, first = drawn(0.15, 3.0, shape=(400, 400))
    lengths = runs_of(masked)
    assert len(lengths) > 5000
    assert abs(lengths.mean() - 3) < 0.15
    for length in (1, 2, 3):
        assert abs((lengths == length).mean() - (2 / 3) ** (length - 1) / 3) < 0.03
    opens = masked & ~np.pad(masked[:, :-1], ((0, 0), (1, 0)))
    assert (np.take_along_axis(opens, first, 1) | ~masked).all()  # each span is decided at its first token


def test_words_are_masked_as_a_whole():
    rng = np.random.default_rng(1)
    starts = rng.random(SHAPE) < 0.4
    for span in (None, 2.0):
        masked, _ = drawn(0.2, span, starts)
        inside = ~starts[:, 1:]
        np.testing.assert_array_equal(masked[:, 1:][inside], masked[:, :-1][inside])


def test_larger_shares_contain_smaller_ones():
    few, many = (next(drawn(share)) for share in (0.15, 0.4))
    assert (many | ~few).all()


def test_masked_tokens_are_replaced_drawn_and_kept_with_their_shares():
    tokens = jnp.full(SHAPE, 3)
    masked, first = drawn(0.5)
    out = np.asarray(hide(root_key(1), tokens, jnp.asarray(masked), jnp.asarray(first), 9, 10, (0.8, 0.1)))
    assert (out[~masked] == 3).all()
    scored = out[masked][:60_000]
    within(scored == 9, 0.8 + 0.1 / 10)
    within(scored == 3, 0.1 + 0.1 / 10)
    within(scored == 5, 0.1 / 10)


def test_spans_are_replaced_together():
    masked, first = drawn(0.3, 4.0)
    tokens = jnp.full(SHAPE, 3)
    out = np.asarray(hide(root_key(1), tokens, jnp.asarray(masked), jnp.asarray(first), 9, 10, (0.5, 0.0)))
    both = masked[:, 1:] & masked[:, :-1]
    np.testing.assert_array_equal(out[:, 1:][both], out[:, :-1][both])
    assert set(np.unique(out[masked])) == {3, 9}


def test_evaluation_masks_do_not_depend_on_the_length_of_windows():
    maskable = np.random.default_rng(0).random(96) < 0.8
    wide, narrow = (fixed_mask(maskable.reshape(-1, size), 0.15, 0).ravel() for size in (48, 8))
    np.testing.assert_array_equal(wide, narrow)
    assert wide.sum() == round(0.15 * maskable.sum())
    assert not wide[~maskable].any()
    assert (wide != fixed_mask(maskable.reshape(-1, 8), 0.15, 1).ravel()).any()
    assert fixed_mask(maskable[:1].reshape(1, 1) | True, 0.15, 0).sum() == 1


# --- words -----------------------------------------------------------------------------------------------------------


def word_pieces():
    words = sorted(set(TEXT.split()))
    parts = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *{word[:2] for word in words}, *{f"##{c}" for c in "".join(words)}]
    inner = hf.Tokenizer(models.WordPiece({part: i for i, part in enumerate(parts)}, unk_token="[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    inner.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    inner.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return wrap_tokenizer(inner)


VOCABULARIES = {
    "word-pieces": lambda folder: word_pieces(),
    "bpe": lambda folder: wrap_tokenizer(train_bpe(TEXT, 280)),
    "pieces": lambda folder: SentencePieceConfig(path="pieces.model").prepare("", folder),
    "char": lambda folder: CharConfig().train(TEXT),
    "byte": lambda folder: ByteConfig().train(TEXT),
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_words_begin_after_white_space(vocabulary, tmp_path):
    (tmp_path / "pieces.model").write_bytes(train_pieces(TEXT, 300))
    tokenizer = VOCABULARIES[vocabulary](tmp_path)
    words = find_words(tokenizer, tokenizer.vocab_size)
    ids = tokenizer.encode_plain(TEXT)
    starts = np.array(words.starts(jnp.asarray(ids[None])))[0]
    starts[0] = True
    pieces = [tokenizer.decode(part).strip() for part in np.split(ids, np.flatnonzero(starts)[1:])]
    assert [piece for piece in pieces if piece] == TEXT.split()


def test_a_vocabulary_may_not_show_where_words_begin():
    tokenizer = CharConfig().train("abcabc")
    assert find_words(tokenizer, tokenizer.vocab_size) is None


# --- transformers ----------------------------------------------------------------------------------------------------


def fast(tokenizer):
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.library, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", pad_token="[SEP]",
    )  # fmt: skip


@pytest.mark.slow
def test_inputs_and_labels_are_those_of_the_collator_of_transformers():
    transformers = pytest.importorskip("transformers")
    tokenizer = word_pieces()
    tokens = np.resize(tokenizer.encode_plain(TEXT), (8, 24))
    masked, first = drawn(0.3, shape=tokens.shape)
    number = tokenizer.number("[MASK]")
    hidden = hide(root_key(1), jnp.asarray(tokens), jnp.asarray(masked), jnp.asarray(first), number, 30, (1.0, 0.0))
    # With a probability of 1, the collator masks exactly the tokens that are not special.
    collator = transformers.DataCollatorForLanguageModeling(
        fast(tokenizer), mlm_probability=1.0, mask_replace_prob=1.0, random_replace_prob=0.0, return_tensors="np"
    )
    rows = [{"input_ids": [*map(int, row)], "special_tokens_mask": [*map(int, ~mask)]}
            for row, mask in zip(tokens, masked, strict=True)]  # fmt: skip
    expected = collator(rows)
    np.testing.assert_array_equal(np.asarray(hidden), expected["input_ids"])
    np.testing.assert_array_equal(np.where(masked, tokens, -100), expected["labels"])


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_shares_are_those_of_the_collator_of_transformers(whole):
    transformers = pytest.importorskip("transformers")
    tokenizer = word_pieces()
    encoded = fast(tokenizer)(TEXT.split("\n")[0], return_offsets_mapping=True, return_special_tokens_mask=True)
    rows = [dict(encoded)] * 2000
    settings = {"whole_word_mask": True, "mask_replace_prob": 1.0, "random_replace_prob": 0.0} if whole else {}
    collator = transformers.DataCollatorForLanguageModeling(fast(tokenizer), return_tensors="np", seed=0, **settings)
    theirs = collator(rows)
    tokens = jnp.asarray([encoded["input_ids"]] * 2000)
    apart = jnp.asarray([encoded["special_tokens_mask"]] * 2000) > 0
    starts = find_words(tokenizer, tokenizer.vocab_size).starts(tokens) if whole else jnp.ones(tokens.shape, bool)
    masked, _ = draw_mask(root_key(3), starts, apart, 0.15, None)
    together = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    shares = (1.0, 0.0) if whole else (0.8, 0.1)
    number, size = tokenizer.number("[MASK]"), tokenizer.vocab_size
    ours = np.asarray(hide(root_key(4), tokens, masked, jnp.asarray(together), number, size, shares))
    pairs = {
        "masked": (np.asarray(masked), theirs["labels"] != -100),
        "replaced": (ours == number, theirs["input_ids"] == number),
        "changed": (ours != tokens, theirs["input_ids"] != tokens),
    }
    pairs["neighbours"] = tuple(flags[:, 1:] & flags[:, :-1] for flags in pairs["masked"])
    for name, (a, b) in pairs.items():
        noise = np.sqrt((a.mean(1).var() + b.mean(1).var()) / len(a))
        assert abs(a.mean() - b.mean()) < 5 * noise, name


@pytest.mark.slow
def test_the_loss_is_that_of_bert():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from taetpu.optim.loss import sum_losses

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=20, **sizes)).eval()
    rng = np.random.default_rng(0)
    tokens, masked = rng.integers(20, size=(4, 12)), rng.random((4, 12)) < 0.3
    with torch.no_grad():
        out = model(torch.tensor(tokens), labels=torch.tensor(np.where(masked, tokens, -100)))
    sums = jax.tree.map(float, sum_losses(*map(jnp.asarray, (out.logits.numpy(), tokens, masked.astype(np.float32)))))
    np.testing.assert_allclose(sums["nll"] / sums["weight"], float(out.loss), rtol=1e-6)
