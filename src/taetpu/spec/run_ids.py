"""The identity of a run: equal for equivalent configs, different if any result could differ."""

from collections.abc import Mapping

from taetpu.core.config import fields_at_default, iter_components, to_data
from taetpu.core.identity import identity, without_defaults
from taetpu.spec.study_config import ResolvedConfig


def run_ids(config: ResolvedConfig, starts: Mapping[int, str], fingerprint: str) -> list[str]:
    """Return the identity of the run with each seed: 16 hexadecimal digits.

    The digits are the first 16 of the SHA-256 of the config, the seed, the task's fingerprint, the sources of plug-ins
    and the stored model that training starts from. Fields at their default value are left out, so that identities do
    not change if a later version adds fields. The kind of a component is included unless the whole slot is at its
    default. The locations of a task's data (`source`) and of the stored model (`start`) are left out, because the
    fingerprint and the digest cover their content. Fields that change only how a run is observed or computed
    (`core.identity.FIELDS_OUTSIDE_IDENTITY`) are left out too.

    Args:
        config: The resolved config.
        starts: For each seed, the digest of the stored model that training starts from; empty if parameters are drawn.
        fingerprint: The fingerprint of the task's data.
    """
    entering, plugins = without_defaults(to_data(config), fields_at_default(config)), plugin_sources(config)
    return [identity(entering, seed, fingerprint, plugins, start=start) for seed, start in starts.items()]


def plugin_sources(config: ResolvedConfig) -> list[str]:
    """Return the SHA-256 of each plug-in that registers a kind used in the config. Kinds of metrics are ignored."""
    trained = config.model_copy(update={"train": config.train.model_copy(update={"metrics": {}, "eval_metrics": {}})})
    return sorted({component.plugin for component in iter_components(trained)} - {""})
