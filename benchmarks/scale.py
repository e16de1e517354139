"""One model on several processes: bytes of a step by formula and as counted, and the efficiency of N against one.

    OMP_NUM_THREADS=1 python benchmarks/scale.py                 # bytes, in a minute
    OMP_NUM_THREADS=1 python benchmarks/scale.py --time --json scale.json   # the ratio too; on an idle machine

Efficiency is the time of one process over N times that of N processes, for the same batches of the same run: 1 where
sharing costs nothing. Times are the best of ``--repeats`` in one go on one machine, so their ratio is what counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional

from hush.methods import make_plan
from hush.noising import cut_shards
from hush.ranks import LENGTH, MESSAGE, join_ranks
from hush.run import Run

POINTS = [("dp-sgd", {}), ("dp-bandmf", {"bands": 4}), ("dp-bandmf", {"bands": 2}), ("dp-blt", {"buffers": 3})]
WIDTHS = (1_000, 40_000)
CLASSES = 10


def predict_bytes(d: int, world: int, kept: int) -> dict[str, int]:
    """What `docs/scale.md` says of process 0 with noise in slices: bytes that leave it in a step, and of its noise's
    state of ``kept`` vectors. The sums are d numbers, three figures and a checksum of each process."""
    sums = 2 * 8 * -(-(d + 3 + world) // world) * (world - 1)
    sides = cut_shards(d, world)
    slices = [high - low for low, high in zip(sides[:-1], sides[1:], strict=True)]
    return {"sent": sums + 8 * max(slices) * (world - 1), "state": 8 * kept * slices[0]}


def count_sent(world: int, counted: dict[str, int]) -> None:
    """Have every message that carries numbers counted."""

    def wrap(name: str, size: Callable[..., int]) -> None:
        real = getattr(dist, name)

        def sending(*given: Any, **more: Any) -> Any:
            counted[name] = counted.get(name, 0) + size(*given)
            return real(*given, **more)

        setattr(dist, name, sending)

    wrap("all_to_all_single", lambda out, own: own.numel() * own.element_size() * (world - 1) // world)
    wrap("all_gather", lambda parts, own: own.numel() * own.element_size() * (world - 1))


def losses(model: nn.Module, content: Any) -> Tensor:
    """Of a classifier."""
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def start(method: str, options: dict[str, Any], width: int, batch: int, steps: int, **more: Any) -> Run:
    """A run of a linear model on made-up rows; ``more`` goes to the plan's start."""
    examples = 4 * batch
    plan = make_plan(method, examples=examples, batch_size=batch, steps=steps, noise_multiplier=2.0, **options)
    torch.manual_seed(0)
    rows = torch.randn(examples, width), torch.randint(0, CLASSES, (examples,))
    return plan.start(nn.Linear(width, CLASSES), losses, rows, secret=1, **more)


def work(rank: int, world: int, folder: str, timed: bool, repeats: int) -> None:
    """One process: its figures, written down by rank 0."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet{world}", rank=rank, world_size=world)
    found = time_steps(world, repeats) if timed else count_points(world)
    if rank == 0:
        (Path(folder) / f"{world}.json").write_text(json.dumps(found))
    if world > 1:
        dist.destroy_process_group()


def count_points(world: int) -> list[dict[str, Any]]:
    """Bytes of every point, counted and by formula."""
    ranks, counted, rows = join_ranks(), {}, []
    count_sent(world, counted)
    for method, options in POINTS:
        for width in WIDTHS:
            run = start(method, options, width, 32, 8, ranks=ranks, noise_shards=True)
            run.step(run.batch(0))
            counted.clear()
            run.step(run.batch(1))
            states = [v for entry in run._noising._states.values() for v in entry.values()]
            kept = states[0].shape[0] if states else 0
            size = sum(v.numel() * v.element_size() for v in states)
            told = predict_bytes(run.coordinates, world, kept)
            row = {"method": method, **options, "d": run.coordinates, "processes": world, "vectors kept": kept}
            row |= {"sent": sum(counted.values()), "sent by formula": told["sent"]}
            rows.append(row | {"state": size, "state by formula": told["state"]})
    return rows


def time_steps(world: int, repeats: int) -> list[dict[str, Any]]:
    """Seconds of twenty steps at the same total work, the best of some."""
    ranks, best = join_ranks(), float("inf")
    for _ in range(repeats):
        run = start("dp-sgd", {}, 2_000, 512, 24, ranks=ranks, microbatch=128)
        for step in range(4):
            run.step(run.batch(step))
        clock = time.perf_counter()
        for step in range(4, 24):
            run.step(run.batch(step))
        best = min(best, time.perf_counter() - clock)
    return [{"world": world, "seconds of 20 steps": best}]


def run_world(world: int, timed: bool, repeats: int) -> list[dict[str, Any]]:
    """The figures of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(world, folder, timed, repeats), nprocs=world)
        found: list[dict[str, Any]] = json.loads((Path(folder) / f"{world}.json").read_text())
        return found


def main() -> None:
    """Print the figures, and write them where that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--worlds", type=int, nargs="+", default=[2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"verdict": LENGTH + MESSAGE}
    for world in given.worlds:
        found[f"bytes of {world}"] = run_world(world, False, 1)
        for row in found[f"bytes of {world}"]:
            print(row)
    if given.time:
        alone = run_world(1, True, given.repeats)[0]["seconds of 20 steps"]
        for world in given.worlds:
            shared = run_world(world, True, given.repeats)[0]["seconds of 20 steps"]
            found[f"efficiency of {world}"] = alone / (world * shared)
            print(f"efficiency of {world} processes against one: {alone / (world * shared):.3f}")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
