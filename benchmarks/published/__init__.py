"""Published experiments, run again: their records, and what the page docs/reproduction.md says of them."""
