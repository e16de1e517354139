"""Real data: one loader a dataset, verified bytes, nothing unpickled."""
