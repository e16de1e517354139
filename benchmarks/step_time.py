"""Time one training step of every engine on every model, as ratios to ordinary SGD measured in the same run.

    python benchmarks/step_time.py                                   # everything; most of an hour
    python benchmarks/step_time.py --models MLP,P1 --batches 256 --threads 1 --repeats 20
    python benchmarks/step_time.py --engines "plain SGD,hush"        # minutes

The number is CPU time of the process, the best of ``--repeats`` rounds; a round runs every engine once, so that all see
the same state of the machine. An engine slower than ``--patience`` seconds a step is timed fewer times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMON = ("MLP", "LeNet-5", "P1", "P2", "P3")


def measure(model: str, batch: int, engines: list[str], repeats: int, patience: float) -> dict[str, Any]:
    """The best CPU seconds of each engine on one model, or why there is none."""
    import torch

    from models import CASES
    from peers import ENGINES

    torch.manual_seed(0)
    data = CASES[model].batch(batch)
    steps: dict[str, Callable[[], Any]] = {}
    best: dict[str, Any] = {}
    for name in engines:
        try:
            steps[name] = ENGINES[name](CASES[model], data)
            best[name] = [_timed(steps[name]) for _ in range(2)][1]
        except Exception as error:
            steps.pop(name, None)
            best[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}" if str(error) else repr(error)
            print(f"{model}, {name}: {best[name]}", file=sys.stderr)
    for round_number in range(repeats):
        for name, step in steps.items():
            if best[name] < patience or round_number < 2:
                best[name] = min(best[name], _timed(step))
    return best


def _timed(step: Callable[[], Any]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def rows(results: list[dict[str, Any]]) -> str:
    """A Markdown table: the ratio to ordinary SGD of every engine, one row per model, batch and thread count."""
    names = list(dict.fromkeys(name for r in results for name in r["seconds"] if name != "plain SGD"))
    lines = ["| model | batch | threads | plain SGD, ms | " + " | ".join(names) + " |", "|---" * (4 + len(names)) + "|"]
    for r in results:
        base = r["seconds"]["plain SGD"]
        cells = [f"{s / base:.2f}" if isinstance(s := r["seconds"].get(n), float) else "–" for n in names]
        lines.append(f"| {r['model']} | {r['batch']} | {r['threads']} | {base * 1e3:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(results: list[dict[str, Any]]) -> list[str]:
    """The geometric means at batch 256 over the five common models, and against the fastest peer."""
    lines = []
    for threads in sorted({r["threads"] for r in results}):
        chosen = [r for r in results if r["threads"] == threads and r["batch"] == 256 and r["model"] in COMMON]
        chosen = [r for r in chosen if isinstance(r["seconds"].get("hush"), float)]
        ratios = [r["seconds"]["hush"] / r["seconds"]["plain SGD"] for r in chosen]
        peers = [_fastest_peer(r["seconds"]) / r["seconds"]["hush"] for r in chosen]
        if ratios:
            lines.append(
                f"batch 256, {threads} thread(s), {len(ratios)} models: hush / plain SGD {mean(ratios):.2f} "
                f"(largest {max(ratios):.2f})"
            )
        if peers and all(map(math.isfinite, peers)):
            lines.append(f"  fastest peer / hush {mean(peers):.2f} (smallest {min(peers):.2f})")
    return lines


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _fastest_peer(seconds: dict[str, Any]) -> float:
    peers = [s for name, s in seconds.items() if name not in ("plain SGD", "hush") and isinstance(s, float)]
    return min(peers, default=math.inf)


def child(options: argparse.Namespace) -> None:
    """Measure in this process, which has its number of threads from its environment; one JSON line a result."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    for model in options.models.split(","):
        for batch in map(int, options.batches.split(",")):
            seconds = measure(model, batch, options.engines.split(","), options.repeats, options.patience)
            print(
                json.dumps({"model": model, "batch": batch, "threads": options.threads, "seconds": seconds}), flush=True
            )


def spawn(options: argparse.Namespace, model: str, threads: int) -> list[dict[str, Any]]:
    """One process per model and thread count, so that neither memory nor thread pools carry over."""
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1" if threads == 1 else ""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "XLA_FLAGS": flags}
    arguments = ["--models", model, "--batches", options.batches, "--engines", options.engines, "--child"]
    arguments += ["--threads", str(threads), "--repeats", str(options.repeats), "--patience", str(options.patience)]
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stderr[-2000:], file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    """Parse, measure, print the table, write the JSON."""
    from models import CASES
    from peers import ENGINES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--batches", default="64,256,1024")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--patience", type=float, default=1.0)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        options.threads = int(options.threads)
        return child(options)
    results: list[dict[str, Any]] = []
    for threads in map(int, options.threads.split(",")):
        for model in options.models.split(","):
            found = spawn(options, model, threads)
            results += found
            print(rows(found) if found else f"{model}: nothing measured", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
    print(rows(results), *summary(results), sep="\n")
    return None


if __name__ == "__main__":
    main()
