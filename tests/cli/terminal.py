"""Run a command on a terminal of 80 columns and type answers."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

CTRL_C = "\x03"


def on_terminal(folder: Path, words: list[str], answer: str, prompt: str = "?", seconds: float = 60.0):
    """Run `taetpu` and type an answer at the prompt. Return the exit code and all output."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", sys.executable, "-m", "taetpu", *words], cwd=folder, env=environment,
        stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    shown, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([master], [], [], 0.05)[0]:
            try:
                shown += os.read(master, 1 << 16).decode(errors="replace")
            except OSError:  # the terminal was closed
                break
        if answer and prompt in shown.rpartition("\n")[2]:
            time.sleep(0.1)  # Python loses a Ctrl-C that arrives just before it reads
            os.write(master, answer.encode())
            answer = ""
    os.close(master)
    return process.wait(10), shown
