"""A sweep on a Ray cluster: every run is a task of its own, on whichever node has room for it.

Ray carries texts (`hush.bench.ray_cluster`) and says when a worker or a node has died. What is done and who is at what
stays in the store, which all nodes share. So Ray is never asked to run anything again by itself, a run whose node is
only cut off is not given to a second one while the first still holds its lock, and a driver that was killed is started
again like any other sweep.
"""

from __future__ import annotations

import contextlib
import io
import json
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hush._internal.imports import read_versions
from hush._internal.storage import NoLocks, lock_file, make_scratch
from hush.bench.executors import RETRIES, WAIT, Job, Watch, WorkerFailures, count_cores, try_trial
from hush.bench.store import DISK, NotShared, SharedStoreProbe, Store, StoreFullError, open_probe
from hush.bench.trial import RunOptions, Trial
from hush.errors import InvalidInputError, MissingDependencyError

# One run as a text that travels to another process, and its answer as a text that comes back.
#
# Both are JSON: what is unpacked on either side is plain data, never an object. The process that gets an errand checks
# first that it is of the same versions, and that it works on the same store.

SCRATCH = "hush-ray-"  # begins the name of the folder of a cluster of this machine's own
DRIVER = "driver"  # the file in it that its driver has locked for as long as it lives
SAME = ("hush", "dp-accounting")
DONE, BUSY, MET, FULL, REFUSED = "done", "busy", "met", "full", "refused"


class IncompatibleWorker(InvalidInputError):
    """A process that cannot do the work that is sent to it: of other versions, or without the device."""


@dataclass(frozen=True)
class SweepInfo:
    """What all tasks of a sweep share: where a run happens, and the ``met`` nodes that are known to share the
    store."""

    device: str
    threads: int
    meeting: SharedStoreProbe
    met: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: the run is ``done`` (by any worker), another worker is ``busy`` with it, the node was seen
    for the first time and has run nothing (``met``), the disk is ``full`` (``text`` is the error's number), or the
    worker has ``refused`` (``text`` says why)."""

    end: str
    text: str = ""

    def to_text(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> TaskResult:
        """Back from its text."""
        return TaskResult(**json.loads(text))


def write_task(job: Job, trial: Trial, terms: SweepInfo) -> str:
    """The errand of one run of a job."""
    task = {
        "versions": read_versions(*SAME),
        "trial": asdict(trial),
        "key": trial.key,
        "weights": job.settings.weights,
        "checkpoint_seconds": job.settings.checkpoint_seconds,
        "device": terms.device,
        "threads": terms.threads,
        "meeting": {"name": terms.meeting.name, "token": terms.meeting.token, "met": sorted(terms.met)},
        "store": str(job.store),
    }
    return json.dumps(task)


def run_task(text: str, node: str) -> str:
    """Do what the errand says, on this node. What makes every errand fail here is an answer; any other error is for the
    driver to count."""
    try:
        return _do(json.loads(text), node).to_text()
    except (IncompatibleWorker, NotShared, NoLocks) as error:
        return TaskResult(REFUSED, str(error)).to_text()
    except OSError as error:
        if error.errno in DISK:
            return TaskResult(FULL, str(error.errno)).to_text()
        raise


def _do(task: dict[str, Any], node: str) -> TaskResult:
    check_versions(task["versions"], node)
    store, met = Store(Path(task["store"])), task["meeting"]
    if node not in met["met"]:
        SharedStoreProbe(store.locks.directory, met["name"], met["token"]).attend(node)
        return TaskResult(MET, node)
    trial = Trial(**task["trial"])
    if trial.key != task["key"]:
        raise IncompatibleWorker(f"node {node} takes run {task['key']} for another one: give all nodes the same hush")
    _check_device(task["device"], node)
    torch.set_num_threads(task["threads"])
    conditions = RunOptions(task["device"], task["weights"], task["checkpoint_seconds"])
    return TaskResult(DONE if try_trial(trial, store, conditions) or store.has(trial.key) else BUSY)


def check_versions(wanted: dict[str, str], node: str) -> None:
    """Refuse to work for another version: the same run would not be the same."""
    for name, found in read_versions(*SAME).items():
        if found != wanted.get(name):
            raise IncompatibleWorker(
                f"node {node} (process {os.getpid()}) has {name} {found} and this sweep {wanted.get(name)}: install "
                "the same version on all nodes"
            )


def _check_device(device: str, node: str) -> None:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise IncompatibleWorker(
            f"node {node} was to run on a GPU and its torch sees none: leave --gpus out, or repair that node"
        )


OBJECTS = 80 << 20  # bytes for Ray's shared memory, about the least that it takes: results go through the store
PATIENCE = 300.0  # seconds after which a result that a worker has written must be seen here
REACH = 10.0  # seconds in which a cluster must take a connection
NO_HUSH = "failed to import on the worker"  # how Ray says that a node's Python lacks what a task needs


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
        job = replace(job, store=job.store.absolute())
        store = Store(job.store)
        with connect(self.address) as ray, open_probe(store.locks.directory) as meeting:
            self._check_room(ray)
            terms = SweepInfo("cuda:0" if self.gpus else "cpu", max(1, int(self.cpus)), meeting)
            RayDispatcher(ray, self, job, store, terms).hand_out(watch)

    def _check_room(self, ray: Any) -> None:
        """Ray would wait for ever for a node that can take a run."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            wanted = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
            raise InvalidInputError(
                f"no node of the cluster has the {wanted} of one run: ask for less, or add such a node"
            )


class RayDispatcher:
    """The runs of a job in progress: those in flight, those reported as done, and the nodes seen so far."""

    def __init__(self, ray: Any, wanted: OnRay, job: Job, store: Store, terms: SweepInfo) -> None:
        self.ray, self.job, self.store, self.terms = ray, job, store, terms
        self.most = wanted.workers or len(job.trials)
        self.deaths = WorkerFailures(store, wanted.retries)
        self.flying: dict[Any, Trial] = {}
        self.stated: dict[str, float] = {}  # when a worker said that a run is done
        self.send = ray.remote(num_cpus=wanted.cpus, num_gpus=wanted.gpus, max_retries=0)(run_on_node).remote

    def hand_out(self, watch: Watch) -> None:
        """Until every run is in the store and nothing is in flight."""
        left = list(self.job.trials)
        while left or self.flying:
            self._send(left)
            watch()
            for landed in self._wait():
                self._take_back(landed, self.flying.pop(landed))
            there = self.store.keys()
            left = [trial for trial in left if trial.key not in there]
            self._check_seen(left)

    def _send(self, left: list[Trial]) -> None:
        """Dispatch runs that no worker has, up to the allowed number at a time."""
        sent = {*self.stated, *(trial.key for trial in self.flying.values())}
        free = [trial for trial in left if trial.key not in sent]
        room = self.most - len(self.flying)
        if not free or room <= 0:
            return
        held = self.store.locks.held()
        for trial in [trial for trial in free if trial.key not in held][:room]:
            self.flying[self.send(write_task(self.job, trial, self.terms))] = trial

    def _wait(self) -> list[Any]:
        if not self.flying:
            time.sleep(WAIT)
            return []
        sent = list(self.flying)
        landed: list[Any] = self.ray.wait(sent, num_returns=len(sent), timeout=WAIT)[0]
        return landed

    def _take_back(self, landed: Any, trial: Trial) -> None:
        try:
            answer = TaskResult.read(self.ray.get(landed))
        except self.ray.exceptions.RayError as error:
            if NO_HUSH in str(error):
                raise InvalidInputError(
                    "a node cannot import this hush: install the same version on all nodes"
                ) from None
            self._count(trial, error)
            return
        if answer.end == DONE:
            self.stated[trial.key] = time.monotonic()
        elif answer.end == MET:
            self.terms.meeting.check_answer(answer.text)
            self.terms = replace(self.terms, met=self.terms.met | {answer.text})
        elif answer.end == FULL:
            raise StoreFullError(int(answer.text), os.strerror(int(answer.text)), str(self.job.store))
        elif answer.end != BUSY:
            raise InvalidInputError(answer.text)

    def _count(self, trial: Trial, error: Exception) -> None:
        """A worker has failed in this run, or has died with it or its node: then the run's file in the locks still says
        who it was, or it died before."""
        kind = type(error).__name__
        if isinstance(error, self.ray.exceptions.RayTaskError):
            self.deaths.count(trial, f"its worker failed ({kind})")
        elif self.store.locks.owner(trial.key) is not None:
            self.deaths.count(trial, f"its worker or node died ({kind})")
        elif not self.store.has(trial.key):
            self.deaths.count_before((self.deaths.retries + 1) * len(self.job.trials), kind)

    def _check_seen(self, left: list[Trial]) -> None:
        """A network file system shows a new folder late; one that never does is trouble."""
        for trial in left:
            if trial.key in self.stated and time.monotonic() - self.stated[trial.key] > PATIENCE:
                raise InvalidInputError(
                    f"a worker has put run {trial.key} into '{self.job.store}' and this machine does not see it: mount "
                    "the store so that all nodes see new files, and run the same command again"
                )


def run_on_node(text: str) -> str:
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
    """End the processes and remove the folders that killed drivers left: folders whose lock nobody holds."""
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
