"""How much of DP-AdamBC's step comes from coordinates whose second moment the noise explains wholly.

There v̂ − ψ is below the floor ζ′, the step is m̂/√ζ′, and m̂ is mostly noise. Every epoch of one run of the comparison in
optimizers.py: the fraction of coordinates at the floor, and their share of the squared length of the update. One JSON
line a run goes to docs/results/adam_floor.jsonl.

    OMP_NUM_THREADS=1 python benchmarks/adam_floor.py [--entry "dp-adam-bc + floor 1e-6"] [--lr 1e-4] [--epochs 10]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hush.training import take_steps
from optimizers import Spec, begun

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "adam_floor.jsonl"


def looked_at(optimizer: Any, state: Any) -> dict[str, float]:
    """What the floor decides in the update that was just made from this state."""
    start = 1.0 - optimizer.beta2 ** state["taken"]
    scale = torch.cat([v.flatten() for v in state["v"].values()]).sub(state["psi"]).div(start)
    update = torch.cat([m.flatten() for m in state["m"].values()]) / scale.clamp_min(optimizer.floor).sqrt()
    low = scale <= optimizer.floor
    share = update[low].square().sum() / update.square().sum()
    return {"step": state["taken"], "at_floor": float(low.double().mean()), "share_of_update": float(share)}


def main() -> None:
    """One run, looked at once an epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entry", default="dp-adam-bc")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    spec = Spec(arguments.entry, "final", arguments.lr, 0, arguments.epochs)
    _, run = begun(spec)
    every, seen = run.plan.steps // arguments.epochs, []
    for _ in take_steps(run):
        if run.next % every == 0:
            seen.append(looked_at(run.plan.optimizer, run.state()["rule"]))
            print(json.dumps(seen[-1]), flush=True)
    row = {"spec": asdict(spec), "psi": run.state()["rule"]["psi"], "floor": run.plan.optimizer.floor, "epochs": seen}
    with RESULTS.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
