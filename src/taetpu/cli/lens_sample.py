"""`taetpu lens sample`, `check` and `diff`: text from a model, its stored loss, and two configs side by side."""

from typing import Annotated, Any

import typer

from taetpu.cli.lens_options import DataFolder, Plugins, RunName, Step
from taetpu.cli.options import AsJson, Root, integer, number
from taetpu.cli.output import print_json, print_table, print_text
from taetpu.core.errors import Failed


def sample(
    run: RunName,
    prompt: Annotated[list[str] | None, typer.Option(help="The text to continue. May be repeated.")] = None,
    tokens: Annotated[int, integer("--tokens", least=1, help="The number of tokens to generate.")] = 200,
    temperature: Annotated[float, number("--temperature", least=0, help="0 selects the most likely token.")] = 0.8,
    top_k: Annotated[int | None, integer("--top-k", least=1, help="Draw from the K most likely tokens.")] = None,
    top_p: Annotated[float | None, number("--top-p", least=0, help="Draw from a share P of the probability.")] = None,
    min_p: Annotated[
        float | None, number("--min-p", least=0, help="Draw from tokens with at least this share of the largest.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the sample. May be repeated.")] = None,
    seed: Annotated[int, integer("--seed", least=0, help="The seed of the random numbers.")] = 0,
    step: Step = None,
    plugin: Plugins = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text, token by token. Without a prompt, the run's own prompt is used.

    Example: taetpu lens sample latest --prompt "The function" --temperature 0.7
    """
    from taetpu.lens.generate import Sampling, generate
    from taetpu.lens.opening import open_run

    model = open_run(run, plugin or (), step=step, root=root)
    prompts: Any = prompt or [model.data.prompt()]
    shown = [text if isinstance(text, str) else model.decode(text) for text in prompts]
    alone = len(prompts) == 1 and not as_json
    if alone:
        typer.echo(shown[0], nl=False)
    found = generate(
        model,
        prompts,
        max_tokens=tokens,
        sampling=Sampling(temperature, top_k, top_p, min_p),
        stop=stop or (),
        seed=seed,
        on_text=(lambda _, text: typer.echo(text, nl=False)) if alone else None,
    )
    texts = [one.text if one.text is not None else model.decode(one.tokens) for one in found]
    if as_json:
        about = [{"tokens": one.tokens.tolist(), "stopped": one.stopped} for one in found]
        parts = zip(shown, texts, about, strict=True)
        print_json([{"prompt": start, "text": text, **rest} for start, text, rest in parts])
    elif alone:
        typer.echo()
    else:
        for start, text in zip(shown, texts, strict=True):
            typer.echo(f"{start}{text}\n")


def check(
    run: RunName,
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
    found = check_losses(model)
    if as_json:
        print_json([vars(one) for one in found])
    else:
        print_table(
            [
                {
                    "split": one.split,
                    "stored": f"{one.stored:.6f}",
                    "first": f"{one.first:.6f}",
                    "second": f"{one.second:.6f}",
                    "allowed": f"{one.allowed:.0e}",
                    "agrees": "yes" if one.agrees else "no",
                }
                for one in found
            ]
        )
    if wrong := [one.split for one in found if not one.agrees]:
        raise Failed(f"the model of {model.name} does not give the stored loss on {', '.join(wrong)}")


def diff(run: RunName, other: RunName, root: Root = None, as_json: AsJson = False) -> None:
    """Show the settings that differ between two runs.

    Example: taetpu lens diff my-study/baseline/0 my-study/nope/0
    """
    from taetpu.store.find_run import find_run
    from taetpu.store.flat_config import differing_paths, format_value, read_settings

    folders = [find_run(name, root) for name in (run, other)]
    tables = [read_settings(folder) for folder in folders]
    names = [f"{one.arm}/{one.seed}" for one in folders]
    if folders[0].study != folders[1].study:
        names = [f"{one.study}/{name}" for name, one in zip(names, folders, strict=True)]
    if names[0] == names[1]:
        names = [f"{name} ({one.id})" for name, one in zip(names, folders, strict=True)]
    paths = differing_paths(tables)
    if as_json:
        print_json({path: [table.get(path) for table in tables] for path in paths})
    elif not paths:
        print_text(f"{names[0]} and {names[1]} have the same settings")
    else:
        cells = [["-" if path not in table else format_value(table[path]) for table in tables] for path in paths]
        print_table([{"setting": p, names[0]: a, names[1]: b} for p, (a, b) in zip(paths, cells, strict=True)])
