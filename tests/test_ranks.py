"""One model on several processes: the same steps, the same guarantee, one ledger; a process that dies stops the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import hush
from hush.attempts import Attempt
from hush.charging import charge
from hush.checkpoint import Checkpoints, share_state
from hush.checksum import checksum
from hush.cli.together import release_first
from hush.errors import Refused
from hush.ledger.account import BudgetSpent, Ledger
from hush.loop import train
from hush.methods import make_plan
from hush.noising import cut_shards
from hush.plan import Plan
from hush.randomness import BLOCK, Secret
from hush.ranks import find_own_device, join_ranks
from hush.run import Run
from hush.standing import check_shareable
from hush.stepping import Alone, Stopped

N, STEPS = 36, 50
PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
METHODS: dict[str, dict[str, Any]] = {
    "dp-sgd": {},
    "dp-adam-bc": {},
    "dp-disk": {},
    "dp-dice": {"accept_claimed": True, "clip_feedback": 1.0},
    "dp-bandmf": {"bands": 3},
    "few": {"batch_size": 1},  # whole batches and shares of them are empty
}


def losses(model: nn.Module, content: Any) -> Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, 5, generator=generator).double(), torch.randint(0, 3, (N,), generator=generator)


def model(seed: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def plan(case: str, steps: int = STEPS) -> Plan:
    given = {"batch_size": 6, "steps": steps, "noise_multiplier": 3.0, "lr": 0.2, "clip": 1.0}
    method = "dp-sgd" if case == "few" else case
    return make_plan(method, examples=N, **(given | METHODS[case]))


def take_all(run: Run) -> Run:
    for batch in run.batches():
        run.step(batch)
    return run


def count_empty(run: Run) -> int:
    """The steps in which this process has no example."""
    pieces = [run._summing.list_chosen(run.secret, s, run.batch(s).indices) for s in range(run.plan.steps)]
    return sum(not any(map(len, chosen)) for chosen in pieces)


def start_process(rank: int, world: int, folder: str, scene: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        SCENES[scene](rank, Path(folder))
    finally:
        dist.destroy_process_group()


def play(scene: str, world: int, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    mp.get_context("forkserver").set_forkserver_preload(["hush"])  # imported once for all processes
    mp.start_processes(start_process, args=(world, str(folder), scene), nprocs=world, start_method="forkserver")
    return folder


def take_every_case(rank: int, folder: Path) -> None:
    ranks = join_ranks()
    for case in METHODS:
        run = take_all(plan(case).start(model(), losses, data(), secret=1, microbatch=4, ranks=ranks))
        save_file(dict(run.model.state_dict()), folder / f"{case}-{rank}")
        claims = [[c.epsilon, c.delta, c.status] for c in run.claims()]
        (folder / f"{case}-{rank}.json").write_text(json.dumps({"claims": claims, "empty": count_empty(run)}))


def refuse_what_differs(rank: int, folder: Path) -> None:
    ranks, rows = join_ranks(), data()
    with pytest.raises(Refused, match="do not have the same weights"):
        plan("dp-sgd").start(model(seed=rank), losses, rows, secret=1, ranks=ranks)
    with pytest.raises(Refused, match="do not have the same data"):
        plan("dp-sgd").start(model(), losses, (rows[0].roll(rank, 0), rows[1]), secret=1, ranks=ranks)
    with pytest.raises(Refused, match="do not have the same plan"):
        plan("dp-sgd", STEPS + rank).start(model(), losses, rows, secret=Secret(b"1" * 32), ranks=ranks)
    run = plan("dp-sgd").start(model(), losses, rows, ranks=ranks)  # each draws a secret, and rank 0's is taken
    assert ranks.hear(run.secret.name) == run.secret.name
    run.step(run.batch(0))
    if rank:
        with torch.no_grad():
            next(run.model.parameters()).view(-1)[0] += 1e-15
        run._summing.settle()
    with pytest.raises(Refused, match="different parameters"):
        run.step(run.batch(1))
    assert run.next == 1


def refuse_other_pieces(rank: int, folder: Path) -> None:
    """Cut into other pieces, a batch has examples that two processes sum, and others that nobody does."""
    ranks, rows = join_ranks(), data()
    with pytest.raises(Refused, match="do not have the same microbatch"):
        plan("dp-sgd").start(model(), losses, rows, microbatch=4 - rank, ranks=ranks)
    with pytest.raises(Refused, match="do not have the same noise_shards"):
        plan("dp-sgd").start(model(), losses, rows, ranks=ranks, noise_shards=rank == 0)
    for change in (change_secret, change_step, change_pieces):
        run = plan("dp-sgd").start(model(), losses, rows, microbatch=4, ranks=ranks)
        if rank == 0:
            change(run)
        before = checksum(run.model.parameters())
        with pytest.raises(Refused, match="another step, secret or microbatch"):
            run.step(run.batch(run.next))
        assert checksum(run.model.parameters()) == before


def change_secret(run: Run) -> None:
    """As a checkpoint of step 0 does that is restored on process 0 alone: the parameters are the same."""
    run.restore({**run.state(), "secret": Secret(b"2" * 32).to_json()}, compared=True)


def change_step(run: Run) -> None:
    run.restore({**run.state(), "step": 1}, compared=True)


def change_pieces(run: Run) -> None:
    run.restore({**run.state(), "microbatch": 3}, compared=True)


def wait_for_the_ledger(rank: int, folder: Path) -> None:
    run = plan("dp-sgd").start(model(), losses, data(), ranks=join_ranks())
    if rank == 0:
        ledger = Ledger(folder / "ledger")
        ledger.set_budget("rows", run.plan.guarantee(7).epsilon, 1e-5)
        charge(run, ledger, "rows", new_dataset=True)
    else:
        with pytest.raises(Refused, match="process 0 enters"):
            charge(run, Ledger(folder / "other"), "rows")
    for step in range(7):
        run.step(run.batch(step))
    before = checksum(run.model.parameters())
    with pytest.raises(Stopped if rank else BudgetSpent):
        run.step(run.batch(7))
    assert run.next == 7
    assert before == checksum(run.model.parameters())


def resume_with_other_processes(rank: int, folder: Path) -> None:
    """From a checkpoint after 4 of 9 steps; the noise of steps 5 and 6 has met sums already."""
    ranks = join_ranks()
    run = plan("dp-bandmf", 9).start(model(), losses, data(), secret=1, microbatch=4, ranks=ranks)
    checkpoints = Checkpoints(folder / "private") if rank == 0 else None
    if checkpoints is not None:
        saved = checkpoints.newest().saved
        assert saved is not None
        checkpoints.restore(run, saved)
    share_state(run)
    assert run.next == 4
    for _ in train(run, checkpoints=checkpoints, every=100):
        pass
    again = [[a.start, a.taken] for a in run.history.attempts]
    (folder / f"{rank}.json").write_text(json.dumps({"again": again, "name": run.secret.name}))
    save_file(dict(run.model.state_dict()), folder / f"weights-{rank}")
    if checkpoints is not None:
        checkpoints.close()


def hear_what_was_released(rank: int, folder: Path) -> None:
    """Process 0 alone has what a run released before training, where it goes on."""

    def release() -> dict[str, dict[str, Tensor]]:
        assert rank == 0
        return {"ranges": {"limits": torch.tensor([[0.1, 1 / 3]]).double()}, "counts": {"a/b": torch.arange(3)}}

    heard = release_first(join_ranks(), release)
    assert torch.equal(heard["ranges"]["limits"], torch.tensor([[0.1, 1 / 3]]).double())
    assert torch.equal(heard["counts"]["a/b"], torch.arange(3))


def know_earlier_attempts(rank: int, folder: Path) -> None:
    """The record of process 0 knows of a stretch that was taken under another secret; what each process says of its ε
    counts it."""
    run = plan("dp-sgd", 9).start(model(), losses, data(), ranks=join_ranks())
    if rank == 0:
        run.witnessed_by(Remembers(run))
    run.step(run.batch(0))
    assert run.history.attempts == (Attempt(0, 1), Attempt(0, 5))
    assert run.guarantee.epsilon > run.plan.guarantee().epsilon


class Remembers:
    def __init__(self, run: Run) -> None:
        self.run = run

    def meets(self, sums: Any) -> bool:
        self.run.recall((Attempt(0, 0), Attempt(0, 5)))
        return True

    def releasing(self) -> None: ...


def cut_noise(rank: int, folder: Path) -> None:
    """Independent, banded and BLT noise of a wide model: each process holds the state of its own coordinates."""
    ranks, rows = join_ranks(), (torch.randn(N, 70_000, generator=torch.Generator().manual_seed(1)), data()[1])
    for method in WIDE:
        made = make_plan(method, examples=N, batch_size=6, steps=4, noise_multiplier=3.0, lr=0.2, clip=1.0)
        whole, cut = (
            made.start(wide(), losses, rows, secret=5, ranks=ranks, noise_shards=shards) for shards in (False, True)
        )
        take_all(whole)
        take_all(cut)
        widths = [v.shape[-1] for entry in cut._noising._states.values() for v in entry.values()]
        assert all(width <= 140_000 for width in widths), widths
        assert sum(widths) > 0 or method == "dp-sgd"
        for a, b in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        assert ranks.hear(checksum(cut.model.parameters())) == checksum(cut.model.parameters())
        assert ranks.hear(resume_slices(made, rows, folder / method)) == checksum(cut.model.parameters())


def resume_slices(made: Plan, rows: Any, folder: Path) -> int:
    """Two of four steps with noise in slices, and the others from a checkpoint: the checksum of the weights."""
    runs = [made.start(wide(), losses, rows, secret=5, ranks=join_ranks(), noise_shards=True) for _ in range(2)]
    checkpoints = Checkpoints(folder) if runs[0].ranks.rank == 0 else None
    if checkpoints is not None:
        checkpoints.begin(runs[0])
    for step in range(2):
        runs[0].step(runs[0].batch(step))
    if checkpoints is not None:
        checkpoints.save(runs[0])
        kept = checkpoints.files()[0].stat().st_size
        assert kept < 2.5 * 4 * runs[0].coordinates  # the weights, and no state of noise
        saved = checkpoints.newest().saved
        assert saved is not None
        checkpoints.restore(runs[1], saved)
    share_state(runs[1])
    assert runs[1].next == 2
    return checksum(take_all(runs[1]).model.parameters())


WIDE = ("dp-sgd", "dp-bandmf", "dp-blt")


def wide() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(70_000, 3)


def follow_the_page(rank: int, folder: Path) -> None:
    """The lines of docs/scale.md, as they stand there."""
    run = run_the_page()
    assert run.ranks.world == 2
    save_file(dict(run.model.state_dict()), folder / f"{rank}")


def run_the_page() -> Run:
    lines = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    assert sum("ranks" in line for line in lines.splitlines()) == 2  # two more lines than for one process
    given = {"hush": hush, "plan": plan("dp-sgd"), "model": model(), "losses": losses, "data": data()}
    given["plan"] = Seeded(given["plan"])
    exec(lines, given)
    found = given["run"]
    assert isinstance(found, Run)
    return found


@dataclass(frozen=True)
class Seeded:
    """A plan whose runs are repeatable."""

    plan: Plan

    def start(self, *given: Any, **more: Any) -> Run:
        return self.plan.start(*given, secret=1, microbatch=4, **more)


SCENES = {
    "page": follow_the_page,
    "cut": cut_noise,
    "cases": take_every_case,
    "differs": refuse_what_differs,
    "pieces": refuse_other_pieces,
    "released": hear_what_was_released,
    "attempts": know_earlier_attempts,
    "ledger": wait_for_the_ledger,
    "others": resume_with_other_processes,
}


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
    assert all(0 < count < STEPS for count in empty)


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
    seats = [run._summing.seats().of(run.plan.room, size, 2, "default") for size in (4, 3)]
    taken = seats[0].assign(run.secret, 0, run.plan.room.places)
    summed = [torch.cat([p.chosen for p in seats[rank].cut(taken, rank, 2)]).tolist() for rank in range(2)]
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
    run = plan("dp-bandmf", 9).start(model(), losses, data(), secret=1, microbatch=20)
    checkpoints = Checkpoints(tmp_path / "private")
    checkpoints.begin(run)
    for record in train(run, checkpoints=checkpoints, every=4):
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


def test_the_rounding_that_is_charged_holds_for_many_processes() -> None:
    """Blocks with a place are at most as many as places, however many processes there are: a process adds zeros."""
    room = plan("dp-sgd").room
    run = plan("dp-sgd").start(model(), losses, data(), secret=1)
    for world in (1, 2, 7, 100):
        seats = run._summing.seats().of(room, 4, world, "default")
        filled = [n for n in range(seats.pieces) if seats.sides(n)[0] < seats.sides(n)[1]]
        assert len(filled) <= seats.places
        assert sum(high - low for low, high in map(seats.sides, filled)) == seats.places


def test_rows_released_before_the_first_step_are_for_one_process() -> None:
    made = make_plan("sanitize-once", examples=N, batch_size=6, steps=6, noise_multiplier=3.0)
    with pytest.raises(Refused, match="in one process"):
        check_shareable(made, Alone(0, 2))
    check_shareable(made, Alone())
    check_shareable(plan("dp-sgd"), Alone(0, 2))


ENDS = """
import atexit, weakref
import torch.distributed as dist
from hush.ranks import join_ranks

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
    assert "reaches another one no more" in said
    assert "go on with: hush train" in said
    again = launch(tmp_path / "broken", "--resume", "--secret-seed", "7", "--noise-shards")
    answer, said = again.communicate()
    assert again.returncode == 0, said
    first, second = json.loads(told), json.loads(answer)
    assert 20 <= second["resumed_from"] < 300
    assert second["taken_again"] == []
    assert second["epsilon"] == first["epsilon"]
    kept = [load_file(tmp_path / name / "release" / "model.safetensors") for name in ("whole", "broken")]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
