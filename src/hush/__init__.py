"""Train neural networks on private data, and say truthfully how private the result is."""
