"""Results of expensive solvers, kept on disk under the hash of what was asked.

A file is a plain .npz (never unpickled) in $HUSH_CACHE, or the user's cache directory. It carries the question and a
digest of its arrays; one that is damaged or answers another question is recomputed. Privacy never rests on it:
sensitivities are computed from the loaded matrix every time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hush.matrices.series import Array

VERSION = 3  # raise it when a solver changes what it finds
Arrays = dict[str, Array]
_beside: list[Path] = []


def directory() -> Path:
    """$HUSH_CACHE, else $XDG_CACHE_HOME/hush, else ~/.cache/hush; factorisations live in its `matrices` folder."""
    if chosen := os.environ.get("HUSH_CACHE"):
        return Path(chosen) / "matrices"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hush" / "matrices"


def cached(solver: str, question: Mapping[str, object], solve: Callable[[], Arrays]) -> Arrays:
    """The stored answer to this solver's question if there is a sound one, else solve() stored."""
    text = json.dumps({"solver": solver, "version": VERSION, **_plain(question)}, sort_keys=True)
    name = f"{solver}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"
    places = [place / name for place in (*_beside, directory())]
    stored = ((path, _load(path, text)) for path in places)
    source, found = next(((path, arrays) for path, arrays in stored if arrays is not None), (None, None))
    if found is None:
        found = {name: np.asarray(values, dtype=np.float64) for name, values in solve().items()}
    for path in places:
        if source is None or (path != source and path.parent in _beside):
            _store(path, text, found)
    return found


@contextlib.contextmanager
def kept_in(place: Path) -> Iterator[None]:
    """Within this block answers are looked for in ``place`` first and kept there too.

    Two computations of one matrix agree to rounding only. A run that is to go on to the same bits keeps its own."""
    _beside.append(place)
    try:
        yield
    finally:
        _beside.remove(place)


def _plain(question: Mapping[str, object]) -> dict[str, object]:
    return {
        name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in question.items()
    }


def _digest(arrays: Arrays) -> str:
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(f"{name}{arrays[name].shape}".encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


def _load(path: Path, question: str) -> Arrays | None:
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
    asked, digest = str(found.pop("question", "")), str(found.pop("digest", ""))
    plain = all(values.dtype == np.float64 and np.all(np.isfinite(values)) for values in found.values())
    return found if plain and asked == question and _digest(found) == digest else None


def _store(path: Path, question: str, arrays: Arrays) -> None:
    """Write beside, then rename; a cache that cannot be written is no reason to fail."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                stored: dict[str, Any] = {**arrays, "question": np.array(question), "digest": np.array(_digest(arrays))}
                np.savez(file, **stored)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
