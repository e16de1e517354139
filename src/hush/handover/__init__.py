"""What is done with a release by whoever receives it: load it, predict, verify it."""

from hush.handover.load import Loaded, Predictions, load

__all__ = ["Loaded", "Predictions", "load"]
