"""What a forward must leave alone: whatever it writes into a buffer or a parameter carries the batch past the noise.

Running statistics, an embedding with ``max_norm``, a memory of past features: each of them would be released with the
model, or meet other examples in a later step, without clipping and without noise. The same holds for weights that
somebody changes between two steps: only what the plan's rule wrote is covered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hush.errors import Refused
from hush.gradients.spot import Mixing
from hush.named import Named


class Untouched:
    """The buffers and frozen parameters of a model as they are now; nothing but the trained parameters may change.

    Every step is checked by torch's own count of writes, which costs nothing; `complete` compares the bits. The trained
    parameters are looked at when the rule has written them and again after the next forward, since ``weight.data`` has
    no count of writes of its own: twice 0.15 ns a weight, a twentieth of what its noise costs.
    """

    def __init__(self, model: nn.Module, params: Named) -> None:
        self._model, self._params = model, params
        self._known = {name: (_writes(t), _digest(t)) for name, t in self._others().items()}
        self._left: _Bits | None = None
        self._why = ""

    def settled(self) -> None:
        """The rule has written the trained parameters; any other change from now on is noticed."""
        self._left = _Bits.of(self._params)

    def _others(self) -> Named:
        """Everything of the model that is not trained, under all its names."""
        trained = {id(p) for p in self._params.values()}
        model = self._model
        every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        return {name: t for name, t in every if id(t) not in trained}

    @contextmanager
    def during_forward(self, *, complete: bool) -> Iterator[None]:
        """Refuse a forward (and all that follows, a release too) that writes into the model."""
        if self._left is None:
            self.settled()
        before = {name: _writes(p) for name, p in self._params.items()}
        try:
            yield
        except Mixing as stop:
            self._why = str(stop)
            raise
        finally:
            for name, p in self._params.items():
                if _writes(p) != before[name]:
                    self._why = self._why or _reason(f"parameter '{name}'")
        self.check(complete=complete)

    def check(self, *, complete: bool) -> None:
        """Refuse where something changed that is not trained, or something trained that the rule did not write."""
        others = self._others()
        changed = [name for name in self._params if name in others]  # another one stands in its place
        if self._left is not None:
            changed += self._left.changed(self._params)
        if changed and not self._why:
            self._why = (
                f"parameter '{changed[0]}' was changed since the last step by something else than this run's rule (an "
                "optimizer, load_state_dict, weight.data), which no guarantee covers: let the run alone change the "
                "weights, or start a new run from weights that were not made from these data"
            )
        if self._why:
            raise Refused(self._why)
        for name, tensor in others.items():
            writes, digest = self._known.get(name, (None, ""))
            if (complete or writes != _writes(tensor)) and digest != _digest(tensor):
                self._why = _reason(f"{'parameter' if isinstance(tensor, nn.Parameter) else 'buffer'} '{name}'")
                raise Refused(self._why)

    def check_release(self) -> None:
        """Refuse to release a model that holds more than its trained parameters and what it began with."""
        self.check(complete=True)
        names = {name for name, _ in self._model.named_parameters(remove_duplicate=False)} | set(self._known)
        for name in self._model.state_dict():
            if name not in names:
                raise Refused(
                    f"'{name}' of the model's state is no parameter and no buffer: nothing covers its release"
                )


def _reason(what: str) -> str:
    return (
        f"{what} changes in a training forward, so it would carry the data past the noise: use a layer without running "
        "statistics, such as GroupNorm (model = hush.to_group_norm(model)), or an embedding without max_norm"
    )


def _writes(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version


SMALL = 1 << 12  # tensors of fewer numbers are compared as they are


@dataclass(frozen=True)
class _Bits:
    """What parameters are at one moment: a copy of the small ones, and of each large one the sum of its bits as whole
    numbers that wrap around, the fastest sum there is that sees every bit."""

    small: Tensor
    large: tuple[int, ...]

    @staticmethod
    def of(params: Named) -> _Bits:
        whole = [p.detach().view(_WHOLE[p.element_size()]) for p in params.values()]
        small = [w.reshape(-1).view(torch.uint8) for w in whole if w.numel() < SMALL]
        large = tuple(int(w.sum(dtype=w.dtype)) for w in whole if w.numel() >= SMALL)
        return _Bits(torch.cat([torch.empty(0, dtype=torch.uint8, device=whole[0].device), *small]), large)

    def changed(self, params: Named) -> list[str]:
        """The parameters that are something else now."""
        now = _Bits.of(params)
        if now.large == self.large and torch.equal(now.small, self.small):
            return []
        before, large = iter(torch.split(self.small, _sizes(params))), iter(self.large)
        after, large_now = iter(torch.split(now.small, _sizes(params))), iter(now.large)
        return [
            name
            for name, p in params.items()
            if (not torch.equal(next(before), next(after)) if p.numel() < SMALL else next(large) != next(large_now))
        ]


_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _sizes(params: Named) -> list[int]:
    return [p.numel() * p.element_size() for p in params.values() if p.numel() < SMALL]


def _digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().data, digest_size=16).hexdigest()
