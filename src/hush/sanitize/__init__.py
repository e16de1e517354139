"""Activations released instead of gradients: the layer, its threshold, and when to stop."""

from hush.sanitize.layer import Sanitize, find_layer, insert

__all__ = ["Sanitize", "find_layer", "insert"]
