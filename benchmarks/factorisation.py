"""Solver time and error of hush's factorisations against jax_privacy's, in one run.

    python benchmarks/factorisation.py [--quick | --full] [--out factorisation.json]

Every row solves the same problem with both libraries, in one process, on one thread, and gives CPU seconds (of the
process, compilation included: it is part of the wait) and the expected error rmse · sensitivity per unit noise, both
computed by hush from the strategy returned. Lower is better; a ratio above one favours hush. Without jax-privacy
installed, its columns stay empty. Solvers' results are not taken from the cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when numpy is imported
    os.environ[name] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np  # noqa: E402

from hush import matrix_factorization  # noqa: E402
from hush.matrix_factorization import Strategy  # noqa: E402

Error = Callable[[Strategy], float]


@dataclass(frozen=True)
class Case:
    """One problem: how each library solves it, and how a strategy is judged."""

    name: str
    ours: Callable[[], matrix_factorization.Solution[Strategy]]
    theirs: Callable[[], Strategy] | None
    error: Error


@dataclass(frozen=True)
class Row:
    """What was measured; None where a library was not run."""

    name: str
    hush_seconds: float
    hush_error: float
    gap: float | None
    peer_seconds: float | None
    peer_error: float | None

    @property
    def speed(self) -> float | None:
        """Their CPU time over ours."""
        return None if self.peer_seconds is None else self.peer_seconds / self.hush_seconds


def same_order(per_epoch: int) -> Error:
    return lambda structure: structure.rmse() * structure.same_order(per_epoch)


def separated(times: int, apart: int) -> Error:
    return lambda structure: structure.rmse() * structure.separated(times, apart)


def single(structure: Strategy) -> float:
    return structure.rmse() * structure.single()


def dense(steps: int, epochs: int) -> Callable[[], Strategy]:
    def solve() -> Strategy:
        import jax
        from jax_privacy.matrix_factorization import dense as peer

        with jax.enable_x64():
            return matrix_factorization.Dense(
                np.tril(np.asarray(peer.optimize(steps, epochs=epochs), dtype=np.float64))
            )

    return solve


def banded(steps: int, bands: int) -> Callable[[], Strategy]:
    def solve() -> Strategy:
        import jax
        from jax_privacy.matrix_factorization import banded as peer

        with jax.enable_x64():
            found = peer.optimize(steps, bands=bands)
            return matrix_factorization.Dense(np.tril(np.asarray(found.materialize(), dtype=np.float64)))

    return solve


def toeplitz(steps: int, bands: int) -> Callable[[], Strategy]:
    def solve() -> Strategy:
        import jax
        from jax_privacy.matrix_factorization import toeplitz as peer

        with jax.enable_x64():
            return matrix_factorization.Toeplitz(
                steps, np.asarray(peer.optimize_banded_toeplitz(steps, bands), dtype=np.float64)
            )

    return solve


def blt(steps: int, times: int, apart: int, buffers: int) -> Callable[[], Strategy]:
    def solve() -> Strategy:
        import jax
        from jax_privacy.matrix_factorization import buffered_toeplitz as peer

        with jax.enable_x64():
            found = peer.optimize(
                n=steps,
                min_sep=apart,
                max_participations=times,
                error="mean",
                min_buffers=buffers,
                max_buffers=buffers,
            )
            return matrix_factorization.Toeplitz(steps, np.asarray(found.toeplitz_coefs(steps), dtype=np.float64))

    return solve


def cases(quick: bool, full: bool) -> list[Case]:
    work = matrix_factorization.prefix_sums
    chosen = [
        Case("SE, T = 256", lambda: matrix_factorization.optimal_single(work(256)), dense(256, 1), single),
        Case("ME, 4 × 16", lambda: matrix_factorization.optimal_epochs(work(64), 16), dense(64, 4), same_order(16)),
        Case(
            "banded, T = 512, 16 bands",
            lambda: matrix_factorization.optimal_banded(work(512), 16),
            banded(512, 16),
            single,
        ),
        Case(
            "Toeplitz, T = 2048, 32 bands",
            lambda: matrix_factorization.optimal_toeplitz(work(2048), 32),
            toeplitz(2048, 32),
            single,
        ),
        Case(
            "BLT, T = 1000, 3 buffers",
            lambda: matrix_factorization.optimal_blt(work(1000), 3),
            blt(1000, 1, 1000, 3),
            single,
        ),
        Case(
            "BLT, 10 × 100, 2 buffers",
            lambda: matrix_factorization.optimal_blt(work(1000), 2, 10, 100),
            blt(1000, 10, 100, 2),
            separated(10, 100),
        ),
    ]
    if not quick:
        chosen.append(
            Case(
                "ME, 10 × 49",
                lambda: matrix_factorization.optimal_epochs(work(490), 49),
                dense(490, 10),
                same_order(49),
            )
        )
    if full:
        chosen += [
            Case("ME, 30 × 49", lambda: matrix_factorization.optimal_epochs(work(1470), 49), None, same_order(49)),
            Case("SE, T = 938", lambda: matrix_factorization.optimal_single(work(938)), None, single),
            Case(
                "banded, T = 5000, 16 bands", lambda: matrix_factorization.optimal_banded(work(5000), 16), None, single
            ),
            Case(
                "Toeplitz, T = 10⁶, 16 bands",
                lambda: matrix_factorization.optimal_toeplitz(work(10**6), 16),
                None,
                single,
            ),
            Case("BLT, T = 10⁶", lambda: matrix_factorization.optimal_blt(work(10**6)), None, single),
        ]
    return chosen


def measure(case: Case, peer: bool) -> Row:
    start = time.process_time()
    solution = case.ours()
    seconds = time.process_time() - start
    theirs = None
    if peer and case.theirs is not None:
        start = time.process_time()
        structure = case.theirs()
        theirs = time.process_time() - start, case.error(structure)
    return Row(
        case.name,
        seconds,
        case.error(solution.structure),
        solution.gap,
        theirs[0] if theirs else None,
        theirs[1] if theirs else None,
    )


def show(row: Row) -> None:
    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    print(
        f"{row.name:<30}{row.hush_seconds:>10.2f}{row.hush_error:>12.4f}{cell(row.gap, '.1e'):>10}"
        f"{cell(row.peer_seconds, '.2f'):>12}{cell(row.peer_error, '.4f'):>12}{cell(row.speed, '.1f'):>9}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="leave out the problem that takes jax_privacy minutes")
    size.add_argument("--full", action="store_true", help="add problems that only hush solves here")
    parser.add_argument("--out", type=Path, default=Path("factorisation.json"), help="where the JSON goes")
    arguments = parser.parse_args()
    peer = importlib.util.find_spec("jax_privacy") is not None
    if not peer:
        print("jax-privacy is not installed: only hush is measured", file=sys.stderr)
    print(
        f"{'CPU seconds, one thread':<30}{'hush s':>10}{'error':>12}{'gap':>10}{'jax s':>12}{'error':>12}{'ratio':>9}"
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as empty:
        os.environ["HUSH_CACHE"] = empty
        for case in cases(arguments.quick, arguments.full):
            rows.append(measure(case, peer))
            show(rows[-1])
            write(arguments.out, rows, peer)  # after every row: a run stopped early keeps what it measured


def write(path: Path, rows: list[Row], peer: bool) -> None:
    report = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "jax_privacy": version("jax-privacy") if peer else None,
        "rows": [{**asdict(row), "speed": row.speed} for row in rows],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
