"""Sweeps handed out by Ray: what happens when workers die, are cut off, work elsewhere, or are of another version.

A stand-in for Ray does the errands in this process; tests/bench/test_ray_cluster.py does the same on real clusters.
"""

from __future__ import annotations

import errno
import json
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_execute import contents

from hush._internal.storage import try_lock, unlock, write_atomic
from hush.bench import ray_cluster
from hush.bench.executors import Inline
from hush.bench.ray_cluster import FULL, OnRay, TaskResult, run_task
from hush.bench.spec import read_spec
from hush.bench.store import MUTEX, NotShared, Store, StoreFullError, TrialLock, clear_meetings, open_probe, open_store
from hush.bench.sweep import sweep
from hush.bench.trial import Trial
from hush.cli import main
from hush.errors import InvalidInputError

Errand = Callable[[str], str]
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

    def get(self, landed: tuple[int, str]) -> str:
        return self.do(landed[1])


@pytest.fixture
def desk(monkeypatch) -> Callable[..., Desk]:
    """A function that puts a desk into Ray's place."""

    def place(do: Errand, **more: Any) -> Desk:
        made = Desk(do, **more)
        monkeypatch.setattr(ray_cluster, "connect", lambda address: nullcontext(made))
        monkeypatch.setattr(ray_cluster, "WAIT", 0.0)
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

    def do(text: str) -> str:
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


def test_a_node_runs_nothing_before_it_was_met(store, small, desk) -> None:
    answers: list[TaskResult] = []

    def do(text: str) -> str:
        answers.append(TaskResult.read(on("node")(text)))
        return answers[-1].to_text()

    desk(do)
    sweep(small, store, OnRay(workers=1))
    assert [answer.end for answer in answers] == ["met", *["done"] * 4]


def test_no_more_runs_at_a_time_than_asked_for(store, small, desk) -> None:
    made = desk(on("node"))
    most = [0]

    def do(text: str) -> str:
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

    def do(text: str) -> str:
        shutil.copytree(store.root, tmp_path / "copy")
        return run_task(change(text, store=str(tmp_path / "copy")), "far")

    desk(do)
    with pytest.raises(InvalidInputError, match="locks"):
        sweep(small, store, OnRay())


def test_an_answer_that_does_not_arrive_is_noticed(store, small, desk) -> None:
    def do(text: str) -> str:
        answer = run_task(text, "far")
        for path in store.locks.directory.glob("meeting-*.far"):
            path.unlink()
        return answer

    desk(do)
    with pytest.raises(NotShared):
        sweep(small, store, OnRay())


def test_another_version_of_hush_is_refused(store, small, desk) -> None:
    desk(lambda text: run_task(change(text, versions={"hush": "0.0.1", "dp-accounting": "0"}), "old"))
    with pytest.raises(InvalidInputError, match=r"0\.0\.1"):
        sweep(small, store, OnRay())
    assert store.keys() == set()


def test_a_node_that_cannot_import_hush_is_refused(store, small, desk) -> None:
    def do(text: str) -> str:
        raise Lost("RuntimeError: The remote function failed to import on the worker. This may be because …")

    desk(do)
    with pytest.raises(InvalidInputError):
        sweep(small, store, OnRay())


def test_a_run_that_is_another_one_there_is_refused(store, small, desk) -> None:
    desk(lambda text: run_task(change(text, key="0" * 32), "node"))
    with pytest.raises(InvalidInputError, match="0+"):
        sweep(small, store, OnRay())


def dying(store: Store, key: str, times: int) -> Errand:
    """Workers that die in this run: they leave its file behind, and the kernel takes their lock."""
    left = [times]

    def do(text: str) -> str:
        errand = json.loads(text)
        if errand["key"] == key and errand["meeting"]["met"] and left[0]:
            left[0] -= 1
            claim = store.locks.take(key)
            assert claim is not None
            unlock(claim.descriptor)
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
    def do(text: str) -> str:
        raise Lost

    made = desk(do)
    with pytest.raises(ChildProcessError, match="workers"):
        sweep(small, store, OnRay(retries=1))
    assert len(made.sent) >= 2 * 4
    assert store.keys() == set()


def test_a_run_in_which_the_worker_itself_fails_stops_no_sweep(store, small, desk) -> None:
    def do(text: str) -> str:
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


def test_a_node_that_dies_after_its_run_is_done_costs_nothing(store, small, whole, desk) -> None:
    def do(text: str) -> str:
        answer = run_task(text, "node")
        if TaskResult.read(answer).end == "done":
            raise Lost
        return answer

    desk(do)
    assert sweep(small, store, OnRay(retries=0)).summary()["done"] == 4
    assert contents(store) == whole


def test_a_worker_that_is_only_cut_off_keeps_its_run(store, small, whole, desk) -> None:
    """Ray calls a node dead when it does not answer; its worker may go on, and the run is nobody else's until then."""
    key = small.trials[0].key
    claims: list[TrialLock | None] = []
    made, looks = desk(on("node")), [0]

    def do(text: str) -> str:
        errand = json.loads(text)
        if errand["key"] == key and errand["meeting"]["met"] and not claims:
            claims.append(store.locks.take(key))
            made.sent.clear()
            raise Lost
        return run_task(text, "node")

    def watch(tally: Any) -> None:
        looks[0] += len(tally.outcomes) == 3  # the others are done
        if looks[0] == 5:
            assert claims[0] is not None
            assert key not in made.sent
            claims[0].drop()

    made.do = do
    assert sweep(small, store, OnRay(retries=0), watch=watch).summary()["done"] == 4
    assert made.sent.count(key) == 1
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
    desk(lambda text: TaskResult(FULL, str(errno.ENOSPC)).to_text())
    with pytest.raises(StoreFullError):
        sweep(small, store, OnRay())


def test_a_result_that_never_appears_is_told(store, small, desk, monkeypatch) -> None:
    monkeypatch.setattr(ray_cluster, "PATIENCE", -1.0)
    desk(lambda text: TaskResult("done").to_text())
    with pytest.raises(InvalidInputError):
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


def test_what_a_killed_driver_left_is_cleared(store) -> None:
    with open_probe(store.locks.directory) as meeting:
        meeting.attend("node")
        meeting.check_answer("node")
        clear_meetings(store.locks.directory)  # as another sweep that starts meanwhile does
        meeting.check_answer("node")
        left = (store.locks.directory / "meeting-0", store.locks.directory / "meeting-0.node")
        for path in left:
            path.write_text("x")
        store.tidy()
        assert not any(path.exists() for path in left)
        assert len(list(store.locks.directory.glob("meeting-*"))) == 2
    assert list(store.locks.directory.glob("meeting-*")) == []


def test_an_answer_is_written_while_no_other_sweep_tidies_up(store, monkeypatch) -> None:
    alone: list[bool] = []

    def write(path: Path, content: bytes) -> None:
        descriptor = try_lock(store.locks.directory / MUTEX)
        alone.append(descriptor is None)
        if descriptor is not None:
            unlock(descriptor)
        write_atomic(path, content)

    monkeypatch.setattr("hush.bench.store.write_atomic", write)
    with open_probe(store.locks.directory) as meeting:
        meeting.attend("node")
        meeting.check_answer("node")
    assert alone == [True]


def test_an_errand_holds_nothing_but_plain_data(store, small, desk) -> None:
    def do(text: str) -> str:
        assert isinstance(text, str)
        assert json.loads(text)["store"] == str(Path(store.root).absolute())
        return run_task(text, "node")

    desk(do)
    sweep(read_spec(small.path), store, OnRay())
