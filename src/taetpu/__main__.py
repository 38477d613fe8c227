"""Entry point of `python -m taetpu`."""

from taetpu.cli.main import main

main()
