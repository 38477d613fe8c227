"""Hooks of mkdocs: pages that are generated from the package at each build, and links to files outside docs."""

import gc
import io
import posixpath
import re
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from taetpu.cli.schema import schema_text

ROOT = Path(__file__).parents[2]
CATALOGUE = re.split(r"^## (.*)\n", (ROOT / "docs/catalogue.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
SLOTS = dict(zip(CATALOGUE[1::2], CATALOGUE[2::2], strict=True))
PLACES = {f"{name.lower()}.md": f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")}
PLACES["benchmarks.md"] = "benchmarks/README.md"
SITE = {name: place for place, name in PLACES.items()}  # pages outside docs, and their places in the site
DOCUMENTED: set[str] = set()  # names that have a place in the reference: a second place would be ambiguous
ASSET = re.compile(  # what a browser would load from elsewhere; for class `mermaid`, the theme loads a script
    r"<(?:script|img|iframe|source|video|audio|embed|object|link)\b[^>]*\b(?:src|srcset|href|data)=[\"']?(?:https?:)?//[^>]*>"
    r"|class=[\"']?mermaid|url\([\"']?(?:https?:)?//[^)]*\)|@import\s+[\"'](?:https?:)?//[^\"']*"
)
HEADS = {
    "study-file": "# Fields of a study file\n\nEvery field, as in `taetpu catalog study`. Arms that differ only in"
    " *traced* fields train together. [Kinds of each slot](../catalogue.md), [studies of programs](../any-program.md),"
    " [examples](../study-file.md). [The JSON schema](../taetpu.schema.json) has the same fields, for editors.\n",
    "commands": "---\nsearch: {boost: 0.3}\n---\n\n# Commands\n",
    "python": "# Python\n\nThe names of `taetpu`. They are imported on first use.\n",
    "plug-ins": "# Plug-ins\n\nWhat plug-ins import, and what checks them ([how to write one](../plugins.md)).\n",
}


def on_config(config: MkDocsConfig) -> None:
    """Add the pages of all slots to the navigation."""
    gc.disable()  # mkdocstrings makes many objects; with collections, the build takes more than twice as long
    nav = {title: pages for section in config.nav or [] for title, pages in section.items()}
    nav["Reference"][-1]["Catalogue"] += [{slot: f"reference/catalogue/{slot}.md"} for slot in SLOTS]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the generated pages, and pages of other folders."""
    DOCUMENTED.clear()  # `mkdocs serve` builds repeatedly
    pages = {f"reference/{name}.md": HEADS[name] + body() for name, body in BODIES.items()}
    for slot, text in SLOTS.items():
        pages[f"reference/catalogue/{slot}.md"] = f"# {slot}\n" + re.sub(r"^#(#+ )", r"\1", text, flags=re.MULTILINE)
    pages |= {place: (ROOT / name).read_text(encoding="utf-8") for place, name in PLACES.items()}
    for place, text in {**pages, "taetpu.schema.json": schema_text()}.items():
        files.append(File.generated(config, place, content=text))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links between files of the repository by links between pages of the site."""
    place = page.file.src_uri
    if place == "catalogue.md":
        rows = [f"| [{s}](reference/catalogue/{s}.md) | {len(re.findall('(?m)^### ', t))} |" for s, t in SLOTS.items()]
        markdown = "\n".join([CATALOGUE[0], "| slot | kinds |", "|---|---|", *rows])
    source, here = PLACES.get(place, f"docs/{place}"), posixpath.dirname(place) or "."

    def replace(link: re.Match[str]) -> str:
        text, address, anchor = link.groups()
        if ":" in address or place.startswith("reference/"):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
        if target.startswith("docs/") or target in SITE:
            target = SITE.get(target, target.removeprefix("docs/"))
        elif not (ROOT / target).is_file() or target.endswith(".md"):  # of other links, mkdocs warns
            return f"{text} (`{target}`)" if (ROOT / target).is_dir() else link[0]
        else:
            path, target = str(ROOT / target), f"files/{target}"
            if files.get_file_from_path(target) is None:
                files.append(File.generated(config, target, abs_src_path=path))
        return f"[{text}]({posixpath.relpath(target, here)}{anchor or ''})"

    return re.sub(r"\[([^][]*)\]\(([^()#\s]+)(#[^()\s]*)?\)", replace, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Raise `PluginError` if a built page would load something from elsewhere."""
    for file in sorted(Path(config.site_dir).rglob("*")):
        if file.suffix in (".html", ".css") and (asset := ASSET.search(file.read_text(encoding="utf-8"))):
            raise PluginError(f"{file} would load something from elsewhere: {asset[0]}")
    gc.freeze()  # else the collection when the process exits takes longer than the build


def list_fields() -> str:
    """Return the sections of a study file, with a table of fields for each."""
    from taetpu.cli.kind_pages import describe_field
    from taetpu.spec import field_paths
    from taetpu.spec.programs.program_config import ProgramConfig

    parts: list[str] = []

    def add(path: str, fields: list[dict]) -> None:
        parts.append(f"\n## {path or 'Top level'}\n\n| field | type | default | meaning |\n|---|---|---|---|")
        for field in fields:
            name = f"`{field['name']}`" + f" ({field['kind']})" * bool(field["kind"])
            kind = field["type"] + ", traced" * field["traced"]
            kind = f"[{kind}](catalogue/{field['slot']}.md)" if field["slot"] in SLOTS else kind
            default = "see below" if isinstance(field["default"], dict) and field["fields"] else f"`{field['default']}`"
            cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in (name, kind, default, field["about"]))
            parts.append(f"| {' | '.join(cells)} |")
        for field in filter(lambda field: field["fields"], fields):
            add(f"{path}.{field['name']}".removeprefix("."), field["fields"])

    for path, config in (("", field_paths.StudySpec), ("program", ProgramConfig)):
        add(path, [describe_field(place) for place in field_paths.list_fields(config)])
    return "\n".join(parts)


def list_commands() -> str:
    """Return the help of all commands."""
    from taetpu.cli.main import COMMANDS, app

    def show(words: list[str]) -> str:
        with redirect_stdout(io.StringIO()) as out:
            app([*words, "--help"], prog_name="taetpu", standalone_mode=False)
        text = out.getvalue().strip()
        below = text.partition("\nCommands:\n")[2]
        page = f"\n{'#' * (len(words) + 1)} taetpu {' '.join(words)}\n\n```text\n{text}\n```\n"
        return page + "".join(show([*words, name]) for name in re.findall(r"^  (\w[\w-]*)", below, re.MULTILINE))

    return "".join(show([name]) for name in COMMANDS)


def list_names(*modules: str) -> str:
    """Return directives of mkdocstrings for the public names of modules."""
    parts = []
    for module in map(import_module, modules):
        for name in module.__all__:
            home = getattr(getattr(module, name), "__module__", "")
            path = f"{home if home.startswith('taetpu.') else module.__name__}.{name}"
            if path in DOCUMENTED:
                parts.append(f"\n## {module.__name__}.{name}\n\nThe same as [`taetpu.{name}`](python.md#{path}).\n")
            else:
                parts.append(f"\n::: {path}\n    options:\n      heading: {module.__name__}.{name}\n")
            DOCUMENTED.add(path)
    return "".join(parts)


BODIES = {
    "study-file": list_fields,
    "commands": list_commands,
    "python": partial(list_names, "taetpu"),
    "plug-ins": partial(list_names, "taetpu.plugin", "taetpu.testing"),
}
