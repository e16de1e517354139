"""The command line: thin, one file a command. Results on stdout, progress on stderr, one sentence for bad input."""

from hush.cli.main import app, main

__all__ = ["app", "main"]
