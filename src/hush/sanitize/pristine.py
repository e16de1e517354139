"""A model that remembers nothing of a record: it is as it was found when the record has passed.

`hush.gradients.swaps` takes away the tensors and numbers that a forward leaves in a model's attributes, and lets whole
numbers count forwards. Here those go too, since one of them ("there was a large record") is enough to reach the next
record's row. What is changed inside a list, an array, an object or a class of the model's cannot be put back: that is
refused, and so are draws from Python's random and from numpy, whose numbers would be shifted for the records that
follow. Losses are looked at in the same way, in what they close over too.

All that can be reached is visited once (`hush.sanitize.reachable`) and compared one by one later, so that a record
costs what is held, and not what could be reached by it again. Globals, files and the insides of foreign objects that do
not say what they hold are not seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hush.errors import Refused
from hush.sanitize.reachable import Watched, reach_all

COPIED = 2**24  # bytes of a tensor of the losses that are put back after something was tried


class Found:
    """A model, and losses if there are any, at one moment."""

    def __init__(self, model: nn.Module, losses: Any = None) -> None:
        self._drawn = _read_generators()
        self._kind = type(model).__name__
        self._inside: list[tuple[str, Watched]] = []
        self._attributes: list[tuple[str, bool, dict[str, Any], dict[str, Any]]] = []
        self._cells: list[tuple[str, CellType, Any]] = []
        seen: dict[int, Any] = {}
        for owner, root in ((f"the {self._kind}", model), ("the losses", losses)):
            found = reach_all(root, seen, follow=root is losses)
            self._inside += [(owner, each) for each in found.watched]
            self._attributes += [(place, root is losses, now, dict(now)) for place, now in found.attributes]
            self._cells += [(f"'{place}' of {owner}", cell, _content_of(cell)) for place, cell in found.cells]

    def put_back(self) -> None:
        """Every attribute as it was; refuse what was changed inside of one, and numbers that losses kept."""
        kept = self.put_back_attributes()
        if _read_generators() != self._drawn:
            raise Refused(
                f"the {self._kind} or its data draw from Python's random or from numpy, so that a record would shift "
                "the numbers of others: draw with torch"
            )
        changed = [(owner, each) for owner, each in self._inside if each.is_changed()]
        kept += [f"'{each.place}' of {owner}" if each.place else owner for owner, each in changed]
        for place in kept:
            raise Refused(
                f"{place} is not the same after a forward pass, so that a record would be in the rows or gradients of "
                "others, or pass by the layer: keep what a forward computes out of the model and of the losses"
            )

    def put_back_attributes(self) -> list[str]:
        """Every attribute as it was; those of the losses that held another number are named."""
        kept = self._put_back_cells()
        for place, is_loss, now, found in self._attributes:
            if _is_as_found(now, found):
                continue
            if is_loss:
                keys = [key for key, old in found.items() if _is_kept(old, now.get(key))]
                kept += [f"'{place}.{key}'".replace("'.", "'") + " of the losses" for key in keys]
            now.clear()
            now.update(found)
        return kept

    def _put_back_cells(self) -> list[str]:
        kept: list[str] = []
        for place, cell, found in self._cells:
            now = _content_of(cell)
            if now is found:
                continue
            kept += [place] if _is_kept(found, now) else []
            if found is cell:
                del cell.cell_contents
            else:
                cell.cell_contents = found
        return kept


@contextmanager
def left_as_found(model: nn.Module, losses: Any = None) -> Iterator[None]:
    """After it, the model is as it was, and so are its losses."""
    found = Found(model, losses)
    try:
        yield
    except BaseException:
        found.put_back_attributes()
        raise
    found.put_back()


@contextmanager
def restoring(losses: Any, model: nn.Module) -> Iterator[None]:
    """After it, the attributes and tensors of losses are as they were, whatever ran within, but for large ones; the
    model is not looked at."""
    found = reach_all(losses, {id(module): module for module in model.modules()}, follow=True)
    attributes = [(now, dict(now)) for _, now in found.attributes]
    cells = [(cell, _content_of(cell)) for _, cell in found.cells]
    tensors = [each.value for each in found.watched if isinstance(each.value, Tensor) and each.value.nbytes <= COPIED]
    copies = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for now, before in attributes:
            if not _is_as_found(now, before):
                now.clear()
                now.update(before)
        for cell, content in cells:
            if content is not cell:
                cell.cell_contents = content
        for tensor, copy in zip(tensors, copies, strict=True):
            if not torch.equal(tensor.detach(), copy):
                tensor.data.copy_(copy)


def _is_as_found(now: dict[str, Any], found: dict[str, Any]) -> bool:
    return len(now) == len(found) and all(now.get(key) is value for key, value in found.items())


def _content_of(cell: CellType) -> Any:
    """What a cell holds; itself where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _is_kept(old: Any, now: Any) -> bool:
    """Whether a number that losses began with is another now, so that training would go on without what was meant to be
    kept. Whole numbers may count, and what was None or not there may be left; both are taken away."""
    if isinstance(old, int) or not isinstance(old, float | complex | Tensor | np.ndarray | np.generic):
        return False
    return old is not now and (isinstance(old, Tensor | np.ndarray) or repr(old) != repr(now))


def _read_generators() -> tuple[Any, ...]:
    _, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), np.asarray(keys).tobytes(), *rest
