"""The state of process 0 on every process of a run: after it was restored from a checkpoint, which it alone reads."""

from __future__ import annotations

import torch
from safetensors.torch import load, save

from hush.checkpoint.file import unshare
from hush.checkpoint.tree import flatten, revive, unflatten
from hush.named import Named
from hush.run import Run


def share_state(run: Run) -> None:
    """Set the run of every process to where that of process 0 stands; each of them calls it. The number of threads goes
    along, for it decides last bits."""
    ranks = run.ranks
    if ranks.world == 1:
        return
    tensors: Named = {}
    told = None if ranks.rank else {"state": flatten(run.state(), tensors), "threads": torch.get_num_threads()}
    told = ranks.hear(told)
    plain = unshare({name: value.cpu().contiguous() for name, value in tensors.items()})
    content = ranks.hear_bytes(b"" if ranks.rank else save(plain))
    if ranks.rank:
        torch.set_num_threads(told["threads"])
        run.restore(revive(unflatten(told["state"], load(content)), run.state(), run.device), compared=True)
