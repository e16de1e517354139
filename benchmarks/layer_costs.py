"""Both ways to the norms of a convolution's gradients, timed, next to what the cost model picks.

    python benchmarks/layer_costs.py

"plain" is the ordinary weight gradient; "held" computes, keeps and contracts every example's gradient; "gram" takes the
norm from Gram matrices and then the weight gradient in double precision. CPU milliseconds, the best of twelve rounds,
batch 256.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from hush.per_example.conv import Convolution, Windowed
from hush.per_example.result import Weights
from hush.per_example.rounding import bound_squares

N = 256
# inputs, outputs, side, kernel, stride, padding, and for transposed ones the output padding
LAYERS: dict[str, tuple[int, ...]] = {
    "LeNet-5 1": (1, 6, 28, 5, 1, 2),
    "LeNet-5 2": (6, 16, 14, 5, 1, 0),
    "P1 1": (3, 32, 32, 3, 1, 0),
    "P1 2": (32, 64, 15, 3, 1, 0),
    "P1 3": (64, 128, 6, 3, 1, 0),
    "P2 1": (1, 32, 28, 3, 1, 0),
    "P2 2": (32, 64, 13, 3, 1, 0),
    "P3 1": (1, 32, 28, 3, 2, 1),
    "P3 2": (32, 64, 14, 3, 2, 1),
    "P3 3": (64, 128, 7, 3, 2, 1),
    "P3 4": (128, 256, 4, 3, 2, 1),
    "P3 5, transposed": (256, 128, 2, 3, 2, 1, 1),
    "P3 6, transposed": (128, 64, 4, 3, 2, 1, 0),
    "P3 7, transposed": (64, 32, 7, 3, 2, 1, 1),
    "P3 8, transposed": (32, 1, 14, 3, 2, 1, 1),
}


def best(functions: dict[str, Callable[[], Any]], rounds: int = 12) -> dict[str, float]:
    """CPU milliseconds, interleaved."""
    found = dict.fromkeys(functions, math.inf)
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.process_time()
            function()
            found[name] = min(found[name], (time.process_time() - start) * 1e3)
    return found


def layer(settings: tuple[int, ...]) -> Windowed:
    """The term of one layer on random data."""
    inputs, outputs, side, kernel, stride, padding, *added = settings
    x = torch.randn(N, inputs, side, side)
    if added:
        weight, rule = (
            torch.randn(inputs, outputs, kernel, kernel),
            Convolution.transpose(2, stride, padding, added[0], 1, 1),
        )
    else:
        weight = torch.randn(outputs, inputs, kernel, kernel)
        rule = Convolution.of(2, stride, padding, 1, 1, weight.shape[2:])
    return Windowed(rule, x, torch.randn_like(rule.forward(x, weight, None)), weight)


def ordinary(term: Windowed) -> Any:
    """The weight gradient of ordinary training."""
    settings = term.rule._settings()
    return torch.ops.aten.convolution_backward(term.gy, term.x, term.weight, None, *settings, [False, True, False])


def main() -> None:
    """Print one table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weights = Weights.of(torch.rand(N), torch.float32)
    print("| layer | plain | held | gram | picked |\n|---|---|---|---|---|")
    for name, settings in LAYERS.items():
        term = layer(settings)

        def held(term: Windowed = term) -> Any:
            rows = term.rows(0, N)
            return bound_squares(rows), weights.values @ rows.view(N, -1)

        def gram(term: Windowed = term) -> Any:
            return term.bound_by_grams(), term.sum(weights)

        functions = {"plain": lambda t=term: ordinary(t), "held": held}
        if math.prod(term.wide.shape[2:]) <= 256:  # beyond, the Gram matrices would not fit the memory
            functions["gram"] = gram
        ms = best(functions)
        cells = " | ".join(f"{ms[key]:.1f}" if key in ms else "–" for key in ("plain", "held", "gram"))
        print(f"| {name} | {cells} | {'held' if term.held_is_cheaper() else 'gram'} |", flush=True)


if __name__ == "__main__":
    main()
