"""Arms matched by time: measured when a study is first run, and kept as steps."""

from collections.abc import Callable
from functools import cache

import jax

from taetpu.core.errors import UserError
from taetpu.core.static_dynamic import promoted_fields
from taetpu.spec.resolved_study import Study
from taetpu.stats.load import read_study
from taetpu.store.study import StudyFolder
from taetpu.study.freeze import freeze
from taetpu.study.matching import beside, time_matched, timed
from taetpu.train.callbacks import Callback
from taetpu.train.compute import decide
from taetpu.train.layout import AUTO, Group, Work, auto_precision, rule_of_thumb
from taetpu.train.memory import out_of_memory
from taetpu.train.step_time import measure_step


def in_equal_time(
    study: Study,
    folder: StudyFolder,
    callback: Callback,
    seconds: Callable[[Study, str, Callback], float],
) -> Study:
    """A study with its time-matched arms. Times are measured when an arm is new, and kept in the folder as steps.

    Args:
        seconds: measures a step of an arm, such as `seconds_per_step`.
    """
    known = read_study(folder).get("matching", {}) if folder.exists() else {}

    @cache
    def measured(name: str) -> float:
        return seconds(study, name, callback)

    steps = timed(study, lambda arm: measured(arm.name), known)
    if steps:
        study = beside(study, time_matched(study, steps))
        freeze(study, folder, matching={**known, **steps})
    return study


def seconds_per_step(study: Study, name: str, callback: Callback) -> float:
    """What a step of one run of an arm takes, its runs packed by themselves.

    Raises:
        UserError: it cannot be measured.
    """
    runs = tuple(run for run in study.runs() if run.arm == name)
    config, source = runs[0].config, study.sources.prepare(runs[0].config)
    precision = auto_precision() if config.train.precision == "auto" else config.train.precision
    work = Work(Group(frozenset(promoted_fields(config)), runs), source, precision, decide(config, source, precision))
    callback.on_step_timing(name)
    layout = rule_of_thumb(work, AUTO)
    try:
        return measure_step(work, layout) / layout.width
    except UserError as error:
        raise study.document.locate(error.within("match")) from None
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not out_of_memory(error):
            raise
        problem = f"the steps of arm {name!r} cannot be timed: they need more memory than there is"
        raise study.document.locate(UserError(problem, path=("match",), remedy="Use match: flops.")) from None
