"""Activations released instead of gradients: the layer, its threshold, and when to stop."""

from hush.sanitize.funnel import build_funnel
from hush.sanitize.layer import Sanitize, find_layer, insert
from hush.sanitize.stopping import Stop, find_stop, flag_flat, flag_steady, measure_spread, state_stop, take_until
from hush.sanitize.threshold import AdaptiveThreshold

__all__ = [
    "AdaptiveThreshold",
    "Sanitize",
    "Stop",
    "build_funnel",
    "find_layer",
    "find_stop",
    "flag_flat",
    "flag_steady",
    "insert",
    "measure_spread",
    "state_stop",
    "take_until",
]
