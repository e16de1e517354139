"""P3: the variational autoencoder of the optimizer comparisons, on 28×28 images in [0, 1].

Kingma and Welling, "Auto-Encoding Variational Bayes", 2014. Loss per example: ‖x − x̂‖² + ½ Σ (μ² + e^s − s − 1), with
z = μ + e^{s/2} ξ, ξ standard normal, one draw a step. In eval mode z = μ, so that an evaluation has one answer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LATENT = 32


class VAE(nn.Module):
    """Convolutions 32-64-128-256 (3×3, stride 2), 1024-512-(32, 32); the mirror image back: 1 875 265 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *_down(1, 32),
            *_down(32, 64),
            *_down(64, 128),
            *_down(128, 256),
            nn.Flatten(),
            nn.Linear(1024, 512),
            nn.ReLU(),
        )
        self.mean = nn.Linear(512, LATENT)
        self.log_variance = nn.Linear(512, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 512),
            nn.ReLU(),
            nn.Linear(512, 1024),
            nn.ReLU(),
            nn.Unflatten(1, (256, 2, 2)),
            _up(256, 128, 1),
            nn.ReLU(),
            _up(128, 64, 0),
            nn.ReLU(),
            _up(64, 32, 1),
            nn.ReLU(),
            _up(32, 1, 1),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(reconstruction, μ, s) of images (n, 1, 28, 28)."""
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + (log_variance / 2).exp() * noise), mean, log_variance


def vae_losses(model: nn.Module, content: tuple[Tensor, ...]) -> Tensor:
    """Squared error + Kullback–Leibler divergence, one number per example; labels, if any, are not used."""
    images = content[0]
    rebuilt, mean, log_variance = model(images)
    error = (rebuilt - images).square().flatten(1).sum(1)
    losses: Tensor = error + 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1)
    return losses


def _down(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]


def _up(inputs: int, outputs: int, output_padding: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=output_padding)
