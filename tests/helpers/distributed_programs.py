"""Programs of several processes, each with a name, and how the processes are started."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

import hush
from hush._internal.tensors import checksum
from hush.checkpointing import Checkpoints, share_state
from hush.distributed.group import init_distributed
from hush.errors import BudgetExceededError, DistributedError, RunStateError, Stopped
from hush.guarantees import Replay
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge
from hush.methods import make_plan
from hush.plan import Plan
from hush.randomness import Secret
from hush.run import Run
from hush.training import release_first, take_steps

N, STEPS = 36, 50
PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
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
    ranks = init_distributed()
    for case in METHODS:
        run = take_all(plan(case).start(model(), losses, data(), secret=1, microbatch=4, ranks=ranks))
        save_file(dict(run.model.state_dict()), folder / f"{case}-{rank}")
        claims = [[c.epsilon, c.delta, c.status] for c in run.claims()]
        (folder / f"{case}-{rank}.json").write_text(json.dumps({"claims": claims, "empty": count_empty(run)}))


def refuse_what_differs(rank: int, folder: Path) -> None:
    ranks, rows = init_distributed(), data()
    with pytest.raises(DistributedError, match="weights"):
        plan("dp-sgd").start(model(seed=rank), losses, rows, secret=1, ranks=ranks)
    with pytest.raises(DistributedError):
        plan("dp-sgd").start(model(), losses, (rows[0].roll(rank, 0), rows[1]), secret=1, ranks=ranks)
    with pytest.raises(DistributedError, match="plan"):
        plan("dp-sgd", STEPS + rank).start(model(), losses, rows, secret=Secret(b"1" * 32), ranks=ranks)
    run = plan("dp-sgd").start(model(), losses, rows, ranks=ranks)  # each draws a secret, and rank 0's is taken
    assert ranks.broadcast(run.secret.name) == run.secret.name
    run.step(run.batch(0))
    if rank:
        with torch.no_grad():
            next(run.model.parameters()).view(-1)[0] += 1e-15
        run._summing.mark_updated()
    with pytest.raises(DistributedError, match="parameters"):
        run.step(run.batch(1))
    assert run.next == 1


def refuse_other_pieces(rank: int, folder: Path) -> None:
    """Cut into other pieces, a batch has examples that two processes sum, and others that nobody does."""
    ranks, rows = init_distributed(), data()
    with pytest.raises(DistributedError, match="microbatch"):
        plan("dp-sgd").start(model(), losses, rows, microbatch=4 - rank, ranks=ranks)
    with pytest.raises(DistributedError, match="noise_shards"):
        plan("dp-sgd").start(model(), losses, rows, ranks=ranks, noise_shards=rank == 0)
    for change in (change_secret, change_step, change_pieces):
        run = plan("dp-sgd").start(model(), losses, rows, microbatch=4, ranks=ranks)
        if rank == 0:
            change(run)
        before = checksum(run.model.parameters())
        with pytest.raises(DistributedError, match="microbatch"):
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
    run = plan("dp-sgd").start(model(), losses, data(), ranks=init_distributed())
    if rank == 0:
        ledger = Ledger(folder / "ledger")
        ledger.set_budget("rows", run.plan.guarantee().epsilon / 2, 1e-5)
        with pytest.raises(BudgetExceededError):
            charge(run, ledger, "rows")
        ledger.set_budget("rows", 2 * run.plan.guarantee().epsilon, 1e-5)
        charge(run, ledger, "rows")
        ledger.set_budget("rows", run.plan.guarantee().epsilon / 2, 1e-5)  # lowered before the first step
    else:
        with pytest.raises(RunStateError, match="0"):
            charge(run, Ledger(folder / "other"), "rows")
    before = checksum(run.model.parameters())
    with pytest.raises(Stopped if rank else BudgetExceededError):
        run.step(run.batch(0))
    assert run.next == 0
    assert before == checksum(run.model.parameters())
    if rank == 0:
        ledger.set_budget("rows", 2 * run.plan.guarantee().epsilon, 1e-5)
    for step in range(3):
        run.step(run.batch(step))
    if rank == 0:
        assert [spend.steps for spend in ledger.spends("rows").values()] == [run.plan.steps]


def resume_with_other_processes(rank: int, folder: Path) -> None:
    """From a checkpoint after 4 of 9 steps; the noise of steps 5 and 6 has met sums already."""
    ranks = init_distributed()
    run = plan("dp-bandmf", 9).start(model(), losses, data(), secret=1, microbatch=4, ranks=ranks)
    checkpoints = Checkpoints(folder / "private") if rank == 0 else None
    if checkpoints is not None:
        saved = checkpoints.newest().saved
        assert saved is not None
        checkpoints.restore(run, saved)
    share_state(run)
    assert run.next == 4
    for _ in take_steps(run, checkpoints=checkpoints, every=100):
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

    heard = release_first(init_distributed(), release)
    assert torch.equal(heard["ranges"]["limits"], torch.tensor([[0.1, 1 / 3]]).double())
    assert torch.equal(heard["counts"]["a/b"], torch.arange(3))


def know_earlier_attempts(rank: int, folder: Path) -> None:
    """The record of process 0 knows of a stretch that was taken under another secret; what each process says of its ε
    counts it."""
    run = plan("dp-sgd", 9).start(model(), losses, data(), ranks=init_distributed())
    if rank == 0:
        run.guard_noise(Remembers(run))
    run.step(run.batch(0))
    assert run.history.attempts == (Replay(0, 1), Replay(0, 5))
    assert run.guarantee.epsilon > run.plan.guarantee().epsilon


class Remembers:
    def __init__(self, run: Run) -> None:
        self.run = run

    def allows(self, sums: Any) -> bool:
        self.run.recall((Replay(0, 0), Replay(0, 5)))
        return True

    def before_release(self) -> None: ...


def cut_noise(rank: int, folder: Path) -> None:
    """Independent, banded and BLT noise of a wide model: each process holds the state of its own coordinates."""
    ranks, rows = init_distributed(), (torch.randn(N, 70_000, generator=torch.Generator().manual_seed(1)), data()[1])
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
        assert ranks.broadcast(checksum(cut.model.parameters())) == checksum(cut.model.parameters())
        assert ranks.broadcast(resume_slices(made, rows, folder / method)) == checksum(cut.model.parameters())


def resume_slices(made: Plan, rows: Any, folder: Path) -> int:
    """Two of four steps with noise in slices, and the others from a checkpoint: the checksum of the weights."""
    runs = [made.start(wide(), losses, rows, secret=5, ranks=init_distributed(), noise_shards=True) for _ in range(2)]
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


def move_by_one_more(rank: int, folder: Path) -> None:
    """How far the last example moves the sum of all processes: labels at the kink, at the ends of chunks and blocks."""
    from shipped_models import KINKED, Shipped, Stage, neighbours

    ranks, moved = init_distributed(), {}
    for kinked in KINKED:
        for batch in (7, 130, 400):
            stage = Stage(Shipped(lambda: nn.Linear(64, 1), (64,)), batch, kinked=kinked, ranks=ranks)
            kinds = ("plain", "alike", "broken")
            moved[f"{kinked} {batch}"] = max(stage.moved(neighbours(stage.fresh(1), kind)) for kind in kinds)
    (folder / f"{rank}.json").write_text(json.dumps(moved))


SCENES = {
    "one more": move_by_one_more,
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
