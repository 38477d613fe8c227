"""Published findings on the changes made by arms, read from `priors.yaml`."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from taetpu.report import summary
from taetpu.report.section_types import Section, Table
from taetpu.report.summary import baseline_of
from taetpu.stats.arm_changes import value_at
from taetpu.stats.results import Arm, Results
from taetpu.store.documents import from_yaml

REVERSED: Mapping[str, str] = {"better": "worse", "worse": "better"}
SEVERAL = "more than 1"
"""The value in `priors.yaml` that matches any integer above 1."""


@dataclass(frozen=True)
class Prior:
    """Published finding on a change. `found` is `better`, `worse`, `no clear difference` or `mixed`."""

    change: str
    found: str
    what: str
    by: str
    """Authors and years of the sources."""
    sources: str
    """Authors, years, titles and identifiers of the sources, with what was read of them."""
    measured: str
    """What a study of `taetpu gallery` measured on the same change, in two sentences; empty if none did."""


@functools.cache
def read_priors() -> Mapping[str, Any]:
    """Return the content of `priors.yaml`: the `collected` date, the `retest` of many findings and the `entries`."""
    file = files("taetpu.report").joinpath("priors.yaml")
    return from_yaml(file.read_bytes(), str(file))


def find_priors(results: Results, base: Mapping[str, Any]) -> dict[str, Prior]:
    """Return the published findings by arm. Only arms with exactly one change and a known finding are included.

    The settings that `match` changes do not count.

    Args:
        results: the content of `results.json`.
        base: the baseline's config as frozen in the study's folder.
    """
    if base.get("model", {}).get("layers"):
        return {}  # layers differ, so no change replaces the same kind in all layers
    priors = {}
    for arm in results["arms"]:
        against = baseline_of(results, arm)["diff"]
        changes = [(path, value) for path, value in arm["diff"].items() if (path, value) not in against.items()]
        changes = [(path, value) for path, value in changes if path not in arm["role"].get("match", {})]
        if arm["against"] is not None and len(changes) == 1 and (known := _find_prior(*changes[0], against, base)):
            priors[arm["name"]] = known
    return priors


def findings_on(setting: str, kind: str) -> list[str]:
    """Return the published findings on a value of a setting, each as one line.

    Args:
        setting: The path of the setting, e.g. `model.norm`.
        kind: The value.
    """
    return [
        f"{', '.join(map(str, entry['from']))} -> {', '.join(map(str, entry['to']))}: {entry['found']}. "
        f"{entry['what']} {'; '.join(source['by'] for source in entry['sources'])}."
        for entry in read_priors()["entries"]
        if entry["setting"] == setting and kind in (*entry["from"], *entry["to"])
    ]


def _find_prior(path: str, value: Any, against: Mapping[str, Any], base: Mapping[str, Any]) -> Prior | None:
    path = path.removesuffix(".kind")
    old, new = _kind(against.get(path, _kind(value_at(base, path), fields=True))), _kind(value)
    for entry in read_priors()["entries"]:
        if entry["setting"] != path or not _baseline_matches(entry.get("where", {}), base):
            continue
        change = f"{path}: {_as_yaml(old)} -> {_as_yaml(new)}"
        if _matches(old, entry["from"]) and _matches(new, entry["to"]):
            return _make_prior(change, entry, entry["found"])
        if _matches(old, entry["to"]) and _matches(new, entry["from"]):
            return _make_prior(change, entry, REVERSED.get(str(entry["found"]), entry["found"]))
    return None


def _kind(value: Any, fields: bool = False) -> Any:
    """Return a component's kind, or the component itself if it sets other fields and `fields` is False.

    A list or mapping with one component, as in `model.heads`, becomes the kind of this component. None, an empty list
    and an empty mapping become `none`, and other values are returned unchanged.
    """
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
        return _kind(value[0], fields)
    if isinstance(value, Mapping) and "kind" in value:
        return value["kind"] if fields or len(value) == 1 else value
    if isinstance(value, Mapping) and len(value) == 1:
        name, settings = next(iter(value.items()))
        if settings is None or isinstance(settings, Mapping):
            return _kind({"kind": name, **(settings or {})}, fields)
    return "none" if value in (None, [], {}) else value


def _as_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _matches(value: Any, allowed: Sequence[Any]) -> bool:
    return value in allowed or (SEVERAL in allowed and type(value) is int and value > 1)


def _baseline_matches(where: Mapping[str, Sequence[Any]], base: Mapping[str, Any]) -> bool:
    """Return whether the baseline meets the conditions of a finding. Unset values meet any condition."""
    settings = [(value_at(base, path), values) for path, values in where.items()]
    return all(value is None or _kind(value, fields=True) in values for value, values in settings)


def _make_prior(change: str, entry: Mapping[str, Any], finding: str) -> Prior:
    sources = entry["sources"]
    places = [f"{s['by']}, {s['title']}, arXiv {s['arxiv']} ({s['read']})" for s in sources]
    by = "; ".join(source["by"] for source in sources)
    return Prior(change, finding, entry["what"], by, "; ".join(places), _cite_gallery(entry))


def _cite_gallery(entry: Mapping[str, Any]) -> str:
    if "gallery" not in entry:
        return ""
    study, claim, measured = (entry["gallery"][part] for part in ("study", "claim", "measured"))
    return f"Measured at a small scale by `taetpu gallery run {study}`: {claim} This was {measured}."


def priors_section(results: Results, priors: Mapping[str, Prior]) -> Section:
    """Return the section that compares published findings by arm with this study's results."""
    known = [(arm, priors[arm["name"]]) for arm in results["arms"] if arm["name"] in priors]
    rows = [
        [arm["name"], summary.with_arrows(prior.change), prior.found, prior.by, _own_result(arm, results)]
        for arm, prior in known
    ]
    lead = (
        "The table shows the direction of published findings on the same or the closest changes. Models, data and "
        "budgets differ, so the findings neither confirm nor refute the results of this study, and verdicts do not use "
        f"them. {_retest()} The collection is from {read_priors()['collected']} and is not complete."
    )
    notes = dict.fromkeys(f"{prior.what} {prior.sources}. {prior.measured}".strip() for _, prior in known)
    columns = ("arm", "change", "published", "source", "this study")
    return Section("Published findings", lead, [Table(columns, rows, left=5)], notes=list(notes))


def _retest() -> str:
    """Return the finding on published modifications in general, and its source."""
    retest = read_priors()["retest"]
    source = retest["source"]
    return f"{retest['what']} {source['by']}, {source['title']}, arXiv {source['arxiv']}."


def _own_result(arm: Arm, results: Results) -> str:
    verdict = summary.verdict_label(arm)
    return verdict if arm["effect"] is None else f"{verdict}, {summary.format_effect(arm, results)}"
