"""All disk operations of hush: atomic files, locks, and a cache. No other module does this.

- **Atomic files.** `write_atomic` writes a temporary file, flushes it to disk and renames it; `atomic_writer` does the
  same for a file that the caller writes in chunks; `move_atomic` does the last step for a file written elsewhere on the
  same disk; `write_folder` does both for a folder; `append_durably` adds lines that are on disk when it returns, or not
  at all.
- **Files without a name.** `open_unnamed` opens one for content that must not outlive the process.
- **Pages.** `write_page` replaces a file only if hush wrote it, which a comment in the file says (`MARK`).
- **Locks** are the kernel's (`flock`): they end with the process that holds them. `lock_file` locks an open file,
  `try_lock` takes a lock or reports that another process has it, and `file_lock` waits for one. A file system without
  locks raises an error; `file_lock` detects one that grants every lock by asking for its own lock a second time. Both
  raise `NoLocks`.
- **The cache.** `recall` reads the file stored under a name and creates it if it is missing or incomplete; the name
  contains a digest of everything that the content depends on. A cache that cannot be written is not an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from hush.errors import InvalidInputError

PRIVATE = 0o600
PUBLIC = 0o644
MARK = "written by hush"  # in a comment at the start or end of every page that hush writes to a path of the user's
FOLDER = 0o755  # mode of folders that others may read, whatever the umask
Value = TypeVar("Value")


class NoLocks(InvalidInputError):
    """A disk without working locks: it rejects them, for the reason given, or its locks do nothing."""

    def __init__(self, directory: Path, error: OSError | None = None) -> None:
        if error is None:
            super().__init__(f"locks do nothing on the disk under '{directory}': use a directory on a local disk")
        else:
            super().__init__(f"the disk under '{directory}' cannot lock files ({explain(error)}): use a local disk")


def explain(error: OSError) -> str:
    """The error of the operating system in a few words."""
    return (error.strerror or str(error)).lower()


def write_atomic(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """Put ``content`` at ``path`` so that after any crash the old file or the new one is there, never a part."""
    write_together({path: content}, mode=mode)


def write_together(files: Mapping[Path, bytes], *, mode: int = PUBLIC) -> None:
    """The same for several files: all of them are on the disk before the first is renamed, in their order."""
    with contextlib.ExitStack() as stack:
        written = [(stack.enter_context(_new_part(path, mode)), path) for path in files]
        for (part, _), content in zip(written, files.values(), strict=True):
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for part, path in written:
            os.replace(part, path)
            sync_directory(path.parent)


@contextmanager
def atomic_writer(path: Path) -> Iterator[Path]:
    """An empty file to write to. At the end it replaces ``path``; on an error it is removed. Incomplete copies of the
    same file that killed processes left are removed first."""
    remove_parts(path.parent, glob.escape(path.name))
    with _new_part(path, PUBLIC) as part:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_directory(path.parent)


@contextmanager
def _new_part(path: Path, mode: int) -> Iterator[Path]:
    """A new file next to ``path``, removed at the end; its lock shows `remove_parts` that it is being written."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    held = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with contextlib.suppress(OSError):  # a disk without locks: then two processes must not write the same file
            lock_file(held)
        yield part
    finally:
        part.unlink(missing_ok=True)
        os.close(held)


def check_page(path: Path) -> None:
    """Check a path for a page before anything is computed: it must not be a folder or a file that hush did not write,
    and its directory must be writable. Incomplete copies that killed processes left are removed."""
    if path.is_dir():
        raise InvalidInputError(f"'{path}' is a folder: give the name of a file")
    if (path.exists() or path.is_symlink()) and not _is_page(path):
        raise InvalidInputError(f"'{path}' is not a page that hush wrote, so it is not replaced: give another name")
    writable_directory(path.parent)
    remove_parts(path.parent, glob.escape(path.name))


def write_page(path: Path, text: str) -> None:
    """Write a page, which holds `MARK`, to a path of the user's; a file that hush did not write is never replaced."""
    check_page(path)
    write_atomic(path, text.encode())


def _is_page(path: Path) -> bool:
    if not path.is_file():  # a device or a pipe, say
        return False
    try:
        with path.open("rb") as file:
            begin = file.read(512)
            file.seek(max(0, path.stat().st_size - 512))
            return MARK.encode() in begin or MARK.encode() in file.read()
    except OSError:
        return False


def move_atomic(source: Path, target: Path) -> None:
    """Rename a file or a folder on the same disk, atomically; a folder that is not empty is never replaced."""
    os.rename(source, target)
    sync_directory(target.parent)


def write_folder(target: Path, content: Mapping[str, bytes], *, replace: bool = False) -> None:
    """Write a folder of files at ``target`` atomically: after a kill at any time it is complete or absent.

    It is written under a temporary name and renamed. With ``replace`` an existing folder is renamed first; without it,
    only an empty folder is replaced. `remove_temporaries` removes what a killed process left."""
    target = target.resolve()
    composed = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    composed.mkdir(mode=FOLDER)
    held = os.open(composed, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # shows other processes that this folder is being written
            lock_file(held)
        for name, data in content.items():
            _write_durably(composed / name, data)
        sync_directory(composed)
        if replace and target.exists():
            move_atomic(target, target.with_name(f".{target.name}.{secrets.token_hex(6)}.old"))
        move_atomic(composed, target)
    finally:
        os.close(held)
        remove_temporaries(target)


def remove_temporaries(target: Path) -> None:
    """Remove the temporary folders that `write_folder` left when it was killed or failed."""
    target = target.resolve()
    for end in ("part", "old"):
        for left in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 12}.{end}"):
            if left.is_dir() and not _is_being_written(left):
                shutil.rmtree(left, ignore_errors=True)


def _is_being_written(part: Path) -> bool:
    try:
        descriptor = os.open(part, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not lock_file(descriptor, wait=False)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PUBLIC)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:  # a write may take less than it is given
        content = content[os.write(descriptor, content) :]


def append_durably(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """Append to a file, durable when this returns; on an error the file is unchanged."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
    try:
        start = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            _write_all(descriptor, content)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, start)
            raise
    finally:
        os.close(descriptor)


def sync_file(descriptor: int) -> None:
    """Flush an open file to disk."""
    os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def wipe(path: Path) -> None:
    """Overwrite a file with zeros on disk, then remove it; of a symlink, only the link is removed. Earlier versions
    that the file system or the disk itself keeps (a journal, a snapshot, worn cells) are not erased."""
    if path.is_symlink():
        path.unlink()
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        left = os.fstat(descriptor).st_size
        while left > 0:
            left -= os.write(descriptor, bytes(min(left, 1 << 20)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.unlink()


def remove_parts(directory: Path, name: str = "*") -> None:
    """Remove incomplete files that killed processes left; on a disk without locks, only if no other process writes the
    same files."""
    for part in directory.glob(f".{name}.{'[0-9a-f]' * 12}.part"):
        if not part.is_dir() and not _is_being_written(part):
            part.unlink(missing_ok=True)


def make_directory(directory: Path, *, mode: int = FOLDER) -> None:
    """Create a directory with this mode and its missing parents with `FOLDER`, whatever the umask."""
    for parent in reversed(directory.parents):
        if not parent.exists():
            parent.mkdir(mode=FOLDER, exist_ok=True)
    directory.mkdir(mode=mode, exist_ok=True)


def writable_directory(directory: Path, *, mode: int = FOLDER) -> Path:
    """Create a directory and check with a small write that it is writable, before anything expensive starts."""
    probe = directory / f".probe.{secrets.token_hex(6)}"
    try:
        make_directory(directory, mode=mode)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InvalidInputError(f"cannot write to '{directory}': {error.strerror or error}") from error
    return directory


def lock_file(descriptor: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file until it is closed; False if another process holds it and ``wait`` is False.

    Several shared locks are granted at once. A file system without locks raises OSError, which the caller converts."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if wait:
            raise
        return False
    return True


def try_lock(path: Path, *, mode: int = PUBLIC) -> int | None:
    """The descriptor of a lock on ``path``, to be released by `unlock`; None if another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
        try:
            locked = _lock(descriptor, path, wait=False)
        except NoLocks:
            os.close(descriptor)
            raise
        if locked and _is_at(descriptor, path):
            _kept.add(descriptor)
            return descriptor
        os.close(descriptor)
        if not locked:
            return None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has its name: a lock on a removed file protects nothing."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def write_in_place(descriptor: int, content: bytes) -> None:
    """Replace the content of a file that is open and locked. A crash may leave a part of it: use it for notes whose
    loss is harmless, in files that must keep their inode because their lock is on it."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    _write_all(descriptor, content)
    os.fsync(descriptor)


def unlock(descriptor: int) -> None:
    """Release a lock that `try_lock` took."""
    _kept.discard(descriptor)
    os.close(descriptor)


def _leave_locks() -> None:
    for descriptor in _kept:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _kept.clear()


_kept: set[int] = (
    set()
)  # a lock ends with the last copy of its descriptor, and a fork copies it: workers that read data
os.register_at_fork(after_in_child=_leave_locks)  # would hold the lock of a killed run for as long as they live


@contextmanager
def file_lock(path: Path, *, prove: bool = True) -> Iterator[None]:
    """Let one process at a time run this block, by a lock on a file (created if missing) or on a folder.

    With ``prove`` a disk that grants a second lock on the same file is rejected, because its locks do nothing; without
    it the lock only saves work that would be harmless if done twice."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    held = os.open(path, flags, PUBLIC)
    try:
        _lock(held, path)
        if prove and _is_granted_again(path, flags):
            raise NoLocks(path.parent)
        yield
    finally:
        os.close(held)


def _is_granted_again(path: Path, flags: int) -> bool:
    second = os.open(path, flags)
    try:
        return _lock(second, path, wait=False)
    finally:
        os.close(second)


def _lock(descriptor: int, path: Path, *, wait: bool = True) -> bool:
    try:
        return lock_file(descriptor, wait=wait)
    except OSError as error:
        raise NoLocks(path.parent, error) from error


@contextmanager
def make_scratch(prefix: str) -> Iterator[Path]:
    """A folder that only its owner can enter, removed at the end; its name is short, because sockets need that."""
    root = "/tmp" if Path("/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def open_unnamed(folder: Path) -> IO[bytes]:
    """An empty file without a name on the disk of ``folder``, to write and read; only its owner can open it, and it
    disappears when it is closed and no longer mapped, however the process ends."""
    return tempfile.TemporaryFile(dir=folder, buffering=1 << 20)


def find_temporary() -> Path:
    """The folder of temporary files: $TMPDIR, else that of the system."""
    return Path(tempfile.gettempdir())


def find_cache() -> Path:
    """The folder of downloads and computed files: $HUSH_CACHE, else hush's folder in the user's cache directory."""
    if chosen := os.environ.get("HUSH_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hush"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hush"


def cache_get(path: Path, parse: Callable[[IO[bytes]], Value]) -> Value | None:
    """What ``parse`` reads from a cached file; None if there is none, or if ``parse`` raises ValueError."""
    try:
        with path.open("rb") as file:
            return parse(file)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None


def cache_put(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """Put a file into the cache atomically; a failed write is not an error."""
    with contextlib.suppress(OSError):
        make_directory(path.parent)
        write_atomic(path, content, mode=mode)


def recall(
    path: Path, parse: Callable[[IO[bytes]], Value], make: Callable[[], Value], pack: Callable[[Value], bytes]
) -> Value:
    """The cached file at ``path`` if it is there and complete, else the result of ``make``, which is then cached."""
    found = cache_get(path, parse)
    if found is None:
        found = make()
        cache_put(path, pack(found))
    return found
