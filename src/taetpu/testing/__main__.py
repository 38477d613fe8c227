"""The command `python -m taetpu.testing FILE`. It checks every kind that a plug-in registers."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KIND.FIELD=VALUE", help="Set a field of a kind, e.g. mine.token=3. Repeatable."),
]


def check_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plug-in file.")], sets: Sets = None
) -> None:
    """Check every kind that a plug-in registers. Exits with 1 if a check fails, and with 2 if the input is invalid.

    Example: python -m taetpu.testing my_idea.py --set mine.factor=3
    """
    from taetpu.core.errors import UserError
    from taetpu.core.jax_setup import prepare_jax
    from taetpu.core.plugins import attribute_errors, load_plugins
    from taetpu.testing import ComponentError, check_component

    prepare_jax()
    (plugin,) = load_plugins([file])
    settings = _parse_sets(sets or [], {name.partition("/")[2] for name in plugin.kinds})
    code = 0
    for name in plugin.kinds:
        slot, _, kind = name.partition("/")
        try:
            with attribute_errors():
                report = check_component(slot, kind, **settings.get(kind, {}))
            typer.echo(f"{report}\n")
        except ComponentError as error:
            code = max(code, 1)
            typer.echo(f"{error.report}\n")
            sys.stderr.write(f"{error}\n\n")
        except UserError as error:  # the remaining kinds are still checked
            code = _print_error(f"{name}: {error}\n")
    if code:
        raise typer.Exit(code)


def _parse_sets(sets: list[str], kinds: set[str]) -> dict[str, dict[str, Any]]:
    """Return `{kind: {field: value}}` from a list of `KIND.FIELD=VALUE`."""
    from taetpu.core.errors import UserError, suggest
    from taetpu.spec.document import parse_value

    parsed: dict[str, dict[str, Any]] = {}
    for text in sets:
        path, equals, value = text.partition("=")
        kind, dot, name = path.partition(".")
        if not equals or not dot:
            raise UserError(f"{text!r} is not of the form kind.field=value", remedy="Write e.g. mine.factor=3.")
        if kind not in kinds:
            problem, place = f"the plug-in registers no kind {kind!r}", (f"--set {text}",)
            raise UserError(problem, path=place, remedy=suggest(kind, kinds))
        parsed.setdefault(kind, {})[name] = parse_value(value)
    return parsed


def main() -> None:
    """Run the command. Invalid input prints one message and exits with code 2."""
    from taetpu.core.errors import UserError

    try:
        _app(prog_name="python -m taetpu.testing")
    except UserError as error:
        sys.exit(_print_error(str(error)))


def _print_error(problem: str) -> int:
    sys.stderr.write(f"error: {problem}\n")
    return 2


_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
_app.command()(check_file)

if __name__ == "__main__":
    main()
