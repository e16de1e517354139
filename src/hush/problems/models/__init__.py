"""The models of the literature, as plain ``nn.Module`` objects without layers that mix examples."""

from hush.problems.models.convolutional import lenet5, p1, p2, small_cnn
from hush.problems.models.dense import Single, logistic, mlp
from hush.problems.models.encoder import Encoder
from hush.problems.models.funnel import Funnel
from hush.problems.models.resnet import ResNet18
from hush.problems.models.vae import VAE, vae_losses

__all__ = [
    "VAE",
    "Encoder",
    "Funnel",
    "ResNet18",
    "Single",
    "lenet5",
    "logistic",
    "mlp",
    "p1",
    "p2",
    "small_cnn",
    "vae_losses",
]
