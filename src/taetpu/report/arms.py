"""Details of each arm: changed settings, results of its runs, and a sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.report import summary
from taetpu.report.comparison import Results, baseline_of
from taetpu.report.sections import Table
from taetpu.stats import formatting
from taetpu.store.runs import RunFolder
from taetpu.store.settings import differing_paths, format_value, read_settings
from taetpu.store.study import StudyFolder

SAMPLE_CHARACTERS = 600
MAX_VALUE = 60
"""Characters shown of a setting's value."""


@dataclass(frozen=True)
class Sample:
    """Text that a run generated."""

    seed: int
    step: int
    text: str


@dataclass(frozen=True)
class ArmDetails:
    """Details of one arm.

    Attributes:
        name: the arm's name.
        anchor: the target of links to these details.
        against: the arm that it is compared with.
        verdict: see `summary.verdict_label`.
        evidence: the evidence for the verdict.
        change: settings that differ from its baseline's; all settings for the baseline.
        runs: a row for each seed.
        sample: the last sample of its first run that has any.
    """

    name: str
    anchor: str
    against: str | None
    verdict: str
    evidence: str
    change: Table
    runs: Table
    sample: Sample | None


def anchor(results: Results, arm: str) -> str:
    """Return the anchor of an arm's details. It uses the arm's index, since names may contain any character."""
    return f"arm-{[found['name'] for found in results['arms']].index(arm)}"


def arm_details(folder: StudyFolder, results: Results) -> list[ArmDetails]:
    """Return the details of every arm of a study."""
    folders = {
        arm["name"]: [folder.run(arm["name"], run["seed"], run["id"]) for run in arm["runs"] if run["id"]]
        for arm in results["arms"]
    }
    configs = {name: read_settings(runs[0]) for name, runs in folders.items() if runs}
    return [_details(arm, results, folders, configs) for arm in results["arms"]]


def first_settings(folder: StudyFolder, arm: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of an arm's first run; empty if none was started."""
    begun = (folder.run(arm["name"], run["seed"], run["id"]) for run in arm["runs"] if run["id"])
    return next((read_settings(run) for run in begun), {})


def _details(
    arm: Mapping[str, Any],
    results: Results,
    folders: Mapping[str, Sequence[RunFolder]],
    configs: Mapping[str, Mapping[str, Any]],
) -> ArmDetails:
    base, name = baseline_of(results, arm), arm["name"]
    return ArmDetails(
        name,
        anchor(results, name),
        arm["against"],
        summary.verdict_label(arm),
        arm["evidence"],
        change=_settings_table(configs.get(name, {}), configs.get(base["name"], {}), alone=arm is base),
        runs=_runs_table(arm, base, folders[name], results),
        sample=_last_sample(folders[name]),
    )


def _settings_table(ours: Mapping[str, Any], theirs: Mapping[str, Any], alone: bool) -> Table:
    if alone:
        return Table(("setting", "value"), [(path, _shorten_value(value)) for path, value in ours.items()], left=2)
    paths = differing_paths([theirs, ours]) if ours and theirs else []
    lines = [(path, _shorten_value(theirs.get(path)), _shorten_value(ours.get(path))) for path in paths]
    return Table(("setting", "baseline", "this arm"), lines, left=3)


def _shorten_value(value: Any) -> str:
    whole = format_value(value)
    return whole if len(whole) <= MAX_VALUE else f"{whole[: MAX_VALUE - 3]}..."


def _runs_table(arm: Mapping[str, Any], base: Mapping[str, Any], runs: Sequence[RunFolder], results: Results) -> Table:
    """Return the table of an arm's runs, with the difference from the baseline's value on the same seed."""
    places = summary.mean_places(results)
    theirs = {run["seed"]: run["value"] for run in base["runs"]} if arm is not base else {}
    ended = {run.seed: run.result() or {} for run in runs}
    lines = []
    for run in arm["runs"]:
        result, other = ended.get(run["seed"], {}), theirs.get(run["seed"])
        outcome = run["outcome"]
        if result.get("diverged_at") is not None:
            outcome = f"{outcome} at step {result['diverged_at']}"
        both = run["value"] is not None and other is not None
        difference = formatting.number(run["value"] - other if both else None, places, sign=True)
        lines.append((str(run["seed"]), outcome, formatting.number(run["value"], places), difference))
    columns = ("seed", "outcome", results["primary"], "minus baseline")
    kept = 4 if arm is not base else 3
    return Table(columns[:kept], [line[:kept] for line in lines], left=2)


def _last_sample(runs: Sequence[RunFolder]) -> Sample | None:
    """Return the last sample of the first run that has any."""
    for run in runs:
        if samples := run.samples():
            step = max(samples)
            return Sample(run.seed, step, samples[step][:SAMPLE_CHARACTERS])
    return None
