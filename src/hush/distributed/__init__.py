"""Training on several processes: torch.distributed calls and consistency checks."""
