"""Comparisons of optimizers: the parameters of a small model after five steps with random gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from tests.parity.registry import parity

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.keys import root_key
from taetpu.nn.common import partition_trainable
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters
from taetpu.nn.parameters import Parameters
from taetpu.optim.structure_checks import build_update_rule, extra_arguments

MODEL = {"dim": 8, "num_layers": 3, "mixer": {"kind": "attention", "num_heads": 2}, "ffn": "relu", "bias": True}
VOCAB, SEQ, STEPS, LR = 7, 8, 5, 0.03
Arrays = dict[str, np.ndarray]


def ours(kind: str, **settings: Any) -> tuple[Arrays, list[Arrays], Arrays]:
    """Return the parameters before and after `STEPS` steps, and the gradients of each step, by logical name."""
    config = load_config(ModelConfig, MODEL).resolve()
    params = partition_trainable(build_model(config, VOCAB, SEQ, key=root_key(0)))[0]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), params)
    grads = [jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), params) for _ in range(STEPS)]
    optimizer = build_component("optimizer", {"kind": kind, "lr": LR, **settings})

    @jax.jit
    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        rule = build_update_rule(optimizer, LR, Parameters(params, config, VOCAB, SEQ))
        # The square of the gradient takes the place of the curvature.
        extra = extra_arguments(optimizer, 0.0, lambda: jax.tree.map(jnp.square, grads))
        updates, state = rule.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state

    state = build_update_rule(optimizer, 0, Parameters(params, config, VOCAB, SEQ)).init(params)
    after = params
    for one in grads:
        after, state = step(after, state, one)
    first, last = ({n: np.asarray(a) for n, a in named_parameters(tree).items()} for tree in (params, after))
    return first, [{n: np.asarray(a) for n, a in named_parameters(one).items()} for one in grads], last


def compared(last: Arrays, theirs: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return all parameters of both sides as vectors."""
    return tuple(np.concatenate([side[name].ravel() for name in sorted(last)]) for side in (last, theirs))  # pyright: ignore


def with_torch(make: Callable[..., Any], kind: str, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compare with an optimizer of torch, which is built from its groups of matrices and vectors."""
    first, grads, last = ours(kind, **settings)
    theirs = {name: torch.tensor(array, requires_grad=True) for name, array in first.items()}
    decay = settings.get("weight_decay", 0.0)
    groups = [
        {"params": [p for p in theirs.values() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in theirs.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    rule = make(groups)
    for one in grads:
        for name, parameter in theirs.items():
            parameter.grad = torch.tensor(one[name])
        rule.step()
    return compared(last, {name: parameter.detach().numpy() for name, parameter in theirs.items()})


def with_optax(rule: optax.GradientTransformation, kind: str, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compare with a rule of optax, which gets the parameters of each layer as arrays of their own."""
    first, grads, last = ours(kind, **settings)
    params = {name: jnp.asarray(array) for name, array in first.items()}
    state = rule.init(params)
    for one in grads:
        updates, state = rule.update({name: jnp.asarray(array) for name, array in one.items()}, state, params)
        params = optax.apply_updates(params, updates)
    return compared(last, {name: np.asarray(array) for name, array in params.items()})


def is_matrix(params: Any) -> Any:
    """Return which parameters are matrices."""
    return jax.tree.map(lambda a: a.ndim > 1, params)


@parity("optimizer/adamw", "torch.optim.AdamW")
def adamw():
    make = lambda groups: torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99))  # noqa: E731
    return with_torch(make, "adamw", weight_decay=0.1)


@parity("optimizer/adam", "torch.optim.Adam")
def adam():
    make = lambda groups: torch.optim.Adam(groups, lr=LR, betas=(0.9, 0.99))  # noqa: E731
    return with_torch(make, "adam", weight_decay=0.2)


@parity("optimizer/sgd", "torch.optim.SGD")
def sgd():
    return with_torch(lambda groups: torch.optim.SGD(groups, lr=LR, momentum=0.9), "sgd", weight_decay=0.1)


@parity("optimizer/sgd", "torch.optim.SGD", "Nesterov")
def nesterov():
    make = lambda groups: torch.optim.SGD(groups, lr=LR, momentum=0.8, nesterov=True)  # noqa: E731
    return with_torch(make, "sgd", momentum=0.8, nesterov=True)


@parity("optimizer/lion", "optax.lion")
def lion():
    return with_optax(optax.lion(LR, 0.9, 0.99, weight_decay=0.3, mask=is_matrix), "lion")


@parity("optimizer/adafactor", "optax.adafactor")
def adafactor():
    rule = optax.adafactor(
        LR, min_dim_size_to_factor=1, multiply_by_parameter_scale=False, weight_decay_rate=0.0, momentum=0.7
    )
    return with_optax(rule, "adafactor", momentum=0.7)


@parity("optimizer/schedule-free", "optax.contrib.schedule_free")
def schedule_free():
    inner = optax.chain(
        optax.scale_by_rms(0.99, 1e-8, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(0.1, is_matrix),
        optax.scale(-LR),
    )
    return with_optax(optax.contrib.schedule_free(inner, LR, 0.9), "schedule-free")


def with_muon(rms: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Compare with optax's Muon for the matrices between layers, one by one, and with its AdamW for the others."""
    adamw = optax.adamw(LR, b2=0.99, weight_decay=0.1, mask=is_matrix)
    rules = {"muon": optax.contrib.muon(LR, weight_decay=0.1, consistent_rms=rms), "adamw": adamw}

    def labels(params: Arrays) -> dict[str, str]:
        return {n: "muon" if n.startswith("layers") and a.ndim > 1 else "adamw" for n, a in params.items()}

    return with_optax(optax.partition(rules, labels), "muon", consistent_rms="none" if rms is None else rms)


@parity("optimizer/muon", "optax.contrib.muon")
def muon():
    return with_muon(0.2)


@parity("optimizer/muon", "optax.contrib.muon", "consistent_rms=none")
def muon_without_rms():
    return with_muon(None)


@parity("optimizer/soap", "arXiv 2409.11321, algorithm 3, in NumPy", "float64", float64=True)
def soap():
    settings = {"frequency": 2, "weight_decay": 0.0}
    first, grads, last = ours("soap", **settings)
    params = {name: array.astype(np.float64) for name, array in first.items()}

    def renew(covariance: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        return np.linalg.qr(covariance @ vectors + 1e-5 * np.trace(covariance) * vectors)[0]

    for name, w in params.items():
        hidden = name.startswith("layers") and w.ndim == 2
        mean, square = np.zeros_like(w), np.zeros_like(w)
        left, right, ql, qr = (np.zeros((n, n)) for n in (*w.shape, *w.shape)) if hidden else (0, 0, 0, 0)
        for t, one in enumerate(grads):
            g = one[name].astype(np.float64)
            if t > 0:
                mean = 0.95 * mean + 0.05 * g
                turned, direction = (ql.T @ g @ qr, ql.T @ mean @ qr) if hidden else (g, mean)
                square = 0.95 * square + 0.05 * turned**2
                step = direction / (1 - 0.95**t) / (np.sqrt(square / (1 - 0.95**t)) + 1e-8)
                w -= LR * (ql @ step @ qr.T if hidden else step)
            if hidden:
                left, right = 0.95 * left + 0.05 * g @ g.T, 0.95 * right + 0.05 * g.T @ g
                if t == 0 or (t + 1) % 2 == 0:
                    ql, qr = (renew(c, q if t else np.eye(len(q))) for c, q in ((left, ql), (right, qr)))
    return compared(last, params)


@parity("optimizer/sophia", "arXiv 2305.14342, algorithm 3, in NumPy")
def sophia():
    b1, b2, gamma, frequency, decay = 0.8, 0.9, 2.0, 2, 0.2
    first, grads, last = ours("sophia", b1=b1, b2=b2, gamma=gamma, frequency=frequency, weight_decay=decay)
    params = {name: array.astype(np.float64) for name, array in first.items()}
    for name, w in params.items():
        mean, curvature, own = np.zeros_like(w), np.zeros_like(w), w
        for t, one in enumerate(grads):
            g = one[name].astype(np.float64)
            mean = b1 * mean + (1 - b1) * g
            scaled = mean / (1 - b1 ** (t + 1)) / np.maximum(gamma * curvature, 1e-12)
            own = own - LR * (np.clip(scaled, -1, 1) + (decay * own if own.ndim > 1 else 0.0))
            if t % frequency == 0:
                curvature = b2 * curvature + (1 - b2) * g**2
        params[name] = own
    return compared(last, params)
