"""The runs of a source that are judged: those that satisfy conditions on their fields."""

import re
from collections.abc import Sequence

from taetpu.core.errors import UserError, suggest
from taetpu.judging.cells import format_cell, parse_setting
from taetpu.programs.records import Record
from taetpu.store.run_filter import OPERATORS, Condition, parse_condition

SHOWN_VALUES = 6
"""The maximum number of a field's values that a message lists."""


def select_records(records: Sequence[Record], conditions: Sequence[str], source: str) -> list[Record]:
    """Return the rows or runs that satisfy all conditions.

    Args:
        records: the rows or runs.
        conditions: conditions such as `experiment=first` or `lr<=0.1`. A run without the field satisfies none.
        source: the name of the table or folder, for messages.

    Raises:
        UserError: If a condition is invalid, or no run has its field or satisfies it.
    """
    selected = list(records)
    for text in conditions:
        condition = _parse(text, records, source)
        values = [parse_setting(record.fields.get(condition.path)) for record in selected]
        selected = [
            record
            for record, value in zip(selected, values, strict=True)
            if value is not None and condition.holds({condition.path: value})
        ]
        if not selected:
            distinct = list(dict.fromkeys(format_cell(value) for value in values if value is not None))
            more = f" and {len(distinct) - SHOWN_VALUES} more" if len(distinct) > SHOWN_VALUES else ""
            remedy = f"The values of {condition.path!r} are {', '.join(distinct[:SHOWN_VALUES])}{more}."
            raise UserError(f"no run satisfies {text!r}", path=("--where",), file=source, remedy=remedy)
    return selected


def _parse(text: str, records: Sequence[Record], source: str) -> Condition:
    """Return a condition. Names of fields may contain anything, so they are sought in the text before operators are."""
    known = dict.fromkeys(name for record in records for name in record.fields)
    operators = "|".join(map(re.escape, sorted(OPERATORS, key=len, reverse=True)))
    for name in sorted(known, key=len, reverse=True):
        if match := re.fullmatch(rf"\s*{re.escape(name)}\s*({operators})\s*(.+)", text):
            parse_condition(f"field{match[1]}{match[2]}")  # the value suits the operator
            return Condition(name, match[1], match[2].strip())
    name = parse_condition(text).path
    raise UserError(f"there is no column {name!r}", path=("--where",), file=source, remedy=suggest(name, known))
