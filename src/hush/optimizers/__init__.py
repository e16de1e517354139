"""What happens after the noise: post-processing, which cannot break privacy."""

from hush.optimizers.adam import Adam, AdamBC
from hush.optimizers.base import Cosine, Linear, Optimizer, Rate
from hush.optimizers.ftrl import FTRL
from hush.optimizers.sgd import SGD
from hush.optimizers.torch_optim import TorchOptim
from hush.optimizers.wrappers import EMA, ClipUnits, Grouped, KalmanFilter, TailAverage, chain

__all__ = [
    "FTRL",
    "SGD",
    "Adam",
    "AdamBC",
    "EMA",
    "TailAverage",
    "chain",
    "ClipUnits",
    "Cosine",
    "Grouped",
    "KalmanFilter",
    "Linear",
    "Rate",
    "Optimizer",
    "TorchOptim",
]
