"""Expected screens in the folder `screens/`. UPDATE_SCREENS=1 writes them."""

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "screens"
DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:us|ms|s|min|h)\b-?)+")


def check_screen(name: str, text: str) -> None:
    """Compare a screen of at most 80 columns with its file; durations, which differ by machine, are masked."""
    assert [line for line in text.splitlines() if len(line) > 80] == []
    shown = "\n".join(DURATION.sub("TIME", line.rstrip()) for line in text.splitlines()) + "\n"
    file = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        file.write_text(shown)
    assert shown == file.read_text(), "UPDATE_SCREENS=1 accepts the new screen"
