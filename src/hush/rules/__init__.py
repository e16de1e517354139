"""What happens after the noise: post-processing, which cannot break privacy."""

from hush.rules.adam import Adam
from hush.rules.adam_bc import AdamBC
from hush.rules.averaged import Averaged
from hush.rules.clip_units import ClipUnits
from hush.rules.ftrl import FTRL
from hush.rules.grouped import Grouped
from hush.rules.kalman import Kalman
from hush.rules.rule import Cosine, Linear, Rate, Rule
from hush.rules.sgd import SGD
from hush.rules.torch_optim import TorchOptim

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
