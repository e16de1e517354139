"""Default settings of `hush train --data my.csv`: the one place for a table's defaults.

Everything follows from public numbers: N, the examples to train on (units where rows have one), and the ε asked for.
Nothing is looked up in the rows. The numbers are for classification with DP-SGD and a model that comes with hush; a
number to predict, other methods and other models keep their own. They were chosen on some tables and are reported on
others (docs/tables.md).

- **Model.** Logistic regression below 5 000 examples: noise grows with the number of weights, and a small table does
  not pay for a hidden layer. One hidden layer of 32 from there on.
- **Batch** N/16, at most 4096: at a given ε, few large batches leave less noise in the weights than many small ones.
- **Learning rate** √(Nε)/80, at most 3, at clip 1; half of it for logistic regression. The noise of a step in the
  weights is lr·σ/L, so the rate may grow with N and ε; at 6 training was seen to diverge.
- **Average** of the weights over the last half of the steps, which is post-processing and takes noise out.
- **Rows at a time** (``microbatch``) 4096: rows of a table are short, and few large pieces take less time.

Thirty epochs and a clip of 1 are what every problem has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LOGISTIC, HIDDEN = "logistic", "mlp-32"
FEW = 5_000  # examples, below which a table gets no hidden layer
BATCHES, LARGEST_BATCH = 16, 4_096  # an epoch; a batch
LR_DIVISOR, LARGEST_LR = 80.0, 3.0
AVERAGE = "tail:0.5"
MICROBATCH = 4_096


@dataclass(frozen=True)
class TableDefaults:
    """The numbers of a plan that are a table's own."""

    batch_size: int
    lr: float
    average: str = AVERAGE
    microbatch: int = MICROBATCH


def choose_model(examples: int) -> str:
    """The default model for this number of examples."""
    return LOGISTIC if examples < FEW else HIDDEN


def choose_numbers(examples: int, epsilon: float, *, linear: bool) -> TableDefaults:
    """Batch size, learning rate (two digits of it) and average for N examples and ε."""
    rate = min(LARGEST_LR, math.sqrt(examples * epsilon) / LR_DIVISOR) / (2 if linear else 1)
    batch = min(LARGEST_BATCH, -(-examples // BATCHES))
    return TableDefaults(batch, float(f"{rate:.2g}"))
