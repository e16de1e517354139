"""What a sweep keeps when workers die, a byte flips, or locks do not lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest
from safetensors.torch import load

from hush.bench.executors import Inline, Local
from hush.bench.spec import read_spec
from hush.bench.store import JobLocks, open_store
from hush.bench.sweep import sweep
from hush.bench.trial import COPIES, RunOptions, TrialMetrics, read_trial_metrics, write_trial_metrics
from hush.cli import main
from hush.errors import InvalidInputError

EVERY_STEP = RunOptions(checkpoint_seconds=0)

DEADLY = '''
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
    (tmp_path / "deadly_problem.py").write_text(DEADLY)
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


@pytest.mark.parametrize("place", [3, 40, -3])  # the length, the header, a figure
def test_one_flipped_byte_in_a_figures_file_loses_nothing(tmp_path, small, place) -> None:
    whole, store = open_store(tmp_path / "whole"), open_store(tmp_path / "store")
    sweep(small, whole, Inline())
    metrics = stopped(small, store) / COPIES[0]
    content = bytearray(metrics.read_bytes())
    content[place] ^= 1
    metrics.write_bytes(content)
    sweep(small, store, Inline(), settings=EVERY_STEP)
    key = small.trials[0].key
    assert store.record(key)["resumed"] == 1
    names = ("epochs.jsonl", "model.safetensors", "private/steps.safetensors")
    for name in names:
        assert (store.folder(key) / name).read_bytes() == (whole.folder(key) / name).read_bytes()


def test_without_any_figures_the_run_goes_on_and_says_what_it_has_lost(tmp_path, small) -> None:
    whole, store = open_store(tmp_path / "whole"), open_store(tmp_path / "store")
    sweep(small, whole, Inline())
    working = stopped(small, store)
    for name in COPIES:
        (working / name).unlink()
    sweep(small, store, Inline(), settings=EVERY_STEP)
    key = small.trials[0].key
    assert store.record(key)["outcome"] == "finished"
    assert (store.folder(key) / "model.safetensors").read_bytes() == (
        whole.folder(key) / "model.safetensors"
    ).read_bytes()
    steps = load((store.folder(key) / "private" / "steps.safetensors").read_bytes())["loss"]
    expected = load((whole.folder(key) / "private" / "steps.safetensors").read_bytes())["loss"]
    assert len(steps) == len(expected)
    assert steps[:6].isnan().all()
    assert steps[6:].tolist() == expected[6:].tolist()


def test_figures_of_a_changed_byte_are_not_read(tmp_path) -> None:
    write_trial_metrics(tmp_path, TrialMetrics({"loss": [1.0, 2.0]}, [{"step": 1}], 1.5, 0.5, 2))
    for name in COPIES:
        path = tmp_path / name
        content = path.read_bytes()
        for place in range(0, len(content), 7):
            damaged = bytearray(content)
            damaged[place] ^= 64
            path.write_bytes(damaged)
            assert read_trial_metrics(tmp_path).curves == {"loss": [1.0, 2.0]}  # from the other copy
        path.write_bytes(content)
    assert read_trial_metrics(tmp_path).epochs == [{"step": 1}]


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


def test_a_job_lock_is_read_back(tmp_path, monkeypatch) -> None:
    locks = JobLocks(tmp_path)
    from hush.bench import store as module

    real = module.write_in_place

    def and_somebody_else(descriptor: int, content: bytes) -> None:
        real(descriptor, content)
        real(descriptor, json.dumps(json.loads(content) | {"nonce": "theirs"}).encode())

    monkeypatch.setattr(module, "write_in_place", and_somebody_else)
    with pytest.raises(InvalidInputError, match="locks"):
        locks.take("key")
