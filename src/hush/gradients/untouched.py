"""What a forward must leave alone: whatever it writes into a buffer or a parameter carries the batch past the noise.

Running statistics, an embedding with ``max_norm``, a memory of past features: each of them would be released with the
model, or meet other examples in a later step, without clipping and without noise. The same holds for weights that
somebody changes between two steps: only what the plan's rule wrote is covered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hush.errors import Refused
from hush.gradients.spot import Mixing
from hush.named import Named


class Untouched:
    """The buffers and frozen parameters of a model as they are now; nothing but the trained parameters may change.

    Every step is checked by torch's own count of writes, which costs nothing; `complete` compares the bits. The trained
    parameters are summed up as whole numbers when the rule has written them and again after the next forward: twice
    0.15 ns a weight, a twentieth of what its noise costs. ``weight.data`` has no count of writes of its own.
    """

    def __init__(self, model: nn.Module, params: Named) -> None:
        self._model, self._params = model, params
        self._known = {name: (_writes(t), _digest(t)) for name, t in self._others().items()}
        self._left: dict[str, int] = {}
        self._why = ""

    def settled(self) -> None:
        """The rule has written the trained parameters; whoever else changes them from now on is noticed."""
        self._left = {name: _sum_of_bits(p) for name, p in self._params.items()}

    def _others(self) -> Named:
        """Everything of the model that is not trained, under all its names."""
        trained = {id(p) for p in self._params.values()}
        model = self._model
        every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        return {name: t for name, t in every if id(t) not in trained}

    @contextmanager
    def during_forward(self, *, complete: bool) -> Iterator[None]:
        """Refuse a forward (and all that follows, a release too) that writes into the model."""
        if not self._left:
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
        changed = [name for name, bits in self._left.items() if _sum_of_bits(self._params[name]) != bits]
        held = dict(self._model.named_parameters())
        changed += [name for name, p in self._params.items() if held.get(name) is not p]
        if changed and not self._why:
            self._why = (
                f"parameter '{changed[0]}' was changed since the last step by something else than this run's rule (an "
                "optimizer, load_state_dict, weight.data), which no guarantee covers: let the run alone change the "
                "weights, or start a new run from weights that were not made from these data"
            )
        if self._why:
            raise Refused(self._why)
        for name, tensor in self._others().items():
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


def _sum_of_bits(tensor: Tensor) -> int:
    """A tensor's bits, summed as whole numbers that wrap around: the fastest sum there is that sees every bit."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return int(tensor.detach().view(whole).sum(dtype=whole))


def _digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().data, digest_size=16).hexdigest()
