"""Privacy accounting: events, accountants, calibration, guarantees and trade-off curves. Does not import torch.

    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.004, dp_event.GaussianDpEvent(1.0)), 4700)
    accountant.epsilon(event, delta=1e-5)

In scope: the cost of a given event. Which event a plan has is decided by the table in `hush.guarantees`.
"""
