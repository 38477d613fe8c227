"""`taetpu data`: the data of a study, before anything is trained, and the corpora that are kept in the cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from taetpu.cli.cloud_common import confirm
from taetpu.cli.options import AsJson, Sets, StudyFile, Yes
from taetpu.cli.output import log, plural, print_json, print_table, print_text
from taetpu.core.errors import UserError

SHOWN = 3
"""Number of sequences that `show` prints by default."""

app = typer.Typer(help="Show and prepare the data of studies.\n\nExample: taetpu data show study.yaml")


def _tasks(study: Path, sets: list[str] | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield each different task of a study: the arms that have it, its config and its prepared source."""
    from taetpu.study.loading import load_study

    loaded = load_study(study, sets or [])
    arms: dict[int, list[str]] = {}
    sources = {}
    for arm in loaded.arms:
        source = loaded.source(arm)
        arms.setdefault(id(source), []).append(arm.name)
        sources[id(source)] = arm.config, source
    for number, (config, source) in sources.items():
        yield ", ".join(arms[number]), config, source


@app.command("prepare")
def prepare(study: StudyFile, sets: Sets = None) -> None:
    """Read and tokenize the data of a study.

    Example: taetpu data prepare study.yaml
    """
    for arms, _, source in _tasks(study, sets):
        windows = "generated" if source.num_windows is None else plural(source.num_windows, "window")
        print_text(f"{arms}: {windows} of {source.seq_len} tokens, {source.vocab_size} different ones")


@app.command("stats")
def stats(study: StudyFile, sets: Sets = None, as_json: AsJson = False) -> None:
    """Show documents, tokens and the overlap of the splits.

    Example: taetpu data stats study.yaml
    """
    from taetpu.data.mixture import facts_of_run

    known = {}
    for arms, config, source in _tasks(study, sets):
        windows = config.train.total_steps(source.num_windows) * config.train.batch_size
        known[arms] = {**source.facts, **facts_of_run(source, 0, windows)}
    if as_json:
        print_json(known)
        return
    for arms, facts in known.items():
        print_text(arms)
        print_table([{"fact": name, "value": text} for name, text in _lines(facts)])


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield facts as names and texts; those of splits in one line."""
    for name, value in facts.items():
        if isinstance(value, dict) and all(not isinstance(part, dict) for part in value.values()):
            parts = [f"{split} {_figure(part)}" for split, part in value.items() if part is not None]
            yield name, ", ".join(parts) or "none"
        elif not isinstance(value, dict):
            yield name, _figure(value)
        elif name == "mixture":
            for source, read in value.items():
                yield source, ", ".join(f"{what} {_figure(part)}" for what, part in read.items())
    tokens, sizes = facts.get("tokens"), facts.get("bytes")
    if tokens and sizes:
        tokens = {**tokens, **facts.get("uncropped", {})}  # sizes are those of the whole text
        ratios = {split: sizes[split] / tokens[split] for split in tokens if tokens[split]}
        yield "bytes per token", ", ".join(f"{split} {ratio:.3g}" for split, ratio in ratios.items())


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@app.command("show")
def show(
    study: StudyFile,
    sets: Sets = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of sequences.")] = SHOWN,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the run whose first batch is shown.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the first sequences that a run trains.

    Example: taetpu data show study.yaml --count 2
    """
    shown = {arms: _sequences(config, source, count, seed) for arms, config, source in _tasks(study, sets)}
    if as_json:
        print_json(shown)
        return
    for arms, rows in shown.items():
        print_text(arms)
        for number, row in enumerate(rows, 1):
            print_text(f"{number}. {row['text']!r}", hanging=3)
            if "second_text" in row:
                print_text(f"   {row['second_text']!r}", hanging=3)
            scored = f"   targets with weight: {row['scored']} of {row['tokens']}"
            if "targets" in row:
                scored += f": {' '.join(map(repr, row['targets']))}"
            if "prefix" in row:
                scored += f", after a prefix of {row['prefix']} tokens"
            borders = f"; documents begin at {', '.join(map(str, row['documents']))}" if row["documents"] else ""
            source = f"; from {row['source']}" if "source" in row else ""
            labels = f"; labels: {', '.join(map(str, row['labels']))}" if "labels" in row else ""
            print_text(f"{scored}{labels}{borders}{source}", hanging=3)


def _sequences(config: Any, source: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the first sequences of the first batch of a run."""
    import numpy as np

    from taetpu.core.keys import named, root_key
    from taetpu.data.base import read_windows
    from taetpu.optim.objectives import default_objective

    size = config.train.batch_size
    windows = source.rows(seed, 0, 1, size)[0]
    arrays, rows = read_windows(source, windows)
    batch = source.batch(arrays, rows, named(root_key(seed), "data", 0))
    sequences = []
    for i in range(min(count, size)):
        tokens, segments = np.asarray(batch.tokens[i]), batch.segments
        borders = [] if segments is None else (np.flatnonzero(np.diff(np.asarray(segments[i]))) + 1).tolist()
        scored = np.asarray(batch.weights[i]) > 0
        if batch.lengths is not None:
            tokens = tokens[: int(batch.lengths[i])]
        readable = source.interface.is_language_model or source.tokenizer is not None
        text = source.show(tokens) if readable else np.array2string(tokens, threshold=20)
        sequences.append({"text": text, "tokens": len(tokens), "scored": int(scored.sum()), "documents": borders})
        if config.task.batch.prefix:
            sequences[-1]["prefix"] = int(batch.prefix[i])
        elif default_objective(config.task).of_text and not config.task.causal:
            sequences[-1]["targets"] = [source.show([t]) for t in np.asarray(batch.targets[i])[scored]]
        if source.interface.labels or config.task.batch.real_targets:
            targets, names = np.asarray(batch.targets[i])[scored].tolist(), source.interface.labels
            sequences[-1]["labels"] = [names[target] for target in targets] if names else targets
        if batch.second is not None:
            sequences[-1]["second_text"] = source.show(np.asarray(batch.second[i])[: int(batch.second_lengths[i])])
        if source.mixture is not None:
            sequences[-1]["source"] = source.mixture.source_of(windows[i])
    return sequences


@app.command("list")
def list_corpora(as_json: AsJson = False) -> None:
    """List tokens and downloads that are kept in the cache.

    Example: taetpu data list
    """
    from taetpu.data.remote.sources import list_downloads
    from taetpu.data.token_cache import SPLITS, list_prepared

    rows = [*list_prepared(), *list_downloads()]
    if as_json:
        print_json(rows)
    elif rows:
        columns = ("name", "complete", *SPLITS, "bytes")
        print_table([{column: row.get(column) for column in columns} for row in rows])
    else:
        log("no corpus is kept in the cache")


@app.command("clean")
def clean(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Corpora, as `data list` names them.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete tokens and downloads from the cache.

    Tokens of all corpora by default, and downloads by name only. They are made again when they are needed.

    Example: taetpu data clean --yes
    """
    from taetpu.data.remote.sources import delete_download, list_downloads
    from taetpu.data.token_cache import delete_prepared, list_prepared

    prepared, downloads = ([row["name"] for row in rows] for rows in (list_prepared(), list_downloads()))
    known = [*prepared, *downloads]
    for name in names or ():
        if name not in known:
            remedy = f"Use one of: {', '.join(known)}." if known else "The cache has no corpora."
            raise UserError(f"the cache has no corpus {name!r}", remedy=remedy)
    chosen = names or prepared
    if chosen and confirm(f"delete {', '.join(chosen)}", f"Delete {_corpora(len(chosen))}?", yes=yes):
        for name in chosen:
            (delete_download if name in downloads else delete_prepared)(name)
        log(f"deleted {_corpora(len(chosen))}")


def _corpora(count: int) -> str:
    return "1 corpus" if count == 1 else f"{count} corpora"
