"""Atomic writes, file locks and the cache directory; no other module implements them."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hush._internal import storage
from hush._internal.storage import (
    NoLocks,
    append_durably,
    cache_put,
    file_lock,
    find_cache,
    lock_file,
    move_atomic,
    recall,
    try_lock,
    unlock,
    write_atomic,
)

SOURCE = Path(storage.__file__).parents[1]
CALLS = re.compile(r"fcntl|flock|os\.replace|os\.rename|os\.link|fsync|tempfile|mkstemp")


def refuse(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def read(file) -> str:
    found: str = file.read().decode()
    if not found.endswith("."):
        raise ValueError("not whole")
    return found


def test_no_other_module_does_this() -> None:
    texts = {
        p: re.sub(r"^\s*(>>>|\.\.\.) .*", "", p.read_text(), flags=re.M) for p in SOURCE.rglob("*.py")
    }  # no examples
    users = {str(p.relative_to(SOURCE)) for p, text in texts.items() if CALLS.search(text)}
    assert users == {"_internal/storage.py"}


class TestWholeOrAbsent:
    def test_a_write_that_fails_leaves_what_was_there(self, tmp_path, monkeypatch):
        path = tmp_path / "file"
        write_atomic(path, b"old", mode=storage.PRIVATE)
        assert path.stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="locks"):
            write_atomic(path, b"new")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("where", ["write", "fsync"])
    def test_an_append_that_fails_leaves_what_was_there(self, tmp_path, monkeypatch, where):
        path = tmp_path / "log"
        append_durably(path, b"one\n", mode=storage.PRIVATE)
        real = os.write

        def some(descriptor: int, content: bytes) -> int:
            if len(content) < 3:
                refuse()
            return real(descriptor, content[:2])

        monkeypatch.setattr(os, where, some if where == "write" else refuse)
        with pytest.raises(OSError, match="locks"):
            append_durably(path, b"two and three\n")
        monkeypatch.undo()
        assert path.read_bytes() == b"one\n"
        append_durably(path, b"two\n")
        assert path.read_bytes() == b"one\ntwo\n"

    def test_writes_may_take_less_than_they_are_given(self, tmp_path, monkeypatch):
        real = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:3]))
        append_durably(tmp_path / "log", b"a line of some length\n")
        assert (tmp_path / "log").read_bytes() == b"a line of some length\n"

    def test_a_full_folder_is_never_replaced(self, tmp_path):
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(name)
        with pytest.raises(OSError, match="not empty"):
            move_atomic(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "b" / "file").read_text() == "b"
        move_atomic(tmp_path / "a", tmp_path / "c")
        assert (tmp_path / "c" / "file").read_text() == "a"


class TestLocks:
    def test_a_lock_on_a_file_that_was_removed_meanwhile_is_taken_anew(self, tmp_path, monkeypatch):
        path, real = tmp_path / "lock", storage._lock

        def remove_first(descriptor, at, *, wait):
            monkeypatch.setattr(storage, "_lock", real)
            path.unlink()
            return real(descriptor, at, wait=wait)

        monkeypatch.setattr(storage, "_lock", remove_first)
        held = try_lock(path)
        assert path.exists()
        assert try_lock(path) is None
        unlock(held)

    def test_one_holder(self, tmp_path):
        path = tmp_path / "lock"
        held = try_lock(path, mode=storage.PRIVATE)
        assert held is not None
        assert path.stat().st_mode & 0o777 == 0o600
        assert try_lock(path) is None
        unlock(held)
        again = try_lock(path)
        assert again is not None
        unlock(again)

    def test_it_ends_with_its_holder(self, tmp_path):
        script = (
            "import os, sys, pathlib; from hush._internal.storage import try_lock; "
            "try_lock(pathlib.Path(sys.argv[1])); os._exit(9)"
        )
        assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "lock")], check=False).returncode == 9
        held = try_lock(tmp_path / "lock")
        assert held is not None
        unlock(held)

    def test_it_ends_with_its_holder_though_a_worker_lives_on(self, tmp_path):
        path = tmp_path / "lock"
        held = try_lock(path)
        fork = multiprocessing.get_context("fork")
        here, there = fork.Pipe()
        worker = fork.Process(target=lambda: (there.send("begun"), time.sleep(60)))
        worker.start()
        assert here.recv() == "begun"
        try:
            assert try_lock(path) is None
            unlock(held)
            again = try_lock(path)
            assert again is not None
            unlock(again)
        finally:
            worker.terminate()
            worker.join()

    def test_shared_ones(self, tmp_path):
        (tmp_path / "file").write_text("")
        first, second, third = (os.open(tmp_path / "file", os.O_RDWR) for _ in range(3))
        assert lock_file(first, shared=True)
        assert lock_file(second, shared=True, wait=False)
        assert not lock_file(third, wait=False)
        for descriptor in (first, second, third):
            os.close(descriptor)

    @pytest.mark.parametrize("kind", ["file", "folder"])
    def test_a_turn(self, tmp_path, kind):
        path = tmp_path / "turn"
        if kind == "folder":
            path.mkdir()
        with file_lock(path):
            other = os.open(path, os.O_RDONLY)
            assert not lock_file(other, wait=False)
            os.close(other)
        with file_lock(path):
            pass

    def test_a_disk_without_locks(self, tmp_path, monkeypatch):
        monkeypatch.setattr(fcntl, "flock", refuse)
        sentence = r"the disk under '.*' cannot lock files \(no locks available\): use a local disk"
        with pytest.raises(NoLocks, match=sentence):
            try_lock(tmp_path / "lock")
        with pytest.raises(NoLocks, match=sentence), file_lock(tmp_path / "turn"):
            pytest.fail("nobody has a turn here")

    def test_locks_that_do_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
        with pytest.raises(NoLocks, match="locks"), file_lock(tmp_path / "turn"):
            pytest.fail("nobody has a turn here")
        with file_lock(tmp_path / "turn", prove=False):
            pass


class TestCache:
    def test_made_once(self, tmp_path):
        made: list[int] = []

        def make() -> str:
            made.append(1)
            return f"answer {len(made)}."

        path = tmp_path / "a" / "b"
        assert [recall(path, read, make, str.encode) for _ in range(2)] == ["answer 1."] * 2
        path.write_bytes(path.read_bytes()[:-1])
        assert [recall(path, read, make, str.encode) for _ in range(2)] == ["answer 2."] * 2
        assert [p.name for p in path.parent.iterdir()] == ["b"]

    def test_one_that_cannot_be_written_is_no_failure(self, tmp_path):
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "entry"
        cache_put(path, b"content")
        assert recall(path, read, lambda: "made.", str.encode) == "made."
        assert (tmp_path / "file").read_text() == ""

    def test_an_error_of_the_maker_is_not_hidden(self, tmp_path):
        def broken() -> str:
            raise ValueError("cannot be made")

        with pytest.raises(ValueError, match="cannot be made"):
            recall(tmp_path / "entry", read, broken, str.encode)

    def test_where_it_is(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HUSH_CACHE", str(tmp_path))
        assert find_cache() == tmp_path
        monkeypatch.delenv("HUSH_CACHE")
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
        assert find_cache() == tmp_path / "x" / "hush"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert find_cache() == Path.home() / ".cache" / "hush"
        monkeypatch.setattr(sys, "platform", "darwin")
        assert find_cache() == Path.home() / "Library" / "Caches" / "hush"
