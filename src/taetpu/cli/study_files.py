"""The files that a study consists of, and whether it is finished: for running it on another machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taetpu.spec.resolved_study import Study
    from taetpu.store.backend import Store

MORE = {"--until-resolved", "--reuse", "--profile", "--dump"}
"""Options that may ask for more than the study file does."""


def study_files(study: "Study", file: Path) -> list[Path]:
    """Return the study file, its plug-ins and its texts."""
    texts = [study.folder / source for source in sorted(_sources(study))]
    return [path.resolve() for path in (file, *(Path(plugin.file) for plugin in study.plugins), *texts)]


def check_paths(study: "Study") -> None:
    """Refuse absolute paths: another machine has other folders.

    Raises:
        UserError: a plug-in or a text is named by one.
    """
    from taetpu.core.errors import UserError

    for name in sorted({*_sources(study), *study.document.data.get("plugins", [])}):
        if name.startswith(("/", "~")):
            remedy = "Name it relative to the study file's folder; files are copied with their relative places."
            raise UserError(f"{name!r} is an absolute path", file=study.file, remedy=remedy)


def finished(store: "Store", study: "Study", words: Sequence[str]) -> bool:
    """Return whether all runs of a study are stored and its report is newer than they are."""
    from taetpu.store.study import StudyFolder

    folder, page = StudyFolder(store, study.name), f"{study.name}/report/index.html"
    if study.tune or study.match or not MORE.isdisjoint(words) or not store.exists(page):
        return False
    results = [f"{folder.run(run.arm, run.seed, run.id).key}/result.json" for run in study.runs()]
    return all(store.exists(key) and store.modified(key) <= store.modified(page) for key in results)


def _sources(study: "Study") -> set[str]:
    from taetpu.data.corpora import PYTHON_DOCS

    named = {getattr(run.config.task, "source", None) for run in study.runs()}
    return {source for source in named if source is not None and source != PYTHON_DOCS}
