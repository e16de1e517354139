"""A store of finished runs: a directory with one atomic folder per key.

    STORE/runs/KEY/record.json         the configuration, the result and its privacy: one JSON object
                  /epochs.jsonl        validation and test figures and ε, a line an evaluation
                  /model.safetensors   the released weights, privacy.json and PRIVACY.md beside them (`weights`)
                  /private/            training loss and accuracy a step, tracebacks: never to be released, mode 0700
    STORE/working/KEY/                 the checkpoint of a run that is not finished or has failed, mode 0700: it holds
                                       the secret
    STORE/claims/KEY.lock              who is at it
    STORE/accounting/                  calibrated noise and ε by step, shared by runs with one privacy event

A result is written beside and renamed, so that a folder under ``runs`` is always whole.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.bench.locks import JobLocks
from hush.bench.meeting import clear_meetings
from hush.checkpoint import OtherVersion, Unreadable, read_checkpoint
from hush.errors import BadInput
from hush.files import PRIVATE, move_atomic, writable_directory, write_atomic
from hush.printable import dump_json

FORMAT = "hush store 1"
PARTS = {"runs": 0o755, "claims": 0o755, "accounting": 0o755, "working": 0o700}
RECORD, EPOCHS, SECRET_PART = "record.json", "epochs.jsonl", "private"
CHECKPOINTS = "run/checkpoint-*"  # in a working directory
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class StoreTrouble(OSError):
    """The disk under the store does not take any more: the sweep stops, and what is written stays whole."""


@dataclass(frozen=True)
class Result:
    """What is kept of one run. ``private`` maps file names to bytes; ``release`` writes weights and privacy card."""

    record: dict[str, Any]
    epochs: tuple[dict[str, Any], ...] = ()
    private: tuple[tuple[str, bytes], ...] = ()
    release: Callable[[Path], object] | None = None


@dataclass(frozen=True)
class Store:
    """An open store; see :func:`open_store`."""

    root: Path

    @property
    def locks(self) -> JobLocks:
        """Who is running what."""
        return JobLocks(self.root / "claims")

    def folder(self, key: str) -> Path:
        """The folder of a finished run."""
        return self.root / "runs" / key

    def has(self, key: str) -> bool:
        """Whether this run is finished (or has failed, or diverged: then its record says so)."""
        return self.folder(key).is_dir()

    def keys(self) -> set[str]:
        """Every finished run."""
        return {entry.name for entry in os.scandir(self.root / "runs") if not entry.name.startswith(".")}

    def record(self, key: str) -> dict[str, Any]:
        """The record of a finished run."""
        found: dict[str, Any] = json.loads((self.folder(key) / RECORD).read_bytes())
        return found

    def records(self, keys: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
        """The records of these runs, of all by default, in the order of their keys."""
        for key in sorted(self.keys() if keys is None else keys):
            yield self.record(key)

    def working(self, key: str) -> Path:
        """The directory for a run's checkpoint; only the holder of its lock may use it."""
        path = self.root / "working" / key
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in path.glob("result.*"):
            shutil.rmtree(left, ignore_errors=True)
        return path

    def finish(self, key: str, result: Result) -> None:
        """Put a result in its place, whole; a result that is there already stays. The checkpoint goes, but that of a
        failed run stays, to go on from it when the run is tried again."""
        beside = self.working(key) / f"result.{secrets.token_hex(4)}"
        try:
            _write(beside, result)
            move_atomic(beside, self.folder(key))
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            if not self.has(key):
                raise error
        self._clear(key)

    def _clear(self, key: str) -> None:
        """Remove the working directory of a finished run; of a failed one only where no checkpoint is in it."""
        working = self.root / "working" / key
        if not any(working.glob(CHECKPOINTS)) or self.record(key)["outcome"] != "failed":
            shutil.rmtree(working, ignore_errors=True)

    def check_unfinished(self, keys: Iterable[str]) -> None:
        """Raise BadInput where another version of hush began one of these runs: begun anew, it would lose its steps."""
        others = [key for key in keys if _is_of_another_version(self.root / "working" / key)]
        if others:
            folder = self.root / "working" / others[0]
            raise BadInput(
                f"{len(others)} unfinished or failed runs in '{self.root}' were begun by another version of hush: "
                f"finish them with that version, or remove their folders (such as '{folder}') to begin them anew"
            )

    def forget(self, key: str) -> None:
        """Remove a finished run, so that it is run again; the rename makes it vanish at once."""
        gone = self.root / "working" / f"forgotten.{secrets.token_hex(4)}"
        if self.has(key):
            move_atomic(self.folder(key), gone)
            shutil.rmtree(gone, ignore_errors=True)

    def tidy(self) -> None:
        """Clear away what killed processes left: void locks, checkpoints of finished runs (they hold secrets)."""
        self.locks.clear()
        clear_meetings(self.locks.directory)
        held = self.locks.held()
        for path in (self.root / "working").iterdir():
            if path.name.startswith("forgotten."):
                shutil.rmtree(path, ignore_errors=True)
            elif self.has(path.name) and path.name not in held:
                self._clear(path.name)


def open_store(root: str | Path) -> Store:
    """The store in a directory, made if need be; a directory with other things in it is refused."""
    root = Path(root)
    note = root / "store.json"
    if not note.exists():
        if root.is_dir() and {e.name for e in root.iterdir() if not e.name.startswith(".")} - set(PARTS):
            raise BadInput(f"'{root}' is neither a store nor empty: name another directory")
        writable_directory(root)
        for name, mode in PARTS.items():
            (root / name).mkdir(mode=mode, exist_ok=True)
        write_atomic(note, json.dumps({"format": FORMAT}).encode())
    check_store(root)
    return Store(root)


def check_store(root: Path) -> None:
    """Raise BadInput where a directory is no store of this format."""
    try:
        found = json.loads((root / "store.json").read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"'{root}' is not a store of benchmark runs") from error
    if found != FORMAT:
        raise BadInput(f"'{root}' is a store of another format ('{found}'; this hush reads '{FORMAT}')")


def _is_of_another_version(working: Path) -> bool:
    """By the newest checkpoint that is whole."""
    for path in sorted(working.glob(CHECKPOINTS), reverse=True):
        try:
            read_checkpoint(path)
        except OtherVersion:
            return True
        except Unreadable:
            continue
        return False
    return False


def _write(folder: Path, result: Result) -> None:
    folder.mkdir()
    if result.release is not None:
        result.release(folder)
    secret = folder / SECRET_PART
    secret.mkdir(mode=0o700)
    for name, content in result.private:
        write_atomic(secret / name, content, mode=PRIVATE)
    lines = (dump_json(line) + "\n" for line in result.epochs)
    write_atomic(folder / EPOCHS, "".join(lines).encode())
    write_atomic(folder / RECORD, dump_json(result.record, indent=1).encode())
