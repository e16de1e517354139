"""What correlated noise costs: time of a step against independent noise, and memory, every figure from its own process.

- steps: every stream at d = 61 706 (LeNet-5), 10⁶ and 10⁷ with T = 10⁶: CPU time of a step over that of an independent
  one, parameter-sized vectors kept, peak of the process over the same process with independent noise.
- long: BLT and banded noise over very many steps on LeNet-5-sized parameters: state and resident memory on the way.
- dense: the optimum for P1 (30 epochs of 49 steps, d = 258 762) against independent noise and against the gradients.

Normal numbers are made as in training (AES, Box and Muller), one thread. Results: docs/results/noise-stream.json.

    OMP_NUM_THREADS=1 python benchmarks/noise_stream.py [steps|long|dense] [--long-steps 1000000] [--largest 10000000]
    python benchmarks/noise_stream.py --show     # the tables, as Markdown
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hush import matrix_factorization
from hush.matrix_factorization import Strategy, prefix_sums
from hush.noise import make_noise
from hush.randomness import Secret, normal

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "noise-stream.json"
T = 10**6
LENET, P1 = 61_706, 258_762
SIZES = (LENET, 10**6, 10**7)
EPOCHS, PER_EPOCH, BATCH = 30, 49, 1024  # P1 on 50 000 images

STREAMS: dict[str, Callable[[], Strategy]] = {
    "independent": lambda: matrix_factorization.identity(T),
    "tree": lambda: matrix_factorization.Tree(T),
    "tree, Honaker": lambda: matrix_factorization.Tree(T, estimate="honaker"),
    "banded square root, 8 bands": lambda: matrix_factorization.square_root(prefix_sums(T), 8),
    "banded square root, 16 bands": lambda: matrix_factorization.square_root(prefix_sums(T), 16),
    "banded inverse square root, 16 bands": lambda: matrix_factorization.inverse_square_root(prefix_sums(T), 16),
    "BLT": lambda: matrix_factorization.optimal_blt(prefix_sums(T), None, times=1, apart=T).structure,
}


def resident() -> float:
    """Memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak() -> float:
    """The most that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


class Stream:
    """A structure's noise on d coordinates, step after step."""

    def __init__(self, structure: Strategy, size: int) -> None:
        self.noise, self.like, self.step = make_noise(structure), torch.empty(size, dtype=torch.float64), 0
        self.state, self.secret = self.noise.init(self.like), Secret.from_seed(0, "benchmark")

    def take(self, steps: int) -> float:
        """CPU seconds of the next steps."""
        started = time.process_time()
        for _ in range(steps):
            _, self.state = self.noise.draw(self.step, self._row, self.state)
            self.step += 1
        return time.process_time() - started

    def _row(self, index: int) -> torch.Tensor:
        return normal(self.secret, "noise/gradient", index, self.like)

    @property
    def vectors(self) -> float:
        """Tensors that are kept, in units of the parameters."""
        held = sum(v.numel() * v.element_size() for v in self.state.values() if isinstance(v, torch.Tensor))
        return held / (self.like.numel() * self.like.element_size())


def one_stream(name: str, size: int) -> dict[str, Any]:
    """Warm up past every band, then the best of three stretches."""
    stream = Stream(STREAMS[name](), size)
    stream.take(20)
    count = max(8, min(256, 2 * 10**7 // size))  # a power of two, so that every stretch of a tree merges alike
    count = 1 << (count.bit_length() - 1)
    seconds = min(stream.take(count) for _ in range(3)) / count
    return {"stream": name, "d": size, "ms": 1e3 * seconds, "vectors": stream.vectors, "peak_mb": peak()}


def one_long(name: str, steps: int) -> dict[str, Any]:
    """Many steps on LeNet-5-sized parameters; memory is looked at a hundred times."""
    stream = Stream(STREAMS[name](), LENET)
    stream.take(100)
    seen, seconds = [(stream.step, stream.vectors, resident())], 0.0
    while stream.step < steps:
        seconds += stream.take(min(max(1, steps // 100), steps - stream.step))
        seen.append((stream.step, stream.vectors, resident()))
    return {
        "stream": name,
        "d": LENET,
        "planned_steps": T,
        "steps": stream.step,
        "ms": 1e3 * seconds / max(1, stream.step - 100),
        "vectors_first": seen[0][1],
        "vectors_last": seen[-1][1],
        "vectors_most": max(v for _, v, _ in seen),
        "resident_mb_after_100": seen[0][2],
        "resident_mb_most": max(m for _, _, m in seen),
        "resident_mb_last": seen[-1][2],
    }


def one_dense(name: str, steps: int) -> dict[str, Any]:
    """All steps of the dense optimum for P1, or of independent noise, in one process each."""
    work = prefix_sums(EPOCHS * PER_EPOCH)
    solved = matrix_factorization.identity(work.steps) if name == "independent" else _optimum(work)
    before = resident()
    stream = Stream(solved, P1)
    seconds = stream.take(min(steps, work.steps))
    return {"stream": name, "d": P1, "steps": stream.step, "ms": 1e3 * seconds / stream.step, "peak_mb": peak(),
            "before_mb": before}  # fmt: skip


def _optimum(work: matrix_factorization.Workload) -> Strategy:
    return matrix_factorization.optimal_epochs(work, PER_EPOCH).structure


def one_solve(name: str, size: int) -> dict[str, Any]:
    """Find the optimum and leave it in the cache, so that solving does not count as noise."""
    started = time.process_time()
    found = matrix_factorization.optimal_epochs(prefix_sums(EPOCHS * PER_EPOCH), PER_EPOCH)
    return {"stream": name, "error": found.error, "seconds_or_cached": time.process_time() - started}


def one_run(name: str, steps: int) -> dict[str, Any]:
    """The first steps of a run of P1 at batch 1024 on images of random pixels: time of a step, and the peak."""
    from hush.datasets.models import p1
    from hush.methods import make_plan

    examples = BATCH * PER_EPOCH
    images, labels = torch.rand(examples, 3, 32, 32), torch.randint(0, 10, (examples,))

    def losses(model: torch.nn.Module, content: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(content[0]), content[1], reduction="none")

    public = {"examples": examples, "batch_size": BATCH, "epochs": EPOCHS, "sampling": "same-order"}
    plan = make_plan(name, **public, noise_multiplier=1.0)  # type: ignore[arg-type]
    run = plan.start(p1(), losses, (images, labels), secret=0, microbatch=256)
    stretches = []
    for batch in run.batches():
        started = time.process_time()
        run.step(batch)
        stretches.append(time.process_time() - started)
        if run.next == steps:
            break
    return {"stream": name, "d": P1, "batch": BATCH, "ms": 1e3 * min(stretches), "peak_mb": peak()}


PARTS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "steps": one_stream,
    "long": one_long,
    "dense": one_dense,
    "solve": one_solve,
    "run": one_run,
}


def apart(part: str, name: str, number: int) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--one", part, name, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    print(f"{part} {name} {number}: {row.get('ms', row)}", flush=True)
    return row


def measure(part: str, largest: int, long_steps: int) -> Any:
    """One part of the results."""
    if part == "steps":
        return [apart("steps", name, d) for d in SIZES if d <= largest for name in STREAMS]
    if part == "long":
        return [apart("long", name, long_steps) for name in ("BLT", "banded square root, 16 bands")]
    solved = apart("solve", "multi-epoch optimum", P1)
    rows = [apart("dense", name, EPOCHS * PER_EPOCH) for name in ("independent", "multi-epoch optimum")]
    runs = [apart("run", method, 3) for method in ("dp-sgd", "dp-matrix-me")]
    return {"solved": solved, "noise": rows, "runs": runs}


def known() -> dict[str, Any]:
    """What was measured before."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def tables(found: dict[str, Any]) -> str:
    """Markdown."""
    parts = []
    if rows := found.get("steps"):
        parts += ["| noise | d | CPU time of a step | over independent | vectors kept | peak above independent |"]
        parts += ["|---|---|---|---|---|---|"]
        base = {r["d"]: r for r in rows if r["stream"] == "independent"}
        for r in rows:
            own = base[r["d"]]
            ratio, more = f"{r['ms'] / own['ms']:.2f}", f"{r['peak_mb'] - own['peak_mb']:.0f} MB"
            parts.append(f"| {r['stream']} | {r['d']:,} | {r['ms']:.3g} ms | {ratio} | {r['vectors']:g} | {more} |")
    if rows := found.get("long"):
        parts += [
            "",
            "| noise | steps taken | CPU time of a step | vectors kept, first and most | memory after 100 steps, ",
        ]
        parts[-1] += "most, last |\n|---|---|---|---|---|"
        for r in rows:
            memory = f"{r['resident_mb_after_100']:.1f}, {r['resident_mb_most']:.1f}, {r['resident_mb_last']:.1f} MB"
            kept = f"{r['vectors_first']:g}, {r['vectors_most']:g}"
            parts.append(f"| {r['stream']} | {r['steps']:,} | {r['ms']:.3g} ms | {kept} | {memory} |")
    if dense := found.get("dense"):
        parts += ["", "| P1, 1470 steps | CPU time of a step | peak memory | above independent |", "|---|---|---|---|"]
        for rows, what in ((dense["noise"], "noise alone: "), (dense["runs"], f"run at batch {BATCH}: ")):
            for r in rows:
                more = f"{r['peak_mb'] - rows[0]['peak_mb']:.0f} MB"
                parts.append(f"| {what}{r['stream']} | {r['ms']:.4g} ms | {r['peak_mb']:.0f} MB | {more} |")
    return "\n".join(parts)


def main() -> None:
    """Measure, write, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="steps, long, dense; all by default")
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--long-steps", type=int, default=T)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--show", action="store_true", help="print the tables of what there is")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        part, name, number = arguments.one
        print(json.dumps(PARTS[part](name, int(number))))
        return
    for part in [] if arguments.show else arguments.parts or ["dense", "steps", "long"]:
        row = measure(part, arguments.largest, arguments.long_steps)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps({**known(), part: row}, indent=1, ensure_ascii=False) + "\n")
    print(tables(known()))


if __name__ == "__main__":
    main()
