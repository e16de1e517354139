"""The store: atomic run folders, job locks that end with their process, and tables."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from hush._internal import storage
from hush.bench.dataframes import choose_settings, read_curves, read_runs
from hush.bench.store import NotShared, Result, Store, open_store
from hush.errors import InvalidInputError


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(tmp_path / "store")


def test_a_result_appears_whole(store) -> None:
    store.finish("k", Result({"key": "k", "outcome": "finished"}, ({"step": 1},), {"a.bin": b"1"}))
    assert store.keys() == {"k"}
    assert store.record("k")["outcome"] == "finished"
    assert (store.folder("k") / "epochs.jsonl").read_text() == '{"step": 1}\n'
    assert (store.folder("k") / "private" / "a.bin").read_bytes() == b"1"
    assert list((store.root / "working").iterdir()) == []


def test_the_first_result_stays(store) -> None:
    store.finish("k", Result({"n": 1, "outcome": "finished"}))
    store.finish("k", Result({"n": 2, "outcome": "finished"}))
    assert store.record("k") == {"n": 1, "outcome": "finished"}


def test_a_result_that_cannot_be_written_leaves_nothing(store, monkeypatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.finish("k", Result({}, release={"half": b"x"}))
    assert store.keys() == set()
    assert list((store.root / "working" / "k").iterdir()) == []


def test_a_lock_excludes_other_sweeps_until_it_is_dropped(store) -> None:
    lock = store.locks.take("k")
    assert lock is not None
    assert store.locks.take("k") is None
    assert store.locks.held() == {"k"}
    lock.drop()
    assert store.locks.held() == set()
    assert store.locks.take("k") is not None


def test_a_finished_run_cannot_be_taken(store) -> None:
    assert store.locks.take("k", lambda: True) is None
    assert store.locks.held() == set()


def test_a_worker_proves_that_it_sees_the_locks_of_its_sweep(store, tmp_path) -> None:
    lock = store.locks.take("k")
    assert lock is not None
    store.locks.prove_shared("k", lock.token, "here")
    with pytest.raises(NotShared, match="does not see"):
        store.locks.prove_shared("k", "0" * 32, "far")
    copy = tmp_path / "copy"
    shutil.copytree(store.root, copy)  # the token is there, and the lock is not
    with pytest.raises(NotShared, match="locks"):
        Store(copy).locks.prove_shared("k", lock.token, "far")
    lock.drop()
    with pytest.raises(NotShared):
        store.locks.prove_shared("k", lock.token, "here")


def test_a_note_that_could_not_be_written_to_its_end_jams_nothing(store, monkeypatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.locks.take("k")
    assert store.locks.held() == set()
    assert store.locks.take("k") is not None


def test_a_killed_process_leaves_its_lock_to_others(store) -> None:
    code = (
        "import sys; from pathlib import Path; from hush.bench.store import Store\n"
        "assert Store(Path(sys.argv[1])).locks.take('k'); print('taken', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(store.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        assert store.locks.take("k") is None
        process.kill()
        process.wait()
    assert store.locks.take("k") is not None


def test_tidying_removes_what_the_dead_left_and_nothing_else(store) -> None:
    store.finish("done", Result({}))
    for key in ("done", "unfinished", "running"):
        store.working(key)
        (store.root / "working" / key / "secret").write_text("x")
    (store.locks.directory / "unfinished.lock").write_text("of a sweep that was killed")
    lock = store.locks.take("running")
    store.tidy()
    assert lock is not None
    assert {p.name for p in (store.root / "working").iterdir()} == {"unfinished", "running"}
    assert {p.name for p in store.locks.directory.iterdir()} == {"running.lock", "mutex"}


def test_a_directory_that_is_no_store_is_refused(tmp_path) -> None:
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(InvalidInputError):
        open_store(tmp_path)
    with pytest.raises(InvalidInputError):
        read_runs(tmp_path)
    (tmp_path / "store.json").write_text('{"format": "hush store 99"}')
    with pytest.raises(InvalidInputError):
        open_store(tmp_path)


def test_a_store_can_be_opened_while_another_opens_it(tmp_path) -> None:
    root = tmp_path / "s"
    for name in ("runs", "claims"):  # as a second sweep sees the first one's half-made store
        (root / name).mkdir(parents=True)
    assert open_store(root).keys() == set()


def fake(key: str, lr: float, seed: int, validation: float | None, test: float, outcome: str = "finished") -> Result:
    config = {"problem": "p", "method": "m", "epsilon": 3, "options": {"lr": lr}, "seed": seed}
    record = {"key": key, "outcome": outcome, "config": config, "epsilon": 2.99, "confusion": [[1]]}
    return Result(record | {"validation_accuracy": validation, "test_accuracy": test}, ({"step": 1, "test_loss": 0.1},))


def test_load_gives_a_row_a_run(store) -> None:
    store.finish("a", fake("a", 0.1, 1, 0.5, 0.6))
    store.finish("b", fake("b", 0.2, 1, 0.7, 0.4))
    frame = read_runs(store.root)
    assert len(frame) == 2
    row = frame[frame.key == "b"].iloc[0]
    assert (row.problem, row.method, row.lr, row.target_epsilon, row.epsilon) == ("p", "m", 0.2, 3, 2.99)
    assert row.test_accuracy == 0.4
    assert "confusion" not in frame
    assert list(read_curves(store).key) == ["a", "b"]


def test_choosing_reads_validation_and_reports_test(store) -> None:
    for number, (lr, validation, test) in enumerate(
        [(0.1, 0.80, 0.70), (0.1, 0.70, 0.74), (0.2, 0.72, 0.99), (0.2, 0.76, 0.99), (0.3, 0.95, 0.90)]
    ):
        store.finish(str(number), fake(str(number), lr, number, validation, test))
    store.finish("x", fake("x", 0.3, 9, None, 0.0, outcome="diverged"))
    best = choose_settings(read_runs(store)).iloc[0]
    assert best.lr == 0.1  # 0.3 diverged once; 0.2 is best on the test set, which must not count
    assert best.test == pytest.approx(0.72)
    assert best.runs == 2


def test_choosing_without_a_validation_part_is_refused(store) -> None:
    store.finish("a", fake("a", 0.1, 1, None, 0.6))
    with pytest.raises(InvalidInputError):
        choose_settings(read_runs(store))


def test_thousands_of_runs_load(store) -> None:
    """2 476 runs, the published comparison; benchmarks/bench.py measures how long it takes."""
    text = json.dumps(fake("k", 0.1, 1, 0.5, 0.6).record)
    for number in range(2476):
        folder = store.root / "runs" / f"{number:032x}"
        folder.mkdir()
        (folder / "record.json").write_text(text)
    assert len(read_runs(store)) == 2476
