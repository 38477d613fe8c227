"""Tables of the pages about TPUs, from the data of `taetpu chips`: `python -m tests.docs.tpu_tables --write`.

A table begins after `<!-- table: NAME -->` and ends before `<!-- end -->`.
"""

import re
import sys
from pathlib import Path

from taetpu.core.chips import Chip, generations

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tpu-basics.md", "tpu-access.md")
UNKNOWN = "unknown"


def generation_rows() -> list[tuple[object, ...]]:
    def row(chip: Chip) -> tuple[object, ...]:
        first, last = chip.slices()[0].name, chip.slices()[-1].name.rpartition("-")[2]
        units = f"{chip.mxus_per_core * chip.cores_per_chip} of {chip.mxu_size} x {chip.mxu_size}"
        flops, memory = f"{chip.bf16_flops / 1e12:.0f}", f"{chip.hbm_bytes / 2**30:.0f}"
        return chip.name, f"`{first}` to {last}", chip.counts, chip.devices_per_chip, flops, memory, units

    return [row(chip) for chip in generations()]


def host_rows() -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for chip in generations():
        runtime = f"`{chip.runtime}`" if chip.runtime else "not offered by this API"
        sizes = chip.host_sizes or [(chip.multi_host_chips, (UNKNOWN, UNKNOWN))]
        rows += [(chip.name, chips, *size, runtime) for chips, size in sizes]
        if chip.multi_host_size:
            rows.append((f"{chip.name}, larger slices", chip.multi_host_chips, *chip.multi_host_size, runtime))
    return rows


def rate_rows() -> list[tuple[object, ...]]:
    def row(chip: Chip) -> tuple[object, ...]:
        smallest = chip.slices()[0]
        usd = (chip.usd_per_chip_hour(spot=False), chip.usd_per_chip_hour(spot=True), smallest.usd_per_hour(spot=False))
        demand, spot, hour = (UNKNOWN if rate is None else f"{rate:.2f}" for rate in usd)
        return chip.name, demand, spot, f"`{smallest.name}`", hour, ", ".join(chip.zones)

    return [row(chip) for chip in generations()]


TABLES = {"generations": generation_rows, "hosts": host_rows, "rates": rate_rows}


def with_tables(page: str) -> str:
    """Return the page with the rows of its tables."""

    def fill(table: re.Match[str]) -> str:
        rows = "".join(f"| {' | '.join(map(str, row))} |\n" for row in TABLES[table[2]]())
        return f"{table[1]}{rows}\n<!-- end -->"

    return re.sub(r"(<!-- table: (\w+) -->\n\n(?:\|.*\n){2})(?:\|.*\n)*\n<!-- end -->", fill, page)


def main() -> None:
    """Print the pages, or write them with `--write`."""
    for name in PAGES:
        text = with_tables((DOCS / name).read_text())
        (DOCS / name).write_text(text) if "--write" in sys.argv else print(text)


if __name__ == "__main__":
    main()
