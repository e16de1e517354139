"""What happens after the noise: post-processing, which cannot break privacy."""

from hush.optimizers.adam import Adam, AdamBC
from hush.optimizers.base import Cosine, Linear, Rate, Rule
from hush.optimizers.ftrl import FTRL
from hush.optimizers.sgd import SGD
from hush.optimizers.torch_optim import TorchOptim
from hush.optimizers.wrappers import Averaged, ClipUnits, Grouped, Kalman

__all__ = [
    "FTRL",
    "SGD",
    "Adam",
    "AdamBC",
    "Averaged",
    "ClipUnits",
    "Cosine",
    "Grouped",
    "Kalman",
    "Linear",
    "Rate",
    "Rule",
    "TorchOptim",
]
