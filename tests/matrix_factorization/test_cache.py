"""The solver cache: hits, damaged entries ignored, and never a reason to fail."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from hush.matrix_factorization import cache, optimal_single
from hush.matrix_factorization.workloads import Workload, prefix_sums


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path))
    return tmp_path / "matrices"


class Solver:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {"C": np.arange(4.0).reshape(2, 2), "gap": np.array(0.5)}


def ask(solver: Solver, **question: object) -> dict[str, np.ndarray]:
    return cache.cached("test", {"workload": Workload(3), **question}, solver)


def test_asked_once(folder):
    solver = Solver()
    first, second = ask(solver), ask(solver)
    assert solver.calls == 1
    assert np.array_equal(first["C"], second["C"])
    assert float(second["gap"]) == 0.5
    ask(solver, tau=2)
    assert solver.calls == 2
    assert len(list(folder.iterdir())) == 2  # and no temporary file is left


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "nan", "pickle"])
def test_damaged_files_are_recomputed(folder, damage):
    solver = Solver()
    expected = ask(solver)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    with np.load(path) as file:
        stored = {name: file[name] for name in file.files}
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        stored["C"] = stored["C"] + 1e-9
        np.savez(path, **stored)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        stored["question"] = np.array("another question")
        np.savez(path, **stored)
    elif damage == "nan":
        stored["C"][0, 0] = np.nan
        np.savez(path, **stored)
    else:
        np.savez(path, C=np.array([{"not": "numbers"}], dtype=object))
    assert np.array_equal(ask(solver)["C"], expected["C"])
    assert solver.calls == 2
    ask(solver)
    assert solver.calls == 2  # and repaired


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("HUSH_CACHE", str(blocked))
    solver = Solver()
    ask(solver)
    ask(solver)
    assert solver.calls == 2


def test_solvers_use_it(folder):
    first = optimal_single(prefix_sums(10))
    (path,) = folder.iterdir()
    before = path.stat().st_mtime_ns
    again = optimal_single(prefix_sums(10))
    assert np.array_equal(first.structure.C, again.structure.C)
    assert path.stat().st_mtime_ns == before
    optimal_single(Workload(10, learning_rates=tuple(np.linspace(1, 2, 10))))
    assert len(list(folder.iterdir())) == 2


def test_files_are_the_users_own(folder):
    ask(Solver())
    (path,) = folder.iterdir()
    if os.name == "posix":
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022
