"""Published results, run again: from stores to compact records, and from records to docs/reproduction.md.

    python benchmarks/reproduction.py collect STORE specs/mnist-dpsgd.toml   # results/mnist-dpsgd.jsonl
    python benchmarks/reproduction.py restore STORE specs/mnist-dpsgd.toml   # the other way, to go on elsewhere
    python benchmarks/reproduction.py render                                 # docs/reproduction.md and its pictures
    python benchmarks/reproduction.py winners setup-3                        # specs/setup-3-winners.toml

A record is one run of a spec: its settings, its seed, the versions, what came out, the confusion matrix and the curve
over epochs; no weights. A test holds that page and pictures are what the records give.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from published.page import write_page
from published.records import collect, restore
from published.winners import write_winners


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="the records of a spec from a store")
    restoring = commands.add_parser("restore", help="the records of a spec into a store, which then goes on after them")
    for parsed in (collecting, restoring):
        parsed.add_argument("store", type=Path)
        parsed.add_argument("spec", type=Path)
    commands.add_parser("render", help="the page and its pictures")
    choosing = commands.add_parser("winners", help="a spec with the best learning rates of a sweep")
    choosing.add_argument("name", choices=["setup-1", "setup-2", "setup-3"])
    given = parser.parse_args()
    if given.command == "collect":
        print(collect(given.store, given.spec))
    elif given.command == "restore":
        print(f"{restore(given.store, given.spec)} runs of {given.spec.stem} are in {given.store}")
    elif given.command == "winners":
        print(write_winners(given.name))
    else:
        print(*write_page(), sep="\n")


if __name__ == "__main__":
    main()
