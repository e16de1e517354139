"""Optimizers: the update of the parameters from a noisy gradient. Post-processing, which cannot weaken privacy.

>>> from hush.optimizers import EMA, SGD, KalmanFilter, chain
>>> optimizer = chain(KalmanFilter(kappa=0.7), SGD(lr=1.0, momentum=0.9), EMA(0.999))

In scope: anything computed from noisy gradients and public numbers. Out of scope: anything that reads data or losses.
"""

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
