"""Tensor memory of one step above parameters and batch: hush against ordinary SGD, from the profiler's allocations.

python benchmarks/memory.py                      # every model at batch 256
python benchmarks/memory.py --logical 8192       # also: a logical batch of P1 in pieces
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from models import CASES
from peers import Data, Step, fetched, hush_run


def peak_bytes(step: Callable[[], Any]) -> int:
    """The largest sum of live tensor bytes during a step, over what was live before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        step()
    events = [e for e in recording.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def plain(case: Any, data: Data) -> tuple[Step, Step]:
    """A step of ordinary SGD without its batch's copy, and what must happen before it."""
    model, batch = case.model(), fetched(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        case.losses(model, batch).mean().backward()
        optimizer.step()

    return step, optimizer.zero_grad


def measured(name: str, n: int) -> tuple[int, int, int]:
    """Bytes of ordinary SGD, of hush, and of hush in a step in which it looks for examples that meet; hush's copy of
    the batch is subtracted."""
    data = CASES[name].batch(n)
    step, before = plain(CASES[name], data)
    step()
    before()
    ordinary = peak_bytes(step)
    copied = sum(t.numel() * t.element_size() for t in data)
    usual, checked = (peak_bytes(hush_run(CASES[name], data, checked=way)) - copied for way in (False, True))
    return ordinary, usual, checked


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--logical", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    print("| model | batch | plain SGD, MB | hush, MB | ratio | in a step that is checked, MB |")
    print("|---" * 6 + "|")
    for name in options.models.split(","):
        ordinary, usual, checked = measured(name, options.batch)
        cells = (f"{ordinary / 1e6:.1f}", f"{usual / 1e6:.1f}", f"{usual / ordinary:.2f}", f"{checked / 1e6:.1f}")
        print(f"| {name} | {options.batch} | {' | '.join(cells)} |", flush=True)
    if options.logical:
        data = CASES["P1"].batch(options.logical)
        private = hush_run(CASES["P1"], data)
        print(f"P1, logical batch {options.logical}: {peak_bytes(private) / 1e6:.1f} MB, its pieces' data included")


if __name__ == "__main__":
    main()
