"""Noisy values of the data (ranges, classes, class counts, metrics) and the metrics they estimate.

In scope: how each value is bounded, drawn and accounted, with its proof. When a value is charged and drawn is decided
by `hush.data_release`.
"""
