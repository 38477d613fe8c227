"""Where the runs of a study come from: a table, a program of the user, or other studies."""

from collections.abc import Mapping
from typing import Any

from taetpu.stats.results import JudgedTable, Results, Reused
from taetpu.stats.results_table import Table
from taetpu.store.frozen_study import FrozenStudy, SourceTable


def add_origin(results: Results, study: FrozenStudy, table: Table) -> None:
    """Add the table or the program that the runs come from to the results."""
    if "judged" in study:
        results["judged"] = _judged_table(study["judged"], study, table)
    if "program" in study:
        files, data = study.get("files", {}), study.get("data", "")
        results["program"] = {"command": study["program"]["command"], "inputs": len(files), "data": data}


def _judged_table(source: SourceTable, study: FrozenStudy, table: Table) -> JudgedTable:
    """Return what is known of the table from which a study was made. Its path depends on the machine."""
    missing = {arm: [cell.seed for cell in row if cell.outcome == "missing"] for arm, row in table.cells.items()}
    known: JudgedTable = {**source, "missing": {arm: seeds for arm, seeds in missing.items() if seeds}}
    known.pop("path", None)
    if "blocks" in study:
        known["blocks"] = study["blocks"]
    if table.stratum:
        known["stratum_of"] = {str(seed): number for seed, number in table.stratum.items()}
    return known


def count_reused(table: Table, audit: Mapping[str, Any]) -> Reused:
    """Return the number of reused runs and the number of reused runs that an audit replicated."""
    taken = {(arm, cell.seed) for arm, row in table.cells.items() for cell in row if cell.run and cell.run.origin()}
    proved = {(arm, seed) for arm, seed in audit.get("proved", ())}
    return {"runs": len(taken), "audited": len(taken & proved)}
