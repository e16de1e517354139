"""How far one more example moves the sum of every shipped model, in clips, beside what is charged.

    python benchmarks/one_example_more.py --models mlp,p2 --batches 2,37,256 --search 10
    python benchmarks/one_example_more.py --json figures.json

Neighbours are adversarial: alike, cancelling, huge, broken rows, and labels at the kink of a loss, where the rounding
of a prediction decides the sign of a gradient (``tests/helpers/shipped_models.py``). The affordable
part of it is a test.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from shipped_models import KINDS, KINKED, MODELS, Stage, climb

BATCHES = (2, 37, 256, 4096)


def measure(name: str, batch: int, kinked: str, search: int, arithmetic: str) -> dict[str, Any]:
    stage = Stage(MODELS[name], batch, arithmetic, kinked=kinked)
    few = ("plain", "at the kink") if kinked else ("plain", "alike", "powers")
    kinds = KINDS if batch <= 256 and not MODELS[name].slow else few
    bound = 1 + stage.plan.charge
    about = {"model": name, "batch": batch, "loss": kinked or "own", "arithmetic": arithmetic}
    return {
        **about,
        "rows": stage.run.state()["chunk_rows"],
        "clips": climb(stage, search, kinds) * bound,
        "charged": bound,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--search", type=int, default=0, help="further neighbours to try for each")
    parser.add_argument("--arithmetic", default="rigorous", choices=["rigorous", "fast"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    for name in given.models.split(","):
        for batch in map(int, given.batches.split(",")):
            for kinked in ("", *KINKED):
                row = measure(name, batch, kinked, given.search, given.arithmetic)
                found.append(row)
                over = "" if row["clips"] <= row["charged"] else "  MORE THAN CHARGED"
                print(
                    f"{name:14} batch {batch:5} {row['loss']:8} {row['clips']:.6f} of {row['charged']:.6f}{over}",
                    flush=True,
                )
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
