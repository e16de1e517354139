"""The command line: thin, one file a command. Results on stdout, progress on stderr, one sentence for bad input.

A command's options are the fields of a dataclass (``hush.cli.options.take``): a new option is one field and its use. A
new command is a file of its own and a line in ``hush.cli.main``.
"""

from hush.cli.main import app, main

__all__ = ["app", "main"]
