"""The identity of a run: equal for two ways of writing the same thing, different when a number could differ."""

from taetpu.core.config import components, to_data
from taetpu.core.identity import SCHEMA as SCHEMA
from taetpu.core.identity import canonical as canonical
from taetpu.core.identity import identity
from taetpu.spec.schema import ResolvedConfig


def run_id(config: ResolvedConfig, seed: int, fingerprint: str) -> str:
    """The first 16 hexadecimal digits of a sha256 over the resolved config, the seed and the task's fingerprint, and
    the source of the plug-ins whose kinds the config uses.

    Where a task reads its data (`source`) does not enter, what it reads does: that is the fingerprint. How a run is
    watched or computed (`core.identity.BESIDE`) does not enter either.
    """
    return identity(to_data(config), seed, fingerprint, plugin_sources(config))


def plugin_sources(config: ResolvedConfig) -> list[str]:
    """sha256 of each plug-in that a run uses a kind of. How a run is watched (its metrics) does not count."""
    trained = config.model_copy(update={"train": config.train.model_copy(update={"metrics": {}})})
    return sorted({component.plugin for component in components(trained)} - {""})
