"""How jax starts in every test, and models to test with."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
from tests.browsers import chromium, opened  # noqa: F401 (fixtures)
from tests.fake_google.fixtures import bucket_server, google, gs_root, shared_google, world  # noqa: F401 (fixtures)
from tests.slow_tests import SlowTests
from tests.wording import wording  # noqa: F401 (fixture)

# Before jax is imported: the CPU, as two devices. Compiled programs are kept, found again by their text alone: tests
# spend most of their time compiling.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "programs")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Without most optimisations, programs compile in 60 % of the time; with XLA's older code for fusions in 20 %. That code
# computed a few slow tests wrongly (docs/log.md), so that only the default suite uses it (`make test`, which sets
# QUICK). A small program in one part compiles faster than in 32 parts that are compiled in parallel. Checks of the
# types and shapes of all calls take a sixth of the time. The other suites make them.
if not os.environ.get("OPTIMISED"):
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    if version("jaxlib").startswith("0.10."):  # others may stop at these flags
        os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
        if os.environ.get("QUICK"):
            os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
if not os.environ.get("QUICK"):
    jaxtyping.install_import_hook(["taetpu.nn", "taetpu.optim"], "beartype.beartype")
os.environ["TAETPU_CACHE"] = str(Path(__file__).parents[1] / ".pytest_cache" / "taetpu")

# The parent process may ignore these signals, as a shell does for background jobs. Tests need their usual handlers.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Tests run in parallel, so the time of an example says nothing.
hypothesis.settings.register_profile("beside others", deadline=None)
hypothesis.settings.load_profile("beside others")

# Each stored file is synced to disk, which would take a third of the tests' time. Therefore, they use a file system in
# memory if there is one with enough room that allows programs to run. TMPDIR selects another folder.
MEMORY = Path("/dev/shm")


def roomy(folder: Path) -> bool:
    free = folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 * 2**30
    return free and not os.statvfs(folder).f_flag & os.ST_NOEXEC


if "TMPDIR" not in os.environ and roomy(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_configure(config):
    """Refuse slow programs where time is measured. Collect garbage less often: that took a tenth of the time."""
    if config.option.markexpr in ("alone", "nightly") and not os.environ.get("OPTIMISED"):
        raise pytest.UsageError("Set OPTIMISED=1, as `make alone` and `make nightly` do.")
    config.pluginmanager.register(SlowTests())
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    """Spare pytest's second collection of all garbage, which finds nothing after the first."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run tests that share a fixture of their module in one process."""
    for item in items:
        made = item._fixtureinfo.name2fixturedefs.values()
        if any(fixture[-1].scope == "module" for fixture in made):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_collection_finish(session):
    """Let PyTorch compute in one thread where tests run in parallel.

    Its threads wait for each other in loops. Beside other tests, this took ten times the CPU time of the computation.
    """
    if session.config.option.markexpr != "alone" and "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def draw():
    """`draw(settings, seed=0, vocab=7, seq=8) -> LM`: a model whose every parameter is random, biases and norms too.

    `settings` are those of a config, or the config.

    A parameter is a function of its name, so that two models agree wherever they have the same. Filled by numpy: the
    model's own init is a second's compile for each structure.
    """
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from taetpu.core.config_parsing import load_config
    from taetpu.core.keys import root_key
    from taetpu.nn.common import combine_trainable, partition_trainable
    from taetpu.nn.lm import ModelConfig, build_model
    from taetpu.nn.named_arrays import named_parameters, with_parameters

    def value(name, shape, seed):
        noise = np.random.default_rng([zlib.crc32(name.encode()), seed]).standard_normal(shape).astype(np.float32)
        if len(shape) == 2:
            return noise / np.sqrt(shape[0])
        return 0.1 * noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0)

    def drawn(settings, seed=0, vocab=7, seq=8):
        config = (load_config(ModelConfig, settings) if isinstance(settings, Mapping) else settings).resolve()

        @eqx.filter_jit
        def blank():
            params, rest = partition_trainable(build_model(config, vocab, seq, key=root_key(0)))
            return combine_trainable(jax.tree.map(jnp.zeros_like, params), rest)

        model = blank()
        shapes = {name: array.shape for name, array in jax.eval_shape(named_parameters, model).items()}
        return with_parameters(model, {name: value(name, shape, seed) for name, shape in shapes.items()})

    return drawn
