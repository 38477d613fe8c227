"""A causality check for models with plug-in components. It uses a single forward pass."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config import iter_components
from taetpu.core.jit import jit_once
from taetpu.core.keys import named, root_key
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.data.base import Source
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.model_cost import num_params
from taetpu.train.step import new_model

MAX_PARAMS = 300_000_000  # larger models are not checked: building them takes too long
NOISE = 0.02  # standard deviation of noise on the parameters: a weight of zero would hide a dependence on its input
TOLERANCE = 1e-4  # maximum difference between logits, relative to the largest logit


def sees_later_tokens(config: ResolvedConfig, source: Source) -> bool:
    """Return whether later tokens change a model's predictions at earlier positions.

    The function compares the logits for two sequences that share their first half. It returns False without a forward
    pass for models without plug-in components, for tasks that are not causal, for models with more than `MAX_PARAMS`
    parameters, and for sequences of a single token.
    """
    has_plugins = any(component.plugin for component in iter_components(config.model))
    small = num_params(config.model, source.interface, source.seq_len) <= MAX_PARAMS
    if not has_plugins or not config.task.causal or not small or source.seq_len < 2:
        return False
    half = source.seq_len // 2
    at, rng = source.interface, np.random.default_rng(0)
    tokens: Any = rng.integers(at.vocab_size or 1, size=(2, source.seq_len), dtype=np.int32)
    if at.features:
        tokens = rng.standard_normal((2, source.seq_len, at.features), dtype=np.float32)
    tokens[1, :half] = tokens[0, :half]

    def predict(seed: Any, tokens: Any) -> Any:
        params, rest = partition_trainable(new_model(bind(*split(config, promoted_fields(config))), source, seed))
        leaves, form = jax.tree.flatten(params)
        keys = jax.random.split(named(root_key(seed), "nudge"), len(leaves))
        noisy = [a + NOISE * jax.random.normal(key, a.shape, a.dtype) for a, key in zip(leaves, keys, strict=True)]
        return combine_trainable(jax.tree.unflatten(form, noisy), rest)(tokens)

    logits = np.asarray(jit_once(predict)(jnp.int32(0), tokens))[:, :half]
    return bool(np.abs(logits[0] - logits[1]).max() > TOLERANCE * np.abs(logits).max())
