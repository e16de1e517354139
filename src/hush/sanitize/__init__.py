"""Methods that release noisy activations or labels instead of noisy gradients (docs/sanitize.md).

In scope: the noise layer, its threshold, early stopping, randomised labels, and their proofs. Ordinary DP-SGD uses
nothing in this package.
"""
