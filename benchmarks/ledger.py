"""What a ledger of 20 000 entries takes: CPU time and memory of `hush ledger show` and `add`, and how much longer that
is than with one entry, where the commands only start.

    python benchmarks/ledger.py [ENTRIES]

Three ledgers: spends by hand, runs of seven kinds, and runs that are all different (5 000 of them at most).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dp_accounting import dp_event

from hush.ledger.book import Ledger
from hush.ledger.chain import Chain
from hush.ledger.entries import BY_HAND, Spend, to_fields
from hush.ledger.total import Cost

MOST_DIFFERENT = 5000
REPEATS = 3  # of which the fastest counts


def list_spends(kind: str, entries: int) -> Iterator[Spend]:
    for number in range(entries):
        if kind == "by hand":
            points = ((1e-9, 0.001),)
            yield Spend(f"table {number}", "d", BY_HAND, 1, 1, Cost("add-remove", "proven", 1e-9, points=points))
            continue
        sigma = 20 * (1 + (number % 7 if kind == "seven kinds" else number / 1000))
        step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(sigma))
        event = dp_event.SelfComposedDpEvent(step, 100)
        cost = Cost("zero-out", "proven", 1e-5, event, assumptions=("the number of examples is public",), lost=1e-12)
        yield Spend(f"{number:016x}", "d", "dp-sgd", 100, 100, cost, noise=f"{number:064x}", per_step=True)


def write_ledger(path: Path, spends: Iterator[Spend]) -> None:
    """As hush writes it, with one flush for all."""
    Ledger(path)
    flush, os.fsync = os.fsync, lambda fd: None
    try:
        with Chain(path).locked() as chain:
            for spend in spends:
                chain.append(at="2026-01-01T00:00:00+00:00", kind="spend", **to_fields(spend))
    finally:
        os.fsync = flush


def measure(*arguments: object) -> tuple[float, float]:
    """CPU seconds and MB of one command."""
    command = [sys.executable, "-m", "hush", *map(str, arguments)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def command(name: str, path: Path, turn: int) -> tuple[object, ...]:
    added = (f"x {turn}", "--epsilon", 0.1, "--delta", 1e-9, "--dataset", "d")
    return ("ledger", name, path, *(added if name == "add" else ()))


def main() -> None:
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("by hand", "seven kinds", "all different"):
            number = min(entries, MOST_DIFFERENT) if kind == "all different" else entries
            one, path = Path(folder) / f"one {kind}.jsonl", Path(folder) / f"{kind}.jsonl"
            write_ledger(one, list_spends(kind, 1))
            write_ledger(path, list_spends(kind, number))
            for name in ("show", "add"):
                start, _ = min(measure(*command(name, one, turn)) for turn in range(REPEATS))
                seconds, memory = min(measure(*command(name, path, turn)) for turn in range(REPEATS))
                beyond = f"{seconds - start:+.2f} s beyond one entry"
                print(f"{number} {kind}, {name}: {seconds:.2f} s, {beyond}, {memory:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
