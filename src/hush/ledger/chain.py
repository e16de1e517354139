"""An append-only file of JSON lines in a hash chain: it shows whether a line was edited or the end was cut off.

Every line holds the hash of the line before it and its own: h_n = SHA-256(line n without its hash), where line n names
h_{n−1}. The chain alone cannot show that its last lines are missing, so a small head file, ``NAME.head``, stores the
number of lines and the last hash. The head is written after the line. A crash between the two leaves one line more than
the head counts, which is accepted (the next line updates the head); a crash never leaves one line less. An incomplete
line was never acknowledged and is dropped. A person who can rewrite both files can rewrite the history: the chain
detects accidents and careless edits, it is not a signature.

Processes lock the file in turn, so none overwrites another's line. On a file system without locks an error is raised
and nothing is written. Some network file systems grant locks that have no effect. Then two writers can write their
lines at the same offset. So a writer checks, after writing its line, that the head is still the one it started from,
and after writing the head, that line and head are still its own: if writer A found its own line, and writer B wrote
another line after that, then B finds A's head. At most one of them continues, and its line is the one that remains.

Every line is checked whenever the file is read. A ledger can hold thousands of lines that differ only in their number,
time, run, noise and hashes. The first of them is parsed; the others are compared with it byte for byte and hashed with
their own values filled in (`Template`), which is the same check.

hush writes only to a file that is a ledger: its first line is a valid first line, or it is empty, or it holds the
incomplete first line of a killed process, for which there is a head file.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hush._internal.storage import lock_file, remove_parts, sync_file, write_atomic
from hush.errors import InvalidInputError, RunStateError

START = "0" * 64
BEGINNING = b'{"line": 1, '
Entry = dict[str, Any]


class Damaged(InvalidInputError):
    """A file that is not a ledger, or a ledger that was edited or cut off; the message names the place."""


class NoTurns(RunStateError):
    """The file system has no working locks."""


@dataclass(frozen=True)
class End:
    """How far a chain has been read: lines, bytes, and the hash of the last line."""

    lines: int = 0
    size: int = 0
    hash: str = START


_sort = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


def entry_hash(entry: Entry) -> str:
    """The hash of an entry without its own hash, over JSON with sorted keys."""
    bare = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(_sort(bare).encode()).hexdigest()


class Slots(NamedTuple):
    """The values that differ between lines of one template, in the order of sorted keys."""

    at: bytes
    line: bytes
    noise: bytes
    previous: bytes
    run: bytes


@dataclass(frozen=True)
class Template:
    """A spend's line with everything that other lines share with it: ``entry`` is the first such line, parsed, and
    ``between`` the sorted JSON before, between and after the slots."""

    entry: Entry
    between: tuple[bytes, ...]

    def hash(self, slots: Slots) -> str:
        """The `entry_hash` of the line with these slots."""
        text = b"".join(part for pair in zip(self.between, slots, strict=False) for part in pair) + self.between[-1]
        return hashlib.sha256(text).hexdigest()


class Line(NamedTuple):
    """A line that was read: the parsed entry, or the entry of its template and its own slots."""

    entry: Entry
    own: Slots | None = None


LINE, AT, RUN, NOISE = b'{"line": ', b', "at": "', b'"run": "', b'"noise": "'
PREVIOUS, HASH, END = b'"previous": "', b'", "hash": "', b'"}'
DIGITS = 64  # of a hash
TAIL = len(PREVIOUS) + DIGITS + len(HASH) + DIGITS + len(END)


def _split_line(line: bytes) -> tuple[Slots, bytes, tuple[bytes, bytes, bytes]] | None:
    """The slots of a spend's line as hush writes it, its hash, and the text between the slots; None for other lines."""
    comma, tail = line.find(b","), len(line) - TAIL
    start = comma + len(AT)
    at_end = line.find(b'"', start)
    run = line.find(RUN, at_end)
    run_start = run + len(RUN)
    run_end = line.find(b'"', run_start)
    noise = line.find(NOISE, run_end)
    noise_start = noise + len(NOISE) if noise > 0 else tail
    noise_end = line.find(b'"', noise_start) if noise > 0 else tail
    ordered = 0 < comma < at_end < run < run_end < noise_end <= tail
    before, after = tail + len(PREVIOUS), tail + len(PREVIOUS) + DIGITS
    named = line.startswith(LINE) and line.endswith(END) and line[comma:start] == AT
    if not (ordered and named and line[tail:before] == PREVIOUS and line[after : after + len(HASH)] == HASH):
        return None
    slots = Slots(
        at=line[start:at_end],
        line=line[len(LINE) : comma],
        noise=line[noise_start:noise_end],
        previous=line[before:after],
        run=line[run_start:run_end],
    )
    plain = b"".join(slots)
    if b"\\" in plain or not plain.isascii() or not plain.decode().isprintable() or not slots.line.isdigit():
        return None
    between = line[at_end:run_start], line[run_end:noise_start], line[noise_end:tail]
    return slots, line[-DIGITS - len(END) : -len(END)], between


def _make_template(entry: Entry, noise: bool, between: tuple[bytes, bytes, bytes]) -> Template | None:
    """The template of a parsed line; None if its slots are not the fields that they look like."""
    marks = Slots(*(secrets.token_hex(16).encode() for _ in Slots._fields))._replace(
        line=str(10**30 + secrets.randbelow(10**30)).encode()
    )
    first, second, third = between
    text = LINE + marks.line + AT + marks.at + first + marks.run + second
    text += (marks.noise if noise else b"") + third + PREVIOUS + marks.previous + END
    try:
        read = json.loads(text)
    except ValueError:
        return None
    expected = {**{k: v for k, v in entry.items() if k != "hash"}, "line": int(marks.line), "at": marks.at.decode()}
    expected |= {"run": marks.run.decode(), "previous": marks.previous.decode()}
    expected |= {"noise": marks.noise.decode()} if noise else {}
    if read != expected:
        return None
    texts, rest = [], _sort(read).encode()
    for name, mark in zip(Slots._fields, marks, strict=True):
        before, found, after = rest.partition(mark)
        if name == "noise" and not noise:
            texts.append(b"")
            continue
        if not found or mark in after:
            return None
        texts.append(before)
        rest = after
    return Template(entry, (*texts, rest))


class Chain:
    """The file at ``path``; `locked` reads what others appended, and `append` adds a line under the lock."""

    def __init__(self, path: Path) -> None:
        self.path, self.head = path, path.with_name(path.name + ".head") if path.name else path
        self.first: Entry | None = None
        self._hashes: list[str] = []
        self.new: deque[Line] = deque()  # read or written, and not yet consumed by the caller
        self._templates: dict[tuple[bytes, ...], Template | None] = {}
        self._end, self._seen = End(), End()  # how far the file was read, and the head that was found with it

    @contextmanager
    def locked(self, *, create: bool = True, write: bool = True) -> Iterator[Chain]:
        """Hold the file's lock, with every entry read and checked; no other process can append.

        With ``write=False`` nothing is changed, and the incomplete line of a killed process stays.
        """
        descriptor = self._open(create and write, write)
        try:
            _lock(descriptor, self.path, shared=not write)
            self._read(descriptor, write)
            self._descriptor = descriptor
            yield self
        finally:
            os.close(descriptor)

    def append(self, **fields: Any) -> Entry:
        """Append a line, and return when it is on the disk; only within `locked`."""
        end = self._end
        if end.lines == 0:
            if self._read_head(0) != self._seen:
                raise self._not_alone()
            self._write_head(end)  # before the first line, so that a missing head always means a lost file
        entry: Entry = {"line": end.lines + 1, **fields, "previous": end.hash}
        entry["hash"] = entry_hash(entry)
        line = (json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n").encode()
        if os.fstat(self._descriptor).st_size != end.size:
            raise self._not_alone()  # before another process's line is overwritten
        try:
            _write_at(self._descriptor, line, end.size)
            sync_file(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, end.size)
            raise
        if self._read_head(end.lines) != self._seen:
            raise self._not_alone()
        after = End(end.lines + 1, end.size + len(line), entry["hash"])
        self._write_head(after)
        if self._read_head(after.lines) != End(after.lines, 0, after.hash) or self._line_at(end, line) != line:
            raise self._not_alone()
        self._note(Line(entry), after.hash)
        self._end, self._seen = after, End(after.lines, 0, after.hash)
        return entry

    def _open(self, create: bool, write: bool) -> int:
        if not write and not self.path.exists():
            raise InvalidInputError(f"there is no ledger at '{self.path}': give the path of an existing one")
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path, flags | (os.O_CREAT if create else 0), 0o644)
        except FileNotFoundError:
            raise InvalidInputError(f"there is no ledger at '{self.path}': give the path of an existing one") from None
        except IsADirectoryError:
            raise InvalidInputError(f"'{self.path}' is a directory: give the ledger's file name") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidInputError(f"'{self.path}' is not a regular file: give the ledger's file name")
        return descriptor

    def _read(self, descriptor: int, write: bool) -> None:
        size = os.fstat(descriptor).st_size
        if size < self._end.size:
            raise Damaged(
                f"the ledger '{self.path}' became shorter while it was in use, so it was cut off or replaced: restore "
                "the whole file"
            )
        if self.first is None:
            self._check_beginning(os.pread(descriptor, len(BEGINNING), 0))
        whole, _, torn = _read_at(descriptor, self._end.size, size).rpartition(b"\n")
        for line in whole.split(b"\n") if whole else []:
            self._read_line(line)
        if torn and self.first is None and not self.head.exists():
            raise self._not_a_ledger()
        head = self._read_head(self._end.lines)
        if head.lines > self._end.lines:
            raise Damaged(
                f"the ledger '{self.path}' has {self._end.lines} lines where its head file counts {head.lines}, so its "
                "end was cut off and it no longer shows what was spent: restore the whole file"
            )
        if head.lines and self._hashes[head.lines - 1] != head.hash:
            raise Damaged(
                f"the ledger '{self.path}' does not belong to its head file, which has another hash of line "
                f"{head.lines}: restore both files"
            )
        self._seen = head
        if write and torn:
            os.ftruncate(descriptor, self._end.size)
        if write and self.first is not None:
            remove_parts(self.path.parent, self.head.name)

    def _check_beginning(self, first: bytes) -> None:
        if first != BEGINNING[: len(first)]:
            raise self._not_a_ledger()

    def _not_a_ledger(self) -> Damaged:
        return Damaged(f"'{self.path}' is not a ledger and was not changed: give the path of a ledger, or of a new one")

    def _checked(self, line: bytes) -> Entry:
        where = f"line {self._end.lines + 1} of the ledger '{self.path}'"
        try:
            entry = json.loads(line)
            fits = isinstance(entry, dict) and entry.get("hash") == entry_hash(entry)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{where} is not valid JSON, so it was edited or damaged: restore the file") from error
        if not fits:
            raise Damaged(f"{where} was edited, as its hash does not match its content: restore the file")
        if entry.get("previous") != self._end.hash or entry.get("line") != self._end.lines + 1:
            raise Damaged(
                f"{where} does not follow the line before it, so a line was removed, inserted or moved: restore the "
                "file"
            )
        checked: Entry = entry
        return checked

    def _read_line(self, line: bytes) -> None:
        """Check one more line: by the template of lines like it, or by parsing it."""
        split = _split_line(line)
        template = None
        if split is not None:
            slots, found, between = split
            template = self._templates.get(between)
            if template is not None:
                number = self._end.lines + 1
                follows = slots.previous.decode() == self._end.hash and slots.line == str(number).encode()
                if follows and template.hash(slots) == found.decode(errors="replace"):
                    self._note(Line(template.entry, slots), found.decode())
                    self._end = End(number, self._end.size + len(line) + 1, found.decode())
                    return
        entry = self._checked(line)
        if split is not None and template is None and between not in self._templates:
            self._templates[between] = template = _make_template(entry, bool(slots.noise), between)
        self._note(Line(entry), entry["hash"])
        self._end = End(self._end.lines + 1, self._end.size + len(line) + 1, entry["hash"])

    def _note(self, line: Line, found: str) -> None:
        self.first = line.entry if self.first is None else self.first
        self._hashes.append(found)
        self.new.append(line)

    def _read_head(self, lines: int) -> End:
        try:
            found = json.loads(self.head.read_text())
            return End(int(found["lines"]), 0, str(found["hash"]))
        except FileNotFoundError:
            if not lines:
                return End()
            raise Damaged(
                f"'{self.head}' is missing, so a cut-off end of the ledger could not be detected: restore it (the two "
                "files belong together)"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError, IsADirectoryError) as error:
            raise Damaged(
                f"'{self.head}' is damaged, so a cut-off end of the ledger could not be detected: restore it"
            ) from error

    def _write_head(self, end: End) -> None:
        head = {"lines": end.lines, "hash": end.hash}
        write_atomic(self.head, (json.dumps(head) + "\n").encode())

    def _line_at(self, end: End, line: bytes) -> bytes:
        """Read the file again from the line's offset on."""
        with self.path.open("rb") as file:
            file.seek(end.size)
            return file.read(len(line) + 1)

    def _not_alone(self) -> NoTurns:
        return NoTurns(
            f"another process wrote to the ledger '{self.path}' at the same time, so its file system does not lock "
            "files: put the ledger on a local disk"
        )


def _lock(descriptor: int, path: Path, *, shared: bool) -> None:
    try:
        lock_file(descriptor, shared=shared)
    except OSError as error:
        raise NoTurns(
            f"the ledger '{path}' cannot be locked ({error.strerror or error}), so two runs could overwrite each "
            "other's spends: put it on a file system with locks, such as a local disk"
        ) from error


def _read_at(descriptor: int, start: int, stop: int) -> bytes:
    text = b""
    while len(text) < stop - start:  # a read may return less than asked for
        part = os.pread(descriptor, stop - start - len(text), start + len(text))
        if not part:
            break
        text += part
    return text


def _write_at(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
