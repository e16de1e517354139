"""Who is running what: one small file a job, so that two sweeps on one store run nothing twice, on any machine.

Whoever is at a job holds the kernel's lock on the job's file for as long as it runs. The lock ends with its holder,
however that ends (kill -9 and a power cut included), and on a file system that several machines share it holds among
all of them: `hush.bench.meeting` proves that before anything runs elsewhere. The note in the file says who it is, by
host, process number and the process's start time. Notes of earlier versions of hush come without a lock: their process
is looked for, and that of another host, which cannot be, is honoured. Looking and writing happen in one turn
(`hush.files.take_turn`), and what was written is read back.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from hush.files import NoLocks, give_back, take_turn, try_lock, write_in_place

MUTEX = "mutex"


@dataclass(frozen=True)
class Owner:
    """A process, told apart from any other that has had or will have its number."""

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
        """Whether nobody is at the job any more, seen by one who holds the lock on its file."""
        return self.locked or not self.owner.is_alive()


@dataclass(frozen=True)
class Claim:
    """A job that this process has taken, until it drops it."""

    path: Path
    descriptor: int
    nonce: str

    def drop(self) -> None:
        """Give the job up. A file that somebody else has written into, as this machine's lock was lost, stays."""
        try:
            with take_turn(self.path.with_name(MUTEX)):
                note = _read(self.path)
                if note is not None and note.nonce == self.nonce:
                    self.path.unlink(missing_ok=True)
        finally:
            give_back(self.descriptor)


@dataclass(frozen=True)
class JobLocks:
    """The locks of a store's jobs, in a directory of their own; a job is known by its key."""

    directory: Path

    def take(self, key: str, is_done: Callable[[], bool] = lambda: False) -> Claim | None:
        """Take a job for this process: None where it is done, or somebody alive is at it."""
        with self._take_turn():
            if is_done():
                return None
            descriptor = _lock_free(self._path(key))
            if descriptor is None:
                return None
            try:
                return self._sign(self._path(key), descriptor)
            except BaseException:
                give_back(descriptor)
                raise

    def _sign(self, path: Path, descriptor: int) -> Claim:
        nonce = secrets.token_hex(8)
        content = json.dumps(asdict(Owner.me()) | {"locked": True, "nonce": nonce}).encode()
        write_in_place(descriptor, content)
        if path.read_bytes() != content:
            raise NoLocks(self.directory)
        return Claim(path, descriptor, nonce)

    def owner(self, key: str) -> Owner | None:
        """Who is at a job; None where nobody is or the note cannot be read."""
        note = _read(self._path(key))
        return None if note is None else note.owner

    def held(self) -> dict[str, Owner]:
        """Every job that somebody alive is at."""
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
                part.unlink(missing_ok=True)  # left by a writer that was killed: nobody writes while the lock is held

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}.lock"

    def _take_turn(self) -> AbstractContextManager[None]:
        return take_turn(self.directory / MUTEX)


def _lock_free(path: Path) -> int | None:
    """The lock on a job's file, made if need be; None where somebody is at the job. Only in one's turn."""
    descriptor = try_lock(path)
    if descriptor is None:
        return None
    note = _read(path)
    if note is None or note.is_void():
        return descriptor
    give_back(descriptor)
    return None


def _is_free(path: Path) -> bool:
    descriptor = _lock_free(path)
    if descriptor is None:
        return False
    give_back(descriptor)
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
