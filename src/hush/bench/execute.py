"""One verb to carry out a job: in this process, or in several of them.

The store is the queue. Every worker runs the same few lines (:func:`work`): take a trial that is not finished, run
it, put the result in its place, until nothing is left. So workers need no messages, any number of them may come and go,
and two sweeps on one store share the work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from hush import validate
from hush.bench.run import Conditions, perform, record_failure
from hush.bench.store import DISK, Store, StoreTrouble
from hush.bench.trial import Trial

EXECUTORS = ("local", "inline")
LIVES = 3  # a trial whose worker dies this often is recorded as failed
FULL, WAIT = 28, 0.2
Watch = Callable[[], None]


class Orphaned(BaseException):
    """The process that started this worker is gone."""


@dataclass(frozen=True)
class Job:
    """The trials of a sweep and where their results go."""

    store: Path
    trials: tuple[Trial, ...]
    settings: Conditions = Conditions()


class Executor(Protocol):
    """Somewhere to run a job."""

    def carry_out(self, job: Job, watch: Watch) -> None:
        """Return when every trial of the job is in the store; call ``watch`` now and then on the way."""
        ...


def make_executor(name: str, workers: int | None = None) -> Executor:
    """The executor of that name; ``workers`` is the number of cores by default."""
    validate.one_of(EXECUTORS, executor=name)
    count = count_cores() if workers is None else workers
    validate.whole(workers=count)
    return Inline() if name == "inline" else Local(count)


def work(job: Job) -> None:
    """Run trials until none is left; wait for those that other workers are at, in case they die."""
    try:
        _work(job, Store(job.store))
    except OSError as error:
        if error.errno in DISK:
            raise StoreTrouble(error.errno, os.strerror(error.errno), str(job.store)) from error
        raise


def _work(job: Job, store: Store) -> None:
    while left := [trial for trial in job.trials if not store.has(trial.key)]:
        busy = True
        for trial in left:
            if store.locks.take(trial.key, partial(store.has, trial.key)):
                busy = False
                _run(trial, store, job.settings)
        if busy:
            job.settings.pulse()
            time.sleep(WAIT)


def _run(trial: Trial, store: Store, settings: Conditions) -> None:
    """Run one trial that was taken; its lock is given up whatever happens short of a kill."""
    try:
        store.finish(trial.key, perform(trial, store, settings))
    except OSError as error:
        if error.errno in DISK:
            raise
        store.finish(trial.key, record_failure(trial, time.time(), error))
    finally:
        with contextlib.suppress(OSError):
            store.locks.drop(trial.key)


@dataclass(frozen=True)
class Inline:
    """Everything in this process, one trial after the other."""

    def carry_out(self, job: Job, watch: Watch) -> None:
        """Work until nothing is left."""
        latest = time.monotonic()

        def pulse() -> None:
            nonlocal latest
            job.settings.pulse()
            if time.monotonic() - latest > WAIT:
                watch()
                latest = time.monotonic()

        work(replace(job, settings=replace(job.settings, pulse=pulse)))


@dataclass(frozen=True)
class Local:
    """Several processes on this machine; cores, and GPUs where there are any, are shared out among them."""

    workers: int

    def carry_out(self, job: Job, watch: Watch) -> None:
        """Start the workers, replace those that die, and stop when all are done."""
        context = multiprocessing.get_context("spawn")
        threads = max(1, min(count_cores() // self.workers, torch.get_num_threads()))
        deaths: dict[str, int] = {}

        def start(number: int) -> multiprocessing.process.BaseProcess:
            device = choose_device(number)
            process = context.Process(target=_worker, args=(job, device, threads, os.getpid()), daemon=True)
            process.start()
            return process

        count = min(self.workers, len(job.trials))
        processes = {number: start(number) for number in range(count)}
        try:
            while processes:
                watch()
                time.sleep(WAIT)
                for number, process in list(processes.items()):
                    if process.exitcode is None:
                        continue
                    del processes[number]
                    if process.exitcode != 0:
                        self._bury(job, process, deaths)
                        processes[number] = start(number)
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.join()

    def _bury(self, job: Job, process: multiprocessing.process.BaseProcess, deaths: dict[str, int]) -> None:
        """A worker has died: stop on a full disk, else count; the trial it died on thrice is recorded as failed, its
        checkpoints stay."""
        if process.exitcode == FULL:
            raise StoreTrouble(FULL, os.strerror(FULL), str(job.store))
        store = Store(job.store)
        keys = [trial for trial in job.trials if (o := store.locks.owner(trial.key)) and o.pid == process.pid]
        for name in [trial.key for trial in keys] or ["before any run"]:
            deaths[name] = deaths.get(name, 0) + 1
        if deaths.get("before any run", 0) > LIVES * self.workers:
            raise ChildProcessError(f"workers end with code {process.exitcode} before they start a run")
        for trial in keys:
            if deaths[trial.key] >= LIVES and store.locks.take(trial.key, partial(store.has, trial.key)):
                reason = f"its process died with code {process.exitcode}, for the {LIVES}. time"
                store.finish(trial.key, record_failure(trial, time.time(), reason))
                store.locks.drop(trial.key)


def _worker(job: Job, device: str, threads: int, parent: int) -> None:
    """The life of a worker process."""
    torch.set_num_threads(threads)

    def pulse() -> None:
        if os.getppid() != parent:
            raise Orphaned

    try:
        pulse()
        work(replace(job, settings=replace(job.settings, device=device, pulse=pulse)))
    except StoreTrouble:
        sys.exit(FULL)
    except (Orphaned, KeyboardInterrupt):
        sys.exit(0)


def count_cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def choose_device(number: int) -> str:
    """The device of a worker: GPUs in turn, else the processor."""
    count = torch.cuda.device_count()
    return f"cuda:{number % count}" if count else "cpu"
