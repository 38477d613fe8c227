"""The command line: parses, calls, prints. Each command imports what it needs when it runs, so that --help is quick."""
