"""Files that are whole or absent: write beside, flush to the disk, rename."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hush.errors import BadInput

PRIVATE = 0o600
PUBLIC = 0o644


def write_atomic(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """Put ``content`` at ``path`` so that after any crash the old file or the new one is there, never a part."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync_directory(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def remove_parts(directory: Path, name: str = "*") -> None:
    """Remove what killed processes left half written; only where no other process writes the same files."""
    for part in directory.glob(f".{name}.{'[0-9a-f]' * 12}.part"):
        part.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def writable_directory(directory: Path, *, mode: int = 0o755) -> Path:
    """Create a directory, and prove by a small write that files can be put there, before anything expensive starts."""
    probe = directory / f".probe.{secrets.token_hex(6)}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=mode)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise BadInput(f"cannot write to '{directory}': {error.strerror or error}") from error
    return directory


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time in here, by the kernel's lock on a file, which ends with its holder.

    Some network disks refuse locks and some grant every one of them: the first raises an error, the second is noticed
    because a second lock on the same file is granted too."""
    held = os.open(path, os.O_RDWR | os.O_CREAT, PUBLIC)
    try:
        _lock(held, path, fcntl.LOCK_EX)
        second = os.open(path, os.O_RDWR)
        try:
            if _lock(second, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                raise no_locks(path.parent)
        finally:
            os.close(second)
        yield
    finally:
        os.close(held)


def no_locks(directory: Path) -> BadInput:
    """The error of a disk on which two processes can hold one lock."""
    return BadInput(f"locks do nothing on the disk under '{directory}': use a directory on a local disk")


def _lock(descriptor: int, path: Path, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadInput(f"the disk under '{path.parent}' cannot lock files ({why}): use a local disk") from error
    return True
