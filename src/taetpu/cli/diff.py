"""`taetpu plan --diff ARM`: what one arm changes, for people to read."""

from collections.abc import Mapping
from typing import Any

import typer

from taetpu.cli.output import show_table


def show_changes(found: dict[str, Any]) -> None:
    """Print what `study.changes.changes` found."""
    from taetpu.spec.overrides import format_brief

    typer.echo(f"{found['study']}: {found['arm']} against the baseline\n")
    show_table(
        [
            {"config": path, "baseline": format_brief(old), "arm": format_brief(new)}
            for path, (old, new) in found["config"].items()
        ]
    )
    typer.echo("")
    rows = [
        row
        for what in ("added", "removed", "reshaped", "redrawn")
        for row in ({"parameters": what, "": name, "shape": shape} for name, shape in _alike(found[what]))
    ]
    if rows:
        show_table(rows)
        typer.echo("")
    show_table(
        [
            {"": "parameters", **_before_and_after(found["parameters"])},
            {"": "FLOPs/token", **_before_and_after(found["flops_per_token"])},
        ]
    )
    typer.echo("")
    if found["operations"]:
        show_table(
            [{"operation": name, "baseline": old, "arm": new} for name, (old, new) in found["operations"].items()]
        )
    else:
        same = found["program"][0] == found["program"][1]
        typer.echo("the program is the same; " if same else "the same operations are called; ", nl=False)
        typer.echo("what differs are numbers that it reads" if same else "what differs are sizes or constants")
    typer.echo("")
    both = len(found["equal"]) + len(found["redrawn"])
    typer.echo(f"start: {len(found['equal'])} of {both} parameters that both have start from the same bits")
    typer.echo(f"data:  a seed reads {'the same windows in the same order' if found['same_data'] else OTHER_DATA}")
    if found["breaks"]:
        typer.echo(f"\nthe arm contract is broken: {found['breaks']}")


OTHER_DATA = "other windows than the baseline's, or in another order"


def _alike(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`(names, shape)`, the layers of one shape folded."""
    from taetpu.contract.allowed_changes import fold_layers

    by_shape: dict[str, list[str]] = {}
    for name, shape in parameters.items():
        both = shape if shape and isinstance(shape[0], list) else [shape]
        by_shape.setdefault(" -> ".join(_size(one) for one in both), []).append(name)
    return sorted((name, shape) for shape, names in by_shape.items() for name in fold_layers(names))


def _size(shape: list[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _before_and_after(pair: list[int]) -> dict[str, Any]:
    old, new = pair
    return {"baseline": old, "arm": new, "ratio": f"{new / old:.3g}" if old else None}
