"""Who is running what: one small file a job, so that two sweeps on one store run nothing twice.

A job's lock names its owner by host, process number and the process's start time. The lock of a process that is gone
(kill -9 included) is void and is taken over; a reused process number has another start time. Looking and writing happen
in one turn (`hush.files.take_turn`), and what was written is read back. The lock of another host cannot be checked and
is honoured.
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

from hush.files import NoLocks, take_turn, write_atomic


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

    def is_alive(self) -> bool:
        """Whether the process still runs; True where that cannot be known."""
        return self.host != socket.gethostname() or (self.started != "" and find_start(self.pid) == self.started)


@dataclass(frozen=True)
class JobLocks:
    """The locks of a store's jobs, in a directory of their own; a job is known by its key."""

    directory: Path

    def take(self, key: str, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Take a job for this process: False where it is done, or somebody alive is at it."""
        with self._take_turn():
            if is_done():
                return False
            owner = self.owner(key)
            if owner is not None and owner.is_alive():
                return False
            note = asdict(Owner.me()) | {"nonce": secrets.token_hex(4)}
            content = json.dumps(note).encode()
            write_atomic(self._path(key), content)
            if self._path(key).read_bytes() != content:
                raise NoLocks(self.directory)
            return True

    def drop(self, key: str) -> None:
        """Give up a job of this process."""
        with self._take_turn():
            owner = self.owner(key)
            if owner is not None and owner.pid == os.getpid() and owner.host == socket.gethostname():
                self._path(key).unlink(missing_ok=True)

    def owner(self, key: str) -> Owner | None:
        """Who is at a job; None where nobody is or the note cannot be read."""
        try:
            note = json.loads(self._path(key).read_bytes())
            return Owner(str(note["host"]), int(note["pid"]), str(note["started"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def held(self) -> dict[str, Owner]:
        """Every job that somebody alive is at."""
        keys = [path.stem for path in self.directory.glob("*.lock")]
        return {key: owner for key in keys if (owner := self.owner(key)) is not None and owner.is_alive()}

    def clear(self) -> None:
        """Remove the notes of owners that are gone."""
        with self._take_turn():
            for path in self.directory.glob("*.lock"):
                owner = self.owner(path.stem)
                if owner is None or not owner.is_alive():
                    path.unlink(missing_ok=True)
            for part in self.directory.glob(".*.part"):
                part.unlink(missing_ok=True)  # left by a writer that was killed: nobody writes while the lock is held

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}.lock"

    def _take_turn(self) -> AbstractContextManager[None]:
        return take_turn(self.directory / "mutex")


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
