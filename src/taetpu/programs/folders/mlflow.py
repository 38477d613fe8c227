"""MLflow: the file store `mlruns`, and the database `mlflow.db` (see `mlflow_database`)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, read_bytes
from taetpu.programs.folders.formats import Format
from taetpu.programs.folders.mlflow_database import RunRow, read_database
from taetpu.programs.folders.tree import Tree, describe_place, printable
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.folders.values import Points, parse_metric, read_yaml
from taetpu.programs.records import Record

META = "meta.yaml"
STATUSES = ("", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
"""The names of the numbers in `meta.yaml`. Source: `RunStatus` in mlflow's service.proto."""
PARENT = "mlflow.parentRunId"
LARGEST_FILE = 2**26
"""The size up to which a parameter or the history of a metric is read, in bytes."""


def recognises(tree: Tree) -> bool:
    """Return whether there is a run of the file store or a database."""
    return bool(_run_folders(tree) or _databases(tree))


def read(tree: Tree, unfinished: UnfinishedRuns) -> list[Record]:
    """Read the runs that are not deleted. Tags are fields whose names begin with `tags.`; MLflow's own are left out."""
    in_files = sorted(_read_files(tree), key=lambda run: run.started)
    runs = [*in_files, *(row for file in _databases(tree) for row in read_database(file))]
    records = []
    for run in runs:
        if run.status != "FINISHED":
            unfinished.add(run.place, run.status)
        tags = {f"tags.{key}": value for key, value in run.tags.items() if not key.startswith("mlflow.")}
        name = run.name or run.tags.get("mlflow.runName") or run.id
        fields = describe_place(tree, run.id, name) | {"name": name, "experiment": run.experiment}
        fields |= {"status": run.status, **({"parent": parent} if (parent := run.tags.get(PARENT)) else {})}
        fields |= tags | run.params
        records.append(Record(printable(f"{run.place}, run {name}"), fields, run.points.metrics, run.points.curves))
    return records


def _databases(tree: Tree) -> list[Path]:
    if list(tree.folders) == [""] and len(tree.folders[""]) == 1 and tree.folders[""][0].endswith((".db", ".sqlite")):
        return [tree.path("", tree.folders[""][0])]
    return [tree.path(folder, "mlflow.db") for folder in tree.with_file("mlflow.db")]


def _run_folders(tree: Tree) -> dict[str, dict[str, list[str]]]:
    """Return the folders of runs, each with the names of its `params`, `metrics` and `tags`."""
    with_meta = set(tree.with_file(META))
    runs: dict[str, dict[str, list[str]]] = {}
    for folder, files in tree.folders.items():
        parts = folder.split("/")
        for i, part in enumerate(parts):
            run = "/".join(parts[:i])
            if part in ("params", "metrics", "tags") and run in with_meta:
                inner = "/".join([*parts[i + 1 :], ""])  # the name `val/loss` is a path
                runs.setdefault(run, {}).setdefault(part, []).extend(f"{inner}{name}" for name in files)
                break
    return runs


def _read_files(tree: Tree) -> Iterator[RunRow]:
    experiments: dict[str, str] = {}
    for folder, values in _run_folders(tree).items():
        file = tree.path(folder, META)
        meta = read_yaml(file, RESTORE)
        identity = meta.get("run_id", meta.get("run_uuid"))
        if identity is None or meta.get("lifecycle_stage") == "deleted":
            continue  # without an ID, it is a model that a run has logged
        above = folder.rpartition("/")[0] if folder else None
        if above is not None and above not in experiments and META in tree.folders.get(above, ()):
            experiments[above] = str(read_yaml(tree.path(above, META), RESTORE).get("name", above))
        params, tags = (
            {name: _read_text(tree.path(f"{folder}/{part}".lstrip("/"), name)) for name in values.get(part, ())}
            for part in ("params", "tags")
        )
        points = Points()
        for name in values.get("metrics", ()):
            for step, value in _read_metric(tree.path(f"{folder}/metrics".lstrip("/"), name)):
                points.add(name, value, step)
        yield RunRow(
            id=str(identity),
            place=tree.path(folder),
            name=str(meta.get("run_name") or ""),
            experiment=experiments.get(above or "", ""),
            status=_parse_status(meta, file),
            started=meta["start_time"] if isinstance(meta.get("start_time"), int) else 0,
            params=params,
            tags=tags,
            points=points,
        )


def _parse_status(meta: Mapping[str, Any], file: Path) -> str:
    status = meta.get("status")
    if not isinstance(status, int) or not 0 < status < len(STATUSES):
        problem = f"status must be a number from 1 to {len(STATUSES) - 1}, got {status!r}"
        raise UserError(problem, path=("status",), file=file, remedy=RESTORE)
    return STATUSES[status]


def _read_text(file: Path) -> str:
    try:
        return read_bytes(file, RESTORE, LARGEST_FILE).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8: {error}", file=file, remedy=RESTORE) from None


def _read_metric(file: Path) -> list[tuple[int, float]]:
    """Return the steps and values of a metric in MLflow's order: by step, then by time.

    A line is `<time> <value> <step>`, followed by a dataset and a model in recent versions; early versions have no
    steps.
    """
    values = []
    for i, line in enumerate(_read_text(file).splitlines()):
        cells = line.split()
        try:
            value = parse_metric(float(cells[1]))
            values.append((int(cells[2]) if len(cells) > 2 else 0, int(cells[0]), i, value))
        except (ValueError, IndexError):
            problem = f"expected a time, a value and a step, got {line!r}"
            raise UserError(problem, file=file, line=i + 1, remedy=RESTORE) from None
    return [(step, value) for step, _, _, value in sorted(values)]


FORMAT = Format("mlflow", "MLflow's folder `mlruns`, or a database `mlflow.db`", recognises, read)
