"""Detects side effects of a forward pass: walks all objects reachable from a model or its losses, records their state.

A container or an object is compared by the identity of its content, and the content is compared separately. Loggers,
locks, threads and files are ignored: a line in a log is not state that a forward reads.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import operator
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hush.errors import UnsupportedModelError

HOOKS = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, np.generic, np.dtype, Enum)
ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None)})
LEFT = frozenset(  # modules whose objects hold nothing that a forward would read, or never change
    {"logging", "threading", "_thread", "weakref", "_weakref", "_io", "io", "concurrent", "multiprocessing", "pathlib"}
    | {"datetime", "decimal", "fractions", "uuid", "re", "zoneinfo", "operator", "typing", "types", "_abc", "inspect"}
)
FOREIGN = frozenset({"torch", "numpy", "hush", *sys.stdlib_module_names})  # whose classes and functions are no memory
SMALL = 4096  # bytes of a tensor that are compared, in addition to its version counter
SEVERAL = 64  # items from which one look at all their types pays
LEFT_KINDS = (ModuleType, logging.Logger, logging.Handler, logging.LoggerAdapter, threading.Thread)
Held = list[tuple[Any, Any]]  # a name, if there is one, and what has it


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Something that may be changed in place."""

    place: str
    value: Any
    read: Callable[[Any], Any]
    mark: Any
    compare: Callable[[Any, Any], bool]

    def is_changed(self) -> bool:
        """Whether it is another than it was."""
        return not self.compare(self.read(self.value), self.mark)


@dataclass
class ObjectGraph:
    """The objects found: attributes of modules, cells of closures (both can be restored), and all others."""

    attributes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    cells: list[tuple[str, CellType]] = field(default_factory=list)
    watched: list[Fingerprint] = field(default_factory=list)


def reach_all(root: Any, seen: dict[int, Any], *, follow: bool) -> ObjectGraph:
    """All that is held by the root and not yet ``seen``. With ``follow`` the attributes of any object count among
    those that can be put back, as those of a module always do."""
    found, todo = ObjectGraph(), [("", root)]
    while todo:
        place, value = todo.pop()
        if id(value) in seen or is_fixed(value):
            continue
        seen[id(value)] = value  # kept, so that nothing else gets its id
        todo += [(_join(place, key), each) for key, each in _visit(place, value, found, follow)]
    return found


def is_fixed(value: Any) -> bool:
    """Whether it cannot be changed in place."""
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(is_fixed, value)))


def _join(place: str, key: Any) -> str:
    """The name of what is held; a module's own tables have none."""
    if not isinstance(key, str | int) or key in ("_parameters", "_buffers", "_modules"):
        return place
    return f"{place}.{str(key).lstrip('_')}".strip(".")


def _visit(place: str, value: Any, found: ObjectGraph, follow: bool) -> Held:
    """Note a value, and list what it holds."""

    def watch(read: Callable[[Any], Any], compare: Callable[[Any, Any], bool] = _is_same) -> Any:
        mark = read(value)
        found.watched.append(Fingerprint(place, value, read, mark, compare))
        return mark

    if type(value) is dict and len(value) <= SEVERAL:
        watch(_read_items)
        return [(key, each) for key, each in value.items() if not is_fixed(each)] + _list_changeable_keys(value)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return _list_changeable(range(value.size), watch(lambda value: value.ravel().tolist()))
    for kind, leaf in LEAVES:
        if isinstance(value, kind):
            watch(leaf, operator.eq)
            return []
    if isinstance(value, nn.Module):
        found.attributes.append((place, vars(value)))
        return [*((key, each) for key, each in vars(value).items() if key not in HOOKS), *_list_classes(value)]
    if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | functools.partial):
        return _visit_function(place, value, found)
    if isinstance(value, type):
        return [] if _is_foreign(value) else [(k, v) for k, v in watch(_read_class).items() if not _is_code(v)]
    if isinstance(value, LEFT_KINDS) or _root_of(type(value)) in LEFT:
        return []
    if _root_of(type(value)) == "hush" and not callable(value):
        return []
    slots = _find_slots(type(value))
    if isinstance(value, Mapping):
        named = set(map(type, value)) == {str}  # no other key is equal to one, and this is fast
        keys, values = watch(list, operator.eq if named else _is_same), watch(_read_values)
        held = [*([] if named else _list_changeable_keys(keys)), *_list_changeable(keys, values)]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        items = watch(list)
        held = _list_changeable(range(len(items)), items)
    elif not hasattr(value, "__dict__") and not slots:
        return _visit_opaque(place, value, watch)
    else:
        held = []
    if follow and isinstance(getattr(value, "__dict__", None), dict):
        found.attributes.append((place, vars(value)))
        held += vars(value).items()
    elif hasattr(value, "__dict__"):
        held += watch(lambda value: dict(vars(value))).items()
    if slots:
        held += watch(functools.partial(_read_slots, slots=slots)).items()
    return [*held, *_list_classes(value)]


def _visit_function(place: str, value: Any, found: ObjectGraph) -> Held:
    """What a function closes over, or is bound to."""
    if isinstance(value, functools.partial):
        return [(None, value.func), ("args", value.args), ("keywords", value.keywords), ("dict", vars(value))]
    if isinstance(value, MethodType):
        return [(None, value.__self__), (None, value.__func__)]
    if isinstance(value, BuiltinFunctionType):
        return [(None, value.__self__)]
    if _is_foreign(value):
        return []
    named = list(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
    found.cells += [(_join(place, name), cell) for name, cell in named]
    held: Held = [(name, content) for name, cell in named for content in _open(cell)]
    return [*held, ("defaults", value.__defaults__), ("defaults", value.__kwdefaults__), ("dict", vars(value))]


def _open(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # nothing in it yet
        return []


def _visit_opaque(place: str, value: Any, watch: Callable[[Callable[[Any], Any]], Any]) -> Held:
    """An object that keeps what it holds to itself: by what a copy of it would be made of. Where it does not say, it is
    ignored, unless it returns a different value every time."""
    try:
        _read_reduced(value)
    except Exception as stop:
        if hasattr(value, "__next__"):
            raise UnsupportedModelError(
                f"'{place}' is a {type(value).__name__}, which advances when it is read and cannot be inspected, so a "
                "record could change what others get: keep a list and draw from it with torch"
            ) from stop
        return []
    return [(None, each) for each in watch(_read_reduced)]


def _list_classes(value: Any) -> Held:
    return [(kind.__name__, kind) for kind in type(value).__mro__ if not _is_foreign(kind)]


def _list_changeable(keys: Iterable[Any], values: list[Any]) -> list[tuple[Any, Any]]:
    """What is not plain among many."""
    if len(values) > SEVERAL and ATOMS.issuperset(map(type, values)):
        return []
    return [(key, each) for key, each in zip(keys, values, strict=True) if not is_fixed(each)]


def _list_changeable_keys(keys: Iterable[Any]) -> Held:
    return [(None, key) for key in keys if not is_fixed(key)]


def _root_of(value: Any) -> str:
    return str(getattr(value, "__module__", "") or "").partition(".")[0]


def _is_foreign(value: Any) -> bool:
    """Whether a class or a function belongs to Python, torch, numpy or hush."""
    return _root_of(value) in FOREIGN


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | staticmethod | classmethod | property) or hasattr(type(value), "__get__")


def _find_slots(kind: type) -> tuple[str, ...]:
    """The names of slots of a class."""
    return tuple(
        name
        for each in kind.__mro__
        if not _is_foreign(each)
        for name, member in vars(each).items()
        if isinstance(member, MemberDescriptorType)
    )


def _read_tensor(value: Tensor) -> tuple[int, int, bytes]:
    """How often it was written, and where it is; its bytes too where they are few, since ``data`` does not count."""
    try:
        writes = value._version
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            return writes, 0, b""
        place, size = value.data_ptr(), value.nbytes
        if not 0 < size <= SMALL or not value.is_contiguous():
            return writes, place, b""
        if value.is_cpu:  # without an operation, which torch.func would take for one of the model's
            return writes, place, ctypes.string_at(place, size)
        if torch._C._functorch.peek_interpreter_stack() is None:
            return writes, place, value.detach().flatten().view(torch.uint8).cpu().numpy().tobytes()
        return writes, place, b""
    except (RuntimeError, NotImplementedError):  # of a kind without bytes or without a count
        return -1, 0, b""


def _read_items(value: dict[Any, Any]) -> list[Any]:
    return [*value, *value.values()]


def _read_values(value: Mapping[Any, Any]) -> list[Any]:
    return list(value.values())


def _read_class(value: type) -> dict[str, Any]:
    return {key: each for key, each in vars(value).items() if not (key.startswith("__") or key == "_abc_impl")}


def _read_slots(value: Any, slots: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in slots if hasattr(value, name)}


def _read_reduced(value: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of itertools, which are not to be copied in later Pythons
        return list(_spread(value.__reduce_ex__(2)))


def _spread(made: Any) -> Iterator[Any]:
    """What is in tuples and dictionaries that were made to be looked at."""
    if isinstance(made, tuple | dict):
        for each in made if isinstance(made, tuple) else [*made, *made.values()]:
            yield from _spread(each)
    else:
        yield made


def _is_same(now: Any, before: Any) -> bool:
    """The same things in the same places; plain ones may be equal instead."""
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    if isinstance(now, dict):
        return _is_same(list(now), list(before)) and _is_same(list(now.values()), list(before.values()))
    if isinstance(now, list | tuple):
        if len(now) != len(before):
            return False
        return all(map(operator.is_, now, before)) or all(map(_is_alike, now, before))
    return _is_alike(now, before)


def _is_alike(now: Any, before: Any) -> bool:
    return now is before or (type(now) is type(before) and is_fixed(now) and repr(now) == repr(before))


LEAVES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (Tensor, _read_tensor),
    (np.ndarray, lambda value: value.tobytes()),
    (bytearray, bytes),
    (type(torch.default_generator), lambda value: value.get_state().numpy().tobytes()),
    (np.random.Generator, lambda value: repr(value.bit_generator.state)),
    (np.random.BitGenerator, lambda value: repr(value.state)),
    (np.random.RandomState, lambda value: repr(value.get_state()[1].tobytes()) + repr(value.get_state()[2:])),
    (random.Random, lambda value: repr(value.getstate())),
)


# A model that remembers nothing of a record: it is as it was found when the record has passed.
#
# `hush.per_example.functional` takes away the tensors and numbers that a forward leaves in a model's attributes, and
# lets whole numbers count forwards. Here those go too, since one of them ("there was a large record") is enough to
# reach the next record's row. What is changed inside a list, an array, an object or a class of the model's cannot be
# put back: that is refused, and so are draws from Python's random and from numpy, whose numbers would be shifted for
# the records that follow. Losses are looked at in the same way, in what they close over too.
#
# All that can be reached is visited once (`hush.sanitize.side_effects`) and compared one by one later, so that a record
# costs what is held, and not what could be reached by it again. Globals, files and the insides of foreign objects that
# do not say what they hold are not seen.

COPIED = 2**24  # bytes of a tensor of the losses that are put back after something was tried


class ModelSnapshot:
    """A model, and losses if there are any, at one moment."""

    def __init__(self, model: nn.Module, losses: Any = None) -> None:
        self._drawn = _read_generators()
        self._kind = type(model).__name__
        self._inside: list[tuple[str, Fingerprint]] = []
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
            raise UnsupportedModelError(
                f"the {self._kind} or its data draw from Python's random or from numpy, so a record would change the "
                "random numbers of others: draw with torch"
            )
        changed = [(owner, each) for owner, each in self._inside if each.is_changed()]
        kept += [f"'{each.place}' of {owner}" if each.place else owner for owner, each in changed]
        for place in kept:
            raise UnsupportedModelError(
                f"{place} changes in a forward pass, so a record could influence the rows or gradients of others, or "
                "bypass the layer: do not store in the model or in the losses what a forward computes"
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
def restoring_state(model: nn.Module, losses: Any = None) -> Iterator[None]:
    """After it, the model is as it was, and so are its losses."""
    found = ModelSnapshot(model, losses)
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
