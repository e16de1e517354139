"""Activations released instead of gradients: the layer, its threshold, and when to stop."""
