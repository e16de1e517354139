"""Execute the runs of a sweep: in this process, in several processes, or on a cluster (`hush.bench.ray_cluster`).

Only the sweep's own process writes results (`Driver`). It locks a run that no other sweep has, sends it to a worker as
text (`write_task`), receives the result as bytes (`run_task`) and stores it. A worker writes only checkpoints of its
run, so a worker or a sweep that is killed loses the work since the last checkpoint. Any number of sweeps may share a
store.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import torch

from hush._internal.imports import read_versions
from hush._internal.storage import NoLocks, try_lock, unlock
from hush.bench.store import DISK, RUN, NotShared, Result, Store, StoreFullError, TrialLock
from hush.bench.trial import RunOptions, Trial, record_failure, run_trial
from hush.checkpointing.checkpoint import InUse
from hush.errors import InvalidInputError

RETRIES = 2  # the number of retries of a trial whose worker died, before it is recorded as failed
WAIT = 0.2
SAME = ("hush", "dp-accounting")
DONE, BUSY, FULL, REFUSED = "done", "busy", "full", "refused"
Watch = Callable[[], None]


class Orphaned(BaseException):
    """The process that started this worker has ended."""


class IncompatibleWorker(InvalidInputError):
    """A worker that cannot run its tasks: it has other versions, or lacks the device."""


@dataclass(frozen=True)
class Job:
    """The trials of a sweep and the store of their results."""

    store: Path
    trials: tuple[Trial, ...]
    settings: RunOptions = RunOptions()


class Executor(Protocol):
    """Runs the trials of a job."""

    def run_all(self, job: Job, watch: Watch) -> None:
        """Run every trial of the job, and return when all are in the store; ``watch`` is called regularly."""
        ...


@dataclass
class Driver:
    """The remaining runs of a job, and those that this sweep has locked; the only writer of results.

    A run that has lost its worker too often is recorded as failed, because it may be the cause; its checkpoints
    stay."""

    job: Job
    retries: int = 0
    taken: dict[str, TrialLock] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    early: int = 0  # workers that died before they had begun a run
    _resting: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store, self._left = Store(self.job.store), list(self.job.trials)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for key in list(self.taken):
            self._drop(key)
        if isinstance(error, OSError) and error.errno in DISK:
            raise StoreFullError(error.errno, os.strerror(error.errno or 0), str(self.job.store)) from error

    @property
    def done(self) -> bool:
        """Whether every run is in the store."""
        there = self.store.keys()
        self._left = [trial for trial in self._left if trial.key in self.taken or trial.key not in there]
        return not self._left

    def take(self) -> Trial | None:
        """A run that no worker has; None if there is none at the moment."""
        for trial in self._left:
            if trial.key in self.taken or self._resting.get(trial.key, 0.0) > time.monotonic():
                continue
            lock = self.store.locks.take(trial.key, partial(self.store.has, trial.key))
            if lock is not None:
                self.taken[trial.key] = lock
                return trial
        return None

    def store_result(self, trial: Trial, result: Result) -> None:
        """Store the result of a run."""
        try:
            self.store.finish(trial.key, result)
        except OSError as error:
            if error.errno in DISK:
                raise
            self.store.finish(trial.key, record_failure(trial, time.time(), error))
        self._drop(trial.key)

    def give_back(self, trial: Trial) -> None:
        """Release a run whose directory is in use, so that it is tried again later."""
        self._resting[trial.key] = time.monotonic() + WAIT
        self._drop(trial.key)

    def count_death(self, trial: Trial, how: str) -> None:
        """A run has lost its worker: try it again, or record its failure."""
        self.deaths[trial.key] += 1
        if self.deaths[trial.key] <= self.retries or self._is_running(trial):
            self.give_back(trial)
            return
        self.store_result(trial, record_failure(trial, time.time(), f"{how}, for the {self.deaths[trial.key]}. time"))

    def count_early_death(self, most: int, how: str) -> None:
        """A worker died before it began a run, so no run is counted as failed; too many such deaths stop the sweep."""
        self.early += 1
        if self.early > most:
            raise ChildProcessError(f"workers end before they start a run ({how})")

    def _is_running(self, trial: Trial) -> bool:
        """Whether a worker that was lost, such as one on a node that is cut off, still runs a trial."""
        path = self.store.root / "working" / trial.key / RUN / "lock"
        if not path.exists():
            return False
        descriptor = try_lock(path)
        if descriptor is not None:
            unlock(descriptor)
        return descriptor is None

    def _drop(self, key: str) -> None:
        with contextlib.suppress(OSError):
            self.taken.pop(key).drop()

    def write_task(self, trial: Trial, device: str, threads: int) -> str:
        """A locked run as plain data, for a worker."""
        task = {
            "versions": read_versions(*SAME),
            "trial": asdict(trial),
            "key": trial.key,
            "weights": self.job.settings.weights,
            "checkpoint_seconds": self.job.settings.checkpoint_seconds,
            "device": device,
            "threads": threads,
            "token": self.taken[trial.key].token,
            "store": str(self.job.store.absolute()),
        }
        return json.dumps(task)

    def take_answer(self, trial: Trial, content: bytes) -> None:
        """Store the result that a worker returned, or raise the error that stops the sweep."""
        end, _, rest = content.partition(b"\n")
        if end == DONE.encode():
            self.store_result(trial, Result.from_bytes(rest))
        elif end == BUSY.encode():
            self.give_back(trial)
        elif end == FULL.encode():
            raise OSError(int(rest), os.strerror(int(rest)))
        else:
            raise InvalidInputError(rest.decode())


def run_task(text: str, node: str, pulse: Callable[[], None] = lambda: None) -> bytes:
    """Run a task on this node, and return one line with how it ended, and the result. An error that every task on this
    node would have is returned; any other is raised, and the driver counts it."""
    try:
        return DONE.encode() + b"\n" + _run(json.loads(text), node, pulse).to_bytes()
    except InUse:
        return BUSY.encode()
    except (IncompatibleWorker, NotShared, NoLocks) as error:
        return f"{REFUSED}\n{error}".encode()
    except OSError as error:
        if error.errno in DISK:
            return f"{FULL}\n{error.errno}".encode()
        raise


def _run(task: dict[str, Any], node: str, pulse: Callable[[], None]) -> Result:
    _check_versions(task["versions"], node)
    store, trial = Store(Path(task["store"])), Trial(**task["trial"])
    store.locks.prove_shared(task["key"], task["token"], node)
    if trial.key != task["key"]:
        raise IncompatibleWorker(
            f"node {node} computes another key for run {task['key']}: install the same hush on all nodes"
        )
    if torch.device(task["device"]).type == "cuda" and not torch.cuda.is_available():
        raise IncompatibleWorker(
            f"node {node} should run on a GPU and its torch finds none: leave --gpus out, or repair that node"
        )
    torch.set_num_threads(task["threads"])
    return run_trial(trial, store, RunOptions(task["device"], task["weights"], task["checkpoint_seconds"], pulse))


def _check_versions(wanted: dict[str, str], node: str) -> None:
    """Raise for a worker of another version, where a run could give other results."""
    for name, found in read_versions(*SAME).items():
        if found != wanted.get(name):
            raise IncompatibleWorker(
                f"node {node} (process {os.getpid()}) has {name} {found} and this sweep {wanted.get(name)}: install "
                "the same version on all nodes"
            )


@dataclass(frozen=True)
class Inline:
    """Runs all trials in this process, one after another."""

    def run_all(self, job: Job, watch: Watch) -> None:
        """Run trials until none is left; wait for those of other sweeps, in case these die."""
        latest = time.monotonic()

        def pulse() -> None:
            nonlocal latest
            job.settings.pulse()
            if time.monotonic() - latest > WAIT:
                watch()
                latest = time.monotonic()

        with Driver(job) as driver:
            while not driver.done:
                trial = driver.take()
                if trial is None:
                    pulse()
                    time.sleep(WAIT)
                    continue
                try:
                    result = run_trial(trial, driver.store, replace(job.settings, pulse=pulse))
                except InUse:
                    driver.give_back(trial)
                else:
                    driver.store_result(trial, result)


@dataclass
class LocalWorker:
    """A worker process, and the run that it has."""

    process: multiprocessing.process.BaseProcess
    device: str
    ready: bool = False
    trial: Trial | None = None


@dataclass(frozen=True)
class Local:
    """Several processes on this machine; cores, and GPUs if there are any, are divided among them."""

    workers: int
    retries: int = RETRIES

    def run_all(self, job: Job, watch: Watch) -> None:
        """Start the workers, replace those that die, and stop when all are done."""
        threads = max(1, min(count_cores() // self.workers, torch.get_num_threads()))
        workers: dict[Connection, LocalWorker] = {}
        with Driver(job, self.retries) as driver:
            try:
                for number in range(min(self.workers, len(job.trials))):
                    _start(workers, _choose_device(number))
                while not driver.done:
                    watch()
                    for connection, worker in workers.items():
                        if worker.ready and worker.trial is None and (trial := driver.take()) is not None:
                            worker.trial = trial
                            with contextlib.suppress(BrokenPipeError):  # it has died, which is seen below
                                connection.send_bytes(driver.write_task(trial, worker.device, threads).encode())
                    for landed in wait(list(workers), WAIT):
                        assert isinstance(landed, Connection)
                        self._take_message(landed, workers, driver)
            finally:
                for worker in workers.values():
                    worker.process.terminate()
                for connection, worker in workers.items():
                    worker.process.join()
                    connection.close()

    def _take_message(self, connection: Connection, workers: dict[Connection, LocalWorker], driver: Driver) -> None:
        worker = workers[connection]
        try:
            content = connection.recv_bytes()
        except (EOFError, OSError):
            content = None
        if content is not None:
            if worker.trial is not None:
                driver.take_answer(worker.trial, content)
            worker.ready, worker.trial = True, None
            return
        del workers[connection]
        connection.close()
        worker.process.join()
        code = worker.process.exitcode
        if worker.trial is None:
            driver.count_early_death((self.retries + 1) * self.workers, f"code {code}")
        else:
            driver.count_death(worker.trial, f"its process died with code {code}")
        _start(workers, worker.device)


def _start(workers: dict[Connection, LocalWorker], device: str) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    workers[ours] = LocalWorker(process, device)


def _work(connection: Connection, parent: int) -> None:
    """The main loop of a worker process: report ready, then run one task after another."""

    def pulse() -> None:
        if os.getppid() != parent:
            raise Orphaned

    try:
        pulse()
        connection.send_bytes(b"")
        while True:
            connection.send_bytes(run_task(connection.recv_bytes().decode(), "of this machine", pulse))
    except (EOFError, BrokenPipeError, Orphaned, KeyboardInterrupt):
        sys.exit(0)


def count_cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _choose_device(number: int) -> str:
    """The device of a worker: GPUs in turn, else the processor."""
    count = torch.cuda.device_count()
    return f"cuda:{number % count}" if count else "cpu"
