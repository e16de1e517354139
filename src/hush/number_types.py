"""Numbers of two types: data in float64 under a model in float32, which torch refuses in words of its own."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hush.errors import BadInput
from hush.named import Losses
from hush.source import Source, Tensors


def check_number_types(model: nn.Module, losses: Losses, rows: Source) -> None:
    """Refuse tensors whose floating numbers are of another type than the model's where, and only where, the model
    cannot work with them: it is tried on zeros, in a copy, and only if the types differ."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if own not in (torch.float32, torch.float64) or not isinstance(rows, Tensors):  # coarser ones are refused by a run
        return
    others = [t.dtype for t in rows.tensors if _differs(t, own)]
    if not others:
        return
    zeros = tuple(torch.zeros_like(t[:1]) for t in rows.tensors)
    alike = tuple(t.to(own) if _differs(t, own) else t for t in zeros)
    if _works(model, losses, alike, rows.single) and not _works(model, losses, zeros, rows.single):
        data, network = (str(kind).removeprefix("torch.") for kind in (others[0], own))
        other = ", or the model, as with model.double()" if others[0] == torch.float64 else ""
        raise BadInput(
            f"the data is {data} and the model {network}: turn the data into {network}, as with x.to({own}){other}"
        )


def _differs(tensor: Tensor, own: torch.dtype) -> bool:
    return tensor.is_floating_point() and tensor.dtype != own


def _works(model: nn.Module, losses: Losses, tensors: tuple[Tensor, ...], single: bool) -> bool:
    device = next(model.parameters()).device
    content = tuple(t.to(device) for t in tensors)
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            losses(copy.deepcopy(model), content[0] if single else content)
        except Exception:  # of the model or of the losses, in words of their own
            return False
    return True
