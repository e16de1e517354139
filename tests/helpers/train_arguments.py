"""Arguments of `hush train` and `hush tune` on files, with a run directory if the test gives none."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

_folder, _number = tempfile.TemporaryDirectory(prefix="hush-tests-"), count()


def keep(arguments: Sequence[object]) -> list[str]:
    """The arguments as texts; `--data` without `--out` gets a new folder."""
    texts = [str(a) for a in arguments]
    if texts[:1] in (["train"], ["tune"]) and "--data" in texts and "--out" not in texts:
        texts += ["--out", str(Path(_folder.name) / f"run-{next(_number)}")]
    return texts
