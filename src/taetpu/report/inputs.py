"""What a report shows beside the results."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from taetpu.report.arms import ArmDetails
from taetpu.report.comparison import Costs
from taetpu.report.curves import Curves
from taetpu.report.priors import Priors

Facts = Sequence[tuple[str, str]]
"""Names with values, in the order to show them."""


@dataclass(frozen=True)
class Background:
    """What a report shows beside the results."""

    costs: Costs = field(default_factory=dict)
    curves: Sequence[Curves] = ()
    arms: Sequence[ArmDetails] = ()
    provenance: Facts = ()
    priors: Priors = field(default_factory=dict)
    trained: Sequence[str] = ()
    """What was trained, in sentences."""
    cautions: Sequence[str] = ()
    """What a reader must know besides the results' own notices."""
