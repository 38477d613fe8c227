"""The commands of `taetpu`, and a check of command lines in docs and messages."""

import shlex
from functools import cache
from typing import Any


@cache
def commands() -> dict[str, Any]:
    """The commands and groups of `taetpu`, by name."""
    import typer

    from taetpu.cli.main import app

    group = typer.main.get_command(app)
    return {name: lazy.load() for name, lazy in group.commands.items()}


def wrong(line: str) -> str:
    """What is wrong with `taetpu ...` as it is written: no such command, no such option; "" if nothing is.

    Values are not looked at, so that `NAME` or `{name}` may stand for one, nor what follows a command of its own.
    """
    words = shlex.split(line, comments=True)[1:]
    if words[:1] == ["--device"]:
        words = words[2:]
    named, found = [], None
    while words and (found is None or hasattr(found, "commands")):
        known = commands() if found is None else found.commands
        word = words.pop(0)
        if word in ("--help", "--version", "--install-completion", "--show-completion", "..."):
            return ""
        if word not in known:
            return f"there is no command {' '.join([*named, word])!r}"
        named.append(word)
        found = known[word]
    if found is None or hasattr(found, "commands"):
        return ""
    return _misused(found, words, " ".join(named))


def _misused(command: Any, words: list[str], name: str) -> str:
    """Return a message about the first unknown option of a command."""
    options = {opt: p for p in command.params for opt in (*p.opts, *p.secondary_opts) if opt.startswith("-")}
    own = command.context_settings.get("allow_interspersed_args", True)
    waiting = iter(words)
    for word in waiting:
        if word == "--" or (not own and not word.startswith("-")):
            return ""
        option, _, value = word.partition("=")
        if not option.startswith("-") or option == "--help":
            continue
        if option not in options:
            return f"`taetpu {name}` has no option {option}"
        if not value and not options[option].is_flag:
            next(waiting, None)
    return ""
