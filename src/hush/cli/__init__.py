"""The command line, one file per command. Results go to stdout, progress to stderr, errors are one sentence.

A command's options are the fields of a dataclass (``hush.cli.options.take``): a new option is one field and its use. A
new command is a file and a line in ``hush.cli.main``.

In scope: parsing, calling the library, printing. Anything that decides about privacy belongs in the library.
"""

from hush.cli.main import app, main

__all__ = ["app", "main"]
