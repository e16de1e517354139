"""Privacy accounting: events, accountants, calibration, guarantees and trade-off curves. Does not import torch.

>>> from dp_accounting import dp_event
>>> from hush import accounting
>>> step = dp_event.PoissonSampledDpEvent(0.004, dp_event.GaussianDpEvent(1.0))
>>> event = dp_event.SelfComposedDpEvent(step, 4700)
>>> round(accounting.epsilon(event, delta=1e-5), 2)
1.46
>>> accounting.delta(event, epsilon=2.0) < 1e-5
True

`calibrate` finds the noise for an ε; `curve_of_event` gives the trade-off curve, which no attacker beats.

In scope: the cost of a given event. Which event a plan has is decided by the table in `hush.guarantees`.
"""

from hush.accounting import events
from hush.accounting.accountant import default_accountant, delta, epsilon, profile_of
from hush.accounting.calibration import largest_steps
from hush.accounting.calibration import smallest_sigma as calibrate
from hush.accounting.guarantee import Guarantee
from hush.accounting.selection import Trials
from hush.accounting.tradeoff import best_accuracy, curve_of_event, curve_of_guarantee

__all__ = [
    "Guarantee",
    "Trials",
    "best_accuracy",
    "calibrate",
    "curve_of_event",
    "curve_of_guarantee",
    "default_accountant",
    "delta",
    "epsilon",
    "events",
    "largest_steps",
    "profile_of",
]
