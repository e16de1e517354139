"""`hush verify`: whether a release is what was released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hush.cli.console import show, show_json
from hush.cli.shell import AsJson
from hush.handover import verify_release


def verify(
    directory: Annotated[Path, typer.Argument(help="The folder of a release, or of the run that made it.")],
    as_json: AsJson = False,
) -> None:
    """Check a release: digests of all files, weights against description, card against plan, ε recomputed.

    Exit 1 if anything differs. Digests find accidents and careless edits; they are no signature."""
    found = verify_release(directory)
    if as_json:
        show_json(found.to_json())
    else:
        show(found.sentence())
    if not found.verified:
        raise typer.Exit(1)
