"""Inputs of a report besides the results."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from taetpu.report.arms import ArmDetails
from taetpu.report.comparison import Costs
from taetpu.report.curves import Curves
from taetpu.report.priors import Priors

Facts = Sequence[tuple[str, str]]
"""Pairs of name and value in display order."""


@dataclass(frozen=True)
class Background:
    """Inputs of a report besides the results."""

    costs: Costs = field(default_factory=dict)
    curves: Sequence[Curves] = ()
    arms: Sequence[ArmDetails] = ()
    provenance: Facts = ()
    priors: Priors = field(default_factory=dict)
    trained: Sequence[str] = ()
    """Sentences on the training setup."""
    cautions: Sequence[str] = ()
    """Caveats in addition to `summary.notices`."""
