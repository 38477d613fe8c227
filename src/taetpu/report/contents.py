"""Order of the report's sections."""

from taetpu.report import designs, priors, sections
from taetpu.report.comparison import Costs, Results
from taetpu.report.priors import NO_PRIORS, Priors
from taetpu.report.sections import Section


def build_sections(results: Results, costs: Costs, found_elsewhere: Priors = NO_PRIORS) -> list[Section]:
    """Return all sections that follow the verdicts in the report, in order."""
    found = [
        sections.limits_section(results),
        sections.costs_section(results, costs),
        *designs.design_sections(results),
        sections.matching_section(results),
        priors.priors_section(results, found_elsewhere),
        sections.divergence_section(results),
        sections.sensitivity_section(results),
        sections.evaluation_noise_section(results),
        sections.efficiency_section(results),
        sections.plan_section(results),
        sections.reading_section(results),
    ]
    return [section for section in found if section is not None]
