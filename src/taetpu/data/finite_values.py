"""Real targets and inputs that are not finite."""

import numpy as np

from taetpu.core.errors import UserError
from taetpu.data.base import Source, Task


def check_finite(task: Task, source: Source) -> None:
    """Raise `UserError` if a real target or input of an evaluation set, or of a training array, is not finite.

    A target without weight is checked too, because the product of NaN and 0 is NaN. Inputs in padding are not read.
    """
    if not (task.batch.real_targets or source.interface.features):
        return
    arrays = {"training data": source.arrays} if not source.can_gather else {}
    for name in task.evaluation_sets:
        split = source.evaluation(name)
        if split is not None:
            arrays[name] = {"targets": split.targets}
            if split.lengths is None:
                arrays[name]["inputs"] = split.tokens
    for name, values in arrays.items():
        for what, array in values.items():
            if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
                row, *place = (int(index[0]) for index in np.nonzero(~finite))
                where = f"{what} of {name}, row {row}" + (f", position {place[0]}" if place else "")
                problem = f"task {task.kind!r} has {array[(row, *place)]} in {where}"
                raise UserError(problem, remedy="Repair the row, or leave it out in `prepare`.")
