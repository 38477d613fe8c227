"""Result folders of lm-evaluation-harness: `results_*.json`, and `samples_*.jsonl` with the scores of single items."""

import math
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from taetpu.core.errors import DataWarning, UserError
from taetpu.core.json_files import RESTORE, check_regular, explain_unreadable, read_object
from taetpu.programs.folders.formats import Format
from taetpu.programs.folders.tree import Tree, describe_place, printable
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.folders.values import flatten_settings, parse_metric
from taetpu.programs.records import Record

LARGEST_FILE, LARGEST_SAMPLES = 2**28, 2**32
"""The sizes up to which results and samples are read, in bytes."""
LARGEST_LINE = 2**26
"""The size up to which an item is read, in bytes."""

_RESULTS = re.compile(r"results_.+\.json")


def recognises(tree: Tree) -> bool:
    """Return whether a folder has a `results_*.json`."""
    return any(_RESULTS.fullmatch(name) for files in tree.folders.values() for name in files)


def read(tree: Tree, unfinished: UnfinishedRuns) -> list[Record]:
    """Read each task of each model as a run. If a model was evaluated on a task several times, the newest counts.

    `model` is its name, and `label` is from the results' folder, or from the model's name if only that names a seed. A
    group of tasks with a score of its own is one task. The metric `acc,none` is named `acc`, and `acc,strict` as it is.
    """
    results: dict[tuple[str, str, str], tuple[Path, Mapping[str, Any]]] = {}
    older = []
    for folder, file in _result_files(tree):
        content = read_object(file, RESTORE, LARGEST_FILE)
        model = str(content.get("model_name") or _mapping(content, "config", file).get("model_args") or "")
        for task in _top_tasks(content, file):
            key = (folder, model, task)
            if key in results:
                older.append(results[key][0])
            results[key] = (file, content)
    if older:
        files = sorted({str(file) for file in older})
        shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        problem = f"there are newer results of the same model and task than those in {shown}; the newest count"
        warnings.warn(problem, DataWarning, stacklevel=2)
    return [_read_task(tree, *key, *value) for key, value in results.items()]


def _result_files(tree: Tree) -> Iterator[tuple[str, Path]]:
    """Yield folder and path of each result file, those of a folder from the oldest to the newest."""
    for folder, files in tree.folders.items():
        for name in sorted(files):  # names end in the date
            if _RESULTS.fullmatch(name):
                yield folder, tree.path(folder, name)


def _top_tasks(content: Mapping[str, Any], file: Path) -> list[str]:
    """Return the tasks and the groups with scores, without the tasks of such groups."""
    results, groups = _mapping(content, "results", file), _mapping(content, "group_subtasks", file)
    scored = [task for task in results if _scores(_mapping(results, task, file))]
    inner = {task for group in scored for task in _subtasks(groups, group, file)}
    return [task for task in scored if task not in inner]


def _subtasks(groups: Mapping[str, Any], group: str, file: Path) -> list[str]:
    tasks = groups.get(group) or []
    if not isinstance(tasks, list):
        problem = f"expected a list of tasks, got {type(tasks).__name__}"
        raise UserError(problem, path=("group_subtasks", group), file=file, remedy=RESTORE)
    return [str(task) for task in tasks]


def _mapping(content: Mapping[str, Any], key: str, file: Path) -> Mapping[str, Any]:
    value = content.get(key, {})
    if not isinstance(value, Mapping):
        raise UserError(f"expected an object, got {type(value).__name__}", path=(key,), file=file, remedy=RESTORE)
    return value


def _scores(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores by metric. Their keys are `<metric>,<filter>`; early versions have no filters."""
    scores = {}
    for key, value in result.items():
        if key not in ("sample_len", "samples") and (number := parse_metric(value)) is not None:
            scores[_metric_name(*key.partition(",")[::2])] = number
    return scores


def _metric_name(metric: str, chosen: str) -> str:
    return metric if chosen in ("", "none") else f"{metric},{chosen}"


def _read_task(tree: Tree, folder: str, model: str, task: str, file: Path, content: Mapping[str, Any]) -> Record:
    scores = _scores(content["results"][task])
    fields = describe_place(tree, folder)
    if "seed" not in fields:
        fields |= describe_place(tree, folder, model)
    fields |= {"model": model, "task": task}
    shots = _mapping(content, "n-shot", file).get(task)
    fields |= {"num_fewshot": shots} if isinstance(shots, int) else {}
    settings = flatten_settings(_mapping(content, "config", file), file)
    fields |= {f"config.{key}": value for key, value in settings.items()}
    metrics = {name: value if math.isfinite(value) else None for name, value in scores.items()}
    return Record(
        printable(f"{file}, task {task}"), fields, metrics, items=_read_items(tree, folder, task, file, content)
    )


def _read_items(
    tree: Tree, folder: str, task: str, file: Path, content: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Return the scores of single items by metric, of a group with the names of its tasks before those of the items."""
    subtasks = _subtasks(_mapping(content, "group_subtasks", file), task, file)
    date = file.stem.removeprefix("results_")
    items: dict[str, dict[str, float]] = {}
    for part in subtasks or [task]:
        for name in sorted({f"samples_{text}_{date}.jsonl" for text in (part, re.sub(r"\W", "_", part))}):
            if name in tree.folders[folder]:
                for item, metric, score in _read_samples(tree.path(folder, name)):
                    items.setdefault(metric, {})[f"{part}/{item}" if subtasks else item] = score
    return items


def _read_samples(file: Path) -> Iterator[tuple[str, str, float]]:
    """Yield item, metric and score. Scores that are not numbers, such as the sums behind a perplexity, are skipped."""
    check_regular(file, RESTORE, LARGEST_SAMPLES)
    with explain_unreadable(file), file.open("rb") as opened:
        line = 0
        while data := opened.readline(LARGEST_LINE):
            line += 1
            try:
                sample = from_json(data)
                metrics, chosen, item = sample["metrics"], sample.get("filter", "none"), str(sample["doc_id"])
                scores = {metric: sample.get(metric) for metric in metrics}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                problem = f"expected a JSON object with doc_id and metrics: {error}"
                raise UserError(problem, file=file, line=line, remedy=RESTORE) from None
            for metric, score in scores.items():
                number = float(score) if isinstance(score, bool) else parse_metric(score)
                if number is not None and math.isfinite(number):
                    yield item, _metric_name(metric, chosen), number


FORMAT = Format("lm-eval", "lm-evaluation-harness's folders, with `results_*.json`", recognises, read)
