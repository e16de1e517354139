"""From a sweep to a spec of its winners: the learning rate that held-out rows choose, for three seeds."""

from __future__ import annotations

import json
from pathlib import Path

from hush.bench.spec import Spec, read_spec
from hush.bench.trial import Trial
from published import records
from published.sweeps import SETUPS, Cell, read_cells

SEEDS = 3


def write_winners(name: str) -> Path:
    """specs/NAME-winners.toml from the records of NAME's rates. Cells of which a rate is missing are left out."""
    path = records.SPECS / f"{name}-winners.toml"
    path.write_text(render_winners(name))
    return path


def render_winners(name: str) -> str:
    """The text of the spec."""
    swept = read_spec(records.SPECS / f"{SETUPS[name][0]}.toml")
    cells = read_cells(*SETUPS[name])
    chosen = [(cell, find_winner(cell)) for cell in cells]
    grids = [_render_grid(swept, trial) for _, trial in chosen if trial is not None]
    left = sum(trial is None for _, trial in chosen)
    head = [
        f"# The winners of {SETUPS[name][0]} over {SEEDS} seeds; made by `hush reproduce`.",
        f"# Run it in the store of {SETUPS[name][0]}: the first seed of each is there already.",
        *(
            [f"# {left} of {len(cells)} cells are not here: not all of their rates have been run, or all diverged."]
            * bool(left)
        ),
        "",
        f'name = "{name}-winners"',
        f'summary = "The best learning rates of {SETUPS[name][0]}, {SEEDS} seeds"',
        f"seed = {swept.seed}",
        f"secret_seed = {swept.secret_seed}        # the data is public, so noise may be repeatable",
        f"validation = {swept.validation}",
        f"weights = {json.dumps(swept.weights)}",
    ]
    return "\n".join([*head, *grids]) + "\n"


def find_winner(cell: Cell) -> Trial | None:
    """The trial of the chosen rate."""
    best = cell.best
    return None if best is None else next(trial for trial in cell.trials if trial.key == best["key"])


def _render_grid(spec: Spec, trial: Trial) -> str:
    """What the spec said of this trial, in full, with several seeds."""
    block = next(b for b in spec.blocks if (b.problem.values[0], b.method.values[0]) == (trial.problem, trial.method))
    given = trial.settings | trial.options
    named = {"problem": trial.problem, "method": trial.method} | {axis.name: given[axis.name] for axis in block.axes}
    return "\n".join(["", "[[grid]]", *(f"{k} = {json.dumps(v)}" for k, v in named.items()), f"seeds = {SEEDS}"])
