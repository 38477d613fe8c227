"""The command line, with one file per command or group. Commands import packages when they run, so --help is fast."""
