"""An adapter through which lm-evaluation-harness scores our models.

`lm_eval.simple_evaluate(HarnessModel(taetpu.open_run("latest")), tasks=["lambada_openai"])` runs a task. It needs the
extra `taetpu[harness]`.
"""

from collections.abc import Sequence

import numpy as np

from taetpu.core.errors import UserError
from taetpu.data.items.item_set import encode_alone, encode_pair
from taetpu.lens.generate import Sampling, generate
from taetpu.lens.inputs import check_row
from taetpu.lens.losses import sequence_losses
from taetpu.lens.opened import OpenedModel

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM as HarnessBase
except ImportError:  # pragma: no cover
    remedy = "pip install 'taetpu[harness]'"
    raise UserError("lm-evaluation-harness is not installed", remedy=remedy) from None

MAX_TOKENS = 256
"""Number of generated tokens if a request does not give it, as in the harness's own models."""


class HarnessModel(HarnessBase):
    """A model of taetpu for lm-evaluation-harness.

    Tokens that the tokenizer adds before every text, such as `<bos>`, are context and are not scored. If it adds none,
    a text without context follows the token that begins texts, or the one that ends them, as in the harness's own
    models. Models that are trained here have no such token: the first token of a text is scored uniformly, with the
    logarithm of 1 / vocabulary size. Contexts longer than the model's training sequences are cut on the left.

    Args:
        opened: The model, with a tokenizer.

    Raises:
        UserError: if the model has no tokenizer.
    """

    def __init__(self, opened: OpenedModel):
        super().__init__()
        opened.check_predicts_next()
        if opened.tokenizer is None:
            raise UserError(
                "this model has no tokenizer, so it cannot read the harness's texts", remedy="Open another."
            )
        self.opened, self.tokenizer = opened, opened.tokenizer

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the most likely one.

        Spaces at the end of a context are scored with the continuation, as in the harness's own models.
        """
        prefix = self.opened.prefix_token
        pairs = [encode_pair(self.tokenizer, *request.arguments, prefix=prefix) for request in requests]
        return self._score([self._checked(*pair) for pair in pairs])

    def _checked(self, ids: np.ndarray, start: int) -> tuple[np.ndarray, int]:
        check_row(int(ids.max(initial=0)), self.opened.vocab_size, self.tokenizer)
        return ids, start

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Return the log-likelihood of each text. Long texts are read in windows that score each token once."""
        pairs, owners = [], []
        window = self.opened.seq_len
        for number, request in enumerate(requests):
            ids, scored = self._checked(*encode_alone(self.tokenizer, request.args[0], self.opened.prefix_token))
            for start in range(scored, max(len(ids), scored + 1), window):
                end = min(start + window, len(ids))
                first = max(0, end - window - 1)
                pairs.append((ids[first:end], start - first))
                owners.append(number)
        totals = np.zeros(len(requests))
        np.add.at(totals, owners, [score for score, _ in self._score(pairs)])
        return totals.tolist()

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Return the text that is generated after each context, greedily unless a request gives a temperature."""
        texts = []
        for request in requests:
            context, options = request.arguments
            stop = options.get("until") or []
            tokens = int(options.get("max_gen_toks") or MAX_TOKENS)
            tokens = max(1, min(tokens, self.opened.seq_len - 1))
            ids = self.tokenizer.encode(context)[-max(1, self.opened.seq_len - tokens) :]
            temperature = float(options.get("temperature") or 0.0) if options.get("do_sample") else 0.0
            sampling = Sampling(temperature, options.get("top_k"), options.get("top_p"))
            stop = [stop] if isinstance(stop, str) else stop
            stop = [text for text in stop if text]
            (generated,) = generate(self.opened, [ids], max_tokens=tokens, sampling=sampling, stop=stop)
            texts.append(str(generated.text))
        return texts

    def _score(self, pairs: Sequence[tuple[np.ndarray, int]]) -> list[tuple[float, bool]]:
        """Return for each sequence the log-likelihood of its tokens from a position on, and whether all are greedy."""
        limit, uniform = self.opened.seq_len + 1, -float(np.log(self.opened.vocab_size))
        results: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        long = [i for i, (ids, _) in enumerate(pairs) if len(ids) > 1]
        scores = sequence_losses(self.opened, [pairs[i][0][-limit:] for i in long]) if long else []
        for i, (losses, correct) in zip(long, scores, strict=True):
            ids, start = pairs[i]
            first = len(losses) - min(len(ids) - max(start, 1), len(losses))
            results[i] = -float(losses[first:].sum()), bool((correct[first:] == 1).all())
        for i, (ids, start) in enumerate(pairs):
            if start == 0 and len(ids):
                results[i] = results[i][0] + uniform, False
        return results
