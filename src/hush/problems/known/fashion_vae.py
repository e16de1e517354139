"""Fashion-MNIST, variational autoencoder (P3); the metric is the loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hush.data import idx
from hush.problems.known._images import COUNT, scaled
from hush.problems.models import VAE, vae_losses
from hush.problems.problem import Problem, classification


def problem(*, seed: int, validation: float, data_dir: Path | None) -> Problem:
    """60 000 training and 10 000 test images in [0, 1]; 1 875 265 parameters; the labels are not used."""
    split = scaled(idx.load("fashion-mnist", data_dir), 0.0, 1.0)
    base = classification(split, VAE, classes=10, seed=seed, validation=validation, assumptions=(COUNT,))
    return replace(base, losses=vae_losses, metric="loss", classes=None)
