"""Encoded rows of a long table in files that are mapped into memory, and the rows of them that a part of the data is.

The files are private: they hold everybody's rows. They lie in the folder ``tables`` of hush's cache (`find_cache`),
which only its owner may open (0700, the files 0600), under a digest of the table's bytes, of its schema and of the
version of the encoding, so that a second run on the same table finds them. A folder gets its name when all of it is on the disk:
whatever was interrupted is never trusted. One that was not used for a week is removed by the next long table.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.errors import BadInput
from hush.files import PRIVATE, clear_beside, explain, find_cache, lock_file, move_atomic, sync_directory, sync_file

ENCODING_VERSION = 1
"""Raise it with every change of what a column's profile holds or how a row is encoded: stored tables are then unused."""
FOLDER = "tables"
FILES = ("rows.npy", "labels.npy")
WEEK = 7 * 24 * 3600.0  # seconds
CHUNK = 1 << 24  # bytes that are digested at a time
SETTLED = 10.0  # seconds, longer than the clock of any file system takes from one mark to the next
Encoded = tuple[NDArray[np.float32], NDArray[Any]]
"""Some rows: (n, columns), and their labels (n,)."""


@dataclass(frozen=True, eq=False)
class Picked:
    """Some rows of tensors that stay where they are, in this order: a `hush.source.Source` whose parts may be larger
    than memory, as only the rows that are asked for are copied."""

    tensors: tuple[Tensor, ...]
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The content of these examples."""
        rows = self.rows[indices]
        return tuple(tensor[rows] for tensor in self.tensors)

    def pick(self, places: Tensor) -> Picked:
        """Those of the rows at these places."""
        return Picked(self.tensors, self.rows[places])

    def change_last(self, change: Callable[[Tensor], Tensor]) -> Picked:
        """The same rows with other labels; ``change`` must look at each label alone."""
        return Picked((*self.tensors[:-1], change(self.tensors[-1])), self.rows)


def pick_all(tensors: tuple[Tensor, ...]) -> Picked:
    """Every row, in the order of the file."""
    return Picked(tensors, torch.arange(len(tensors[0])))


def digest_table(parts: Sequence[Path], facts: Any) -> str:
    """A key for what is computed from a table: the bytes of its parts, the facts (plain data), the encoding version."""
    key = {"encoding": ENCODING_VERSION, "facts": facts}
    total = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16)
    for path in parts:
        total.update(_digest_file(path))
    return total.hexdigest()


def _digest_file(path: Path) -> bytes:
    """Of the bytes of a file. One that was left alone for some seconds is read once by a process: whatever changes it
    later gives it another time of change, which no program can set back."""
    state = path.stat()
    marks = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    if time.time() - max(state.st_mtime, state.st_ctime) < SETTLED:
        return _digest_bytes(path)
    return _digest_settled(path, marks)


@lru_cache(maxsize=1024)
def _digest_settled(path: Path, marks: tuple[int, ...]) -> bytes:
    return _digest_bytes(path)


def _digest_bytes(path: Path) -> bytes:
    each = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            each.update(chunk)
    return each.digest()


def map_rows(name: str, encode: Callable[[], Iterator[Encoded]]) -> tuple[Tensor, Tensor]:
    """The rows and labels that are kept under ``name``, or those that ``encode`` gives, which are kept from now on."""
    place = open_private(FOLDER)
    target = place / name
    forget_old(place, target)
    found = _load(target)
    if found is None:
        try:
            _write(target, encode())
        except OSError as error:
            why = "there is no room" if error.errno == errno.ENOSPC else explain(error)
            raise BadInput(
                f"a long table's encoded rows cannot be kept in '{place}': {why}; name another folder in HUSH_CACHE"
            ) from error
        found = _load(target)
    if found is None:
        raise BadInput(f"the encoded rows in '{target}' cannot be read back: name another folder in HUSH_CACHE")
    with contextlib.suppress(OSError):
        os.utime(target)
    return found


def open_private(name: str) -> Path:
    """A folder of hush's cache that only its owner may open."""
    place = find_cache() / name
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.chmod(0o700)
    except OSError as error:
        raise BadInput(f"a long table needs a folder to write to, and '{place}' is none: {explain(error)}") from error
    return place


def forget_old(place: Path, kept: Path) -> None:
    """Remove what was not used for a week, but for one; a run that still has it mapped keeps its rows."""
    for each in place.iterdir():
        with contextlib.suppress(OSError):
            if each != kept and time.time() - each.stat().st_mtime > WEEK:
                shutil.rmtree(each) if each.is_dir() else each.unlink()


def _load(folder: Path) -> tuple[Tensor, Tensor] | None:
    """The mapped files; None where there are none or they do not fit. They are mapped copy-on-write: whatever a program
    does to the tensors, the files stay as they are."""
    try:
        rows, labels = (np.load(folder / name, mmap_mode="c", allow_pickle=False) for name in FILES)
    except (OSError, ValueError):
        return None
    if rows.ndim != 2 or labels.ndim != 1 or len(rows) != len(labels) or rows.dtype != np.float32:
        return None
    return torch.from_numpy(rows), torch.from_numpy(labels)


def _write(target: Path, pieces: Iterator[Encoded]) -> None:
    """All pieces into a folder beside the target, which then gets its name, unless another process was quicker."""
    with _begin_beside(target) as beside:
        _write_files(beside, pieces)
        sync_directory(beside)
        with _take_turn(target.parent):
            if _load(target) is None:
                if target.exists():  # not whole
                    shutil.rmtree(target)
                move_atomic(beside, target)


@contextmanager
def _begin_beside(target: Path) -> Iterator[Path]:
    """A folder to write to, gone at the end unless it was moved; its lock says to others that it is being written."""
    beside = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    with _take_turn(target.parent):  # else another process might clear what is made and not locked yet
        clear_beside(target)
        beside.mkdir(mode=0o700)
        held = _open_locked(beside)
    try:
        yield beside
    finally:
        os.close(held)
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _take_turn(folder: Path) -> Iterator[None]:
    """One process at a time in here, where the disk has locks."""
    held = _open_locked(folder)
    try:
        yield
    finally:
        os.close(held)


def _open_locked(folder: Path) -> int:
    held = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a disk without locks still holds the rows of one process at a time
        lock_file(held)
    return held


def _write_files(folder: Path, pieces: Iterator[Encoded]) -> None:
    files = [_Growing(folder / name) for name in FILES]
    try:
        for piece in pieces:
            for file, array in zip(files, piece, strict=True):
                file.add(array)
        for file in files:
            file.finish()
    finally:
        for file in files:
            file.close()


class _Growing:
    """An .npy file of which rows are written before their number is known: its header is written twice, and numpy
    leaves room in it for a length of any number of digits."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE), "wb")
        self._like: NDArray[Any] | None = None
        self._rows = 0

    def add(self, array: NDArray[Any]) -> None:
        if self._like is None:
            self._like = array[:0]
            self._write_header()
        self._file.write(np.ascontiguousarray(array).data)
        self._rows += len(array)

    def finish(self) -> None:
        start = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.seek(start)
        self._file.flush()
        sync_file(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write_header(self) -> None:
        if self._like is None:
            raise ValueError("a table without rows has no file")
        shape = (self._rows, *self._like.shape[1:])
        described = {"descr": self._like.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, described)
