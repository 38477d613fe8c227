"""The templates of `taetpu new`: studies, and files beside them, with which they run as they are."""

import re
import sys
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from taetpu.core.errors import UserError

DEFAULT = "plug-in"
NAMES = re.compile(r"\b(NAME|HEADER|START)\b")


@dataclass(frozen=True)
class Template:
    """A template.

    Attributes:
        files: The files to write, by what follows the study's name, each with its file in `study/templates`. The first
            one is the study.
        first: What to run before the study, in which `NAME` is the study's name.
        options: Options of the command that trains the study.
    """

    files: dict[str, str]
    first: str = ""
    options: str = ""


TEMPLATES = {
    "text": Template({".yaml": "text.yaml"}),
    "tokens": Template({".yaml": "tokens.yaml", ".py": "tokens.py"}, first="python NAME.py"),
    "tasks": Template({".yaml": "tasks.yaml"}),
    "factorial": Template({".yaml": "factorial.yaml"}),
    "ladder": Template({".yaml": "ladder.yaml"}),
    "goal": Template({".yaml": "goal.yaml"}, options=" --search"),
    "fine-tune": Template(
        {".yaml": "fine-tune.yaml", "-pretrain.yaml": "pretrain.yaml", ".jsonl": "rows.jsonl"},
        first="taetpu run NAME-pretrain.yaml",
    ),
    "classify": Template({".yaml": "classify.yaml", ".jsonl": "rows.jsonl"}),
    "program": Template({".yaml": "program.yaml", ".py": "program.py"}),
    DEFAULT: Template({".yaml": "plug-in.yaml", ".py": "plug-in.py"}),
}


def fill(kind: str, name: str) -> dict[Path, str]:
    """Return the content of a template's files, by path. The study is the first.

    Args:
        kind: The name of the template.
        name: The name of the study.

    Raises:
        UserError: If a Python file would shadow a module.
    """
    from importlib.resources import files

    from taetpu.spec.study_file import check_name

    template, folder = TEMPLATES[kind], files("taetpu.study").joinpath("templates")
    shadows = name in (*sys.stdlib_module_names, *packages_distributions(), "taetpu")
    if ".py" in template.files and shadows:
        problem = f"{name}.py would shadow the Python module {name} in this folder"
        raise UserError(problem, path=("the argument NAME",), remedy=f"Use another name, e.g. {name}-study.")
    texts: dict[Path, str] = {}
    for ending, source in template.files.items():
        path = Path(name + ending)
        written = {"NAME": name, "HEADER": _header(path.stem), "START": f"{name}-pretrain/baseline/0"}
        check_name(path.stem, "study", ("the argument NAME",))
        text = folder.joinpath(source).read_text(encoding="utf-8")
        texts[path] = NAMES.sub(lambda word, written=written: written[word[0]], text)
    return texts


def next_commands(kind: str, name: str) -> str:
    """Return what to run next, in the order of the commands."""
    template = TEMPLATES[kind]
    first = [template.first.replace("NAME", name)] if template.first else []
    return ", then ".join([*first, f"taetpu plan {name}.yaml", f"taetpu run {name}.yaml{template.options}"])


def _header(name: str) -> str:
    """Return the line that names a study. A name such as 123 needs quotes."""
    from taetpu.store.documents import to_yaml

    return to_yaml({"study": name}).decode().rstrip()
