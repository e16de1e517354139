"""The first layer of a model on a table: columns to inputs, by public facts only and row by row; no parameters.

It is part of the model, so that the released model takes the columns as they are and memory holds them once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hush.data.schema import WAVES, Column


class Encoder(nn.Module):
    """(n, columns) of numbers and category codes to (n, width); see ``hush.data.schema`` for the four encodings."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        self.width = sum(column.width for column in columns)
        ranged = [i for i, c in enumerate(columns) if c.kind == "number" and c.low is not None]
        free = [i for i, c in enumerate(columns) if c.kind == "number" and c.low is None]
        self._keep("ranged", torch.tensor(ranged, dtype=torch.long))
        self._keep("low", torch.tensor([columns[i].low for i in ranged], dtype=torch.float32))
        self._keep("high", torch.tensor([columns[i].high for i in ranged], dtype=torch.float32))
        self._keep("free", torch.tensor(free, dtype=torch.long))
        self._keep("waves", torch.tensor(WAVES))
        slots = [(i, s) for i, c in enumerate(columns) if c.kind == "category" for s in range(c.width)]
        self._keep("slot_column", torch.tensor([i for i, _ in slots], dtype=torch.long))
        self._keep("slot", torch.tensor([float(s) for _, s in slots]))

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """The inputs: ranged numbers, the fixed functions of the others, category slots."""
        low, high = self.get_buffer("low"), self.get_buffer("high")
        ranged = rows[:, self.get_buffer("ranged")]
        ranged = 2 * (torch.minimum(torch.maximum(ranged, low), high) - low) / (high - low) - 1
        free = rows[:, self.get_buffer("free")]
        waves = (torch.asinh(10 * free).unsqueeze(2) * self.get_buffer("waves")).flatten(1)
        slots = (rows[:, self.get_buffer("slot_column")] == self.get_buffer("slot")).to(rows.dtype)
        return torch.cat([ranged, torch.asinh(free) / 4, torch.tanh(free), waves.sin(), waves.cos(), slots], dim=1)
