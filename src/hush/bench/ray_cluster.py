"""A sweep on a Ray cluster: every run is one task, on any node that has room for it.

Ray carries the text of a run to a worker and its result back as bytes (`hush.bench.executors`), and says when a worker
or a node has died. It is never asked to run anything again by itself. A run whose node is only cut off is not given to
a second worker while the first still has its directory, which all nodes share.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush._internal.storage import lock_file, make_scratch
from hush.bench.executors import RETRIES, WAIT, Driver, Job, Watch, count_cores, run_task
from hush.bench.trial import Trial
from hush.errors import InvalidInputError, MissingDependencyError

SCRATCH = "hush-ray-"  # begins the name of the folder of a cluster of this machine's own
DRIVER = "driver"  # the file in it that its driver has locked for as long as it lives
OBJECTS = 80 << 20  # bytes for Ray's shared memory, about the least that it accepts; the rest goes to disk
REACH = 10.0  # seconds in which a cluster must take a connection
NO_HUSH = "failed to import on the worker"  # Ray's message for a node whose Python lacks a module of the task


@dataclass(frozen=True)
class OnRay:
    """Ray tasks on the cluster at ``address``, or on one of this machine's own; resources are those of one run."""

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    workers: int | None = None  # runs at a time; as many as find room by default
    retries: int = RETRIES

    def run_all(self, job: Job, watch: Watch) -> None:
        """Hand out runs until all of them are in the store."""
        with connect(self.address) as ray, Driver(job, self.retries) as driver:
            self._check_room(ray)
            RayDispatcher(ray, self, driver).hand_out(watch)

    def _check_room(self, ray: Any) -> None:
        """Ray would wait for ever for a node that can take a run."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            wanted = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
            raise InvalidInputError(
                f"no node of the cluster has the {wanted} of one run: ask for less, or add such a node"
            )


class RayDispatcher:
    """The tasks of a sweep in progress."""

    def __init__(self, ray: Any, wanted: OnRay, driver: Driver) -> None:
        self.ray, self.driver = ray, driver
        self.most = wanted.workers or len(driver.job.trials)
        self.device, self.threads = "cuda:0" if wanted.gpus else "cpu", max(1, int(wanted.cpus))
        self.flying: dict[Any, Trial] = {}
        self.send = ray.remote(num_cpus=wanted.cpus, num_gpus=wanted.gpus, max_retries=0)(_run_on_node).remote

    def hand_out(self, watch: Watch) -> None:
        """Until every run is in the store."""
        while not self.driver.done:
            while len(self.flying) < self.most and (trial := self.driver.take()) is not None:
                self.flying[self.send(self.driver.write_task(trial, self.device, self.threads))] = trial
            watch()
            for landed in self._wait():
                self._take_back(landed, self.flying.pop(landed))

    def _wait(self) -> list[Any]:
        if not self.flying:
            time.sleep(WAIT)
            return []
        sent = list(self.flying)
        landed: list[Any] = self.ray.wait(sent, num_returns=len(sent), timeout=WAIT)[0]
        return landed

    def _take_back(self, landed: Any, trial: Trial) -> None:
        """Store the answer of a task. A worker that died had begun the run if the run has a directory."""
        try:
            content = self.ray.get(landed)
        except self.ray.exceptions.RayError as error:
            kind = type(error).__name__
            if NO_HUSH in str(error):
                raise InvalidInputError(
                    "a node cannot import this hush: install the same version on all nodes"
                ) from None
            if isinstance(error, self.ray.exceptions.RayTaskError):
                self.driver.count_death(trial, f"its worker failed ({kind})")
            elif (self.driver.store.root / "working" / trial.key).exists():
                self.driver.count_death(trial, f"its worker or node died ({kind})")
            else:
                self.driver.count_early_death((self.driver.retries + 1) * len(self.driver.job.trials), kind)
                self.driver.give_back(trial)
        else:
            self.driver.take_answer(trial, content)


def _run_on_node(text: str) -> bytes:
    """What a worker does; Ray calls it."""
    import ray

    return run_task(text, ray.get_runtime_context().get_node_id())


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """Ray, connected until the end to a cluster, by default to one of this machine's own; a process that is connected
    already stays so. Ray's own messages go to its logs: they are not for the person who watches, nor for stdout."""
    ray = _import_ray(address)
    if ray.is_initialized():
        yield ray
        return
    _check_address(address)
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_silence_ray())
        where = _start_here(stack) if address is None else {"address": address}
        stack.callback(_leave, ray, before)
        try:
            ray.init(**where, log_to_driver=False, configure_logging=False)
        except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
            what = "Ray does not start here" if address is None else f"no Ray cluster can be joined at '{address}'"
            raise InvalidInputError(f"{what}: {_first_sentence(error)}") from error
        yield ray


@contextmanager
def _silence_ray() -> Iterator[None]:
    """Ray prints what happens to nodes on stdout, and warns on stderr (of little shared memory, which no run uses)."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)


def _check_address(address: str | None) -> None:
    """Ray tries for minutes to reach a machine that is not there."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise InvalidInputError(
            f"no Ray cluster answers at '{address}': name a node by host:port, or give auto"
        ) from error


def _start_here(stack: contextlib.ExitStack) -> dict[str, Any]:
    """A cluster of this machine: its logs are readable by their owner and gone at the end; no dashboard."""
    closed = stack.enter_context(make_scratch(SCRATCH))
    _remove_abandoned(closed.parent)
    driver = os.open(closed / DRIVER, os.O_RDWR | os.O_CREAT, 0o600)
    stack.callback(os.close, driver)
    lock_file(driver)
    inner = closed / "ray"  # Ray opens its folder to everybody; the one around it stays closed
    here = {"address": "local", "num_cpus": count_cores(), "object_store_memory": OBJECTS, "_temp_dir": str(inner)}
    return here | {"include_dashboard": False}


def _remove_abandoned(parent: Path) -> None:
    """End the processes and remove the folders that killed drivers left: folders whose lock is free."""
    for lock in parent.glob(f"{SCRATCH}*/{DRIVER}"):
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            if lock.stat().st_uid == os.getuid() and lock_file(file.fileno(), wait=False):
                for pid in _find_processes(str(lock.parent)):
                    os.kill(pid, signal.SIGKILL)
                shutil.rmtree(lock.parent, ignore_errors=True)


def _find_processes(word: str) -> list[int]:
    """The processes of this user whose command line names ``word``, where the system lists them as Linux does."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def _leave(ray: Any, before: Any) -> None:
    ray.shutdown()
    if threading.current_thread() is threading.main_thread() and before is not None:
        signal.signal(signal.SIGTERM, before)  # Ray has put its own


def _import_ray(address: str | None) -> Any:
    """Ray without its reports to its makers. A cluster of this machine's own listens on every network and would run
    what anybody sends: it gets a token, unless the environment says how clusters are to be guarded."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    guarded = any(name.startswith("RAY_AUTH_") for name in os.environ)
    if address is None and not guarded and "ray" not in sys.modules:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependencyError("the executor 'ray' needs Ray: pip install 'hush-dp[ray]'") from error
    return ray


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text.partition(". ")[0][:200] or type(error).__name__
