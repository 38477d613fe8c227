"""The identity of a run: equal for two ways of writing the same thing, different when a number could differ."""

from collections.abc import Iterable

from taetpu.core.config import fields_at_default, iter_components, to_data
from taetpu.core.identity import SCHEMA as SCHEMA
from taetpu.core.identity import identity, without_defaults
from taetpu.spec.schema import ResolvedConfig


def run_id(config: ResolvedConfig, seed: int, fingerprint: str) -> str:
    """The first 16 hexadecimal digits of a sha256 over the resolved config, the seed and the task's fingerprint, and
    the source of the plug-ins whose kinds the config uses.

    Fields at their default do not enter, so that a version with more fields gives the same identities. The kind of a
    component enters unless the whole slot is at its default. Where a task reads its data (`source`) does not enter,
    what it reads does: that is the fingerprint. How a run is watched or computed does not enter either
    (`core.identity.FIELDS_OUTSIDE_IDENTITY`).
    """
    return run_ids(config, [seed], fingerprint)[0]


def run_ids(config: ResolvedConfig, seeds: Iterable[int], fingerprint: str) -> list[str]:
    """The identity of a run on each seed (see `run_id`)."""
    entering, plugins = without_defaults(to_data(config), fields_at_default(config)), plugin_sources(config)
    return [identity(entering, seed, fingerprint, plugins) for seed in seeds]


def plugin_sources(config: ResolvedConfig) -> list[str]:
    """sha256 of each plug-in that a run uses a kind of. How a run is watched (its metrics) does not count."""
    trained = config.model_copy(update={"train": config.train.model_copy(update={"metrics": {}})})
    return sorted({component.plugin for component in iter_components(trained)} - {""})
