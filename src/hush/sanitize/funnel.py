"""The funnel: fully connected layers 8n, 4n, 2n, n in front of the sanitisation layer."""

from __future__ import annotations

from torch import nn

from hush import validate


def build_funnel(inputs: int, width: int) -> list[nn.Module]:
    """Linear layers ``inputs``-8n-4n-2n-n, each followed by a ReLU, down to the public ``width`` n.

    The noise of a sanitisation layer has the standard deviation Cσ√n, so a narrow layer is a quiet one; the funnel lets
    the network get there without throwing away most of what it knows in one step."""
    validate.whole(inputs=inputs, width=width)
    widths = [inputs, 8 * width, 4 * width, 2 * width, width]
    pairs = zip(widths[:-1], widths[1:], strict=True)
    return [layer for before, after in pairs for layer in (nn.Linear(before, after), nn.ReLU())]
