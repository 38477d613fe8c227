"""The arm contract: an arm changes what it says, all that it says takes effect, and nothing else moves.

Proved before anything is stored, from programs that are traced and lowered, never compiled.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from taetpu.contract.allowed_changes import fold_layers, is_declared
from taetpu.contract.causal import sees_later_tokens
from taetpu.contract.computation import Computation
from taetpu.contract.no_op import explain_no_op
from taetpu.contract.outputs import check_outputs
from taetpu.core.config import iter_components
from taetpu.core.errors import ErrorList, UserError, suggest
from taetpu.core.loading import load_config
from taetpu.core.plugins import attribute_errors, forbid_changes
from taetpu.core.static_dynamic import promoted_fields
from taetpu.spec.origins import keep_first_per_list
from taetpu.spec.overrides import apply_overrides
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.schema import ResolvedConfig, RunConfig
from taetpu.train.count import flops_per_token

Progress = Callable[[int, int], None]
SHOWN = 3  # parameters named in a message
VERBS = {
    "redrawn": ("starts from other values", "start from other values"),
    "reshaped": ("takes another shape", "take another shape"),
    "added": ("comes in", "come in"),
    "removed": ("goes", "go"),
}

REBUILT = "a component builds what is its own, and leaves the dims that it is given as they are"
REDRAWN = (
    "draw it as the baseline does, from the dims and the key that the component is given; or, where the component is "
    "meant to start otherwise, say own_init = True in its config class"
)


@dataclass(frozen=True)
class Comparison:
    """The parameters of an arm against the baseline's, by logical name.

    Attributes:
        equal: in both, of one shape, and started from the same bits for every seed.
        redrawn: in both, of one shape, and started from other values.
        reshaped: in both, of two shapes.
    """

    equal: tuple[str, ...]
    redrawn: tuple[str, ...]
    reshaped: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]


def compare_parameters(baseline: Computation, arm: Computation) -> Comparison:
    """Which parameters an arm keeps, and which not; from how they are drawn, so for every seed."""
    old, new = baseline.parameters, arm.parameters
    both = [name for name in new if name in old]
    shaped = [name for name in both if old[name].shape == new[name].shape]
    return Comparison(
        equal=tuple(name for name in shaped if old[name] == new[name]),
        redrawn=tuple(name for name in shaped if old[name] != new[name]),
        reshaped=tuple(name for name in both if old[name].shape != new[name].shape),
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
    )


def check_arms(study: Study, told: Progress = lambda done, of: None) -> dict[str, Computation]:
    """Prove the contract of every arm; returns what each computes.

    Args:
        told: called with how many arms are done, and of how many.

    Raises:
        UserError: an arm, or one of its overrides, changes nothing; two arms are the same; an arm changes more than it
            says; a model cannot be built, or a plug-in raises. What is wrong with several arms comes together.
    """
    contract, mistakes = Contract(study), ErrorList()
    with _without_collections(), forbid_changes():
        told(0, len(study.arms))
        contract.refuse_blind()
        contract.admit(study.arms[0])
        for number, arm in enumerate(study.arms[1:], start=1):
            told(number, len(study.arms))
            with mistakes.collect():
                contract.admit(arm)
        told(len(study.arms), len(study.arms))
    keep_first_per_list(mistakes).raise_all()
    return contract.known


def check_arm(study: Study, name: str) -> tuple[Computation, Computation, UserError | None]:
    """What the baseline and one arm compute, and how the arm breaks the contract, if it does.

    Raises:
        UserError: the study has no such arm.
    """
    known = {arm.name: arm for arm in study.arms[1:]}
    if name not in known:
        raise UserError(f"study {study.name!r} has no arm {name!r}", remedy=suggest(name, known))
    contract, baseline, arm, broken = Contract(study), study.arms[0], known[name], None
    with forbid_changes():
        contract.admit(baseline)
        try:
            contract.admit(arm)
        except UserError as error:
            broken = error
    return contract.computation(baseline, baseline.config), contract.computation(arm, arm.config), broken


class Contract:
    """The arms of a study that are proved so far."""

    def __init__(self, study: Study):
        self.study, self.baseline = study, study.arms[0]
        self.live = frozenset[str]().union(*(promoted_fields(arm.config) for arm in study.arms))
        self.known: dict[str, Computation] = {}

    def admit(self, arm: Arm) -> None:
        """Raises `UserError` where an arm breaks the contract, or its program cannot be traced."""
        with _traced(arm):
            new = self.computation(arm, arm.config)
            self.refuse_broken(arm, new)
            source = self.study.source(arm)
            flops_per_token(arm.config.model, source.vocab_size, source.seq_len)
            if any(
                component.plugin for component in iter_components(arm.config)
            ):  # training steps that raise do so now
                _ = new.outline.onwards
        self.known[arm.name] = new

    def refuse_broken(self, arm: Arm, new: Computation) -> None:
        """An arm that changes nothing, more than it says, or what another does; or that sees later tokens."""
        if arm is not self.baseline:
            self.refuse_undeclared(arm, new)
            if new.same_as(self.known[self.baseline.name]):
                why, remedy = explain_no_op(self.baseline.config, arm.config, lambda c: self.computation(arm, c))
                raise arm.explain(UserError(f"arm {arm.name!r} changes nothing: {why}", remedy=remedy))
            self.refuse_idle_part(arm, new)
            self.refuse_twin(arm, new)
        self.refuse_leak(arm)

    def refuse_leak(self, arm: Arm) -> None:
        """A component of a plug-in that tells a position of later tokens, where those are what it is to predict."""
        config, source = arm.config, self.study.source(arm)
        if sees_later_tokens(config, source):
            problem = f"arm {arm.name!r} sees the future: later tokens change what it predicts at earlier positions"
            remedy = "use positions up to one's own alone; `python -m taetpu.testing PLUGIN` says which kind does not"
            raise arm.explain(UserError(problem, remedy=remedy))

    def computation(self, arm: Arm, config: ResolvedConfig) -> Computation:
        """What an arm computes, or would with this config instead of its own."""
        source = self.study.source(arm) if config is arm.config else self.study.sources.prepare(config)
        try:
            config.model.check(source.vocab_size, source.seq_len)
            check_outputs(config, source)
            return Computation(config, source, self.live)
        except UserError as error:
            whole = error.path and error.path[0] in ResolvedConfig.model_fields
            raise arm.explain(error if whole else error.within("model")) from None

    def refuse_undeclared(self, arm: Arm, new: Computation) -> None:
        old = self.known[self.baseline.name]
        found = compare_parameters(old, new)
        for kind, verbs in VERBS.items():
            redrawn = kind == "redrawn"
            more = [n for n in getattr(found, kind) if not is_declared(n, arm.diff, old, new, redrawn=redrawn)]
            if more:
                # Not in the component that is changed, if there are any: those are the more surprising.
                elsewhere = [n for n in more if not is_declared(n, arm.diff, old, new, redrawn=False)]
                listed = fold_layers(elsewhere or more)
                shown = ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")
                problem = f"{shown} {verbs[len(listed) > 1]}, and {arm.change} does not say so"
                remedy = REBUILT if elsewhere else REDRAWN
                raise arm.explain(UserError(f"arm {arm.name!r} changes more than it says: {problem}", remedy=remedy))

    def refuse_idle_part(self, arm: Arm, new: Computation) -> None:
        """In a product of several lists a single value may do nothing, as long as the arm as a whole does something."""
        if arm.crossed or len(arm.overrides) < 2:
            return
        for path in arm.overrides:
            config = without(self.study, arm, path)
            if config is not None and new.same_as(self.computation(arm, config)):
                why, remedy = explain_no_op(config, arm.config, lambda c: self.computation(arm, c))
                raise arm.explain(
                    UserError(f"part of arm {arm.name!r} changes nothing: {why}", path=(path,), remedy=remedy)
                )

    def refuse_blind(self) -> None:
        """A metric of a site that no arm has, and one that raises. All arms have the same metrics."""
        if not self.baseline.config.train.metrics:
            return
        with _traced(self.baseline):
            self.refuse_blind_metrics()

    def refuse_blind_metrics(self) -> None:
        first = self.computation(self.baseline, self.baseline.config).outline
        for name, metric in self.baseline.config.train.metrics.items():
            if not isinstance(metric.sites(), tuple | list):
                problem = f"sites of metric {name!r} returns {metric.sites()!r}, expected a tuple of names"
                raise self.baseline.explain(UserError(problem, path=("train", "metrics", name)))
            if missing := set(metric.sites()) - first.sites:
                sites = frozenset[str]().union(*(self.computation(a, a.config).outline.sites for a in self.study.arms))
                for site in sorted(missing - sites):
                    where = ("train", "metrics", name)
                    error = UserError(f"no arm has a site {site!r}", path=where, remedy=suggest(site, sites))
                    raise self.baseline.explain(error)
        for arm in self.study.arms:  # what a metric can measure of the baseline's model it need not of every other
            with _traced(arm):
                _ = self.computation(arm, arm.config).outline.looks
        for name, metric in self.baseline.config.train.metrics.items():
            if set(metric.sites()) <= first.sites and not any(look.partition("/")[0] == name for look in first.looks):
                where, remedy = ("train", "metrics", name), "return a number, or {name: number}"
                raise self.baseline.explain(UserError(f"metric {name!r} measures nothing", path=where, remedy=remedy))

    def refuse_twin(self, arm: Arm, new: Computation) -> None:
        for name, earlier in self.known.items():
            if name != self.baseline.name and new.same_as(earlier):
                problem = f"arms {name!r} and {arm.name!r} are the same program with the same numbers"
                raise arm.explain(UserError(problem, remedy="remove one"))


def without(study: Study, arm: Arm, path: str) -> ResolvedConfig | None:
    """An arm's config without one of its overrides; None where the others do not stand without it."""
    try:
        config = load_config(
            RunConfig, apply_overrides(study.base, {p: v for p, v in arm.overrides.items() if p != path})
        ).resolve()
        config.check()
        study.sources.prepare(config)
    except UserError:
        return None
    return config


@contextmanager
def _traced(arm: Arm) -> Iterator[None]:
    """Whatever a plug-in makes fail while an arm is traced is a `UserError`, seen from the study file."""
    try:
        with attribute_errors(f"arm {arm.name!r} cannot be traced", iter_components(arm.config)):
            yield
    except UserError as error:
        raise error if error.path[:1] not in ((), ("train",)) else arm.explain(error) from None


@contextmanager
def _without_collections() -> Iterator[None]:
    """No garbage collection meanwhile: tracing makes many small objects, and looking through them is a fifth of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
