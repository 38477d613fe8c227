"""Post-hoc ablation tables of a study: how much the loss of each trained model rises without each part.

After training, the process that analyses the study computes the tables that finished runs lack. Each table is stored in
its run's folder as soon as it is computed, so a repeated command computes only the missing ones. Runs whose models
have the same config share compiled programs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from taetpu.core.config import to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, change_errors, check_known, errors_at, locate_errors
from taetpu.core.identity import canonical_json
from taetpu.data.base import Source, Split
from taetpu.lens.ablation.components import Components, find_components
from taetpu.lens.ablation.documents import check_documents, split_documents
from taetpu.lens.ablation.knockout import check_traceable, mean_effects
from taetpu.lens.ablation.replacements import Method
from taetpu.lens.opened import OpenedModel
from taetpu.lens.opening import open_run_folder
from taetpu.spec.post_hoc import PostHocConfig
from taetpu.spec.resolved_study import Arm, Sources, Study
from taetpu.spec.study_config import ResolvedConfig
from taetpu.stats.load import COMPLETED, read_config, read_result, read_study
from taetpu.store.backend import move_to_damaged
from taetpu.store.digests import Damaged
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.callbacks import Callback
from taetpu.train.model_cost import model_shapes

# --- before training --------------------------------------------------------------------------------------------------


def check_tables(study: Study) -> None:
    """Raise `UserError` unless each post-hoc table can be computed for all baselines.

    An arm may lack the parts: then the results say so. Only shapes are computed.
    """
    for number, table in enumerate(study.measure.post_hoc):
        for name in dict.fromkeys(study.against(arm).name for arm in study.arms):
            baseline = next(arm for arm in study.arms if arm.name == name)
            with change_errors(study.document.locate), locate_errors("measure", "post_hoc", number):
                components_of(baseline.config, study.source(baseline), table)


def components_of(config: ResolvedConfig, source: Source, table: PostHocConfig) -> Components:
    """Return the parts that a table removes from a model of a config, from shapes only.

    Raises:
        UserError: if the model has no such parts, their activations cannot be replaced as the table says, or the task
            has no such evaluation set. The error's path is relative to the table.
    """
    split, components = _split(config, source, table), list[Components]()

    def trace(model: Any) -> int:
        opened = OpenedModel(model, config.model, source.interface, source.seq_len, None)
        components.append(_find(opened, table))
        try:
            check_traceable(opened, components[0], split.segments is not None)
        except UserError as error:
            problem = f"{table.knockout} cannot be removed: {error.problem}"
            raise UserError(problem, path=("knockout",), remedy="Use another kind of part, e.g. mixers.") from None
        return 0

    jax.eval_shape(trace, model_shapes(config.model, source.interface, source.seq_len))
    return components[0]


def _split(config: ResolvedConfig, source: Source, table: PostHocConfig) -> Split:
    """Return the evaluation set of a table.

    Raises:
        UserError: if the task has no such evaluation set, or its windows are not documents of tokens.
    """
    sets = {name: source.evaluation(name) for name in config.task.evaluation_sets}
    known = {name: split for name, split in sets.items() if split is not None}
    check_known(table.split, known, f"the task has no evaluation set {table.split!r}", path=("split",))
    with locate_errors("split"):
        check_documents(known[table.split])
    return known[table.split]


def _find(opened: OpenedModel, table: PostHocConfig) -> Components:
    """Return the parts that a table removes from a model.

    Raises:
        UserError: if the model has no such parts, or their activations cannot be replaced as the table says.
    """
    with errors_at("knockout"):
        components = find_components(opened, table.knockout)
    if table.how != "zero":
        components.position_axes()
    return components


def count_components(study: Study) -> dict[str, dict[str, int]]:
    """Return the number of parts that each table removes, by the name of the table and the arm; 0 without such parts.

    Raises:
        UserError: if the task of an arm cannot be prepared.
    """
    counts: dict[tuple[str, str], int] = {}  # arms often have equal models

    def count(arm: Arm, table: PostHocConfig) -> int:
        key = table.name, canonical_json({"model": to_data(arm.config.model), "task": to_data(arm.config.task)})
        if key not in counts:
            try:
                counts[key] = len(components_of(arm.config, study.source(arm), table))
            except UserError:
                counts[key] = 0
        return counts[key]

    return {table.name: {arm.name: count(arm, table) for arm in study.arms} for table in study.measure.post_hoc}


# --- after training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailedTable:
    """A table that could not be computed.

    Attributes:
        run: The folder of the run.
        name: The name of the table.
        error: The error.
    """

    run: RunFolder
    name: str
    error: Exception


def compute_tables(study: Study, folder: StudyFolder, callback: Callback) -> list[FailedTable]:
    """Compute and store the tables that finished runs of a study lack, and return those that failed.

    A damaged table, or one with other settings than its name says, is computed again.

    Args:
        study: The study. Tasks are prepared relative to its folder.
        folder: The study's folder, in which the study is frozen.
        callback: Receives the progress, damaged tables and failures.
    """
    missing = list(_missing_tables(folder, callback))
    if not missing:
        return []
    failed, computer = list[FailedTable](), TableComputer(study.sources)
    callback.on_tables(0, len(missing))
    for number, (run, name, table) in enumerate(missing):
        try:
            run.write_post_hoc(name, computer.compute(run, table))
        except Exception as error:  # the other tables and the results do not depend on this one
            failed.append(FailedTable(run, name, error))
            callback.on_table_failed(run.where, name, error)
        callback.on_tables(number + 1, len(missing))
    return failed


def _missing_tables(folder: StudyFolder, callback: Callback) -> Iterator[tuple[RunFolder, str, PostHocConfig]]:
    """Yield the runs that lack a table, arm by arm, so that neighbours share compiled programs."""
    frozen = read_study(folder)
    tables = {name: load_config(PostHocConfig, data) for name, data in frozen.get("post_hoc", {}).items()}
    if not tables:
        return
    for run in folder.runs():
        if run.arm not in frozen["arms"] or run.seed not in frozen["seeds"] or run.status() != "done":
            continue
        if (read_result(run) or {}).get("outcome") not in COMPLETED:
            continue
        for name, table in tables.items():
            if not _is_stored(run, name, table, callback):
                yield run, name, table


def _is_stored(run: RunFolder, name: str, table: PostHocConfig, callback: Callback) -> bool:
    """Return whether a run has a table with the right settings. A damaged table is moved away."""
    try:
        stored = run.read_post_hoc(name)
    except Damaged as error:
        key = run.post_hoc_key(name)
        callback.on_damage(run.store.where(key), error.problem, move_to_damaged(run.store, run.study, key))
        return False
    return stored is not None and stored.get("settings") == to_data(table)


class TableComputer:
    """Computes tables. Neighbouring runs whose models have the same config share compiled programs.

    Args:
        sources: The prepared tasks of the study.
    """

    def __init__(self, sources: Sources):
        self.sources = sources
        self.model: tuple[str, OpenedModel] | None = None  # the first of a config

    def compute(self, run: RunFolder, table: PostHocConfig) -> dict[str, Any]:
        """Return the table of a run, as `RunFolder.write_post_hoc` stores it.

        Returns:
            `settings`; `unit` (the tokens of the task); `loss` of the intact model, in nats per target; the number of
            `documents`; and for each part its name (`components`), its layer (`layers`, null outside the layers) and
            the rise of the loss without it (`effects`). If the model has no such parts, only `settings` and the reason,
            `absent`.

        Raises:
            UserError: if the run's model or data cannot be read.
        """
        about = read_config(run)
        config = load_config(ResolvedConfig, about["config"])
        source = self.sources.prepare(config)
        if about.get("data", source.fingerprint) != source.fingerprint:
            problem = "the task's data differs from the data that this run was trained on"
            raise UserError(problem, file=run.where, remedy="Restore the data.")
        opened, settings = self._open(run), to_data(table)
        try:
            components, split = _find(opened, table), _split(config, source, table)
        except UserError as error:
            return {"settings": settings, "absent": error.problem}
        documents, method = split_documents(split, table.documents), Method(table.how, seed=table.seed)
        loss, effects = mean_effects(opened, documents, components, method)
        return {
            "settings": settings,
            "unit": source.unit,
            "loss": loss,
            "documents": len(documents),
            "components": [component.name for component in components.each],
            "layers": [component.layer for component in components.each],
            "effects": effects.tolist(),
        }

    def _open(self, run: RunFolder) -> OpenedModel:
        opened = open_run_folder(run)
        key = canonical_json({"model": to_data(opened.config), "sizes": [opened.vocab_size, opened.seq_len]})
        if self.model is None or self.model[0] != key:
            self.model = key, opened
        return opened.with_programs_of(self.model[1])
