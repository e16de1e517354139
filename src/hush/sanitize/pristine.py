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


class Found:
    """A model, and losses if there are any, at one moment."""

    def __init__(self, model: nn.Module, losses: Any = None) -> None:
        self._drawn = _read_generators()
        self._kind = type(model).__name__
        self._inside: list[Watched] = []
        self._attributes: list[tuple[str, bool, dict[str, Any], dict[str, Any]]] = []
        self._cells: list[tuple[str, CellType, Any]] = []
        seen: dict[int, Any] = {}
        for owner, root in ((f"the {self._kind}", model), ("the losses", losses)):
            found = reach_all(root, seen, follow=root is losses)
            self._inside += [each.named(owner) for each in found.watched]
            is_loss = root is losses
            self._attributes += [
                (f"'{place}' of {owner}" if place else owner, is_loss, now, dict(now))
                for place, now in found.attributes
            ]
            self._cells += [(f"'{place}' of {owner}", cell, _content_of(cell)) for place, cell in found.cells]

    def put_back(self) -> None:
        """Every attribute as it was; refuse what was changed inside of one, and numbers that losses kept."""
        kept = self._put_back_attributes() + self._put_back_cells()
        if _read_generators() != self._drawn:
            raise Refused(
                f"the {self._kind} or its data draw from Python's random or from numpy, so that a record would shift "
                "the numbers of others: draw with torch"
            )
        for place in [*kept, *(each.place for each in self._inside if each.is_changed())]:
            raise Refused(
                f"{place} is not the same after a forward pass, so that a record would be in the rows or gradients of "
                "others, or pass by the layer: keep what a forward computes out of the model and of the losses"
            )

    def _put_back_attributes(self) -> list[str]:
        kept: list[str] = []
        for place, is_loss, now, found in self._attributes:
            if len(now) == len(found) and all(now.get(key) is value for key, value in found.items()):
                continue
            if is_loss:
                kept += [f"{key} of {place}" for key, old in found.items() if _is_kept(old, now.get(key))]
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
    yield
    found.put_back()


@contextmanager
def restoring(losses: Any, model: nn.Module) -> Iterator[None]:
    """After it, the attributes and tensors of losses are as they were, whatever ran within; the model is not looked
    at."""
    found = reach_all(losses, {id(module): module for module in model.modules()}, follow=True)
    attributes = [(now, dict(now)) for _, now in found.attributes]
    cells = [(cell, _content_of(cell)) for _, cell in found.cells]
    tensors = [(each.value, each.value.detach().clone()) for each in found.watched if isinstance(each.value, Tensor)]
    try:
        yield
    finally:
        for now, before in attributes:
            now.clear()
            now.update(before)
        for cell, content in cells:
            if content is not cell:
                cell.cell_contents = content
        for tensor, copy in tensors:
            if not torch.equal(tensor.detach(), copy):
                tensor.data.copy_(copy)


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
