"""Whether a worker on another machine works on this very store: a token each way, and a lock that holds among machines.

The driver of a sweep puts a file with a fresh token into the store and keeps it locked. A node runs nothing before one
of its workers has read that token there, has found the file locked, and has left an answer that the driver sees. A
folder of the same name on the node's own disk fails at the first, locks that hold on one machine alone at the second,
and a copy that is brought up to date now and then at the third.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hush.bench.locks import MUTEX
from hush.errors import BadInput
from hush.files import explain, give_back, take_turn, try_lock, write_atomic, write_in_place

PREFIX = "meeting-"


class NotShared(BadInput):
    """A machine does not work on the store that the sweep is about."""


@dataclass(frozen=True)
class Meeting:
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
            raise NotShared(_tell(self.directory, f"node {node} does not see this sweep's files in it"))
        descriptor = try_lock(path)
        if descriptor is not None:
            give_back(descriptor)
            raise NotShared(_tell(self.directory, f"on node {node} its locks do not hold against other machines"))
        try:
            with take_turn(self.directory / MUTEX):  # else a sweep that tidies up could take it for a dead writer's
                write_atomic(self._answer(node), self.token.encode())
        except OSError as error:
            raise NotShared(_tell(self.directory, f"node {node} cannot write to it ({explain(error)})")) from error

    def check_answer(self, node: str) -> None:
        """As the driver: see the answer that a worker on this node has left."""
        try:
            found = self._answer(node).read_text()
        except OSError:
            found = ""
        if found != self.token:
            raise NotShared(_tell(self.directory, f"what node {node} writes there is not seen on this machine"))

    def _answer(self, node: str) -> Path:
        return self.directory / f"{self.name}.{node}"


def _tell(directory: Path, how: str) -> str:
    return (
        f"the store '{directory.parent}' is not shared by all nodes ({how}): put it on a file system that every node "
        "mounts at this path, with locks"
    )


@contextmanager
def call_meeting(directory: Path) -> Iterator[Meeting]:
    """A meeting for as long as a sweep lasts."""
    meeting = Meeting(directory, f"{PREFIX}{secrets.token_hex(8)}", secrets.token_hex(16))
    path = directory / meeting.name
    with take_turn(directory / MUTEX):
        descriptor = try_lock(path)
    assert descriptor is not None, "a fresh name that somebody else has locked"
    try:
        write_in_place(descriptor, meeting.token.encode())
        yield meeting
    finally:
        with take_turn(directory / MUTEX):
            _remove(path)
        give_back(descriptor)


def clear_meetings(directory: Path) -> None:
    """Remove what a sweep that was killed has left."""
    with take_turn(directory / MUTEX):
        for path in directory.glob(f"{PREFIX}*"):
            if "." in path.name:
                continue  # an answer; it goes with its meeting
            descriptor = try_lock(path)
            if descriptor is not None:
                _remove(path)
                give_back(descriptor)


def _remove(path: Path) -> None:
    for answer in path.parent.glob(f"{path.name}.*"):
        answer.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
