"""`taetpu lens sample`, `check` and `diff`: text from a model, its stored loss, and two configs side by side."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.addresses import Address, ModelAddress, log_latest
from taetpu.cli.lens_options import DataFolder, ModelOptions, Plugins, parse_ids, parse_prompt, warn_of_unknown
from taetpu.cli.options import AsJson, Root, integer, number, takes_options
from taetpu.cli.output import print_json, print_sample, print_table, print_text
from taetpu.core.errors import ErrorList, Failed, UserError, locate_errors

if TYPE_CHECKING:
    from taetpu.lens.opened import OpenedModel


TEMPERATURE, TOKENS = 0.8, 200
"""Defaults of `--temperature` and `--tokens`."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions(ModelOptions):
    """Options of `taetpu lens sample`."""

    prompt: Annotated[
        list[str] | None,
        typer.Option(help='The text to continue; "1 2 3" for a model without texts. May be repeated.'),
    ] = None
    tokens: Annotated[
        int | None,
        integer(least=1, help=f"The number of tokens to generate. Default: {TOKENS}, or what learned positions admit."),
    ] = None
    temperature: Annotated[
        float | None, number(least=0, help=f"0 selects the most likely token. Default: {TEMPERATURE}.")
    ] = None
    top_k: Annotated[int | None, integer(least=1, help="Draw from the K most likely tokens.")] = None
    top_p: Annotated[float | None, number(least=0, help="Draw from a share P of the probability.")] = None
    min_p: Annotated[
        float | None, number(least=0, help="Draw from tokens whose probability is at least this share of the largest.")
    ] = None
    seed: Annotated[int | None, integer(least=0, help="The seed of the random numbers. Default: 0.")] = None
    beams: Annotated[
        int | None,
        integer(least=1, metavar="N", help="Show the N most likely texts that beam search finds, and draw no tokens."),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(help="A text that ends the sample. May be repeated. With --beams: one text of one token."),
    ] = None


@takes_options
def sample(options: SampleOptions) -> None:
    """Continue a text, token by token. Without a prompt, the run's own prompt is used.

    With --beams, the most likely continuations are searched in place of a random sample. Each is printed with its
    log-probability (natural logarithm); that of the token of --stop is included.

    Example: taetpu lens sample latest --prompt "The function" --temperature 0.7
    """
    if options.beams is not None:
        _check_beams(options)
    model = options.open()
    warn_of_unknown(model, "".join(options.prompt or ()))
    prompts: list[Any] = options.prompt or [model.data.prompt()]
    if options.prompt and model.tokenizer is None:
        prompts = [parse_prompt(model, prompt) for prompt in options.prompt]
    shown = [text if isinstance(text, str) else model.decode(text) for text in prompts]
    if options.beams is not None:
        _show_beams(options, model, prompts, shown)
    else:
        _show_samples(options, model, prompts, shown)


def _show_samples(options: SampleOptions, model: "OpenedModel", prompts: list[Any], shown: list[str]) -> None:
    """Print a sample after each prompt."""
    from taetpu.lens.generate import Sampling, generate

    alone = len(prompts) == 1 and not options.as_json
    unprinted = iter([shown[0] + _gap(model)])  # printed with the first text, because `generate` may raise before
    temperature = TEMPERATURE if options.temperature is None else options.temperature
    generated = generate(
        model,
        prompts,
        max_tokens=_count_tokens(options, model, prompts),
        sampling=Sampling(temperature, options.top_k, options.top_p, options.min_p),
        stop=_stops(options, model),
        seed=options.seed or 0,
        on_text=(lambda _, text: print_sample(next(unprinted, "") + text, end="")) if alone else None,
    )
    texts = [each.text if each.text is not None else model.decode(each.tokens) for each in generated]
    if options.as_json:
        about = [{"tokens": each.tokens.tolist(), "stopped": each.stopped} for each in generated]
        parts = zip(shown, texts, about, strict=True)
        print_json([{"prompt": start, "text": text, **rest} for start, text, rest in parts])
    elif alone:
        print_sample(next(unprinted, ""))
    else:
        for start, text in zip(shown, texts, strict=True):
            print_sample(f"{start}{_gap(model)}{text}\n")


def _count_tokens(options: SampleOptions, model: "OpenedModel", prompts: list[Any]) -> int:
    """Return the number of tokens to generate.

    Raises:
        UserError: if the model has no positions for the number in `--tokens`.
    """
    from taetpu.lens.inputs import longest

    if (limit := longest(model.config, model.seq_len)) is None:
        return options.tokens or TOKENS
    used = int(model.encode(prompts).lengths.max())
    free = limit[0] - used + 1  # the last token is not read
    if options.tokens is None:
        return max(1, min(TOKENS, free))
    if options.tokens > free > 0:
        problem = f"--tokens {options.tokens} exceeds the {free} tokens that can follow the prompt of {used} tokens"
        remedy = f"Use --tokens {free} or fewer: {limit[1]!r} positions end at {limit[0]}."
        raise UserError(problem, path=("--tokens",), remedy=remedy)
    return options.tokens


def _stops(options: SampleOptions, model: "OpenedModel") -> list[str | int]:
    """Return the texts of `--stop`; token numbers for a model without texts."""
    given = options.stop or []
    return [*given] if model.tokenizer else [number for text in given for number in parse_ids(text, "--stop")]


def _check_beams(options: SampleOptions) -> None:
    """Raise `UserError` for options that have no meaning for beam search."""
    errors = ErrorList()
    for name in ("temperature", "top_k", "top_p", "min_p", "seed"):
        value, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is not None:
            problem = f"{option} {value} is for random samples, and beam search draws no tokens"
            errors.append(UserError(problem, path=(option,), remedy=f"Remove {option}, or remove --beams."))
    if len(stop := options.stop or []) > 1:
        problem = f"beam search supports one end token, got {len(stop)} texts"
        errors.append(UserError(problem, path=("--stop",), remedy="Use one --stop, or remove --beams."))
    errors.raise_all()


def _show_beams(options: SampleOptions, model: "OpenedModel", prompts: list[Any], shown: list[str]) -> None:
    """Print the beams of each prompt, the best first."""
    from taetpu.lens.beam import beam_search
    from taetpu.lens.token_texts import read_token

    assert options.beams is not None
    end = None
    for stop in options.stop or ():
        with locate_errors("--stop"):
            end = (read_token(model, stop), *model.end_tokens)
    rows = []
    for prompt, start in zip(prompts, shown, strict=True):
        count = _count_tokens(options, model, [prompt])
        beams = [
            {"text": beam.text or model.decode(beam.tokens), "tokens": beam.tokens.tolist(), "score": beam.score}
            for beam in beam_search(model, prompt, beams=options.beams, max_tokens=count, end=end)
        ]
        rows.append({"prompt": start, "beams": beams})
    if options.as_json:
        print_json(rows)
        return
    for row in rows:
        for beam in row["beams"]:
            print_sample(f"log-probability {beam['score']:.3f}\n{row['prompt']}{_gap(model)}{beam['text']}\n")


def _gap(model: "OpenedModel") -> str:
    """Return what separates a prompt from its continuation: a space between token numbers, nothing between texts."""
    return " " if model.tokenizer is None else ""


def check(
    run: ModelAddress,
    plugin: Plugins = None,
    root: Root = None,
    data_folder: DataFolder = ".",
    as_json: AsJson = False,
) -> None:
    """Compare the loss of a stored model with the stored loss.

    The model is evaluated twice. Exit code 3 if the losses differ.

    Example: taetpu lens check my-study/baseline/0
    """
    from taetpu.lens.check_run import check_losses
    from taetpu.lens.opening import open_run

    model = open_run(run, plugin or (), root=root, data_folder=data_folder)
    log_latest(run, model.name)
    losses = check_losses(model)
    if as_json:
        print_json([vars(loss) for loss in losses])
    else:
        print_table(
            {
                "split": loss.split,
                "stored": f"{loss.stored:.6f}",
                "first": f"{loss.first:.6f}",
                "second": f"{loss.second:.6f}",
                "allowed": f"{loss.allowed:.0e}",
                "agrees": "yes" if loss.agrees else "no",
            }
            for loss in losses
        )
    if wrong := [loss.split for loss in losses if not loss.agrees]:
        raise Failed(f"the model of {model.name} does not give the stored loss on {', '.join(wrong)}")


def diff(run: Address, other: Address, root: Root = None, as_json: AsJson = False) -> None:
    """Show the settings that differ between two runs.

    Example: taetpu lens diff my-study/baseline/0 my-study/nope/0
    """
    from taetpu.store.addresses import find_run
    from taetpu.store.flat_config import differing_paths, format_value, read_settings

    folders = [find_run(name, root) for name in (run, other)]
    for name, folder in zip((run, other), folders, strict=True):
        log_latest(name, f"{folder.study}/{folder.arm}/{folder.seed}")
    tables = [read_settings(folder) for folder in folders]
    names = [f"{folder.arm}/{folder.seed}" for folder in folders]
    if folders[0].study != folders[1].study:
        names = [f"{folder.study}/{name}" for name, folder in zip(names, folders, strict=True)]
    if names[0] == names[1]:
        names = [f"{name} ({folder.id})" for name, folder in zip(names, folders, strict=True)]
    paths = differing_paths(tables)
    if as_json:
        print_json({path: [table.get(path) for table in tables] for path in paths})
    elif not paths:
        print_text(f"{names[0]} and {names[1]} have the same settings")
    else:
        cells = [["-" if path not in table else format_value(table[path]) for table in tables] for path in paths]
        print_table([{"setting": p, names[0]: a, names[1]: b} for p, (a, b) in zip(paths, cells, strict=True)])
