"""How jax starts in every test: on the CPU, as two devices, with no programs kept from one session to the next."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import pytest


@pytest.fixture(scope="session")
def draw():
    """`draw(settings, seed=0, vocab=7, seq=8) -> LM`: a drawn model, in one compile instead of one an operation."""
    import equinox as eqx

    from taetpu.core.config import load
    from taetpu.core.keys import root_key
    from taetpu.nn.lm import ModelConfig, build

    def drawn(settings, seed=0, vocab=7, seq=8):
        config = load(ModelConfig, settings).resolve()
        return eqx.filter_jit(lambda: build(config, vocab, seq, key=root_key(seed)))()

    return drawn
