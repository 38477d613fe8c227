"""The number of forward passes that a computation takes, and their time."""

import time
from collections.abc import Callable

from taetpu.core.errors import UserError
from taetpu.lens.ablation.components import Components
from taetpu.lens.ablation.documents import Documents
from taetpu.lens.ablation.replacements import Method, check_counterparts, check_method, zeros
from taetpu.lens.ablation.sweep import CONDITIONS, Replacement, read_intact, sweep
from taetpu.lens.opened import OpenedModel
from taetpu.stats import formatting

MOST_PASSES = 100_000
"""The maximum number of forward passes over batches of documents that pairs or a greedy search may take."""
GRADIENT = 3
"""The number of passes that take about as long as a pass with its gradient."""
TIMED = 100
"""The minimum number of passes that are timed: fewer often take less time than compiling one of them."""
LONG = 10.0
"""The time in seconds from which it is reported before a computation starts."""


def check_passes(
    opened: OpenedModel,
    documents: Documents,
    components: Components,
    method: Method,
    what: str,
    sets: int,
    *,
    programs: int = 1,
    limited: bool = True,
    report: Callable[[str], None] | None = None,
) -> None:
    """Check the method of a computation, count its passes, with those that fit constants, and report a long time.

    Args:
        opened: The model.
        documents: The documents.
        components: The components.
        method: How activations are replaced.
        what: The computation, for messages.
        sets: The number of passes over all documents, such as the number of sets whose losses are computed.
        programs: The number of programs that are compiled.
        limited: Whether the number of passes is limited.
        report: A function that is called with a line before a long computation.

    Raises:
        UserError: if the method does not fit or changes nothing, or if a limited computation takes more than
            `MOST_PASSES` passes.
    """
    check_method(method, documents, components)
    check_counterparts(method, documents)
    batches = sum(1 for _ in documents.batches())
    passes = sets * batches * (method.draws if method.how in ("resample", "noise") else 1)
    if method.how == "optimal":
        reference = sum(1 for _ in (method.reference or documents).batches())
        passes += GRADIENT * len(components) * (method.steps + 2) * reference
    refused = limited and passes > MOST_PASSES
    if not refused and (report is None or passes < TIMED):
        return
    compilation, each = time_pass(opened, documents, components)
    duration = passes * each + programs * compilation
    text = f"{what} takes {passes:,} passes over batches of documents, about {formatting.seconds(duration)}"
    if refused:
        remedy = "Choose a layer (--layer), larger components, or fewer documents."
        raise UserError(f"{text}, and at most {MOST_PASSES:,} are computed", path=("what",), remedy=remedy)
    if report is not None and duration > LONG:
        report(text)


def time_pass(opened: OpenedModel, documents: Documents, components: Components) -> tuple[float, float]:
    """Return the seconds of compilation, and those of a pass over the first batch without one component."""
    batch = next(documents.batches())
    intact, replacement = read_intact(opened, batch, CONDITIONS[0]), Replacement(zeros(components))
    times = []
    for _ in range(2):
        start = time.perf_counter()
        sweep(opened, batch, components, [(len(components) // 2,)], replacement, intact)
        times.append(time.perf_counter() - start)
    return max(0.0, times[0] - times[1]), times[1]
