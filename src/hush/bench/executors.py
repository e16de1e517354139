"""One verb to carry out a job: in this process, in several of them, or on a cluster (`hush.bench.ray_cluster`).

The store is the queue. Every worker takes a trial that is not finished, runs it and puts the result in its place
(:func:`attempt`), until nothing is left. So any number of workers may come and go, two sweeps on one store share the
work, and a worker that dies loses what it has done since its last checkpoint.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from hush.bench.store import DISK, Store, StoreFullError
from hush.bench.trial import RunOptions, Trial, record_failure, run_trial
from hush.checkpointing import InUse

RETRIES = 2  # how often a trial whose worker died is tried again, before it is recorded as failed
FULL, WAIT = 28, 0.2
BEFORE = "before any run"
Watch = Callable[[], None]


class Orphaned(BaseException):
    """The process that started this worker is gone."""


@dataclass(frozen=True)
class Job:
    """The trials of a sweep and where their results go."""

    store: Path
    trials: tuple[Trial, ...]
    settings: RunOptions = RunOptions()


class Executor(Protocol):
    """Somewhere to run a job."""

    def run_all(self, job: Job, watch: Watch) -> None:
        """Return when every trial of the job is in the store; call ``watch`` now and then on the way."""
        ...


def work(job: Job) -> None:
    """Run trials until none is left; wait for those that other workers are at, in case they die."""
    try:
        _work(job, Store(job.store))
    except OSError as error:
        if error.errno in DISK:
            raise StoreFullError(error.errno, os.strerror(error.errno), str(job.store)) from error
        raise


def _work(job: Job, store: Store) -> None:
    while left := [trial for trial in job.trials if not store.has(trial.key)]:
        taken = [try_trial(trial, store, job.settings) for trial in left]
        if not any(taken):
            job.settings.pulse()
            time.sleep(WAIT)


def try_trial(trial: Trial, store: Store, settings: RunOptions) -> bool:
    """Run one trial, unless it is done or another process runs it (False); its lock is released in all cases except a
    kill. If the lock of a running trial was removed, that run still has its working directory."""
    claim = store.locks.take(trial.key, partial(store.has, trial.key))
    if claim is None:
        return False
    try:
        store.finish(trial.key, run_trial(trial, store, settings))
    except InUse:
        return False
    except OSError as error:
        if error.errno in DISK:
            raise
        store.finish(trial.key, record_failure(trial, time.time(), error))
    finally:
        with contextlib.suppress(OSError):
            claim.drop()
    return True


@dataclass(frozen=True)
class WorkerFailures:
    """How often trials have lost their worker. One that has lost it too often is recorded as failed, for it may be what
    kills them; its checkpoints stay."""

    store: Store
    retries: int
    counts: Counter[str] = field(default_factory=Counter)

    def count_before(self, most: int, how: str) -> None:
        """A worker that died before it had begun a run, which is no run's fault; too many of them stop the sweep."""
        self.counts[BEFORE] += 1
        if self.counts[BEFORE] > most:
            raise ChildProcessError(f"workers end before they start a run ({how})")

    def count(self, trial: Trial, how: str) -> None:
        """One more, and how it happened, in half a sentence."""
        self.counts[trial.key] += 1
        if self.counts[trial.key] <= self.retries:
            return
        claim = self.store.locks.take(trial.key, partial(self.store.has, trial.key))
        if claim is None:  # done in the meantime, or run by another process
            return
        try:
            reason = f"{how}, for the {self.counts[trial.key]}. time"
            self.store.finish(trial.key, record_failure(trial, time.time(), reason))
        finally:
            claim.drop()


@dataclass(frozen=True)
class Inline:
    """Everything in this process, one trial after the other."""

    def run_all(self, job: Job, watch: Watch) -> None:
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
    retries: int = RETRIES

    def run_all(self, job: Job, watch: Watch) -> None:
        """Start the workers, replace those that die, and stop when all are done."""
        context = multiprocessing.get_context("spawn")
        threads = max(1, min(count_cores() // self.workers, torch.get_num_threads()))
        deaths = WorkerFailures(Store(job.store), self.retries)

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
                        self._handle_worker_exit(job, process, deaths)
                        processes[number] = start(number)
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.join()

    def _handle_worker_exit(
        self, job: Job, process: multiprocessing.process.BaseProcess, deaths: WorkerFailures
    ) -> None:
        """A worker has died: stop on a full disk, else count."""
        if process.exitcode == FULL:
            raise StoreFullError(FULL, os.strerror(FULL), str(job.store))
        locks = deaths.store.locks
        taken = [trial for trial in job.trials if (o := locks.owner(trial.key)) and o.is_here and o.pid == process.pid]
        for trial in taken:
            deaths.count(trial, f"its process died with code {process.exitcode}")
        if not taken:
            deaths.count_before((self.retries + 1) * self.workers, f"code {process.exitcode}")


def _worker(job: Job, device: str, threads: int, parent: int) -> None:
    """The life of a worker process."""
    torch.set_num_threads(threads)

    def pulse() -> None:
        if os.getppid() != parent:
            raise Orphaned

    try:
        pulse()
        work(replace(job, settings=replace(job.settings, device=device, pulse=pulse)))
    except StoreFullError:
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
