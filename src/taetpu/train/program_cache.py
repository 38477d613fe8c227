"""The compiled program of the last pack, which the next one often shares."""

from taetpu.core.static_dynamic import split
from taetpu.data.batches import Source
from taetpu.train.pack import Program
from taetpu.train.pack_plan import Pack


class ProgramCache:
    """Programs by what they are compiled for. Only the last is kept: programs hold memory on the devices."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}

    def get(self, pack: Pack, source: Source) -> Program:
        """Return the program of a pack; `source` is its prepared task."""
        key, plan = pack.program_key, pack.plan
        if key not in self.programs:
            self.clear()
            structure, _ = split(pack.config, frozenset(plan.live))
            self.programs[key] = Program(
                structure, source, plan.layout, steps=structure.train.total_steps(source.num_windows),
                precision=plan.precision, execution=plan.compute,
            )  # fmt: skip
        return self.programs[key]

    def clear(self) -> None:
        """Free all programs."""
        self.programs.clear()
