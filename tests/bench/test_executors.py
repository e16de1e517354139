"""Sweeps under kill -9, with concurrent sweeps, on a full disk, and on several processes."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from hush._internal import storage
from hush.bench import executors, trial
from hush.bench import store as store_module
from hush.bench.executors import WAIT, Driver, Inline, Job, Local
from hush.bench.ray_cluster import OnRay
from hush.bench.spec import read_spec
from hush.bench.store import Result, StoreFullError, open_store
from hush.bench.sweep import ExecutorOptions, Tally, make_executor, sweep
from hush.bench.trial import RunOptions, TrialMetrics
from hush.checkpointing import Checkpoints
from hush.checkpointing.tree import flatten, unflatten
from hush.cli import main
from hush.errors import InvalidInputError
from store_contents import contents

EVERY_STEP = RunOptions(checkpoint_seconds=0)


def in_a_child(action: Callable[[], None]) -> int:
    """Run something in a forked process; its wait status (a signal's number if it was killed)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: this child starts none
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def die_at(event: int) -> None:
    """From now on, kill this process at its event-th event: a step, a file about to appear, or one just there."""
    left = [event]

    def tick() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    replace, rename = os.replace, os.rename

    def dying(real):
        def moved(*names: object) -> None:
            tick()
            real(*names)
            tick()

        return moved

    storage.os.replace, store_module.os.rename = dying(replace), dying(rename)
    step = TrialMetrics.step

    def stepping(self, *arguments):
        tick()
        step(self, *arguments)

    TrialMetrics.step = stepping


@pytest.fixture
def whole(tmp_path, small) -> dict[str, tuple]:
    """What an undisturbed sweep gives."""
    store = open_store(tmp_path / "whole")
    assert sweep(small, store, Inline()).summary()["done"] == 4
    return contents(store)


def test_a_sweep_killed_again_and_again_ends_like_one_that_was_not(tmp_path, small, whole) -> None:
    store = open_store(tmp_path / "killed")
    kills = 0
    for event in (1, 2, 3, 5, 8, 13, 21, 34, 55, 40, 30, 20, 100_000):  # the last one is let go
        status = in_a_child(lambda n=event: (die_at(n), sweep(small, store, Inline(), settings=EVERY_STEP)))
        kills += status == signal.SIGKILL
        for key in sorted(store.keys()):
            assert store.record(key)["outcome"] == "finished"  # whatever is there is whole
    assert kills >= 10
    assert status == 0
    assert contents(store) == whole
    assert list((store.root / "working").iterdir()) == []
    assert [p.name for p in store.locks.directory.iterdir()] == ["mutex"]
    assert max(store.record(key)["resumed"] for key in sorted(store.keys())) >= 1


def test_two_sweeps_on_one_store_run_nothing_twice(tmp_path, small, whole, monkeypatch) -> None:
    store = open_store(tmp_path / "shared")
    log = tmp_path / "log"
    real = executors.run_trial

    def logged(trial, *arguments):
        with log.open("a") as file:
            file.write(f"{trial.key} {os.getpid()}\n")
        return real(trial, *arguments)

    monkeypatch.setattr(executors, "run_trial", logged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = 0 if sweep(small, store, Inline()).summary()["runs"] == 4 else 2
                finally:
                    os._exit(code)
            children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    ran = [line.split()[0] for line in log.read_text().splitlines()]
    assert sorted(ran) == sorted(trial.key for trial in small.trials)
    assert contents(store) == whole


@pytest.mark.parametrize("after", [0, 5, 17, 40])
def test_a_disk_that_fills_up_stops_the_sweep_and_it_resumes(tmp_path, small, whole, monkeypatch, after) -> None:
    store = open_store(tmp_path / "full")
    left = [after]
    real = os.fsync

    def fsync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(storage.os, "fsync", fsync)
    with pytest.raises(StoreFullError):
        sweep(small, store, Inline(), settings=EVERY_STEP)
    monkeypatch.setattr(storage.os, "fsync", real)
    assert all(store.record(key)["outcome"] == "finished" for key in sorted(store.keys()))
    assert sweep(small, store, Inline(), settings=EVERY_STEP).summary()["failed"] == 0
    assert contents(store) == whole


def test_a_disk_that_is_really_full(tmp_path, small, whole) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if mounted.returncode != 0:
        pytest.skip(f"this user may not mount a small disk: {mounted.stderr.strip()}")
    try:
        store = open_store(place / "store")
        with pytest.raises(StoreFullError):
            sweep(small, store, Inline())
        assert len(store.keys()) < 4
        assert all(store.record(key)["outcome"] == "finished" for key in sorted(store.keys()))
        subprocess.run(["mount", "-o", "remount,size=8m", str(place)], check=True)
        assert sweep(small, store, Inline()).summary()["failed"] == 0
        assert contents(store) == whole
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.full_start_check
def test_worker_processes_give_the_same_store(tmp_path, small, whole) -> None:
    store = open_store(tmp_path / "processes")
    seen: list[int] = []
    tally = sweep(small, store, Local(2), watch=lambda tally: seen.append(len(tally.outcomes)))
    assert tally.summary() == {"runs": 4, "done": 4, "failed": 0, "skipped": 0, "diverged": 0}
    assert contents(store) == whole
    assert seen == sorted(seen)
    again = sweep(small, store, Local(2))  # nothing left: no process is started
    assert again.summary() == {"runs": 4, "done": 0, "failed": 0, "skipped": 4, "diverged": 0}


DEADLY = '''
"""A method whose process dies."""
import os, signal
from hush.methods import find

def deadly(setting, *, lr: float = 0.1):
    if setting.examples > 400 and lr > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return find("sgd")(setting, lr=lr)
'''


def test_a_run_that_kills_its_worker_becomes_a_failure(tmp_path, write_spec, monkeypatch) -> None:
    (tmp_path / "deadly_methods.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (
        '[[grid]]\nproblem = "breast-cancer-logistic"\nmethod = "deadly_methods:deadly"\nbatch_size = 64\nepochs = 1\n'
    )
    spec = read_spec(write_spec(text + "lr = [2.0, 0.1]\n"))
    store = open_store(tmp_path / "store")
    assert sweep(spec, store, Local(1, retries=0)).summary() == {
        "runs": 2,
        "done": 1,
        "failed": 1,
        "skipped": 0,
        "diverged": 0,
    }
    assert store.record(spec.trials[0].key)["reason"] == "its process died with code -9, for the 1. time"


def test_failed_runs_are_kept_or_retried(tmp_path, small, monkeypatch) -> None:
    store = open_store(tmp_path / "store")
    real = trial.make_trial_plan

    def broken(trial, *arguments):
        if trial.options["lr"] == 0.5:
            raise RuntimeError("a passing trouble")
        return real(trial, *arguments)

    monkeypatch.setattr(trial, "make_trial_plan", broken)
    assert sweep(small, store, Inline()).summary() == {"runs": 4, "done": 2, "failed": 2, "skipped": 0, "diverged": 0}
    assert store.record(small.trials[1].key)["reason"] == "RuntimeError (see private/traceback.txt)"
    monkeypatch.setattr(trial, "make_trial_plan", real)
    assert sweep(small, store, Inline()).summary()["skipped"] == 4
    found = sweep(small, store, Inline(), retry_failed=True).summary()
    assert found == {"runs": 4, "done": 2, "failed": 0, "skipped": 2, "diverged": 0}


def test_executors_by_name() -> None:
    assert make_executor("inline") == Inline()
    assert make_executor("local", ExecutorOptions(3)) == Local(3)
    assert make_executor("local", ExecutorOptions(3, retries=0)) == Local(3, retries=0)
    assert make_executor("ray") == OnRay(None, 1.0, 0.0, None, 2)
    assert make_executor("ray", ExecutorOptions(4, 1, "auto", 2.0, 0.5)) == OnRay("auto", 2.0, 0.5, 4, 1)
    with pytest.raises(InvalidInputError, match="'locl'.*'local'"):
        make_executor("locl")


@pytest.mark.parametrize(
    ("name", "wishes", "said"),
    [
        ("local", ExecutorOptions(workers=0), "workers must be a whole number"),
        ("local", ExecutorOptions(retries=-1), "retries must be zero or above"),
        ("local", ExecutorOptions(cpus=2.0), "--cpus means nothing to the executor 'local'"),
        ("local", ExecutorOptions(address="auto"), "--address means nothing to the executor 'local'"),
        ("inline", ExecutorOptions(gpus=0.0), "--gpus means nothing to the executor 'inline'"),
        ("inline", ExecutorOptions(retries=1), "--retries means nothing to the executor 'inline'"),
        ("ray", ExecutorOptions(cpus=0.0), "cpus must be above zero"),
        ("ray", ExecutorOptions(gpus=-1.0), "gpus must be zero or above"),
    ],
)
def test_what_an_executor_has_no_use_for_is_refused(name, wishes, said) -> None:
    with pytest.raises(InvalidInputError, match=said):
        make_executor(name, wishes)


def test_a_worker_without_its_parent_stops() -> None:
    ours, theirs = multiprocessing.Pipe()
    with pytest.raises(SystemExit):
        executors._work(theirs, parent=1 if os.getppid() != 1 else 2)
    assert not ours.poll()  # it never said that it was ready


def test_a_run_whose_directory_is_in_use_is_waited_for(tmp_path: Path, small) -> None:
    """As after a sweep was killed whose worker still runs."""
    store, (trial, *_) = open_store(tmp_path / "store"), small.trials
    living, closed = Checkpoints(store.working(trial.key) / "run"), []

    def watch(tally: Tally) -> None:
        if len(tally.outcomes) == len(small.trials) - 1 and not closed:
            assert not store.has(trial.key)
            living.close()
            closed.append(True)

    assert sweep(small, store, Inline(), watch=watch).summary()["done"] == 4
    assert store.record(trial.key)["outcome"] == "finished"


def test_a_failure_is_not_recorded_while_the_run_goes_on(tmp_path: Path, small) -> None:
    store, (trial, *_) = open_store(tmp_path / "store"), small.trials
    with Driver(Job(store.root, small.trials)) as driver:
        assert driver.take() == trial
        living = Checkpoints(store.working(trial.key) / "run")
        driver.count_death(trial, "its node was cut off")
        assert not store.has(trial.key)
        living.close()
        time.sleep(WAIT)
        assert driver.take() == trial
        driver.count_death(trial, "its node was cut off")
    assert store.record(trial.key)["reason"] == "its node was cut off, for the 2. time"


def test_a_result_arrives_as_it_was_sent() -> None:
    private = {"steps.safetensors": b"\0\1", "empty": b""}
    sent = Result({"key": "k", "loss": 0.1, "text": "größer"}, ({"step": 1},), private, {"model.safetensors": b"w"})
    assert Result.from_bytes(sent.to_bytes()) == sent


# Dead workers, flipped bytes and file systems without working locks.


DEADLY_WORKERS = '''
"""A problem whose process dies in its fifth step, as long as a file lies beside it."""
import os, pathlib, signal
from dataclasses import replace
from hush.datasets.catalogue import load

def problem(seed, validation):
    found, calls = load("breast-cancer-logistic", seed=seed, validation=validation), [0]

    def losses(model, content):
        calls[0] += model.training
        if calls[0] == 9 and pathlib.Path(__file__).with_name("deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return found.losses(model, content)

    return replace(found, losses=losses)
'''
TEXT = """
secret_seed = 7
[[grid]]
problem = "deadly_problem:problem"
method = "dp-sgd"
batch_size = 32
epochs = 2
noise_multiplier = 1.0
"""


def the_steps(store, key: str) -> tuple[bytes, dict]:
    record = store.record(key)
    times = ("started", "seconds", "train_seconds", "evaluation_seconds", "inference_seconds", "resumed", "machine")
    shown = {name: value for name, value in record.items() if name not in times}
    return (store.folder(key) / "model.safetensors").read_bytes(), shown


@pytest.mark.full_start_check
def test_a_run_whose_worker_died_goes_on_from_its_checkpoint(tmp_path, write_spec, monkeypatch) -> None:
    (tmp_path / "deadly_problem.py").write_text(DEADLY_WORKERS)
    (tmp_path / "deadly").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = read_spec(write_spec(TEXT))
    key = spec.trials[0].key
    store = open_store(tmp_path / "store")
    assert sweep(spec, store, Local(1, retries=0), settings=EVERY_STEP).summary()["failed"] == 1
    kept = sorted(p.name for p in (store.root / "working" / key / "run").glob("checkpoint-*"))
    assert kept  # the good checkpoints outlive the failure, and the next sweep
    assert sweep(spec, store, Local(1, retries=0), settings=EVERY_STEP).summary()["skipped"] == 1
    assert sorted(p.name for p in (store.root / "working" / key / "run").glob("checkpoint-*")) == kept
    (tmp_path / "deadly").unlink()
    found = sweep(spec, store, Local(1, retries=0), settings=EVERY_STEP, retry_failed=True).summary()
    assert (found["done"], found["failed"]) == (1, 0)
    assert store.record(key)["resumed"] == 1
    assert not (store.root / "working" / key).exists()
    whole = open_store(tmp_path / "whole")
    sweep(spec, whole, Inline())
    assert the_steps(store, key) == the_steps(whole, key)


WAITING = '''
"""A problem whose training waits once three steps are saved, until a file lies beside it."""
import pathlib, time
from dataclasses import replace
from hush.datasets.catalogue import load

HERE = pathlib.Path(__file__).parent

def problem(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)

    def losses(model, content):
        while any(HERE.glob("store/working/*/run/checkpoint-*3.safetensors")) and not (HERE / "go").exists():
            time.sleep(0.02)
        return found.losses(model, content)

    return replace(found, losses=losses)
'''
SWEEP = """
import sys
from hush.bench.executors import Local
from hush.bench.spec import read_spec
from hush.bench.store import open_store
from hush.bench.sweep import sweep
from hush.bench.trial import RunOptions
sweep(read_spec(sys.argv[1]), open_store(sys.argv[2]), Local(1), settings=RunOptions(checkpoint_seconds=0))
"""


@pytest.mark.full_start_check
def test_a_killed_sweep_is_continued_once_its_worker_has_noticed(tmp_path, write_spec, monkeypatch) -> None:
    """The worker outlives its sweep until the end of its step; the next sweep waits for it and takes its checkpoint."""
    (tmp_path / "waiting_problem.py").write_text(WAITING)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = read_spec(write_spec(TEXT.replace("deadly_problem", "waiting_problem")))
    store, key = open_store(tmp_path / "store"), spec.trials[0].key
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", SWEEP, str(spec.path), str(store.root)]
    with subprocess.Popen(command, env=environment) as killed:
        while killed.poll() is None and not any(store.root.glob(f"working/{key}/run/checkpoint-*3.safetensors")):
            time.sleep(0.05)
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    seen = []

    def watch(tally: Tally) -> None:
        seen.append(len(tally.outcomes))
        (tmp_path / "go").touch()

    assert sweep(spec, store, Inline(), settings=EVERY_STEP, watch=watch).summary()["done"] == 1
    assert seen[0] == 0
    assert store.record(key)["resumed"] == 1
    whole = open_store(tmp_path / "whole")
    sweep(spec, whole, Inline())
    assert the_steps(store, key) == the_steps(whole, key)


def stopped(small, store) -> Path:
    """A sweep broken off in its first run; the run's working directory."""
    left = [6]

    def pulse() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(small, store, Inline(), settings=RunOptions(checkpoint_seconds=0, pulse=pulse))
    return store.root / "working" / small.trials[0].key


@pytest.mark.parametrize("place", [3, 40, -3])  # the length, the header, a number
def test_one_flipped_byte_in_a_checkpoint_loses_nothing(tmp_path, small, place) -> None:
    """The checkpoint before it has the metrics up to its own step."""
    whole, store = open_store(tmp_path / "whole"), open_store(tmp_path / "store")
    sweep(small, whole, Inline())
    newest = max((stopped(small, store) / "run").glob("checkpoint-*"))
    content = bytearray(newest.read_bytes())
    content[place] ^= 1
    newest.write_bytes(content)
    sweep(small, store, Inline(), settings=EVERY_STEP)
    key = small.trials[0].key
    assert store.record(key)["resumed"] == 1
    names = ("epochs.jsonl", "model.safetensors", "private/steps.safetensors")
    for name in names:
        assert (store.folder(key) / name).read_bytes() == (whole.folder(key) / name).read_bytes()


def test_metrics_travel_with_a_checkpoint(tmp_path) -> None:
    metrics = TrialMetrics({"loss": [1.0, math.inf]}, [{"step": 1, "test_loss": math.nan}], 1.5, 0.5, 2)
    tensors: dict[str, Tensor] = {}
    state = unflatten(json.loads(json.dumps(flatten(metrics.state(), tensors), allow_nan=False)), tensors)
    found = TrialMetrics.restore(state, 2)
    assert (found.curves, found.seconds, found.resumed) == ({"loss": [1.0, math.inf]}, 1.5, 3)
    assert math.isnan(found.epochs[0]["test_loss"])


def test_metrics_that_a_checkpoint_lacks_are_unknown() -> None:
    found = TrialMetrics.restore(None, 3)
    found.step({"loss": 4.0, "examples": 2.0}, 0.5)
    assert [math.isnan(value) for value in found.curves["loss"]] == [True, True, True, False]
    assert found.resumed == 1


def test_a_disk_that_cannot_lock_is_told_in_one_sentence(tmp_path, small, monkeypatch, capsys) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    store = tmp_path / "store"
    code = main(["bench", str(small.path), "--store", str(store), "--executor", "inline"])
    err = capsys.readouterr().err
    assert code == 2
    assert "cannot lock" in err
    assert len(err.strip().splitlines()) == 1
    assert not list((store / "runs").iterdir())


def test_locks_that_do_nothing_are_noticed(tmp_path, small, monkeypatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(InvalidInputError, match="locks"):
        sweep(small, open_store(tmp_path / "store"), Inline())
