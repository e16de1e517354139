"""Long tables in mapped files: the same rows as in memory, private on the disk, and never trusted half-written."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hush._internal.storage import lock_file
from hush.data_source import Tensors, as_source
from hush.datasets.evaluation import evaluate_problem
from hush.datasets.problem import Problem
from hush.datasets.splits import as_arrays, hold_out
from hush.distributed.consistency import digest_data
from hush.errors import InvalidInputError
from hush.randomness import Secret, seeded
from hush.tabular import cache as long_tables
from hush.tabular import encode
from hush.tabular.encode import Encoded, RowSubset, digest_table, map_rows, pick_all
from hush.tabular.inspect import inspect_table
from hush.tabular.problem import from_files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tables"


def give(rows: int = 10, step: int = 3) -> Iterator[Encoded]:
    whole = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
    for start in range(0, rows, step):
        part = whole[start : start + step]
        yield part, part[:, 0].astype(np.int64) % 3


def give_and_fail() -> Iterator[Encoded]:
    yield from give(6)
    raise KeyboardInterrupt


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [f"{i}.25,g{i % 5},{i % 2}\n" for i in range(400)]
    for place in range(4):
        (tmp_path / f"part{place}.csv").write_text("x,g,y\n" + "".join(lines[100 * place : 100 * (place + 1)]))
    return tmp_path / "part*.csv"


def load_both(table: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> tuple[Problem, Problem]:
    """The same problem in memory and in mapped files."""
    options = {"public": ("classes",), **options}
    short = from_files(table, target="y", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(long_tables, "MAPPED", 0)
    long = from_files(table, target="y", **options)  # type: ignore[arg-type]
    assert isinstance(short.train, tuple)
    assert isinstance(long.train, RowSubset)
    return short, long


def check_equal(short: object, long: object) -> None:
    one, other = as_source(short), as_source(long)
    assert len(one) == len(other)
    for indices in (torch.arange(len(one)), torch.tensor([2, 0, 2]), torch.zeros(0, dtype=torch.long)):
        for a, b in zip(one.take(indices), other.take(indices), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


@pytest.mark.parametrize("step", [1, 3, 10, 99])
def test_pieces_of_any_length_become_the_same_files(step: int) -> None:
    rows, labels = map_rows(f"steps-{step}", lambda: give(step=step))
    assert rows.dtype == torch.float32
    assert rows.tolist() == [[2.0 * i, 2.0 * i + 1] for i in range(10)]
    assert labels.tolist() == [2 * i % 3 for i in range(10)]


def test_mapped_rows_are_the_rows_in_memory(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = load_both(table, monkeypatch, validation=0.1)
    assert (short.summary, short.assumptions) == (long.summary, long.assumptions)
    for part in ("train", "test", "validation"):
        check_equal(getattr(short, part), getattr(long, part))


def test_mapped_targets_of_a_regression(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = load_both(table, monkeypatch, task="regression", target_range=(0.0, 0.5), validation=0.1)
    for part in ("train", "test", "validation"):
        check_equal(getattr(short, part), getattr(long, part))


def test_figures_of_mapped_rows(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = load_both(table, monkeypatch)
    with seeded(0):
        model = short.model()
    one, other = evaluate_problem(model, short), evaluate_problem(model, long)
    assert (one.loss, one.confusion, one.figures) == (other.loss, other.confusion, other.figures)


def test_a_test_file_may_be_long_too(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, long = load_both(table, monkeypatch, test=table)
    assert isinstance(long.test, RowSubset)
    assert len(long.train) == len(long.test) == 400


def test_a_source_over_mapped_rows_is_one_over_tensors() -> None:
    tensors = map_rows("some", give)
    rows = torch.tensor([7, 1, 1, 4])
    check_equal(Tensors(tuple(t[rows] for t in tensors)).tensors, pick_all(tensors).pick(rows))
    held = hold_out(pick_all(tensors), 0.3, seed=5)
    for part, same in zip(held, hold_out(tensors, 0.3, seed=5), strict=True):
        check_equal(same, part)
        assert all(torch.equal(a, b) for a, b in zip(as_arrays(part), as_arrays(same), strict=True))


def test_a_digest_of_mapped_rows_sees_one_cell() -> None:
    tensors, secret = map_rows("some", give), Secret.from_seed(1, "here")
    before = digest_data(pick_all(tensors), secret, lambda _: None)
    assert before == digest_data(pick_all(map_rows("some", give)), secret, lambda _: None)
    tensors[0][4, 1] += 1
    assert digest_data(pick_all(tensors), secret, lambda _: None) != before


def test_nothing_that_a_program_does_to_the_rows_reaches_the_files() -> None:
    first, _ = map_rows("some", give)
    first.zero_()
    assert map_rows("some", give)[0].sum() == sum(range(20))


def test_only_the_owner_reads_the_files(cache: Path) -> None:
    before = os.umask(0)
    try:
        map_rows("some", give)
    finally:
        os.umask(before)
    modes = {path.relative_to(cache).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in cache.rglob("*")}
    assert modes == {"some": 0o700, "some/rows.npy": 0o600, "some/labels.npy": 0o600}
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_what_was_interrupted_is_not_there(cache: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        map_rows("some", give_and_fail)
    assert list(cache.iterdir()) == []
    assert map_rows("some", give)[0].shape == (10, 2)


def test_what_a_kill_left_is_neither_used_nor_kept(cache: Path) -> None:
    map_rows("other", give)
    left = cache / f".some.{'ab' * 6}.part"
    (cache / "other").rename(left)
    assert map_rows("some", lambda: give(4))[0].shape == (4, 2)
    assert sorted(path.name for path in cache.iterdir()) == ["some"]


def test_whoever_is_slower_takes_the_rows_of_whoever_was_quicker(cache: Path) -> None:
    """Another process finds nothing either, encodes the same table, and is ready before this one."""
    others: list[Any] = []

    def give_slowly() -> Iterator[Encoded]:
        pieces = give()
        yield next(pieces)
        others.append(map_rows("some", lambda: give(4))[0])  # four rows tell whose they are
        others.append(os.stat(cache / "some").st_ino)
        yield from pieces

    assert map_rows("some", give_slowly)[0].tolist() == others[0].tolist()
    assert others[0].shape == (4, 2)
    assert (cache / "some").stat().st_ino == others[1]
    assert [path.name for path in cache.iterdir()] == ["some"]


def test_several_at_once_all_get_the_rows(cache: Path) -> None:
    several = 4
    together = threading.Barrier(several)

    def give_together() -> Iterator[Encoded]:
        together.wait()  # everybody has looked, and found nothing
        yield from give()
        together.wait()  # nobody has given a folder its name

    with ThreadPoolExecutor(several) as pool:
        found = [pool.submit(map_rows, "some", give_together) for _ in range(several)]
        assert [each.result()[0].sum().item() for each in found] == [sum(range(20))] * several
    assert [path.name for path in cache.iterdir()] == ["some"]


def test_folders_are_cleared_and_named_in_turn(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free: dict[str, bool] = {}

    def watch(name: str) -> None:
        step = getattr(encode, name)

        def watched(*given: Any) -> None:
            other = os.open(cache, os.O_RDONLY)
            free[name] = lock_file(other, wait=False)
            os.close(other)
            step(*given)

        monkeypatch.setattr(encode, name, watched)

    watch("remove_temporaries")
    watch("move_atomic")
    map_rows("some", give)
    assert free == {"remove_temporaries": False, "move_atomic": False}


def test_a_disk_without_locks_holds_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> bool:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(encode, "lock_file", refuse)
    assert map_rows("some", give)[0].shape == (10, 2)


@pytest.mark.parametrize("name", encode.FILES)
def test_files_that_are_not_whole_are_made_again(cache: Path, name: str) -> None:
    map_rows("some", give)
    path = cache / "some" / name
    path.write_bytes(path.read_bytes()[:-1])
    assert map_rows("some", lambda: give(5))[0].shape == (5, 2)


def test_a_second_reading_finds_the_first(table: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    _, long = load_both(table, monkeypatch)
    monkeypatch.setattr(long_tables, "encode_table", lambda *given: pytest.fail("read again"))
    check_equal(from_files(table, target="y", public=("classes",)).train, long.train)
    assert len(list(cache.iterdir())) == 1


def test_what_the_columns_showed_is_kept_for_a_long_table(
    table: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    short, long = load_both(table, monkeypatch)
    folder = cache.parent / "columns"
    (kept,) = folder.iterdir()
    assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(kept.stat().st_mode)) == (0o700, 0o600)
    looked: list[Path] = []
    look = long_tables.profile_columns
    monkeypatch.setattr(long_tables, "profile_columns", lambda path, *rest: looked.append(path) or look(path, *rest))
    again = from_files(table, target="y", public=("classes",))
    assert looked == []
    assert (again.schema, again.notes) == (long.schema, long.notes) == (short.schema, short.notes)
    from_files(table, target="y", public=("ranges", "classes"))  # asks for nothing more of the cells
    assert looked == []
    from_files(table, target="g", public=("classes",))
    assert looked == [table]
    kept.write_bytes(kept.read_bytes()[:-1])
    assert from_files(table, target="y", public=("classes",)).schema == long.schema
    assert looked == [table, table]
    part = table.parent / "part0.csv"
    part.write_text(part.read_text().replace("g0", "h0"))
    from_files(table, target="y", public=("classes",))
    assert looked == [table] * 3


def test_nothing_is_kept_of_a_table_that_changes_while_it_is_looked_at(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_tables, "MAPPED", 0)
    part, look = table.parent / "part0.csv", long_tables.profile_columns
    before = part.read_text()

    def look_too_late(*given: Any) -> Any:
        part.write_text(before.replace(".25", "d"))
        return look(*given)

    with monkeypatch.context() as patched:
        patched.setattr(long_tables, "profile_columns", look_too_late)
        assert inspect_table(table, {}, target="y").seen["x"].counts["number"] == 300
    part.write_text(before)
    assert inspect_table(table, {}, target="y").seen["x"].counts["number"] == 400


def test_nothing_is_kept_of_a_table_that_changes_while_it_is_encoded(
    table: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_tables, "MAPPED", 0)
    part, encode = table.parent / "part0.csv", long_tables.encode_table

    def encode_too_late(*given: Any) -> Any:
        part.write_text(part.read_text().replace(".25", ".75"))
        return encode(*given)

    monkeypatch.setattr(long_tables, "encode_table", encode_too_late)
    with pytest.raises(InvalidInputError):
        from_files(table, target="y", public=("classes",))
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_keeps_nobody_from_looking(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = inspect_table(table, {}, target="y")
    (tmp_path / "file").touch()
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(long_tables, "MAPPED", 0)
    assert inspect_table(table, {}, target="y") == expected


def test_a_file_that_is_left_alone_is_digested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,0\n")
    read: list[Path] = []
    digest = encode._digest_bytes
    monkeypatch.setattr(encode, "_digest_bytes", lambda given: read.append(given) or digest(given))
    first = {digest_table([path], {}) for _ in range(3)}
    assert read.count(path) == 3  # it was just written: its times say nothing yet
    monkeypatch.setattr(encode, "SETTLED", -1.0)
    assert {digest_table([path], {}) for _ in range(3)} == first
    assert read.count(path) == 4
    path.write_text("x,y\n1,0\n2,1\n")
    assert digest_table([path], {}) not in first
    assert read.count(path) == 5


def test_other_bytes_and_other_facts_are_another_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,0\n")
    names = {digest_table([path], {"low": 0}), digest_table([path], {"low": 1}), digest_table([path, path], {"low": 0})}
    before = path.stat()
    path.write_text("x,y\n1,1\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # nothing but the bytes says that it is another one
    assert len(names | {digest_table([path], {"low": 0})}) == 4


def test_what_was_not_used_for_a_week_goes(cache: Path) -> None:
    rows, _ = map_rows("old", give)
    map_rows("new", give)
    os.utime(cache / "old", (0, 0))
    map_rows("new", give)
    assert [path.name for path in cache.iterdir()] == ["new"]
    assert rows.sum() == sum(range(20))  # whoever has it mapped keeps it


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "file"))
    with pytest.raises(InvalidInputError, match="folder"):
        map_rows("some", give)
