"""Standard streams that accept any text, on consoles of any encoding and for processes that were started without them.

A console or pipe may have an encoding without most characters (code page 1252, Latin-1, ASCII), and a parent may close
the descriptors 0, 1 and 2. Neither is a reason to fail.
"""

import io
import os
import re
import sys
from typing import Any

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters with which a text can move the cursor, ring, or reorder what a terminal shows; not tabs and line feeds."""
STREAMS = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w"))
"""The standard streams by descriptor: name, flags and mode."""


def prepare_streams() -> None:
    """Replace closed standard streams by the null device, and escape characters that an output's encoding lacks."""
    for descriptor, (name, flags, mode) in enumerate(STREAMS):
        if getattr(sys, name) is None:
            setattr(sys, name, _null_stream(descriptor, flags, mode))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not if a caller has redirected the stream to a StringIO
            stream.reconfigure(errors="backslashreplace")


def escape_controls(text: str) -> str:
    """Return a text of a model or user for a terminal: control characters are escaped as in Python."""
    return CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def discard_output() -> None:
    """Replace standard output by the null device, so that flushing it at exit cannot fail again."""
    sys.stdout = _null_stream(-1, os.O_WRONLY, "w")


def _null_stream(descriptor: int, flags: int, mode: str) -> Any:
    """Open the null device, under the given descriptor if that is free.

    Otherwise, the next file to be opened would have the descriptor, and libraries that write to standard output or
    standard error in C would write into that file.
    """
    opened = os.open(os.devnull, flags)
    if descriptor >= 0 and opened != descriptor:
        try:
            os.fstat(descriptor)
        except OSError:  # the descriptor is free
            os.dup2(opened, descriptor)
            os.close(opened)
            opened = descriptor
    return open(opened, mode, encoding="utf-8", closefd=False)
