"""Several processes train one model: the same steps, the same guarantee, one ledger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from distributed_programs import METHODS, STEPS, N, data, losses, model, plan, play, run_the_page, take_all
from hush._internal.tensors import checksum
from hush.checkpointing import Checkpoints
from hush.distributed.consistency import check_shareable
from hush.distributed.group import SingleProcess, find_own_device
from hush.errors import DistributedError
from hush.methods import make_plan
from hush.noise_addition import cut_shards
from hush.per_example.chunks import PROCESSES, Cut
from hush.randomness import BLOCK
from hush.run import Run
from hush.training import take_steps


@pytest.fixture(scope="module", params=[2, 3])
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    return request.param, play("cases", request.param, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def alone() -> dict[str, Run]:
    runs = {case: plan(case).start(model(), losses, data(), secret=1, microbatch=4) for case in METHODS}
    return {case: take_all(run) for case, run in runs.items()}


@pytest.mark.parametrize("case", METHODS)
def test_processes_take_the_steps_of_one(taken: tuple[int, Path], alone: dict[str, Run], case: str) -> None:
    world, folder = taken
    weights = [load_file(folder / f"{case}-{rank}") for rank in range(world)]
    moved = model().state_dict()
    for name, value in alone[case].model.state_dict().items():
        assert all(torch.equal(weights[0][name], other[name]) for other in weights[1:])
        torch.testing.assert_close(weights[0][name], value, rtol=1e-9, atol=1e-12)
        assert not torch.allclose(value, moved[name], rtol=1e-3)


@pytest.mark.parametrize("case", METHODS)
def test_the_guarantee_is_the_same(taken: tuple[int, Path], alone: dict[str, Run], case: str) -> None:
    world, folder = taken
    stated = [[c.epsilon, c.delta, c.status] for c in alone[case].claims()]
    for rank in range(world):
        assert json.loads((folder / f"{case}-{rank}.json").read_text())["claims"] == stated


def test_a_process_without_examples_adds_nothing(taken: tuple[int, Path]) -> None:
    world, folder = taken
    empty = [json.loads((folder / f"few-{rank}.json").read_text())["empty"] for rank in range(world)]
    assert empty[0] < STEPS  # process 0 computes the first chunk
    assert empty[-1] > 0


def test_processes_that_differ_are_refused(tmp_path: Path) -> None:
    play("differs", 2, tmp_path)


def test_processes_that_would_sum_an_example_twice_are_refused(tmp_path: Path) -> None:
    play("pieces", 2, tmp_path)


def test_process_0_alone_makes_what_is_released_before_training(tmp_path: Path) -> None:
    play("released", 2, tmp_path)


def test_every_process_counts_what_the_record_of_process_0_knows(tmp_path: Path) -> None:
    play("attempts", 2, tmp_path)


def test_with_other_pieces_two_processes_would_sum_the_same_example() -> None:
    """Why they are refused."""
    run = plan("dp-sgd").start(model(), losses, data(), secret=1)
    cuts = [Cut.of(rows, 400, "rigorous") for rows in (4, 3)]
    order = cuts[0].order(run.secret, 0, 20)
    summed = [[i for b in cuts[rank].cut(order, rank, 2) for c in b for i in c.chosen.tolist()] for rank in range(2)]
    assert set(summed[0]) & set(summed[1])


def test_noise_in_slices_is_the_noise_of_one_process(tmp_path: Path) -> None:
    play("cut", 2, tmp_path)


def test_the_two_lines_of_the_page_run_alone_and_on_two_processes(tmp_path: Path) -> None:
    alone = run_the_page()
    assert alone.ranks.world == 1
    assert alone.next == STEPS
    play("page", 2, tmp_path)
    for rank in range(2):
        for name, value in load_file(tmp_path / f"{rank}").items():
            torch.testing.assert_close(value, alone.model.state_dict()[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "local", "own"),
    [
        ("cuda", "1", "cuda:1"),
        ("cuda:0", "1", "cuda:0"),
        ("cuda", None, "cuda"),
        ("cpu", "1", "cpu"),
        ("mps", "1", "mps"),
    ],
)
def test_each_process_of_a_machine_has_its_own_gpu(monkeypatch, given: str, local: str | None, own: str) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    assert find_own_device(given) == torch.device(own)


def test_slices_of_noise_cover_every_coordinate_once() -> None:
    for size, world in ((1, 3), (BLOCK, 2), (210_003, 2), (5 * BLOCK + 1, 4)):
        sides = cut_shards(size, world)
        assert (sides[0], sides[-1], len(sides)) == (0, size, world + 1)
        assert sides == sorted(sides)
        assert all(side % BLOCK == 0 for side in sides[:-1] if side < size)


def test_no_process_takes_a_step_that_the_ledger_does_not_cover(tmp_path: Path) -> None:
    play("ledger", 2, tmp_path)


def test_with_other_processes_noise_that_has_met_a_sum_is_drawn_anew(tmp_path: Path) -> None:
    run = plan("dp-bandmf", 9).start(model(), losses, data(), secret=1, microbatch=2)
    checkpoints = Checkpoints(tmp_path / "private")
    checkpoints.begin(run)
    for record in take_steps(run, checkpoints=checkpoints, every=4):
        if record.step == 5:
            break
    checkpoints.close()
    play("others", 2, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["again"] == [[0, 6], [4, 9]]
    assert second["again"] == first["again"]
    assert first["name"] == second["name"] != run.secret.name
    weights = [load_file(tmp_path / f"weights-{rank}") for rank in range(2)]
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])


def test_a_checksum_sees_every_bit_and_every_place() -> None:
    vector = torch.arange(70_000, dtype=torch.float64)
    other, swapped = vector.clone(), vector.clone()
    other[-1] += 2.0**-36
    swapped[[3, 40_000]] = swapped[[40_000, 3]]
    assert len({checksum([v]) for v in (vector, other, swapped)}) == 3
    assert checksum([vector]) == checksum([vector.clone()]) < 2**52


def test_more_processes_than_are_charged_for_are_refused() -> None:
    check_shareable(plan("dp-sgd"), SingleProcess(0, PROCESSES))
    with pytest.raises(DistributedError, match=str(PROCESSES)):
        check_shareable(plan("dp-sgd"), SingleProcess(0, PROCESSES + 1))


def test_rows_released_before_the_first_step_are_for_one_process() -> None:
    made = make_plan("sanitize-once", examples=N, batch_size=6, steps=6, noise_multiplier=3.0)
    with pytest.raises(DistributedError):
        check_shareable(made, SingleProcess(0, 2))
    check_shareable(made, SingleProcess())
    check_shareable(plan("dp-sgd"), SingleProcess(0, 2))


# Programs of several processes: a dead process stops the run, the run can resume, and no thread outlives its process.


ENDS = """
import atexit, weakref
import torch.distributed as dist
from hush.distributed.group import init_distributed as join_ranks

def tell():
    print(dist.is_initialized(), group() is None)

atexit.register(tell)  # what was registered first is called last
join_ranks()
group = weakref.ref(dist.group.WORLD)
import torch.distributed.nn  # functions whose default argument is the group that there is
"""


def test_no_thread_of_a_group_outlives_the_program() -> None:
    """It would abort a process whose run is finished."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ended = subprocess.run([sys.executable, "-c", ENDS], env={**os.environ, **alone}, capture_output=True, text=True)
    assert ended.stdout.split() == ["False", "True"], ended.stderr


def launch(out: Path, *more: str, world: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command += ["-m", "hush", "train", "--problem", "digits-logistic", "--json", "--out", str(out), *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def find_process(launcher: int, rank: int) -> int:
    """The process of a rank among the children of its launcher."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        told = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in told:
            return int(child)
    raise AssertionError("no such process")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the process to kill through /proc")
def test_a_killed_process_stops_the_run_which_goes_on_to_the_same_result(tmp_path: Path) -> None:
    """With noise in slices, of which the killed process has its own."""
    given = ["--secret-seed", "7", "--steps", "300", "--checkpoint-every", "20", "--noise-multiplier", "4"]
    given += ["--method", "dp-bandmf", "--set", "bands=4", "--noise-shards"]
    whole = launch(tmp_path / "whole", *given)
    told, _ = whole.communicate()
    assert whole.returncode == 0
    broken = launch(tmp_path / "broken", *given)
    private = tmp_path / "broken" / "private"
    while broken.poll() is None and not list(private.glob("checkpoint-00000000[2-9]0*")):
        time.sleep(0.01)
    os.kill(find_process(broken.pid, 1), signal.SIGKILL)
    _, said = broken.communicate()
    assert broken.returncode != 0
    assert "process 0 of" in said
    assert "resume with: hush train" in said
    again = launch(tmp_path / "broken", "--resume", "--secret-seed", "7", "--noise-shards")
    answer, said = again.communicate()
    assert again.returncode == 0, said
    first, second = json.loads(told), json.loads(answer)
    assert 20 <= second["resumed_from"] < 300
    assert second["taken_again"] == []
    assert second["epsilon"] == first["epsilon"]
    kept = [load_file(tmp_path / name / "release" / "model.safetensors") for name in ("whole", "broken")]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
