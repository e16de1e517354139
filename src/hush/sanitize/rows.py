"""Rows that are released with noise, in the place of the data that they are made of.

Release r of record i is yᵢ = [clamp(φ(xᵢ)) + Cσ√n·zᵢᵣ], where φ is what stands before the layer and [·] rounds to the
public grid of the noise (`hush.release`). The noise is that of (secret, "rows", r): the same whenever it is asked for,
so a resumed run releases the same rows again and spends nothing. Nothing is released before the first step asks for
rows, when a ledger has been charged.

φ(xᵢ) is a function of record i and of public things. By construction: record i is read and passes φ in a batch of one,
which has the same shape for every record, so neither a branch that looks at a batch nor a kernel's rounding meets
another record, and whatever φ draws comes from the same public seed for each record. By looking: what a forward leaves
in the model's attributes is taken away after each record, and a model in which it changes buffers, weights, a class, or
what lists, objects and generators hold is refused before anything is released (`hush.sanitize.pristine`). A memory that
is kept in a global or a file is not seen. The clamp is that of the layer as it was accounted for
(`hush.sanitize.accounted`).
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hush.errors import BadInput, Refused
from hush.gradients import Untouched
from hush.gradients.points import make_rewinder
from hush.gradients.swaps import recording
from hush.named import trainable
from hush.randomness import BLOCK, Secret, normal, seeded
from hush.release import add_noise, grid
from hush.sanitize.accounted import Accounted
from hush.sanitize.cut import Cut, evaluating, first_of, reach_layer, with_inputs
from hush.sanitize.pristine import Found
from hush.source import Source

PIECE = 32 * BLOCK  # numbers of noise at a time
PATIENCE = 2.0  # seconds before anything is said
DIGEST = 4  # numbers of 64 bits that stand for a release


@dataclass(eq=False)
class ReleasedRows:
    """A source of released rows with their labels; ``releases`` of each record, the next after ``turn`` steps."""

    cut: Cut
    source: Source
    secret: Callable[[], Secret]
    std: float
    releases: int
    turn: int
    layer: Accounted = field(init=False, repr=False)
    _bounded: Tensor | None = field(default=None, repr=False)
    _released: tuple[int, bytes, Tensor] | None = field(default=None, repr=False)
    _digest: Tensor = field(default_factory=lambda: torch.zeros(DIGEST, dtype=torch.int64), repr=False)
    _number: int = 0

    def __post_init__(self) -> None:
        self.layer = Accounted.of(self.cut.layer)

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Any:
        """Released rows and what stands beside them; no indices release nothing."""
        content = self.source.take(indices)
        return with_inputs(content, self.release()[indices] if len(indices) else torch.empty(0, *self.cut.shape))

    def make_ready(self, step: int) -> None:
        """From now on rows are those of this step's release. What is to be released is computed here, so that whatever
        can fail does so before anything is charged."""
        self._number = step // self.turn % self.releases
        self._compute_once()

    def release(self) -> Tensor:
        """All rows of the present release, on the CPU."""
        secret = self.secret()
        if self._released is None or self._released[:2] != (self._number, secret.key):
            self._released = self._number, secret.key, self._add_noise(secret)
            self._digest = digest_rows(self._released[2])
        return self._released[2]

    def note(self, digests: Tensor) -> Tensor:
        """The digests of the releases so far, with that of the present one."""
        if self._released is None or self._released[0] != self._number:
            return digests
        noted = digests.clone()
        noted[self._number] = self._digest
        return noted

    def check(self, digests: Tensor) -> None:
        """Refuse rows that are not those that this run released before: the noise would be the same, and the difference
        free of it."""
        self.layer.check()
        before = digests[self._number].cpu()
        self.release()
        if bool(before.any()) and not torch.equal(before, self._digest):
            raise Refused(
                "the rows that this run released are not the same when they are computed again (another clip or "
                "width, other code or another machine), and going on would put the same noise on other rows, whose "
                "difference is free of noise: go on with what the run began with, or start a new run"
            )

    def _add_noise(self, secret: Secret) -> Tensor:
        bounded = self._compute_once()
        rows = bounded.double()
        add_noise([rows], self._draw(secret, rows.numel()), self.std, grid(self.std), 1.0)
        return rows.to(bounded.dtype)

    def _draw(self, secret: Secret, size: int) -> Iterator[Tensor]:
        for start in range(0, size, PIECE):
            like = torch.empty(1, dtype=torch.float64).expand(min(PIECE, size - start))
            yield normal(secret, "rows", self._number, like, start)

    def _compute_once(self) -> Tensor:
        if self._bounded is None:
            self._bounded = self._compute()
        return self._bounded

    def _compute(self) -> Tensor:
        """Every record's row within the range, each in a batch of its own."""
        self.layer.check()
        model, parts = self.cut.model, []
        said = time.monotonic()
        untouched = Untouched(model, trainable(model)).during_forward(complete=True)
        with seeded(0), torch.no_grad(), evaluating(model), untouched, recording(model, {}):
            rewind, found = make_rewinder(next(model.parameters()).device), Found(model)
            for number in range(len(self)):
                if time.monotonic() - said > PATIENCE:
                    said = time.monotonic()
                    sys.stderr.write(f"releasing rows: {number} of {len(self)} records\n")
                rewind()
                parts.append(self._compute_alone(number))
                self.layer.check()
                found.put_back()
        return torch.cat(parts)

    def _compute_alone(self, number: int) -> Tensor:
        """The row of one record, whom nothing of the others reaches."""
        model = self.cut.model
        content = self.source.take(torch.tensor([number]))
        inputs = first_of(content).to(next(model.parameters()).device)
        found = self.layer.bound(reach_layer(model, self.cut.layer, inputs)).cpu()
        if found.shape != (1, *self.cut.shape):
            raise BadInput("records of different shapes cannot be released as rows of one width: pad them")
        return found


def digest_rows(rows: Tensor) -> Tensor:
    """What tells released rows from others: BLAKE2b of their bytes, as whole numbers."""
    raw = hashlib.blake2b(rows.contiguous().numpy().tobytes(), digest_size=8 * DIGEST).digest()
    return torch.frombuffer(bytearray(raw), dtype=torch.int64).clone()
