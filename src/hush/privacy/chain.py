"""An append-only file of JSON lines in a hash chain: an edited line shows, and so does a tail that was cut off.

Every line holds the hash of the line before it and its own: h_n = SHA-256(line n without its hash), where line n names
h_{n−1}. The chain alone cannot show that its last lines are missing, so a small head file beside it, ``NAME.head``,
keeps the number of lines and the last hash. The head is written after the line. A crash between the two leaves a line
more than the head says, which is accepted; a line less never happens by itself. A line without its end was never
acknowledged to anybody and is dropped. Whoever can rewrite both files can rewrite history: this shows accidents and
careless edits, it is no signature.

Processes take turns by a lock on the file (`flock`), so none loses another's line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.errors import BadInput
from hush.files import remove_parts, write_atomic

START = "0" * 64
Entry = dict[str, Any]


class Damaged(BadInput):
    """A ledger that was edited, cut off or is not one; the text says where."""


@dataclass(frozen=True)
class End:
    """How far a chain has been read: lines, bytes, and the hash of the last line."""

    lines: int = 0
    size: int = 0
    hash: str = START


def entry_hash(entry: Entry) -> str:
    """The hash of an entry without its own hash, over JSON with sorted keys."""
    bare = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Chain:
    """The file at ``path``; `locked` reads what others appended, and `append` adds a line under the lock."""

    def __init__(self, path: Path) -> None:
        self.path, self.head = path, path.with_name(path.name + ".head")
        self.entries: list[Entry] = []
        self._end = End()

    @contextmanager
    def locked(self, *, create: bool = True) -> Iterator[Chain]:
        """Hold the file's lock, with every entry read and checked; nobody else appends meanwhile."""
        if not create and not self.path.exists():
            raise BadInput(f"there is no ledger at '{self.path}'")
        descriptor = os.open(self.path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not self.entries:
                remove_parts(self.path.parent, self.head.name)
            self._read(descriptor)
            self._descriptor = descriptor
            yield self
        finally:
            os.close(descriptor)

    def append(self, **fields: Any) -> Entry:
        """One more line, on the disk when this returns; only under `locked`."""
        end = self._end
        if end.lines == 0:
            self._write_head()  # before the first line: then a missing head always means that something is lost
        entry: Entry = {"line": end.lines + 1, **fields, "previous": end.hash}
        entry["hash"] = entry_hash(entry)
        line = (json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n").encode()
        try:
            _write_at(self._descriptor, line, end.size)
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, end.size)
            raise
        self._take(entry, len(line))
        self._write_head()
        return entry

    def _read(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size < self._end.size:
            raise Damaged(f"the ledger '{self.path}' became shorter while it was in use: it was cut off or replaced")
        text = os.pread(descriptor, size - self._end.size, self._end.size) if size > self._end.size else b""
        while len(text) < size - self._end.size:  # a read may return less than asked for
            text += os.pread(descriptor, size - self._end.size - len(text), self._end.size + len(text))
        whole, _, torn = text.rpartition(b"\n")
        for line in whole.split(b"\n") if whole else []:
            self._take(self._checked(line), len(line) + 1)
        head = self._read_head()
        if head.lines > self._end.lines:
            raise Damaged(
                f"the ledger '{self.path}' has {self._end.lines} lines where its head file counts {head.lines}: its "
                "end was cut off, so it no longer shows what was spent; bring back the whole file"
            )
        if head.lines and self.entries[head.lines - 1]["hash"] != head.hash:
            raise Damaged(
                f"the ledger '{self.path}' does not belong to its head file: line {head.lines} is another one"
            )
        if torn:
            os.ftruncate(descriptor, self._end.size)
        if head.lines < self._end.lines:
            self._write_head()

    def _checked(self, line: bytes) -> Entry:
        where = f"line {self._end.lines + 1} of the ledger '{self.path}'"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise Damaged(f"{where} is no JSON: it was edited or damaged") from error
        if not isinstance(entry, dict) or entry.get("hash") != entry_hash(entry):
            raise Damaged(f"{where} was edited: its hash does not fit its content")
        if entry.get("previous") != self._end.hash or entry.get("line") != self._end.lines + 1:
            raise Damaged(f"{where} does not follow the line before it: a line was removed, inserted or moved")
        return entry

    def _take(self, entry: Entry, size: int) -> None:
        self.entries.append(entry)
        self._end = End(self._end.lines + 1, self._end.size + size, entry["hash"])

    def _read_head(self) -> End:
        try:
            found = json.loads(self.head.read_text())
            return End(int(found["lines"]), 0, str(found["hash"]))
        except FileNotFoundError:
            if not self._end.lines:
                return End()
            raise Damaged(
                f"'{self.head}' is missing, so a cut-off end of the ledger would not show: bring it back "
                "(the two files belong together)"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"'{self.head}' is damaged, so a cut-off end of the ledger would not show") from error

    def _write_head(self) -> None:
        head = {"lines": self._end.lines, "hash": self._end.hash}
        write_atomic(self.head, (json.dumps(head) + "\n").encode())


def _write_at(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
