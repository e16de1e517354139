"""The model's own randomness."""

from __future__ import annotations

from hush.draws.current import by_place, computing_again, drawing, model_randomness, only, settled
from hush.draws.kinds import Unplaced

__all__ = ["Unplaced", "by_place", "computing_again", "drawing", "model_randomness", "only", "settled"]
