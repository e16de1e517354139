"""What is done with a release by whoever receives it: load it, predict, verify it."""

from hush.handover.load import Loaded, Predictions, load
from hush.handover.verification import Verification, verify_release

__all__ = ["Loaded", "Predictions", "Verification", "load", "verify_release"]
