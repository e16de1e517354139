"""Models that per-example clipping can work with: no layer mixes examples, no buffer learns from a batch."""

from __future__ import annotations

import copy

import torch
from torch import nn

from hush.errors import Refused
from hush.gradients.swapped import jitted

_PRECISE = (torch.float32, torch.float64)
_MIXING = (nn.modules.batchnorm._BatchNorm,)


def check_model(model: nn.Module) -> None:
    """Refuse layers that mix examples, buffers that a training forward changes and coarse numbers; say what to do."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise Refused(
                f"parameter '{name}' is complex, and clipping and noise are proven for real numbers only: keep its "
                "real and imaginary parts as two real parameters and join them in forward with torch.complex"
            )
        if parameter.requires_grad and parameter.dtype not in _PRECISE:
            raise Refused(
                f"parameter '{name}' is {str(parameter.dtype).removeprefix('torch.')}, too coarse for the proof: "
                "rounding moves a sum by more than one example may, and leaves gaps in the noise; use model.float()"
            )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise Refused(jitted(name))
        where = f"layer '{name}' ({type(module).__name__})"
        if isinstance(module, _MIXING) and (module.training or not module.track_running_stats):
            raise Refused(
                f"{where} mixes the examples of a batch, so no example has a gradient of its own to clip: "
                "convert it with model = hush.to_group_norm(model)"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats and module.training:
            raise Refused(
                f"{where} keeps running statistics, which leave the batch without noise: "
                "make it with track_running_stats=False, or convert it with model = hush.to_group_norm(model)"
            )
        if hasattr(module, "weight_u") or type(module).__name__ == "_SpectralNorm":
            raise Refused(
                f"{where} uses spectral normalisation, whose buffers change in every training forward: remove it"
            )


def to_group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with GroupNorm in place of every BatchNorm (and InstanceNorm with running statistics).

    The number of groups is the largest divisor of the channels up to ``groups``; scale and shift are kept.
    """
    return _converted(copy.deepcopy(model), groups)


def _converted(module: nn.Module, groups: int) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) or (
        isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
    ):
        return _group_norm(module, groups)
    for name, child in module.named_children():
        setattr(module, name, _converted(child, groups))
    return module


def _group_norm(old: nn.modules.batchnorm._NormBase, groups: int) -> nn.GroupNorm:
    channels = old.num_features
    count = max(g for g in range(1, min(groups, channels) + 1) if channels % g == 0)
    if isinstance(old, nn.modules.instancenorm._InstanceNorm):
        count = channels
    new = nn.GroupNorm(count, channels, eps=old.eps, affine=old.affine).train(old.training)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
        new = new.to(old.weight.device, old.weight.dtype)
    return new
