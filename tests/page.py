"""The plug-ins of docs/plugins.md, as files."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/plugins.md"


def write_plugin(name: str, folder: Path) -> Path:
    """Write the code block with a plug-in into a folder, and return the file."""
    found = re.search(rf"```python\n(# {re.escape(name)}\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (folder / name).write_text(found[1])
    return folder / name
