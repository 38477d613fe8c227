"""`taetpu model`: import Hugging Face models, and export models to transformers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.addresses import ModelAddress, log_latest
from taetpu.cli.lens_options import Plugins, Step
from taetpu.cli.options import AsJson, Root
from taetpu.cli.output import plural, print_json
from taetpu.core.output_files import check_new_folder, write_new_folder

if TYPE_CHECKING:
    from taetpu.interop.huggingface import ImportedModel

app = typer.Typer(
    help="Import Hugging Face models, and export models to transformers.\n\n"
    "Example: taetpu model import EleutherAI/pythia-70m",
)


@app.command("import")
def import_model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|NAME",
            help="A folder with config.json and safetensors files, or a model's name on the Hugging Face hub.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="The folder to write. Default: the last part of the name."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="REVISION", help="A branch, tag or commit on the hub, e.g. step3000.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a Hugging Face model to a taetpu model.

    Only safetensors files are read, never pickles. No weight is changed.

    Example: taetpu model import EleutherAI/pythia-70m --revision step3000 -o pythia
    """
    from taetpu.interop.huggingface import import_folder
    from taetpu.lens.conversion import find_folder, model_files

    last = Path(name.rstrip("/")).name
    out = out or Path(f"{last}-{revision}" if revision else last)
    check_new_folder(out)
    made = import_folder(find_folder(name, revision))
    files = model_files(made)
    write_new_folder(out, files, needed=sum(map(len, files.values())))
    if as_json:
        print_json({**_describe(made), "folder": str(out)})
    else:
        _print_model(made)
        typer.echo(f"\nwrote {out}\nTry it: taetpu lens {_view(made)}".replace("FOLDER", str(out)))
        typer.echo(f"As the baseline of a study: model: {{start: {out}}}")


def _view(made: "ImportedModel") -> str:
    """Return a command of `taetpu lens` that can show the model in FOLDER."""
    if made.config.resolve().predicts_next:
        return "sample FOLDER --prompt " + ("TEXT" if made.tokenizer else '"1 2 3"')
    view = "attention" if made.outputs else "logit-lens"
    return f"{view} FOLDER " + ("--text TEXT" if made.tokenizer else '--ids "1 2 3"')


def _describe(made: "ImportedModel") -> dict[str, Any]:
    """Return what is printed of an imported model, as plain data."""
    from taetpu.nn.named_arrays import named_parameters

    return {
        "family": made.family.model_type,
        "parameters": sum(array.size for array in named_parameters(made.model).values()),
        "vocab_size": made.vocab_size,
        "seq_len": made.seq_len,
        "tokens": None if made.tokenizer is None else made.tokenizer.vocab_size,
        "model": short_model(made.config),
    }


def _print_model(made: "ImportedModel") -> None:
    from taetpu.store.documents import to_yaml

    about = _describe(made)
    tokenizer = "none" if about["tokens"] is None else plural(about["tokens"], "token")
    typer.echo(f"family: {about['family']} ({made.family.about})")
    typer.echo(f"parameters: {about['parameters']:,}")
    typer.echo(f"vocabulary: {about['vocab_size']:,}, tokenizer: {tokenizer}")
    typer.echo(f"sequence length: {about['seq_len']:,}\n")
    typer.echo(to_yaml({"model": about["model"]}).decode(), nl=False)


def short_model(config: Any) -> dict[str, Any]:
    """Return the data of a `ModelConfig` as in a study file, without fields that have their default."""
    from taetpu.nn.layer_overrides import select_layers
    from taetpu.spec.preset_differences import changed_fields, setting

    layers = config.resolve().layers
    overrides = {
        where: {slot: setting(getattr(layers[select_layers(where, len(layers))[0]], slot)) for slot in settings}
        for where, settings in config.layers.items()
    }
    return {**changed_fields(config.model_copy(update={"layers": {}})), **({"layers": overrides} if overrides else {})}


@app.command()
def export(
    run: ModelAddress,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to write.")],
    family: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="The architecture, e.g. llama. Default: the first one that fits the model."),
    ] = None,
    step: Step = None,
    plugin: Plugins = None,
    root: Root = None,
) -> None:
    """Write a model and its tokenizer for transformers.

    A model that no architecture of transformers can represent is refused, with the reason.

    Example: taetpu model export my-idea/baseline/0 -o baseline
    """
    from taetpu.interop.exporting import save_folder
    from taetpu.interop.files import CONFIG
    from taetpu.lens.opening import open_run

    opened = open_run(run, plugin or (), step=step, root=root)
    log_latest(run, opened.name)
    save_folder(
        out,
        opened.config,
        opened.model,
        seq_len=opened.seq_len,
        family=family,
        tokenizer=opened.tokenizer,
        special_tokens=opened.special_tokens,
        interface=opened.interface,
    )
    typer.echo(f"wrote {out} ({json.loads((out / CONFIG).read_text())['architectures'][0]})")
