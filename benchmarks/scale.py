"""One model on several processes: bytes of a step by formula and as counted, and the efficiency of N against one.

    OMP_NUM_THREADS=1 python benchmarks/scale.py             # bytes, in a minute
    OMP_NUM_THREADS=1 python benchmarks/scale.py --time      # efficiency, on an idle machine with a core a process
    python benchmarks/scale.py --render                      # docs/scale.md alone, between its two marks

Figures go to `results/scale.json`, each kind in place of its own, and from there to the page. Efficiency is the time of
one process over N times that of N processes, for the same batches of the same run: 1 where sharing costs nothing. Times
are the best of ``--repeats`` in one go on one machine, so their ratio is what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional

from hush.datasets.models import lenet5, mlp, p1
from hush.distributed.group import init_distributed
from hush.methods import make_plan
from hush.noise_addition import cut_shards
from hush.run import Run

POINTS = [("dp-sgd", {}), ("dp-bandmf", {"bands": 4}), ("dp-bandmf", {"bands": 2}), ("dp-blt", {"buffers": 3})]
WIDTHS = (1_000, 40_000)
CLASSES = 10
TIMED = {"batch": 512, "microbatch": 128, "steps": 10}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(2_000, CLASSES), (2_000,)),
    "MLP 784-512-256-128-10": (lambda: mlp([784, 512, 256, 128, CLASSES]), (784,)),
    "LeNet-5": (lenet5, (1, 28, 28)),
    "P1": (p1, (3, 32, 32)),
}
ROOT = Path(__file__).resolve().parents[1]
FIGURES, PAGE = ROOT / "results" / "scale.json", ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- made by benchmarks/scale.py -->\n", "<!-- end of what is made -->"


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


def start(
    method: str,
    options: dict[str, Any],
    network: tuple[Callable[[], nn.Module], tuple[int, ...]],
    batch: int,
    steps: int,
    **more: Any,
) -> Run:
    """A run of a network on made-up rows; ``more`` goes to the plan's start."""
    examples, (build, shape) = 4 * batch, network
    plan = make_plan(method, examples=examples, batch_size=batch, steps=steps, noise_multiplier=2.0, **options)
    torch.manual_seed(0)
    rows = torch.randn(examples, *shape), torch.randint(0, CLASSES, (examples,))
    return plan.start(build(), losses, rows, secret=1, **more)


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
    ranks, counted, rows = init_distributed(), {}, []
    count_sent(world, counted)
    for method, options in POINTS:
        for width in WIDTHS:
            linear = (partial(nn.Linear, width, CLASSES), (width,))
            run = start(method, options, linear, 32, 8, ranks=ranks, noise_shards=True)
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
    """Of every network the seconds of some steps at the same total work, the best of several goes."""
    ranks, warm, rows = init_distributed(), 4, []
    for name, network in NETWORKS.items():
        best, last = float("inf"), warm + TIMED["steps"]
        for _ in range(repeats):
            run = start("dp-sgd", {}, network, TIMED["batch"], last, ranks=ranks, microbatch=TIMED["microbatch"])
            for step in range(warm):
                run.step(run.batch(step))
            clock = time.perf_counter()
            for step in range(warm, last):
                run.step(run.batch(step))
            best = min(best, time.perf_counter() - clock)
        rows.append({"network": name, "d": run.coordinates, "processes": world, "seconds": best})
    return rows


def run_world(world: int, timed: bool, repeats: int) -> list[dict[str, Any]]:
    """The figures of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(world, folder, timed, repeats), nprocs=world)
        found: list[dict[str, Any]] = json.loads((Path(folder) / f"{world}.json").read_text())
        return found


def measure_times(worlds: list[int], repeats: int) -> list[dict[str, Any]]:
    """The efficiency of every number of processes, with what it was measured on."""
    load = os.getloadavg()[0]
    about = {"cores": os.cpu_count(), "load before": round(load, 2), "torch": torch.__version__, **TIMED}
    alone, rows = run_world(1, True, repeats), []
    for world in worlds:
        for one, shared in zip(alone, run_world(world, True, repeats), strict=True):
            efficiency = one["seconds"] / (world * shared["seconds"])
            rows.append({**shared, "seconds of one": one["seconds"], "efficiency": efficiency, **about})
    return rows


def read() -> dict[str, list[dict[str, Any]]]:
    """All figures."""
    found: dict[str, list[dict[str, Any]]] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    return found


def render() -> str:
    """The page, with the figures between its marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    metrics = read()
    return (
        before + BEGIN + "\n".join(["", *render_bytes(metrics["bytes"]), "", *render_times(metrics), ""]) + END + after
    )


def render_bytes(rows: list[dict[str, Any]]) -> list[str]:
    """A line a point."""
    lines = [
        "| method | d | sent, counted | by formula | noise state, counted | by formula |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        kept = [f"{row[name]} {name}" for name in ("bands", "buffers") if name in row]
        numbers = (row[name] for name in ("d", "sent", "sent by formula", "state", "state by formula"))
        cells = [", ".join([row["method"], *kept]), *(write_number(number) for number in numbers)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def render_times(metrics: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Efficiency, or how to come by it."""
    if not metrics.get("times"):
        how = (
            "`OMP_NUM_THREADS=1 python benchmarks/scale.py --time` measures it on an idle machine with a core for each"
        )
        return [how, "process. This page has no figure of it yet."]
    lines = ["| network | d | processes | cores | efficiency |", "|---|---|---|---|---|"]
    for row in metrics["times"]:
        about = (row["network"], write_number(row["d"]), row["processes"], row["cores"], f"{row['efficiency']:.2f}")
        lines.append(f"| {' | '.join(map(str, about))} |")
    row = metrics["times"][0]
    return [*lines, "", f"dp-sgd, batch {row['batch']}, {row['steps']} steps, one thread a process."]


def write_number(number: int) -> str:
    """With a gap every three digits."""
    return f"{number:,}".replace(",", " ")


def main() -> None:
    """Measure what was asked for, write it down, and bring the page up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--worlds", type=int, nargs="+", default=[2])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    found = read()
    if given.time:
        found["times"] = measure_times(given.worlds, given.repeats)
    elif not given.render:
        found["bytes"] = [row for world in given.worlds for row in run_world(world, False, 1)]
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(render())
    print(PAGE.read_text().partition(BEGIN)[2].partition(END)[0])


if __name__ == "__main__":
    main()
