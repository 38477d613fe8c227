"""Compare bandit's findings in `src` with the answers in pyproject.toml: `python -m tests.bandit_findings`.

The answers are those to ruff's rules `S`, whose numbers are bandit's: S108 answers B108. Comments `nosec` are ignored.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
Finding = tuple[str, str]
"""A file, relative to the root, and the number of a rule, such as `108`."""


def read_answers(root: Path = ROOT) -> tuple[set[str], set[Finding]]:
    """Return the rules that are answered for all files, and the answered findings of single files in `src`."""
    lint = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    files = {file: rules for file, rules in lint["per-file-ignores"].items() if file.startswith("src/")}
    single = {(file, rule[1:]) for file, rules in files.items() for rule in rules if rule[1:].isdigit()}
    return {rule[1:] for rule in lint["ignore"] if rule.startswith("S")}, single


def run_bandit(folder: Path, root: Path = ROOT) -> dict[Finding, list[str]]:
    """Return bandit's findings in a folder, each with its places and texts."""
    command = [sys.executable, "-m", "bandit", "--quiet", "--ignore-nosec", "--recursive", folder, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # exits with 1 if it finds something
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    report = json.loads(done.stdout)
    if report["errors"]:
        raise RuntimeError(f"bandit could not read {report['errors']}")
    findings: dict[Finding, list[str]] = {}
    for result in report["results"]:
        file = Path(result["filename"]).resolve().relative_to(root).as_posix()
        text = f"{file}:{result['line_number']}: {result['test_id']} {result['issue_text']}"
        findings.setdefault((file, result["test_id"][1:]), []).append(text)
    return findings


def compare(findings: dict[Finding, list[str]], everywhere: set[str], single: set[Finding]) -> list[str]:
    """Return the findings without an answer, and the answers without a finding."""
    asked = {finding: texts for finding, texts in findings.items() if finding[1] not in everywhere}
    open_findings = [text for finding in sorted(asked.keys() - single) for text in asked[finding]]
    return open_findings + [f"{file}: bandit no longer finds B{rule}" for file, rule in sorted(single - asked.keys())]


if __name__ == "__main__":
    problems = compare(run_bandit(ROOT / "src"), *read_answers())
    print("\n".join([*problems, f"bandit: {len(problems)} problems; answers are in pyproject.toml"]))
    sys.exit(bool(problems))
