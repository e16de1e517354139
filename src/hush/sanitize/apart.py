"""Losses cut in two at the layer, so that what is behind it sees rows and nothing else of a record.

The losses run twice. First on the record itself, as far as the layer: what reaches it is clamped and gets its noise.
Then on inputs of zeros, with the layer handing on those rows: whatever passes by the layer (a mask of missing values, a
weight by age, a target made of the inputs) sees zeros. The gradient goes back through the rows.

The noise is made before either run, by place and of a stream of its own: a model that draws for some records and not
for others, or sets torch's generator, does not change it and cannot meet it again (a mask that was made of the same
numbers would show it).

In the first run the parameters behind the layer are constants. So their gradient is that of the second run alone, a
function of rows, labels and coins, whichever way a record takes through the model: the labels are copied before it,
and the draws of the second are counted from a fixed number, however many the first had. What the first run leaves in
the model or in the losses is taken away before the second, or refused (`hush.sanitize.pristine`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hush.draws import number_from
from hush.errors import Refused
from hush.gradients import GradientWarning, record
from hush.gradients.substitutes import replacing_forwards
from hush.gradients.swaps import recording
from hush.named import Losses
from hush.randomness import seeded
from hush.sanitize.accounted import Accounted
from hush.sanitize.cut import PROBES, Cut, evaluating, first_of, hide_inputs, make_up, reach_layer
from hush.sanitize.pristine import left_as_found
from hush.source import to_each

HEAD = 1 << 20  # the number of the first draw behind the layer


@dataclass(frozen=True)
class Apart:
    """Losses whose examples, all of one public ``shape``, reach the head by the rows of ``layer`` alone, which are of
    shape ``width``; ``behind`` it learn these parameters."""

    losses: Losses
    layer: Accounted
    behind: frozenset[str]
    shape: torch.Size
    width: torch.Size

    def check_shape(self, content: Any) -> None:
        """Refuse a batch that was padded to its own longest record: that one would be in all rows, and its length
        would pass by the layer."""
        if first_of(content).shape[1:] != self.shape:
            raise Refused(
                "sanitize-hybrid needs records of one shape, and that of these data changes with the batch, so that a "
                "record would be in the rows of others: pad every record to the same length"
            )

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """One loss per example; the content comes with the noise of each one's row."""
        own, noise = content
        hidden = to_each(torch.clone, hide_inputs(own))  # a copy, before the first run can write into the labels
        rows = self.layer.release(self._reach(model, own), noise)
        number_from(HEAD)
        with replacing_forwards({self.layer.layer: lambda _: rows}):
            return self.losses(model, hidden)

    def _reach(self, model: nn.Module, content: Any) -> Tensor:
        """What reaches the layer; it depends on parameters before it, and as far as gradients go on no others."""
        fixed = {id(p): p.detach() for name, p in model.named_parameters() if name in self.behind}
        with left_as_found(model, self.losses), recording(model, fixed):
            return reach_layer(partial(self.losses, model), self.layer.layer, content)


def find_engine(cut: Cut, losses: Apart) -> str:
    """How each example is computed in a batch of its own: mapped by torch.func, or one after the other where that
    cannot map the model. Made-up inputs decide, so no record does."""
    device = next(cut.model.parameters()).device
    try:
        with seeded(0), evaluating(cut.model, True), torch.enable_grad():
            noise = torch.randn(PROBES, *cut.shape, dtype=torch.float64, device=device)
            record(cut.model, losses, (make_up(cut.like, device), noise), engine="functional")
    except Exception as stop:  # whatever it is: if it is not the map, it comes again
        why = type(stop).__name__
        warnings.warn(
            f"one backward pass an example computes this model, which is slow: torch.func cannot map it ({why})",
            GradientWarning,
            stacklevel=2,
        )
        return "one by one"
    return "functional"
