"""Labels and predicted probabilities for the tests of metrics."""

from __future__ import annotations

import numpy as np


def example(rows: int, classes: int, seed: int = 0, skill: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels of uneven frequency and probabilities that know something about them."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=rows, p=np.arange(1, classes + 1) / sum(range(1, classes + 1)))
    labels[:classes] = range(classes)
    logits = rng.normal(size=(rows, classes)) + skill * np.eye(classes)[labels]
    shares = np.exp(logits)
    return shares / shares.sum(1, keepdims=True), labels
