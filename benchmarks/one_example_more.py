"""How far one more example moves the sum of every shipped model, in clips, and what is charged for it.

    python benchmarks/one_example_more.py --models mlp,p2 --batches 2,37,256 --search 10
    python benchmarks/one_example_more.py --out docs/results/one-example-more.jsonl
    python benchmarks/one_example_more.py --table docs/results/one-example-more.jsonl

Neighbours are adversarial: alike, cancelling, huge, broken rows, and labels at the kink of a loss, where the rounding
of a prediction decides the sign of a gradient (``tests/helpers/shipped_models.py``). With ``--out`` every line is
written when it is measured, and what the file has is not measured again. A part of it is a test.
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
    kinds = KINDS if batch <= 256 and not (MODELS[name].slow and batch > 37) else few
    moved = climb(stage, search, kinds)
    return {
        "model": name,
        "batch": batch,
        "loss": kinked or "own",
        "arithmetic": arithmetic,
        "examples": stage.examples,
        "parameters": sum(p.numel() for p in stage.model.parameters()),
        "rows": stage.run.state()["chunk_rows"],
        "search": search,
        "clips": moved * (1 + stage.plan.charge),
        "charged": 1 + stage.plan.charge,
    }


def read(path: Path | None) -> list[dict[str, Any]]:
    """The lines of a file of results; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def show_table(found: list[dict[str, Any]]) -> None:
    """The largest movement of every model and batch over its losses, as Markdown."""
    batches = sorted({row["batch"] for row in found})
    print(f"| model | parameters | {' | '.join(f'batch {b:,}'.replace(',', ' ') for b in batches)} |")
    print("|---|---|" + "---|" * len(batches))
    for name in dict.fromkeys(row["model"] for row in found):
        rows = [row for row in found if row["model"] == name]
        largest = [max((r["clips"] for r in rows if r["batch"] == b), default=None) for b in batches]
        cells = " | ".join("" if value is None else f"{value:.6f}" for value in largest)
        print(f"| {name} | {rows[0]['parameters']} | {cells} |")
    over = sum(row["clips"] > row["charged"] for row in found)
    low, high = (limit(row["charged"] for row in found) for limit in (min, max))
    print(f"\n{len(found)} rows, {over} above what is charged, which is {low:.6f} to {high:.6f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--losses", default=",".join(("own", *KINKED)))
    parser.add_argument("--search", type=int, default=0, help="further neighbours to try for each")
    parser.add_argument("--arithmetic", default="rigorous", choices=["rigorous", "fast"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of a file instead")
    given = parser.parse_args()
    if given.table is not None:
        show_table(read(given.table))
        return 0
    known = {(r["model"], r["batch"], r["loss"], r["arithmetic"]) for r in read(given.out)}
    over = 0
    for name in given.models.split(","):
        for batch in map(int, given.batches.split(",")):
            for loss in given.losses.split(","):
                if (name, batch, loss, given.arithmetic) in known:
                    continue
                row = measure(name, batch, "" if loss == "own" else loss, given.search, given.arithmetic)
                more = "" if row["clips"] <= row["charged"] else "  MORE THAN CHARGED"
                over += bool(more)
                print(
                    f"{name:14} batch {batch:5} {loss:8} {row['clips']:.6f} of {row['charged']:.6f}{more}", flush=True
                )
                if given.out is not None:
                    with given.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
