"""Noisy values of the data (ranges, class counts, metrics) and the metrics they estimate."""
