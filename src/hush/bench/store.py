"""A store of finished runs: a directory with one atomic folder per key.

    STORE/runs/KEY/record.json         the configuration, the result and its privacy: one JSON object
                  /epochs.jsonl        validation and test metrics and ε, one line per evaluation
                  /model.safetensors   the released weights, with privacy.json and PRIVACY.md (`weights`)
                  /private/            training loss and accuracy per step, tracebacks: never to be released, mode 0700
    STORE/working/KEY/                 the checkpoint and the secret of a run that is not finished or has failed, mode
                                       0700
    STORE/claims/KEY.lock              who is at it
    STORE/accounting/                  calibrated noise and ε by step, shared by runs with one privacy event

A result is written under a temporary name and renamed, so that a folder under ``runs`` is always complete.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hush._internal.storage import (
    FOLDER,
    PRIVATE,
    NoLocks,
    explain,
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
from hush.checkpointing import OtherVersion, Unreadable, read_checkpoint, wipe_secret
from hush.errors import InvalidInputError

# Who is running what: one small file a job, so that two sweeps on one store run nothing twice, on any machine.
#
# Whoever is at a job holds the kernel's lock on the job's file for as long as it runs. The lock ends with its holder,
# however that ends (kill -9 and a power cut included), and on a file system that several machines share it holds among
# all of them: `hush.bench.store` proves that before anything runs elsewhere. The note in the file says who it is, by
# host, process number and the process's start time. Notes of earlier versions of hush come without a lock: their
# process is looked for, and that of another host, which cannot be, is honoured. Looking and writing happen in one turn
# (`hush._internal.storage.file_lock`), and what was written is read back.

MUTEX = "mutex"


@dataclass(frozen=True)
class Owner:
    """A process, distinguished from any other that has had or will have its number."""

    host: str
    pid: int
    started: str

    @staticmethod
    def me() -> Owner:
        """This process."""
        return Owner(socket.gethostname(), os.getpid(), find_start(os.getpid()) or "")

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Whether the process still runs; True where that cannot be known."""
        return not self.is_here or (self.started != "" and find_start(self.pid) == self.started)


@dataclass(frozen=True)
class Note:
    """What a job's file says; ``locked`` where its writer held the kernel's lock on it."""

    owner: Owner
    locked: bool
    nonce: str

    def is_void(self) -> bool:
        """Whether no process runs the job any more; called while holding the lock on its file."""
        return self.locked or not self.owner.is_alive()


@dataclass(frozen=True)
class TrialLock:
    """A job that this process has taken, until it drops it."""

    path: Path
    descriptor: int
    nonce: str

    def drop(self) -> None:
        """Release the job. A file that another process has written into, because this lock was lost, is kept."""
        try:
            with file_lock(self.path.with_name(MUTEX)):
                note = _read(self.path)
                if note is not None and note.nonce == self.nonce:
                    self.path.unlink(missing_ok=True)
        finally:
            unlock(self.descriptor)


@dataclass(frozen=True)
class JobLocks:
    """The locks of a store's jobs, in a directory of their own; a job is known by its key."""

    directory: Path

    def take(self, key: str, is_done: Callable[[], bool] = lambda: False) -> TrialLock | None:
        """Take a job for this process: None if it is done, or a live process runs it."""
        with self._take_turn():
            if is_done():
                return None
            descriptor = _lock_free(self._path(key))
            if descriptor is None:
                return None
            try:
                return self._sign(self._path(key), descriptor)
            except BaseException:
                unlock(descriptor)
                raise

    def _sign(self, path: Path, descriptor: int) -> TrialLock:
        nonce = secrets.token_hex(8)
        content = json.dumps(asdict(Owner.me()) | {"locked": True, "nonce": nonce}).encode()
        write_in_place(descriptor, content)
        if path.read_bytes() != content:
            raise NoLocks(self.directory)
        return TrialLock(path, descriptor, nonce)

    def owner(self, key: str) -> Owner | None:
        """The process that runs a job; None if there is none or the note cannot be read."""
        note = _read(self._path(key))
        return None if note is None else note.owner

    def held(self) -> dict[str, Owner]:
        """Every job that a live process runs."""
        with self._take_turn():
            taken = [path.stem for path in self.directory.glob("*.lock") if not _is_free(path)]
        return {key: owner for key in taken if (owner := self.owner(key)) is not None}

    def clear(self) -> None:
        """Remove the notes of owners that are gone."""
        with self._take_turn():
            for path in self.directory.glob("*.lock"):
                if _is_free(path):
                    path.unlink(missing_ok=True)
            for part in self.directory.glob(".*.part"):
                part.unlink(missing_ok=True)  # left by a killed writer: no other process writes while the lock is held

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}.lock"

    def _take_turn(self) -> AbstractContextManager[None]:
        return file_lock(self.directory / MUTEX)


def _lock_free(path: Path) -> int | None:
    """The lock on a job's file, created if missing; None if another process runs the job. Call under the turn lock."""
    descriptor = try_lock(path)
    if descriptor is None:
        return None
    note = _read(path)
    if note is None or note.is_void():
        return descriptor
    unlock(descriptor)
    return None


def _is_free(path: Path) -> bool:
    descriptor = _lock_free(path)
    if descriptor is None:
        return False
    unlock(descriptor)
    return True


def _read(path: Path) -> Note | None:
    """What the file says; None where it cannot be read."""
    try:
        note = json.loads(path.read_bytes())
        owner = Owner(str(note["host"]), int(note["pid"]), str(note["started"]))
        return Note(owner, bool(note.get("locked", False)), str(note.get("nonce", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def find_start(pid: int) -> str | None:
    """When a process started, in the system's own unit; None where there is no such process, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else f"{fields[19]}@{_boot()}"
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, when = shown.stdout.strip().partition(" ")
    return None if not when or state.startswith("Z") else when.strip()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


# Whether a worker on another machine works on this very store: a token each way, and a lock that holds among machines.
#
# The driver of a sweep puts a file with a fresh token into the store and keeps it locked. A node runs nothing before
# one of its workers has read that token there, has found the file locked, and has left an answer that the driver sees.
# A folder of the same name on the node's own disk fails at the first, locks that hold on one machine alone at the
# second, and a copy that is brought up to date now and then at the third.

PREFIX = "meeting-"


class NotShared(InvalidInputError):
    """A machine does not work on the store that the sweep is about."""


@dataclass(frozen=True)
class SharedStoreProbe:
    """A file in the directory that holds a store's locks, by its name, and the token in it."""

    directory: Path
    name: str
    token: str

    def attend(self, node: str) -> None:
        """As a worker on a node: find the token and the lock on it, and leave an answer; `NotShared` where that
        fails."""
        path = self.directory / self.name
        try:
            found = path.read_text()
        except OSError:
            found = ""
        if found != self.token:
            raise NotShared(_notify(self.directory, f"node {node} does not see this sweep's files in it"))
        descriptor = try_lock(path)
        if descriptor is not None:
            unlock(descriptor)
            raise NotShared(_notify(self.directory, f"on node {node} its locks do not hold against other machines"))
        try:
            with file_lock(self.directory / MUTEX):  # else a sweep that tidies up could take it for a dead writer's
                write_atomic(self._answer(node), self.token.encode())
        except OSError as error:
            raise NotShared(_notify(self.directory, f"node {node} cannot write to it ({explain(error)})")) from error

    def check_answer(self, node: str) -> None:
        """As the driver: see the answer that a worker on this node has left."""
        try:
            found = self._answer(node).read_text()
        except OSError:
            found = ""
        if found != self.token:
            raise NotShared(_notify(self.directory, f"what node {node} writes there is not seen on this machine"))

    def _answer(self, node: str) -> Path:
        return self.directory / f"{self.name}.{node}"


def _notify(directory: Path, how: str) -> str:
    return (
        f"the store '{directory.parent}' is not shared by all nodes ({how}): put it on a file system that every node "
        "mounts at this path, with locks"
    )


@contextmanager
def open_probe(directory: Path) -> Iterator[SharedStoreProbe]:
    """A meeting for as long as a sweep lasts."""
    meeting = SharedStoreProbe(directory, f"{PREFIX}{secrets.token_hex(8)}", secrets.token_hex(16))
    path = directory / meeting.name
    with file_lock(directory / MUTEX):
        descriptor = try_lock(path)
    assert descriptor is not None, "a fresh name that another process has locked"
    try:
        write_in_place(descriptor, meeting.token.encode())
        yield meeting
    finally:
        with file_lock(directory / MUTEX):
            _remove(path)
        unlock(descriptor)


def clear_meetings(directory: Path) -> None:
    """Remove what a sweep that was killed has left."""
    with file_lock(directory / MUTEX):
        for path in directory.glob(f"{PREFIX}*"):
            if "." in path.name:
                continue  # an answer; it goes with its meeting
            descriptor = try_lock(path)
            if descriptor is not None:
                _remove(path)
                unlock(descriptor)


def _remove(path: Path) -> None:
    for answer in path.parent.glob(f"{path.name}.*"):
        answer.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


FORMAT = "hush store 1"
PARTS = {"runs": 0o755, "claims": 0o755, "accounting": 0o755, "working": 0o700}
UNREADABLE = "unreadable"  # the outcome of a run whose record is damaged; it is not run again
RECORD, EPOCHS, SECRET_PART = "record.json", "epochs.jsonl", "private"
RUN = "run"  # in a working directory: the run's private directory
CHECKPOINTS = f"{RUN}/checkpoint-*"
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class StoreFullError(OSError):
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
        """The record of a finished run; one that is damaged says no more than that, in its outcome and reason."""
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
        """The directory for a run's checkpoint; only the holder of its lock may use it."""
        path = self.root / "working" / key
        make_directory(path, mode=0o700)
        for left in path.glob("result.*"):
            shutil.rmtree(left, ignore_errors=True)
        return path

    def finish(self, key: str, result: Result) -> None:
        """Put a result in its place, whole; a result that is there already stays. The checkpoint goes, but that of a
        failed run stays, to go on from it when the run is tried again."""
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
        """Remove the working directory of a finished run; of a failed one only where no checkpoint is in it."""
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
            raise InvalidInputError(f"'{root}' is neither a store nor empty: name another directory")
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
        raise InvalidInputError(f"'{root}' is not a store of benchmark runs") from error
    if found != FORMAT:
        raise InvalidInputError(f"'{root}' is a store of another format ('{found}'; this hush reads '{FORMAT}')")


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
    folder.mkdir(mode=FOLDER)
    if result.release is not None:
        result.release(folder)
    secret = folder / SECRET_PART
    secret.mkdir(mode=0o700)
    for name, content in result.private:
        write_atomic(secret / name, content, mode=PRIVATE)
    lines = (dump_json(line) + "\n" for line in result.epochs)
    write_atomic(folder / EPOCHS, "".join(lines).encode())
    write_atomic(folder / RECORD, dump_json(result.record, indent=1).encode())
