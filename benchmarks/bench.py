"""What the benchmark itself costs: reading specs, loading a large store, and its part of a run.

    python benchmarks/bench.py

Seconds are of CPU time on one thread, best of three; the wall clock is shown beside where a disk takes part.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hush.bench.dataframes import read_runs
from hush.bench.executors import Inline
from hush.bench.spec import Spec, check_spec, read_spec
from hush.bench.store import open_store
from hush.bench.sweep import sweep
from hush.bench.trial import Accounts, make
from hush.bench.trial import load as load_problem
from hush.datasets.evaluation import evaluate_problem
from hush.randomness import seeded
from hush.training import take_steps

SPECS = Path(__file__).resolve().parents[1] / "specs"
RUNS = 2476
SPEC = """
[[grid]]
problem = "digits-mlp"
method = "dp-sgd"
batch_size = 64
epochs = 5
epsilon = 3.0
lr = [0.1, 0.2, 0.4, 0.8]
"""


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """(CPU seconds, wall seconds), the best of three."""
    found = []
    for _ in range(3):
        cpu, wall = time.process_time(), time.perf_counter()
        action()
        found.append((time.process_time() - cpu, time.perf_counter() - wall))
    return min(found)


def expand() -> None:
    """Read, expand and check every spec that ships."""
    for path in sorted(SPECS.glob("*.toml")):
        spec = read_spec(path)
        check_spec(spec)
        assert spec.trials


def bare(spec: Spec) -> None:
    """The same trials as a plain loop: problem, plan, steps, one evaluation an epoch."""
    for trial in spec.trials:
        problem = load_problem(trial.problem, trial.split_seed, trial.validation)
        with seeded(trial.seed):
            model = problem.model()
        plan = make(trial, problem, Accounts(None))
        run = plan.start(model, problem.losses, problem.train)
        per_epoch = -(-plan.sampler.examples // 64)
        for _ in take_steps(run):
            if run.next % per_epoch == 0:
                evaluate_problem(model, problem)
                evaluate_problem(model, problem, part="validation")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "spec.toml").write_text(SPEC)
        spec = read_spec(Path(place) / "spec.toml")
        print("expand and check all {} specs: {:.2f} s CPU".format(len(list(SPECS.glob("*.toml"))), timed(expand)[0]))
        full = Path(place) / "store"

        def bench() -> None:
            shutil.rmtree(full, ignore_errors=True)
            assert sweep(spec, open_store(full), Inline()).summary()["done"] == len(spec.trials)

        (loop, loop_wall), (whole, whole_wall) = timed(lambda: bare(spec)), timed(bench)
        count = len(spec.trials)
        print(f"a run, bare loop: {loop / count:.2f} s CPU ({loop_wall / count:.2f} s wall)")
        print(f"a run, bench:     {whole / count:.2f} s CPU ({whole_wall / count:.2f} s wall)")
        record = open_store(full).record(spec.trials[0].key)
        for number in range(RUNS):
            folder = full / "runs" / f"{number:032x}"
            folder.mkdir()
            (folder / "record.json").write_text(json.dumps(record | {"key": folder.name}, indent=1))
        cpu, wall = timed(lambda: read_runs(full))
        print(f"load {RUNS + count} runs: {cpu:.2f} s CPU ({wall:.2f} s wall)")


if __name__ == "__main__":
    main()
