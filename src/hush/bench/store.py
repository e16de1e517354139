"""A store of finished runs: a directory with one atomic folder per key.

    STORE/runs/KEY/record.json         the configuration, the result and its privacy: one JSON object
                  /epochs.jsonl        validation and test metrics and ε, one line per evaluation
                  /model.safetensors   the released weights, with privacy.json and PRIVACY.md (`weights`)
                  /private/            training loss and accuracy per step, tracebacks: never to be released, mode 0700
    STORE/working/KEY/                 the checkpoint and the secret of a run that is not finished or has failed, mode
                                       0700
    STORE/claims/KEY.lock              locked by the sweep that runs it
    STORE/accounting/                  calibrated noise and ε by step, shared by runs with one privacy event

A result is written under a temporary name and renamed, so that a folder under ``runs`` is always complete.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from hush._internal.storage import (
    FOLDER,
    PRIVATE,
    file_lock,
    make_directory,
    move_atomic,
    try_lock,
    unlock,
    writable_directory,
    write_atomic,
    write_in_place,
)
from hush._internal.text import dump_json
from hush.checkpointing.checkpoint import OtherVersion, Unreadable, read_checkpoint, wipe_secret
from hush.errors import InvalidInputError

# One lock file for each run in progress, so that two sweeps on one store do not run the same run.
#
# The sweep's own process, not its workers, holds the kernel's lock on the run's file. The lock ends with that process,
# however it ends (kill -9 and a power cut included), and on a file system that several machines share it holds among
# all of them. The file holds a token, by which a worker on another machine proves that it works on the same store.

MUTEX = "mutex"


class NotShared(InvalidInputError):
    """A machine that does not share the sweep's store."""


@dataclass(frozen=True)
class TrialLock:
    """A run that this sweep has locked, until it releases the lock."""

    path: Path
    descriptor: int
    token: str

    def drop(self) -> None:
        """Let other sweeps take the run."""
        try:
            with file_lock(self.path.with_name(MUTEX)):
                self.path.unlink(missing_ok=True)
        finally:
            unlock(self.descriptor)


@dataclass(frozen=True)
class JobLocks:
    """The locks of a store's runs, in one directory; a run is identified by its key."""

    directory: Path

    def take(self, key: str, is_done: Callable[[], bool] = lambda: False) -> TrialLock | None:
        """Lock a run for this sweep; None if it is done or another sweep has it."""
        path, token = self.directory / f"{key}.lock", secrets.token_hex(16)
        with self._take_turn():
            if is_done():
                return None
            descriptor = try_lock(path)
            if descriptor is None:
                return None
            try:
                write_in_place(descriptor, token.encode())
            except BaseException:
                unlock(descriptor)
                raise
        return TrialLock(path, descriptor, token)

    def held(self) -> set[str]:
        """Every run that a sweep has taken."""
        with self._take_turn():
            return {path.stem for path in self.directory.glob("*.lock") if not _is_free(path)}

    def clear(self) -> None:
        """Remove the files of sweeps that are gone."""
        with self._take_turn():
            for path in self.directory.glob("*.lock"):
                if _is_free(path):
                    path.unlink(missing_ok=True)

    def prove_shared(self, key: str, token: str, node: str) -> None:
        """As a worker: raise `NotShared` unless the sweep's token is here and its lock holds against this machine."""
        path = self.directory / f"{key}.lock"
        found = path.read_text() if path.exists() else ""
        if found != token:
            raise NotShared(_explain_not_shared(self.directory, f"node {node} does not see this sweep's files in it"))
        if _is_free(path):
            how = f"on node {node} its locks do not hold against other machines"
            raise NotShared(_explain_not_shared(self.directory, how))

    def _take_turn(self) -> AbstractContextManager[None]:
        return file_lock(self.directory / MUTEX)


def _is_free(path: Path) -> bool:
    descriptor = try_lock(path)
    if descriptor is None:
        return False
    unlock(descriptor)
    return True


def _explain_not_shared(directory: Path, how: str) -> str:
    return (
        f"the store '{directory.parent}' is not shared by all nodes ({how}): put it on a file system that every node "
        "mounts at this path, with locks"
    )


FORMAT = "hush store 1"
PARTS = {"runs": 0o755, "claims": 0o755, "accounting": 0o755, "working": 0o700}
UNREADABLE = "unreadable"  # the outcome of a run whose record is damaged; it is not run again
RECORD, EPOCHS, SECRET_PART = "record.json", "epochs.jsonl", "private"
RUN = "run"  # in a working directory: the run's private directory
CHECKPOINTS = f"{RUN}/checkpoint-*"
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class StoreFullError(OSError):
    """The store's disk is full: the sweep stops, and the files that were written are complete."""


@dataclass(frozen=True)
class Result:
    """The stored result of one run; ``private`` and ``release`` map file names to bytes."""

    record: dict[str, Any]
    epochs: tuple[dict[str, Any], ...] = ()
    private: Mapping[str, bytes] = field(default_factory=dict)
    release: Mapping[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The result as the bytes of one safetensors file, which a worker sends to the sweep."""
        files = {f"private/{name}": content for name, content in self.private.items()}
        files |= {f"release/{name}": content for name, content in self.release.items()}
        plain = {name: np.frombuffer(content, dtype=np.uint8) for name, content in files.items()}
        return save(plain, metadata={"record": dump_json(self.record), "epochs": dump_json(list(self.epochs))})

    @classmethod
    def from_bytes(cls, content: bytes) -> Result:
        """The inverse of `to_bytes`."""
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        parts: dict[str, dict[str, bytes]] = {"private": {}, "release": {}}
        for path, value in load(content).items():
            part, _, name = path.partition("/")
            parts[part][name] = value.tobytes()
        return cls(json.loads(metadata["record"]), tuple(json.loads(metadata["epochs"])), **parts)


@dataclass(frozen=True)
class Store:
    """An open store; see :func:`open_store`."""

    root: Path

    @property
    def locks(self) -> JobLocks:
        """The locks of runs in progress."""
        return JobLocks(self.root / "claims")

    def folder(self, key: str) -> Path:
        """The folder of a finished run."""
        return self.root / "runs" / key

    def has(self, key: str) -> bool:
        """Whether this run has a record: it finished, failed or diverged."""
        return self.folder(key).is_dir()

    def keys(self) -> set[str]:
        """Every finished run."""
        return {entry.name for entry in os.scandir(self.root / "runs") if not entry.name.startswith(".")}

    def record(self, key: str) -> dict[str, Any]:
        """The record of a finished run; of a damaged record only an outcome and reason that state the damage."""
        path = self.folder(key) / RECORD
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            if not self.has(key):
                raise
            found = None
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and isinstance(found.get("outcome"), str):
            return found
        reason = f"'{path}' is damaged: remove its folder to run it again"
        return {"key": key, "config": {"options": {}}, "outcome": UNREADABLE, "reason": reason, "seconds": 0.0}

    def records(self, keys: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
        """The records of these runs, of all by default, in the order of their keys."""
        for key in sorted(self.keys() if keys is None else keys):
            yield self.record(key)

    def working(self, key: str) -> Path:
        """The directory for a run's checkpoints, which its worker locks while it uses them."""
        path = self.root / "working" / key
        make_directory(path, mode=0o700)
        for left in path.glob("result.*"):
            shutil.rmtree(left, ignore_errors=True)
        return path

    def finish(self, key: str, result: Result) -> None:
        """Store a complete result, unless there is one already. The checkpoint is removed, except that of a failed run,
        which continues from it when it is tried again."""
        composed = self.working(key) / f"result.{secrets.token_hex(4)}"
        try:
            _write(composed, result)
            move_atomic(composed, self.folder(key))
        except OSError as error:
            shutil.rmtree(composed, ignore_errors=True)
            if not self.has(key):
                raise error
        self._clear(key)

    def _clear(self, key: str) -> None:
        """Remove the working directory of a finished run; of a failed one only if it has no checkpoint."""
        working = self.root / "working" / key
        if not any(working.glob(CHECKPOINTS)) or self.record(key)["outcome"] != "failed":
            wipe_secret(working / RUN)
            shutil.rmtree(working, ignore_errors=True)

    def check_unfinished(self, keys: Iterable[str]) -> None:
        """Raise an error if another version of hush started one of these runs: a restart would lose its steps."""
        others = [key for key in keys if _is_of_another_version(self.root / "working" / key)]
        if others:
            folder = self.root / "working" / others[0]
            raise InvalidInputError(
                f"{len(others)} unfinished or failed runs in '{self.root}' were begun by another version of hush: "
                f"finish them with that version, or remove their folders (such as '{folder}') to restart them"
            )

    def forget(self, key: str) -> None:
        """Remove a finished run, so that it is run again; a rename removes it atomically."""
        gone = self.root / "working" / f"forgotten.{secrets.token_hex(4)}"
        if self.has(key):
            move_atomic(self.folder(key), gone)
            shutil.rmtree(gone, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what killed processes left: free locks, checkpoints of finished runs (they hold secrets)."""
        self.locks.clear()
        held = self.locks.held()
        for path in (self.root / "working").iterdir():
            if path.name.startswith("forgotten."):
                shutil.rmtree(path, ignore_errors=True)
            elif self.has(path.name) and path.name not in held:
                self._clear(path.name)


def open_store(root: str | Path) -> Store:
    """Open the store in a directory, or create it; raises for a directory with other files."""
    root = Path(root)
    note = root / "store.json"
    if not note.exists():
        if root.is_dir() and {e.name for e in root.iterdir() if not e.name.startswith(".")} - set(PARTS):
            raise InvalidInputError(f"'{root}' is neither a store nor empty: name another directory")
        writable_directory(root)
        for name, mode in PARTS.items():
            (root / name).mkdir(mode=mode, exist_ok=True)
        write_atomic(note, json.dumps({"format": FORMAT}).encode())
    check_store(root)
    return Store(root)


def check_store(root: Path) -> None:
    """Raise `InvalidInputError` if a directory is not a store of this format."""
    try:
        found = json.loads((root / "store.json").read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"'{root}' is not a store of benchmark runs") from error
    if found != FORMAT:
        raise InvalidInputError(f"'{root}' is a store of another format ('{found}'; this hush reads '{FORMAT}')")


def _is_of_another_version(working: Path) -> bool:
    """Whether the newest complete checkpoint is of another version."""
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
    folder.mkdir(mode=FOLDER)
    for name, content in result.release.items():
        write_atomic(folder / name, content)
    secret = folder / SECRET_PART
    secret.mkdir(mode=0o700)
    for name, content in result.private.items():
        write_atomic(secret / name, content, mode=PRIVATE)
    lines = (dump_json(line) + "\n" for line in result.epochs)
    write_atomic(folder / EPOCHS, "".join(lines).encode())
    write_atomic(folder / RECORD, dump_json(result.record, indent=1).encode())
