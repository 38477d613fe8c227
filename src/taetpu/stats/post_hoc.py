"""Comparison of arms by their post-hoc ablation tables, over seeds.

A table has the effect of removing each part of a trained model alone: the rise of the loss. Parts have no identity
between seeds: head 2 of one seed is not head 2 of another. Arms are therefore compared by numbers that do not depend on
the order of the parts within a layer (see `measure_table`).

Each number is compared with that of the baseline under the model of `stats.linear_model`. The p-values of all
comparisons of a table are corrected together by Holm's method, separately from other comparisons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from taetpu.core.errors import UserError
from taetpu.stats import linear_model
from taetpu.stats.load import COMPLETED
from taetpu.stats.plan import NoiseModel, Plan
from taetpu.stats.results import PostHoc, Ranks, TableArms, TableComparison
from taetpu.stats.results_table import Cell, Table, sd
from taetpu.stats.verdict import holm
from taetpu.store.documents import DAMAGED
from taetpu.store.frozen_study import FrozenStudy

LARGEST, EFFECTIVE = "largest effect", "effective number"
MAX_RANKS = 32
"""Maximum number of parts of a layer in the picture of an arm."""


@dataclass(frozen=True)
class Effects:
    """The table of a run.

    Attributes:
        effects: the rise of the loss without each part, in nats per target.
        layers: the layer of each part; None outside the layers.
        unit: the tokens of the task.
        absent: why there are no effects; empty if there are.
    """

    effects: tuple[float, ...] = ()
    layers: tuple[int | None, ...] = ()
    unit: str = ""
    absent: str = ""

    def measures(self) -> dict[str, float]:
        """Return the numbers by which arms are compared; see `measure_table`."""
        return measure_table(self.effects, self.layers)

    def ranked(self) -> dict[int | None, list[float]]:
        """Return the largest effects of each layer, in descending order."""
        return {
            layer: sorted((e for e, at in zip(self.effects, self.layers, strict=True) if at == layer), reverse=True)
            for layer in dict.fromkeys(self.layers)
        }


def measure_table(effects: Sequence[float], layers: Sequence[int | None]) -> dict[str, float]:
    """Return the numbers of a table by which arms are compared.

    - `layer N`: the sum of the effects in a layer.
    - `largest effect`: of a single part.
    - `effective number`: the participation ratio of the positive effects e, `sum(e)^2 / sum(e^2)`. It is n if n parts
      have equal effects and the others none. A table without positive effects has no such number.

    If each layer has one part, the largest effect and the effective number are over layers. A single part has its
    effect as its only number.

    Args:
        effects: the effect of each part.
        layers: the layer of each part; None outside the layers.
    """
    values = np.asarray(effects, float)
    if not len(values) or not np.isfinite(values).all():
        return {}
    measures: dict[str, float] = {}
    for layer in dict.fromkeys(layers):
        if layer is not None:
            measures[f"layer {layer}"] = float(values[[at == layer for at in layers]].sum())
    if measures and len(values) == 1:
        return measures
    measures[LARGEST] = float(values.max())
    positive = np.maximum(values, 0)
    if len(values) > 1 and positive.any():
        positive /= positive.max()  # tiny effects have no squares
        measures[EFFECTIVE] = float(positive.sum() ** 2 / (positive**2).sum())
    return measures


def compare_tables(
    study: FrozenStudy, table: Table, plan: Plan, against: Mapping[str, str], final: bool
) -> list[PostHoc]:
    """Compare arms by each post-hoc ablation table of a study.

    Args:
        study: the frozen study.
        table: the study's runs.
        plan: the analysis plan.
        against: the baseline of each arm that is not a baseline.
        final: whether the results include verdicts.

    Returns:
        An entry for each table.

    Raises:
        UserError: If a stored table is damaged.
    """
    return [
        {
            "name": name,
            **settings,
            "planned": name in plan.post_hoc,
            **compare_arms(
                {arm: _read(row, name, settings) for arm, row in table.cells.items()}, table, plan, against, final
            ),
        }
        for name, settings in study.get("post_hoc", {}).items()
    ]


def _read(row: Sequence[Cell], name: str, settings: Mapping[str, Any]) -> dict[int, Effects]:
    """Return the stored tables of an arm's finished runs, by seed."""
    tables = {}
    for cell in (cell for cell in row if cell.outcome in COMPLETED):
        assert cell.run is not None  # the run finished
        stored = cell.run.read_post_hoc(name)
        if stored is None or stored.get("settings") != dict(settings):
            continue
        try:
            tables[cell.seed] = _parse(stored)
        except (KeyError, TypeError, ValueError):
            problem, file = "the table has no valid effects", cell.run.store.where(cell.run.post_hoc_key(name))
            raise UserError(problem, file=file, remedy=DAMAGED) from None
    return tables


def _parse(stored: Mapping[str, Any]) -> Effects:
    if stored.get("absent"):
        return Effects(absent=str(stored["absent"]))
    effects = tuple(np.nan if effect is None else float(effect) for effect in stored["effects"])
    layers = tuple(None if layer is None else int(layer) for layer in stored["layers"])
    if len(effects) != len(layers):
        raise ValueError("a layer is missing")
    return Effects(effects, layers, str(stored["unit"]))


def compare_arms(
    stored: Mapping[str, Mapping[int, Effects]], table: Table, plan: Plan, against: Mapping[str, str], final: bool
) -> TableArms:
    """Return the comparisons of one table.

    Args:
        stored: the tables of each arm's finished runs, by seed.
        table: the study's runs.
        plan: the analysis plan.
        against: the baseline of each arm that is not a baseline.
        final: whether the results include verdicts.

    Returns:
        The comparisons. They have verdicts if the results do, and no finished run lacks the table.
    """
    units = {
        arm: next((entry.unit for entry in by_seed.values() if not entry.absent), "") for arm, by_seed in stored.items()
    }
    other = {arm for arm, base in against.items() if units[arm] and units[base] and units[arm] != units[base]}
    numbers = {arm: {seed: entry.measures() for seed, entry in by_seed.items()} for arm, by_seed in stored.items()}
    measures = _ordered(chain.from_iterable(by_seed.values() for by_seed in numbers.values()))
    complete = all(len(stored[arm]) == len(table.finished(arm)) for arm in stored)
    seeds = max(len(row) for row in table.cells.values())
    effects = {
        (arm, measure): effect
        for measure in measures
        for arm, effect in _effects(
            {arm: {seed: row[measure] for seed, row in by_seed.items() if measure in row}
             for arm, by_seed in numbers.items() if arm not in other}, against, plan.noise).items()
    }  # fmt: skip
    judged = final and complete
    p = {key: effect.p if judged else None for key, effect in effects.items()}
    corrected = holm({key: None if value is None else plan.overall_p(value, seeds) for key, value in p.items()})
    return {
        "final": judged,
        "compared": sum(value is not None for value in p.values()),
        "measures": measures,
        "arms": [
            {
                "name": arm,
                "against": against.get(arm),
                "tables": sum(not entry.absent for entry in by_seed.values()),
                "finished": len(table.finished(arm)),
                "diverged": len(table.diverged_seeds(arm)),
                "runs": len(table.cells[arm]),
                "absent": _reason(by_seed, arm in other),
                "components": max((len(entry.effects) for entry in by_seed.values()), default=0),
                "values": {
                    measure: {
                        "number": len(values),
                        "mean": float(np.mean(values)) if values else None,
                        "sd": sd(dict(enumerate(values))),
                        **_judge(effects.get((arm, measure)), p.get((arm, measure)), corrected.get((arm, measure)),
                                 plan.alpha if judged and seeds > 1 else None),
                    }
                    for measure in measures
                    for values in [[row[measure] for row in numbers[arm].values() if measure in row]]
                },
                "ranked": _ranked(list(by_seed.values())),
            }
            for arm, by_seed in stored.items()
        ],
    }  # fmt: skip


def _ordered(rows: Any) -> list[str]:
    """Return the names of measures: layers in order, then the others."""
    names = {name for row in rows for name in row}
    layers = sorted((name for name in names if name.startswith("layer ")), key=lambda name: int(name.split()[1]))
    return [*layers, *(name for name in (LARGEST, EFFECTIVE) if name in names)]


def _effects(
    values: Mapping[str, Mapping[int, float]], against: Mapping[str, str], noise: NoiseModel
) -> dict[str, linear_model.Effect]:
    """Return the effect of each arm with values whose baseline has values."""
    effects: dict[str, linear_model.Effect] = {}
    for base in dict.fromkeys(against.values()):
        group = {arm: values[arm] for arm in (base, *(a for a, b in against.items() if b == base)) if values.get(arm)}
        if base in group and len(group) > 1:
            effects |= linear_model.fit_model(group, base, noise=noise).effects
    return effects


def _judge(
    effect: linear_model.Effect | None, p: float | None, p_holm: float | None, alpha: float | None
) -> TableComparison:
    """Return the fields of a comparison. Without `alpha`, it has no verdict."""
    if effect is None:
        return {"effect": None, "ci95": None, "p": None, "p_holm": None, "verdict": None, "guarded": False}
    verdict = None
    if alpha is not None and effect.effect is not None:
        significant = p_holm is not None and p_holm < alpha
        verdict = ("higher" if effect.effect > 0 else "lower") if significant else "inconclusive"
    return {
        "effect": effect.effect, "ci95": effect.interval, "p": p, "p_holm": p_holm,
        "guarded": effect.guarded, "verdict": verdict,
    }  # fmt: skip


def _reason(by_seed: Mapping[int, Effects], other: bool) -> str | None:
    """Return why an arm is not compared; None if it is."""
    if other:
        return "other tokens than the baseline's, so effects per token cannot be compared"
    return next((entry.absent for entry in by_seed.values() if entry.absent), None)


def _ranked(tables: Sequence[Effects]) -> list[Ranks]:
    """Return the effects of each layer in descending order, averaged over runs, at most `MAX_RANKS` of each layer."""
    known = [table.ranked() for table in tables if table.effects and np.isfinite(table.effects).all()]
    if not known or any(ranks.keys() != known[0].keys() for ranks in known):
        return []
    rows = list[Ranks]()
    for layer in known[0]:
        most = min(MAX_RANKS, *(len(ranks[layer]) for ranks in known))
        rows.append({"layer": layer, "effects": np.mean([ranks[layer][:most] for ranks in known], axis=0).tolist()})
    return rows
