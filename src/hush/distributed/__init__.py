"""Training on several processes: torch.distributed calls and consistency checks.

In scope: joining the processes of torchrun, their collectives, and checks that all of them have the same plan, weights
and data. Running many independent trials on a cluster is in `hush.bench`.
"""
