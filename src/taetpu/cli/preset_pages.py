"""The pages of presets in the catalog: `taetpu catalog preset` and `taetpu catalog preset/llama3`."""

import typer

from taetpu.cli.kind_pages import INDENT, wrapped
from taetpu.cli.output import print_json
from taetpu.core.errors import UserError, suggest

WIDTHS = (64, 128, 256, 512, 768, 1024)
"""Widths for which a page states the heads."""
SHOWN_WIDTH = 128
"""The width at which a page shows the settings."""


def print_presets(name: str, as_json: bool) -> None:
    """Print the page of a preset or, without a name, a list of all presets.

    Raises:
        UserError: if no preset has the name.
    """
    from taetpu.spec.presets import PRESETS, SHARED_OMISSIONS

    if name and name not in PRESETS:
        raise UserError(f"unknown preset {name!r}", remedy=suggest(name, PRESETS))
    chosen = {name: PRESETS[name]} if name else PRESETS
    if as_json:
        shown = {
            k: {**vars(entry), "settings": entry.settings(SHOWN_WIDTH, entry.num_layers)} for k, entry in chosen.items()
        }
        print_json({"preset": shown})
        return
    if name:
        _print_page(name)
        return
    for preset_name, preset in PRESETS.items():
        typer.echo(wrapped(f"{preset.about}. {preset.source}.{_compared(preset.reference)}", f"{preset_name:<15} "))
        typer.echo(wrapped(f"Without: {preset.omits}.", INDENT))
    typer.echo("\n" + wrapped(SHARED_OMISSIONS, "", ""))
    typer.echo("Use one as `model: {preset: NAME, dim: 128}`. Settings: taetpu catalog preset/NAME")


def _compared(reference: str) -> str:
    return f" Compared with transformers.{reference}." * bool(reference)


def _print_page(name: str) -> None:
    """Print what a preset is, what it leaves out, its heads at some widths and its settings."""
    from taetpu.spec.document import format_yaml
    from taetpu.spec.presets import PRESETS, SHARED_OMISSIONS

    preset = PRESETS[name]
    typer.echo(f"preset/{name}\n")
    typer.echo(wrapped(f"{preset.about} with {preset.num_layers} layers by default.", "  ", "  "))
    typer.echo("\n" + wrapped(f"Source: {preset.source}.{_compared(preset.reference)}", "", "  "))
    typer.echo(wrapped(f"Without: {preset.omits}. {SHARED_OMISSIONS}", "", "  "))
    heads = []
    for dim in WIDTHS:
        mixer = preset.settings(dim, preset.num_layers)["mixer"]
        count = mixer["num_heads"]
        shared = mixer.get("num_kv_heads", count)
        heads.append(f"dim {dim}: {count}" + (f" ({shared} of keys and values)" if shared != count else ""))
    typer.echo(wrapped(f"Heads: {', '.join(heads)}. There are at least 4 if dim permits.", "", "  "))
    typer.echo(f"\nSettings at dim: {SHOWN_WIDTH}, num_layers: 4")
    for key, value in preset.settings(SHOWN_WIDTH, 4).items():
        typer.echo(wrapped(f"{key}: {format_yaml(value)}", "  ", "      "))
    typer.echo(f"\nUse it as `model: {{preset: {name}, dim: {SHOWN_WIDTH}}}`.")
