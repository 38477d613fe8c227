"""`taetpu gallery`: studies of known results, and whether they are reproduced here."""

import time
from typing import Annotated

import typer

from taetpu.cli.options import AsJson, Root, Sets
from taetpu.cli.output import print_json, print_table
from taetpu.cli.report_commands import print_findings
from taetpu.cli.run import RunOptions, started, train_study

Name = Annotated[str, typer.Argument(metavar="NAME", help="A study of the gallery, such as rank-collapse.")]

app = typer.Typer()


@app.callback(invoke_without_command=True)
def gallery(context: typer.Context, as_json: AsJson = False) -> None:
    """List studies of known results, with what was measured. Each takes at most ten minutes on two cores.

    Example: taetpu gallery
    """
    from taetpu.core.config import to_data
    from taetpu.study.gallery_index import read_gallery

    if context.invoked_subcommand is not None:
        return
    entries = read_gallery().values()
    if as_json:
        print_json([to_data(entry) for entry in entries])
        return
    print_table(
        {
            "name": entry.name,
            "result": entry.title,
            "here": entry.outcome,
            "time": f"{entry.measured.seconds} s" if entry.measured else "",
        }
        for entry in entries
    )
    typer.echo("\nnext: taetpu gallery run rank-collapse")


@app.command("run")
def run(name: Name, sets: Sets = None, root: Root = None) -> None:
    """Run a study of the gallery, and check its claims. Exits with 3 unless all hold. Repeat the command to resume.

    Example: taetpu gallery run rank-collapse
    """
    from taetpu.study.gallery_index import entry_files, find_entry

    entry, began = find_entry(name), time.monotonic()
    with entry_files(entry) as (study, claims):
        options = RunOptions(study=study, sets=sets, root=root)
        with started(options):
            train_study(options)
            from taetpu.study.claims_file import check_claims

            _, findings = check_claims(claims, root)
    typer.echo(f"\n{entry.claim}\n  {entry.source.by}; tolerance: {entry.tolerance}")
    typer.echo(f"{time.monotonic() - began:.0f} s\n")
    print_findings(findings)


@app.command("check")
def check(name: Name, root: Root = None, as_json: AsJson = False) -> None:
    """Check the claims about a finished study of the gallery. Exits with 3 unless all hold.

    Example: taetpu gallery check rank-collapse
    """
    from taetpu.study.claims_file import check_claims
    from taetpu.study.gallery_index import entry_files, find_entry

    with entry_files(find_entry(name)) as (_, claims):
        _, findings = check_claims(claims, root)
    print_findings(findings, as_json)
