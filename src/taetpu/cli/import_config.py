"""`taetpu import-config`: study files from the configs of lm-springboard, nanoGPT and nanochat."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.options import AsJson
from taetpu.cli.output import explain_write_error, log, print_json, print_text
from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from taetpu.interop.configs.study import TranslatedStudy


def import_config(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="A config, or the prefix of a family: PREFIX.txt and PREFIX-*.txt."),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="lm-springboard, nanogpt or nanochat. Default: what the content of each file looks like.",
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the study files. Default: this folder.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Translate configs of other systems into study files.

    The systems are lm-springboard, nanoGPT (config/*.py) and nanochat (commands of base_train, meta_*.json). Nothing in
    a config is executed, and existing files are never overwritten. Settings without a counterpart are listed, with the
    reason, here and as comments in the study file.

    Example: taetpu import-config configs/small.txt
    """
    from taetpu.core.jax_setup import prepare_jax

    prepare_jax(cpu=True)
    from taetpu.interop.configs.study import find_configs, format_note, translate_config

    studies = [study for name in files for file in find_configs(name) for study in translate_config(file, kind)]
    targets: dict[Path, TranslatedStudy] = {}
    for study in studies:
        target = out / f"{study.name}.yaml"
        if target in targets:
            problem = f"{targets[target].source} and {study.source} both give {target}"
            raise UserError(problem, file=study.source, remedy="Translate them one at a time, with different --out.")
        if target.exists():
            raise UserError("file exists", file=target, remedy="Move it, or name another folder with --out.")
        targets[target] = study
    _write({target: study.text for target, study in targets.items()})
    refused = {target: message for target in targets if (message := _check(target))}
    if as_json:
        print_json(
            [
                {
                    "study": str(target),
                    "config": str(study.source),
                    "format": study.title,
                    "notes": [vars(note) for note in study.notes],
                    "error": refused.get(target),
                }
                for target, study in targets.items()
            ]
        )
        return
    for target, study in targets.items():
        typer.echo(f"wrote {target} from {study.source} ({study.title})")
        if study.notes:
            typer.echo("  not in it, or not exactly:")
        for note in study.notes:
            print_text(format_note(note), first=2, hanging=4)
    for target, message in refused.items():
        log(f"warning: {target} cannot be trained yet: {message}")
    names = " ".join(map(str, targets))
    print_text(f"next: taetpu plan {next(iter(targets))}, then taetpu run {names}", hanging=2)


def _write(texts: dict[Path, str]) -> None:
    """Write new files. Raises `UserError` if one exists or cannot be written."""
    for target, text in texts.items():
        with explain_write_error(target, "Name a folder with write permission with --out."):
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as written:
                written.write(text)


def _check(target: Path) -> str:
    """Return why a study cannot be loaded; "" if it can, or if its model would have to be downloaded."""
    from taetpu.spec.document import read_document
    from taetpu.spec.loading import load_study

    if "start" in read_document(target).data["base"]["model"]:
        return ""
    try:
        load_study(target)
    except UserError as error:
        return str(error)
    return ""
