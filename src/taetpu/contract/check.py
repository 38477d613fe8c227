"""The arm contract: every declared change takes effect, and nothing else changes.

The contract is checked before anything is stored, on programs that are traced and lowered but not compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from taetpu.contract.allowed_changes import is_declared
from taetpu.contract.causal import sees_later_tokens
from taetpu.contract.no_op_reasons import explain_no_op, find_wide_window
from taetpu.contract.outputs import check_groups, check_outputs
from taetpu.contract.traced_program import Computation
from taetpu.core.config import iter_components
from taetpu.core.errors import ErrorList, UserError, check_known, suggest
from taetpu.core.layer_names import fold_layers
from taetpu.core.plugins import attribute_errors, forbid_changes
from taetpu.core.static_dynamic import promoted_fields
from taetpu.nn.mask import UNLIMITED
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.model_cost import flops_per_token

Progress = Callable[[int, int], None]
SHOWN = 3  # parameters named in a message
VERBS = {
    "redrawn": ("starts from different values", "start from different values"),
    "reshaped": ("has another shape", "have another shape"),
    "added": ("is added", "are added"),
    "removed": ("is removed", "are removed"),
}

MEDDLING = "Build only the component's own parameters, and do not modify dims."
REDRAWN = (
    "Draw the parameter as the baseline does, from the dims and the key of the component. If another initialisation is "
    "intended, set own_init = True in the config class."
)


@dataclass(frozen=True)
class Comparison:
    """The logical names of an arm's and the baseline's parameters, grouped by how the parameters differ.

    Attributes:
        equal: Parameters in both with equal shapes and, for every seed, bitwise identical initial values.
        redrawn: Parameters in both with equal shapes and different initial values.
        reshaped: Parameters in both with different shapes.
        added: Parameters that only the arm has.
        removed: Parameters that only the baseline has.
    """

    equal: tuple[str, ...]
    redrawn: tuple[str, ...]
    reshaped: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]


def compare_parameters(baseline: Computation, arm: Computation) -> Comparison:
    """Compare an arm's parameters with the baseline's.

    Initial values are compared by digests of the operations that draw them, so the comparison holds for every seed.
    """
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


def check_arms(study: Study, on_progress: Progress = lambda done, total: None) -> dict[str, Computation]:
    """Check the contract of every arm.

    Args:
        study: The study.
        on_progress: A function that is called with the number of checked arms and the total number of arms.

    Returns:
        The computation of each arm, by the arm's name.

    Raises:
        UserError: If an arm or one of its overrides changes nothing, two arms are the same, an arm changes more than it
            declares or is not causal, a model cannot be built, or a plug-in raises an error. Errors in several arms are
            raised together.
    """
    contract, mistakes = Contract(study), ErrorList()
    with forbid_changes():
        on_progress(0, len(study.arms))
        contract.check_metrics()
        contract.check_eval_metrics()
        contract.check_arm(study.arms[0])
        for number, arm in enumerate(study.arms[1:], start=1):
            on_progress(number, len(study.arms))
            with mistakes.collect():
                contract.check_arm(arm)
        on_progress(len(study.arms), len(study.arms))
    mistakes.raise_all()
    return contract.computations


def check_arm(study: Study, name: str) -> tuple[Computation, Computation, UserError | None]:
    """Check the contract of one arm, which may be the baseline.

    Returns:
        The baseline's computation, the arm's computation, and the error, or None if the arm meets the contract.

    Raises:
        UserError: If the study has no such arm, or the baseline is invalid.
    """
    known = {arm.name: arm for arm in study.arms}
    check_known(name, known, f"study {study.name!r} has no arm {name!r}")
    contract, baseline, arm, broken = Contract(study), study.arms[0], known[name], None
    with forbid_changes():
        contract.check_arm(baseline)
        try:
            if arm is not baseline:
                contract.check_arm(arm)
        except UserError as error:
            broken = error
    return contract.of_arm(baseline), contract.of_arm(arm), broken


def may_fail_in_step(config: ResolvedConfig) -> bool:
    """Return whether a train step may raise errors that no other check finds, because of plug-ins, hooks or heads."""
    train = config.train
    return bool(train.hooks or config.model.heads or train.accumulate > 1) or any(
        component.plugin for component in iter_components(config)
    )


class Contract:
    """The contract of a study.

    Attributes:
        computations: The computations of the arms that have been checked, by name.
    """

    def __init__(self, study: Study):
        self.study, self.baseline = study, study.arms[0]
        self.live = frozenset[str]().union(*(promoted_fields(arm.config) for arm in study.arms))
        self.computations: dict[str, Computation] = {}
        self._of_arms: dict[str, Computation] = {}

    def check_arm(self, arm: Arm) -> None:
        """Raise `UserError` if an arm breaks the contract or its program cannot be traced."""
        with _tracing(arm):
            new = self.of_arm(arm)
            self.check_change(arm, new)
            source = self.study.source(arm)
            flops_per_token(arm.config.model, source.interface, source.seq_len)
            if may_fail_in_step(arm.config):
                _ = new.outline.traced_step  # raises the errors of the step's code
        self.computations[arm.name] = new

    def check_change(self, arm: Arm, new: Computation) -> None:
        """Raise `UserError` if an arm changes nothing, changes too much, equals another arm, or sees later tokens."""
        if arm is not self.baseline:
            self.check_windows(arm)
            self.check_parameters(arm, new)
            if new.same_as(self.computations[self.baseline.name]):
                why, remedy = explain_no_op(self.baseline.config, new)
                raise arm.explain(UserError(f"arm {arm.name!r} changes nothing: {why}", remedy=remedy))
            self.check_overrides(arm, new)
            self.check_distinct(arm, new)
        self.check_causality(arm)

    def check_windows(self, arm: Arm) -> None:
        """Raise `UserError` if a window of the arm covers whole sequences and replaces a mask that does so too.

        Arms from a product of lists are checked if they have one override.
        """
        if arm.crossed and len(arm.overrides) > 1:
            return
        length = max([self.study.source(arm).seq_len, *arm.config.task.eval_lengths])
        width = find_wide_window(self.study.against(arm).config, arm.config, length)
        if width is not None:
            shown = "an unlimited window" if width >= UNLIMITED else f"a window of width {width}"
            problem = f"arm {arm.name!r} changes nothing by its mask: {shown} covers sequences of {length} tokens"
            path = next(((path,) for path in arm.overrides if "mask" in path.split(".")), ())
            raise arm.explain(UserError(problem, path=path, remedy=f"Use a width below {length}."))

    def check_causality(self, arm: Arm) -> None:
        """Raise `UserError` if later tokens change an arm's predictions at earlier positions."""
        config, source = arm.config, self.study.source(arm)
        if sees_later_tokens(config, source):
            problem = f"arm {arm.name!r} is not causal: later tokens change its predictions at earlier positions"
            remedy = "Run `python -m taetpu.testing PLUGIN` to find the kind. Restrict this kind to earlier positions."
            raise arm.explain(UserError(problem, remedy=remedy))

    def of_arm(self, arm: Arm) -> Computation:
        """Return the computation of an arm, which is computed once. See `computation`."""
        if arm.name not in self._of_arms:
            self._of_arms[arm.name] = self.computation(arm, arm.config)
        return self._of_arms[arm.name]

    def computation(self, arm: Arm, config: ResolvedConfig) -> Computation:
        """Return the computation of a config: the config of `arm` or a variant of that config.

        Raises:
            UserError: If the model of the config is invalid. The error is located in the study file.
        """
        source = self.study.source(arm) if config is arm.config else self.study.sources.prepare(config)
        try:
            config.model.check(source.interface, source.seq_len)
            check_outputs(config, source)
            check_groups(config, source)
            return Computation(config, source, self.live, self.study.sources.start(config, self.study.seeds[0]))
        except UserError as error:
            whole = error.path and error.path[0] in ResolvedConfig.model_fields
            raise arm.explain(error if whole else error.within("model")) from None

    def check_parameters(self, arm: Arm, new: Computation) -> None:
        """Raise `UserError` if the arm changes parameters and its diff does not declare these changes."""
        old = self.computations[self.baseline.name]
        changes = compare_parameters(old, new)
        for kind, verbs in VERBS.items():
            redrawn = kind == "redrawn"
            more = [n for n in getattr(changes, kind) if not is_declared(n, arm.diff, old, new, redrawn=redrawn)]
            if more:
                # If parameters of other components change, only these parameters are reported.
                elsewhere = [n for n in more if not is_declared(n, arm.diff, old, new, redrawn=False)]
                listed = fold_layers(elsewhere or more)
                shown = ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")
                problem = f"arm {arm.name!r} changes more than it declares: "
                problem += f"{shown} {verbs[len(listed) > 1]}, which {arm.change} does not declare"
                raise arm.explain(UserError(problem, remedy=MEDDLING if elsewhere else REDRAWN))

    def check_overrides(self, arm: Arm, new: Computation) -> None:
        """Raise `UserError` if an override has no effect. Arms from a product of lists are not checked."""
        for path, config in arm.variants.items():
            if config is not None and self.is_same(new, arm, config):
                why, remedy = explain_no_op(config, new)
                problem = f"arm {arm.name!r} has a change without effect: {why}"
                raise arm.explain(UserError(problem, path=(path,), remedy=remedy))

    def is_same(self, new: Computation, arm: Arm, config: ResolvedConfig) -> bool:
        """Return whether a variant of an arm computes the same; False if the variant cannot be computed."""
        try:
            config.check()
            with attribute_errors("the variant cannot be traced", iter_components(config)):
                return new.same_as(self.computation(arm, config))
        except UserError:
            return False

    def check_metrics(self) -> None:
        """Raise `UserError` if a metric raises an error, returns no values, or reads a site that no arm has."""
        metrics = self.baseline.config.train.metrics
        if not metrics:
            return
        with _tracing(self.baseline):
            self._check_metrics(metrics)

    def _check_metrics(self, metrics: dict[str, Any]) -> None:
        first = self.of_arm(self.baseline).outline
        for name, metric in metrics.items():
            if not isinstance(metric.sites(), tuple | list):
                problem = f"sites() of metric {name!r} returns {metric.sites()!r}, expected a tuple of names"
                raise self.baseline.explain(UserError(problem, path=("train", "metrics", name)))
            if missing := {*metric.sites()} - {*first.sites}:
                sites = set[str]().union(*(self.of_arm(arm).outline.sites for arm in self.study.arms))
                for site in sorted(missing - sites):
                    where = ("train", "metrics", name)
                    error = UserError(f"no arm has a site {site!r}", path=where, remedy=suggest(site, sites))
                    raise self.baseline.explain(error)
        for arm in self.study.arms:  # a metric may work with the baseline's model and fail with another arm's model
            with _tracing(arm):
                _ = self.of_arm(arm).outline.metric_names
        for name, metric in metrics.items():
            if {*metric.sites()} <= {*first.sites} and not any(
                key.partition("/")[0] == name for key in first.metric_names
            ):
                where, remedy = ("train", "metrics", name), "Return a number or {name: number}."
                raise self.baseline.explain(UserError(f"metric {name!r} returns no values", path=where, remedy=remedy))

    def check_eval_metrics(self) -> None:
        """Raise `UserError` if no arm has the site and layer of a metric on evaluation sets.

        If the metric is the primary metric, all arms must have them.
        """
        primary = self.study.measure.primary.partition("/")[2]
        for name, metric in self.baseline.config.train.eval_metrics.items():
            if not metric.sites():
                continue
            parts = {}
            for arm in self.study.arms:
                with _tracing(arm):
                    parts[arm.name] = metric.parts(self.of_arm(arm).outline.sites)
            where, about = ("train", "eval_metrics", name), " and ".join(map(repr, metric.sites()))
            if not any(parts.values()):
                sites = self.of_arm(self.baseline).outline.sites
                layers = next((sites[site] for site in metric.sites() if site in sites), None)
                if layers is None:
                    error = UserError(f"no arm has the site {about}", remedy=suggest(metric.sites()[0], sites))
                else:
                    problem = f"no arm has the site {about} in layer {getattr(metric, 'layer', None)}"
                    listed = ", ".join(map(str, layers))
                    error = UserError(problem, remedy=f"Use one of the layers {listed}." if layers else "Remove layer.")
                raise self.baseline.explain(error.within(*where))
            end = primary.removeprefix(name)
            if primary not in (name, f"{name}{end}") or (end and not end.startswith(".")):
                continue
            for arm in self.study.arms:
                if end not in parts[arm.name]:
                    problem = f"arm {arm.name!r} does not measure {self.study.measure.primary!r}: its model has no "
                    problem += f"site {about}" + (f" at {end[1:]}" if end else "")
                    raise arm.explain(UserError(problem, remedy="Use another primary metric, or remove the arm."))

    def check_distinct(self, arm: Arm, new: Computation) -> None:
        """Raise `UserError` if an earlier arm has the same program and numbers."""
        for name, earlier in self.computations.items():
            if name != self.baseline.name and new.same_as(earlier):
                problem = f"arms {name!r} and {arm.name!r} compute the same program with the same numbers"
                raise arm.explain(UserError(problem, remedy="Remove one of these arms."))


@contextmanager
def _tracing(arm: Arm) -> Iterator[None]:
    """While an arm is traced, convert exceptions of plug-ins to `UserError`s that name a location in a file."""
    try:
        with attribute_errors(f"arm {arm.name!r} cannot be traced", iter_components(arm.config)):
            yield
    except UserError as error:
        raise error if error.path[:1] not in ((), ("train",)) else arm.explain(error) from None
