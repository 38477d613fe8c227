"""All sections of a report behind its verdicts, in order."""

from taetpu.report import designs, priors, sections
from taetpu.report.comparison import Costs, Results
from taetpu.report.priors import NONE, Priors
from taetpu.report.sections import Section


def parts(results: Results, costs: Costs, found_elsewhere: Priors = NONE) -> list[Section]:
    """What there is to say of this study: costs, designs, and the checks on its verdicts."""
    found = [
        sections.limits(results),
        sections.costs(results, costs),
        *designs.sections(results),
        sections.matching(results),
        priors.section(results, found_elsewhere),
        sections.divergence(results),
        sections.sensitivity(results),
        sections.evaluation_noise(results),
        sections.efficiency(results),
        sections.plan(results),
        sections.reading(results),
    ]
    return [section for section in found if section is not None]
