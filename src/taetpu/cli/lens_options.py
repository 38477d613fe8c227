"""Options of the commands `taetpu lens`: the model, and the text that it reads."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.addresses import ModelAddress, log_latest
from taetpu.cli.options import AsJson, Root, integer
from taetpu.cli.output import log, plural
from taetpu.core.errors import UserError, errors_at, suggest
from taetpu.core.number_parsing import parse_int

if TYPE_CHECKING:
    from taetpu.lens.ablation.documents import Documents
    from taetpu.lens.opened import OpenedModel

Plugins = Annotated[
    list[Path] | None, typer.Option("--plugin", metavar="FILE", help="A plug-in with kinds of the model.")
]
Step = Annotated[int | None, integer("--step", least=0, help="A stored step of training. Default: the trained model.")]
DataFolder = Annotated[
    str, typer.Option("--data-folder", help="The folder to which paths in the run's task are relative.")
]
Layer = Annotated[
    int | None, integer("--layer", help="The number of a layer, from 0; -1 is the last layer. Default: all layers.")
]
Head = Annotated[int | None, integer("--head", least=0, help="The number of a head, from 0. Default: all heads.")]
Position = Annotated[
    int, integer("--position", help="The position whose prediction is shown, from 0; -1 is the last position.")
]
Picture = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a picture: .png, .svg, .pdf, .html or .json.")
]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model that a command opens."""

    run: ModelAddress
    step: Step = None
    plugin: Plugins = None
    root: Root = None
    data_folder: DataFolder = "."
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="KIND:NAME,NAME",
            help="Remove parts of the model, e.g. heads:0.1,1.2 or ffns:3. May be repeated.",
        ),
    ] = None
    means: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="With --without: replace the parts by their means over an evaluation set, such as val, or over the "
            "lines of a text file. Default: zeros.",
        ),
    ] = None
    as_json: AsJson = False

    def open(self) -> "OpenedModel":
        """Return the model, without the parts of `--without`.

        Raises:
            UserError: if there is no such model or part, or the means cannot be computed.
        """
        from taetpu.lens.ablation.removal import remove_components
        from taetpu.lens.opening import open_run

        parts = parse_parts(self.without or ())
        if self.means is not None and not parts:
            problem = "--means requires --without"
            raise UserError(problem, path=("--means",), remedy="Add --without, or remove --means.")
        folder = Path(self.data_folder)
        opened = open_run(self.run, self.plugin or (), step=self.step, root=self.root, data_folder=folder)
        log_latest(self.run, opened.name)
        if not parts:
            return opened
        documents = None if self.means is None else _read_means(opened, self.means)
        with errors_at("--without"):
            edited = remove_components(opened, parts, "zero" if documents is None else "mean", documents)
        log(f"model: {edited.name}")
        return edited


def parse_parts(given: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of parts by kind, from the values of `--without` such as `heads:0.1,1.2`.

    Raises:
        UserError: if a value has no kind or no name.
    """
    parts: dict[str, list[str]] = {}
    for text in given:
        what, _, names = text.partition(":")
        words = [word.strip() for word in names.split(",")]
        if not what.strip() or "" in words:
            remedy = "Write KIND:NAME,NAME, as in heads:0.1,1.2."
            raise UserError(f"{text!r} is not a list of parts", path=("--without",), remedy=remedy)
        parts.setdefault(what.strip(), []).extend(words)
    return parts


def _read_means(opened: "OpenedModel", name: str) -> "Documents":
    """Return the documents of `--means`: windows of an evaluation set, or the lines of a file.

    Raises:
        UserError: if there is neither an evaluation set nor a file with this name.
    """
    from taetpu.lens.ablation.documents import split_documents
    from taetpu.lens.ablation.removal import MOST_DOCUMENTS
    from taetpu.lens.losses import find_split

    named = () if opened.run is None else opened.run_config.task.evaluation_sets
    sets = [known for known in named if opened.data.evaluation(known) is not None]
    if name in sets:
        return split_documents(find_split(opened, name), MOST_DOCUMENTS)
    if not Path(name).is_file():
        remedy = f"{suggest(name, sets)} Or use the path of a text file." if sets else "Use the path of a text file."
        problem = f"{name!r} is neither an evaluation set of this model's run nor a file"
        raise UserError(problem, path=("--means",), remedy=remedy)
    return read_lines(opened, Path(name), "--means")


def read_lines(opened: "OpenedModel", file: Path, option: str) -> "Documents":
    """Return the lines of a text file as documents.

    Args:
        opened: The model.
        file: The file.
        option: The option with the file, for errors.

    Raises:
        UserError: if the file cannot be read, or has no text.
    """
    from taetpu.lens.ablation.documents import read_documents
    from taetpu.lens.token_texts import read_text, split_lines

    lines = [line for line in split_lines(read_text(file)) if line.strip()]
    if not lines:
        raise UserError(f"{file} has no text", path=(option,), remedy="Use a file with a text in each line.")
    return read_documents(opened, lines)


@dataclass(frozen=True, kw_only=True)
class TextOptions(ModelOptions):
    """The model that a command opens, and the text that the model reads."""

    file: Annotated[Path | None, typer.Argument(metavar="TEXT_FILE", help="A text file. Or use --text or --ids.")] = (
        None
    )
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="A text, in place of a file.")] = None
    ids: Annotated[
        str | None, typer.Option("--ids", metavar='"N N ..."', help="Token numbers, in place of a text.")
    ] = None

    def read(self, opened: "OpenedModel", lines: bool = False) -> Any:
        """Return the text or the token numbers.

        Args:
            opened: The model.
            lines: Whether to return the lines of the text that are not empty.

        Raises:
            UserError: if there is not exactly one of a file, a text and token numbers, or if they cannot be read.
        """
        from taetpu.lens.token_texts import read_text, split_lines

        given = [value for value in (self.file, self.text, self.ids) if value is not None]
        if len(given) != 1:
            problem = "a text is missing" if not given else "several texts are given"
            remedy = 'Use one of a file, --text "..." and --ids "1 2 3".'
            raise UserError(problem, path=("TEXT_FILE",), remedy=remedy)
        if self.ids is not None:
            return parse_ids(self.ids)
        text = read_text(self.file) if self.file is not None else str(self.text)
        warn_of_unknown(opened, text)
        return [line for line in split_lines(text) if line.strip()] if lines else text


def parse_ids(text: str, option: str = "--ids") -> list[int]:
    """Return numbers that are separated by spaces or commas.

    Args:
        text: The numbers.
        option: The option with the numbers, for errors.

    Raises:
        UserError: if a word is not an integer.
    """
    words = text.replace(",", " ").split()
    try:
        return [parse_int(word) for word in words]
    except ValueError:
        problem = f"{text!r} is not a list of numbers"
        raise UserError(problem, path=(option,), remedy=f'Write {option} "1 2 3".') from None


def parse_prompt(opened: "OpenedModel", text: str) -> Any:
    """Return a prompt for a model without a tokenizer: token numbers, or a text with the names of tokens.

    Raises:
        UserError: if the prompt does not consist of numbers, and the tokens have no names.
    """
    return parse_ids(text, "--prompt") if opened.symbols is None or re.fullmatch(r"[\d\s,]*", text) else text


def parse_token(opened: "OpenedModel", token: str | None, option: str) -> int | None:
    """Return the number of a token of an option, named by its text or its number; None without the option.

    Raises:
        UserError: if the text is not one token, or the number is not a token.
    """
    from taetpu.lens.token_texts import read_token

    return None if token is None else read_token(opened, token, option)


def warn_of_unknown(opened: "OpenedModel", text: str) -> None:
    """Print the characters or words of a text that the model's tokenizer does not know.

    Raises:
        UserError: if the text is not UTF-8.
    """
    from taetpu.data.tokenizers.base import check_unicode
    from taetpu.lens.token_texts import name_distinct

    check_unicode(text)
    unknown = [] if opened.tokenizer is None else opened.tokenizer.find_unknown(text)
    if unknown:
        count, are = plural(sum(map(len, unknown)), "character"), "is" if len(unknown) == 1 else "are"
        lacks = f"{count} of the text's {len(text):,} {are} not in the model's vocabulary"
        log(f"warning: {lacks}: {name_distinct(unknown)}")


def check_picture(file: Path | None, others: Sequence[str] = ()) -> None:
    """Raise `UserError` if a picture cannot be written to a file. Commands call this before they open a model.

    Args:
        file: The file; None for no picture.
        others: The endings of other formats that the command writes.
    """
    if file is not None:
        from taetpu.core.output_files import check_output
        from taetpu.report.chart_files import FORMATS

        check_output(file, [*FORMATS, *others], "file" if others else "chart")


def write_picture(draw: Callable[[], Any], file: Path | None) -> None:
    """Write an Altair chart to a file, if there is one, and print the file's name.

    Args:
        draw: The function that returns the chart.
        file: The file; None for no picture.
    """
    if file is None:
        return
    from taetpu.report.chart_files import save_chart

    save_chart(draw(), file)
    log(f"wrote {file}")
