"""Long tables in mapped files: the same rows as in memory, in a private file that has no name and leaves nothing."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hush.data_source import Tensors, as_source
from hush.datasets.evaluation import evaluate_problem
from hush.datasets.problem import Problem
from hush.datasets.splits import as_arrays, hold_out
from hush.distributed.consistency import digest_data
from hush.errors import InvalidInputError
from hush.randomness import Secret, seeded
from hush.tabular import rows as rows_module
from hush.tabular.problem import from_files
from hush.tabular.rows import Encoded, RowSubset, map_rows, pick_all


def give(rows: int = 10, step: int = 3) -> Iterator[Encoded]:
    whole = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
    for start in range(0, rows, step):
        part = whole[start : start + step]
        yield part, part[:, 0].astype(np.int64) % 3


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
    monkeypatch.setattr(rows_module, "MAPPED", 0)
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
    rows, labels = map_rows(give(step=step))
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
    assert (one.loss, one.confusion, one.metrics) == (other.loss, other.confusion, other.metrics)


def test_a_test_file_may_be_long_too(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, long = load_both(table, monkeypatch, test=table)
    assert isinstance(long.test, RowSubset)
    assert len(long.train) == len(long.test) == 400


def test_a_source_over_mapped_rows_is_one_over_tensors() -> None:
    tensors = map_rows(give())
    rows = torch.tensor([7, 1, 1, 4])
    check_equal(Tensors(tuple(t[rows] for t in tensors)).tensors, pick_all(tensors).pick(rows))
    held = hold_out(pick_all(tensors), 0.3, seed=5)
    for part, same in zip(held, hold_out(tensors, 0.3, seed=5), strict=True):
        check_equal(same, part)
        assert all(torch.equal(a, b) for a, b in zip(as_arrays(part), as_arrays(same), strict=True))


def test_a_digest_of_mapped_rows_sees_one_cell() -> None:
    tensors, secret = map_rows(give()), Secret.from_seed(1, "here")
    before = digest_data(pick_all(tensors), secret, lambda _: None)
    assert before == digest_data(pick_all(map_rows(give())), secret, lambda _: None)
    tensors[0][4, 1] += 1
    assert digest_data(pick_all(tensors), secret, lambda _: None) != before


def test_the_file_has_no_name_and_only_its_owner_may_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[str], os.stat_result]] = []
    map_file = rows_module._map_file

    def watch(file, shape):  # type: ignore[no-untyped-def]
        seen.append((file.fileno(), os.listdir(tmp_path), os.fstat(file.fileno())))
        return map_file(file, shape)

    monkeypatch.setattr(rows_module, "_map_file", watch)
    before = os.umask(0)
    try:
        rows, _ = map_rows(give(), tmp_path)
    finally:
        os.umask(before)
    ((_, names, state),) = seen
    assert names == []
    assert state.st_nlink == 0
    assert state.st_dev == tmp_path.stat().st_dev
    assert stat.S_IMODE(state.st_mode) == 0o600
    assert state.st_size == rows.numel() * 4
    assert list(tmp_path.iterdir()) == []
    assert rows.sum() == sum(range(20))


def test_a_killed_process_leaves_no_rows(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from hush.tabular.rows import map_rows\n"
        "def give():\n    yield np.ones((5, 2), np.float32), np.zeros(5)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n    yield np.ones((5, 2), np.float32), np.zeros(5)\n"
        "map_rows(give(), Path(sys.argv[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_reading_leaves_no_rows(tmp_path: Path) -> None:
    def fail() -> Iterator[Encoded]:
        yield from give(6)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_rows(fail(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_home_folder_has_no_copy(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in ("HUSH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(home))
    folder = tmp_path / "run"
    folder.mkdir()
    load_both(table, monkeypatch, private_folder=folder)
    assert not home.exists()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="file"):
        map_rows(give(), tmp_path / "file")

    def fill(*given: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(rows_module, "_map_file", fill)
    with pytest.raises(InvalidInputError, match="no room"):
        map_rows(give(), tmp_path)
