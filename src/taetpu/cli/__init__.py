"""The command line: a file per command or group. Commands import their packages when they run, so --help is fast."""
