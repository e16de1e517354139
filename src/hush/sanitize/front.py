"""A model cut at its sanitisation layer: the part before it as a fixed graph, the part after it as a module.

**Before the layer** (`Front`). `torch.export` traces a copy of the model, in evaluation, on one synthetic record, and
the front of a run is the traced graph with its weights: a list of torch operations on one record. The code of the model
never sees a record, so nothing that it does with lists, attributes, globals, files or generators can pass on anything
of a record:

- what the code remembers (a list that it appends to, an attribute that it sets) is a constant of the graph, or a
  function of the record itself;
- a buffer, or the input, that the code changes is visible in the graph, and refused;
- a branch, a loop or a number that depends on the values of a record cannot be traced, and is refused;
- operations that may draw (dropout, `torch.rand`) are known by their tag; the generator is set to the same public seed
  before every record.

So the front is one function of one record, the same for all records and for neighbouring data sets.

**After the layer** (`Head`). The model's own code, with the layer returning released rows and inputs of zeros. It sees
rows, labels and coins, and is trained on them.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from hush._internal.tensors import Losses, trainable
from hush.data_source import Source
from hush.errors import InvalidInputError, UnsupportedModelError
from hush.per_example.augmentation import make_rewinder
from hush.per_example.decompositions import replacing_forwards
from hush.randomness import seeded
from hush.sanitize.layer import Sanitize, find_layer

if TYPE_CHECKING:
    from torch.export import ExportedProgram


PATIENCE = 2.0  # seconds until the first progress message


def check_pairs(content: Any, otherwise: str) -> Tensor:
    """The features of a content; raises unless it is a pair of features and labels."""
    if not isinstance(content, tuple | list) or len(content) < 2 or not isinstance(content[0], Tensor):
        raise InvalidInputError("sanitising needs data in pairs: a tensor of features, then labels")
    if len(content) != 2:
        raise InvalidInputError(
            f"sanitising needs data in pairs, got {len(content)} parts: {otherwise}; join the features into one tensor"
        )
    return content[0]


def with_part(content: Any, place: int, part: Tensor) -> Any:
    """The content with another part at this place; a named tuple stays one."""
    make: Callable[[Any], Any] = getattr(type(content), "_make", tuple)
    return make([part if number == place else other for number, other in enumerate(content)])


def take_nothing(source: Source) -> Tensor:
    """The features of no record: their shape and type."""
    none = source.take(torch.empty(0, dtype=torch.int64))
    return check_pairs(none, "all but the first would be taken for labels, which are not protected")


def make_synthetic(like: Tensor, device: torch.device, rows: int = 1) -> Tensor:
    """Synthetic features in this shape, from a public seed: normal numbers, and 0 or 1 for integers."""
    with seeded(0):
        shape = (rows, *like.shape[1:])
        made = torch.randn(shape) if like.is_floating_point() else torch.randint(0, 2, shape)
    return made.to(device, like.dtype)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within it, the model is in evaluation; each module's own mode comes back after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class _UpToLayer(nn.Module):
    """Returns everything that reaches the layer in one forward pass of the model."""

    def __init__(self, model: nn.Module, layer: Sanitize) -> None:
        super().__init__()
        self.model, self._layer = model, [layer]  # a list, so that the layer is not a module here too

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        reached: list[Tensor] = []

        def note(given: Tensor) -> Tensor:
            reached.append(given)
            return given

        with replacing_forwards({self._layer[0]: note}):
            self.model(x)
        return tuple(reached)


@dataclass(frozen=True, eq=False)
class Front:
    """The traced part of a model before its layer: ``graph(*weights, record)`` is a tuple of the layer's input.

    ``names`` are the parameters that it uses, ``given`` is the shape of a record and ``shape`` that of its row."""

    graph: fx.GraphModule
    weights: tuple[Tensor, ...]
    names: frozenset[str]
    given: torch.Size
    shape: torch.Size
    draws: bool
    device: torch.device

    def compute(self, source: Source, bound: Callable[[Tensor], Tensor]) -> Tensor:
        """``bound(row)`` of every record, on the CPU; each record is computed alone."""
        rows, shown = [], time.monotonic()
        with torch.no_grad(), seeded(0):
            rewind = make_rewinder(self.device)
            for number in range(len(source)):
                if time.monotonic() - shown > PATIENCE:
                    shown = time.monotonic()
                    sys.stderr.write(f"releasing rows: {number} of {len(source)} records\n")
                record = source.take(torch.tensor([number]))[0]
                if record.shape[1:] != self.given:
                    raise InvalidInputError(
                        "records of different shapes cannot be released as rows of one width: pad them to one shape"
                    )
                if self.draws:
                    rewind()
                rows.append(bound(self.graph(*self.weights, record.to(self.device))[0]).cpu())
        return torch.cat(rows)


def trace_front(model: nn.Module, like: Tensor) -> Front:
    """Trace the part of a model before its layer, for records like these."""
    from torch.export.graph_signature import InputKind  # takes seconds, and only this method needs it

    name, _ = find_layer(model)
    device = next(model.parameters()).device
    inner = copy.deepcopy(model).eval()
    record = make_synthetic(like, device)
    program = _export(_UpToLayer(inner, find_layer(inner)[1]), record, name)
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise UnsupportedModelError(
            f"the model changes '{changed[0].removeprefix('model.')}' on the way to its sanitisation layer, so one "
            "record would influence the rows of others: leave it unchanged in evaluation"
        )
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    weights, names = [], set()
    for node, spec in zip(nodes, signature.input_specs, strict=True):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            held = program.state_dict if spec.target in program.state_dict else program.constants
            weights.append(held[spec.target].detach())
            if spec.kind is InputKind.PARAMETER and node.users:
                names.add(spec.target.removeprefix("model."))
        elif spec.kind is not InputKind.USER_INPUT:
            raise UnsupportedModelError(
                f"the model uses '{spec.target}' on the way to its sanitisation layer, such as a generator of its own, "
                "which is no tensor: draw with torch.rand, torch.randn or dropout"
            )
    draws = any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in program.graph.nodes)
    with torch.no_grad(), seeded(0):
        reached = program.graph_module(*weights, record)
    _check_reached(reached, name)
    return Front(
        program.graph_module,
        tuple(weights),
        frozenset(names),
        like.shape[1:],
        reached[0].shape[1:],
        draws,
        device,
    )


def _export(module: nn.Module, record: Tensor, name: str) -> ExportedProgram:
    """The functional graph of a module on one record."""
    from torch.export import export

    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch logs the whole graph before it raises
    try:
        with torch.no_grad(), seeded(0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: ExportedProgram = export(module, (record,), strict=False).run_decompositions({})
            return program
    except Exception as error:
        raise UnsupportedModelError(
            f"the part of the model before its sanitisation layer '{name}' cannot be traced by torch.export "
            f"({type(error).__name__}), usually because it branches on the values of a record or converts them to "
            "numbers: use torch operations such as torch.where"
        ) from error
    finally:
        logging.disable(disabled)


def _check_reached(reached: tuple[Tensor, ...], name: str) -> None:
    """Raise unless a record reaches the layer once, as one row."""
    if not reached:
        raise InvalidInputError("the model does not use its sanitisation layer: put it where the forward pass goes")
    if len(reached) > 1:
        raise UnsupportedModelError(
            f"the model calls the sanitisation layer at '{name}' {len(reached)} times for one example, and each time "
            "would be a release of its own, of which one was counted: let every example pass it once (no shared layer)"
        )
    if reached[0].dim() == 0 or len(reached[0]) != 1:
        raise InvalidInputError(
            f"the sanitisation layer at '{name}' needs one row for each example in its first dimension, and one "
            f"example reaches it as {tuple(reached[0].shape)}: put it where all numbers of an example are in one row"
        )


def check_frozen(model: nn.Module, front: Front) -> None:
    """Raise on a trained parameter before the layer."""
    found = sorted(front.names & trainable(model).keys())
    if found:
        raise UnsupportedModelError(
            f"'{', '.join(found[:3])}' is trained and lies before the sanitisation layer at '{find_layer(model)[0]}', "
            "so it would learn from the raw features without noise: freeze all parameters before the layer "
            "(requires_grad_(False)), or use dp-sgd"
        )


def check_batch_norm(model: nn.Module) -> None:
    """Raise on a BatchNorm layer: on inputs of zeros it would learn their statistics."""
    for place, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"layer '{place}' (BatchNorm) mixes the examples of a batch, and released rows are made one at a time: "
                "convert it with model = hush.to_group_norm(model)"
            )


class Head(nn.Module):
    """The part of a model after its layer: its output if the layer returns these rows; all inputs are zeros."""

    def __init__(self, model: nn.Module, like: Tensor) -> None:
        super().__init__()
        name, layer = find_layer(model)
        self._held = (model, layer, _list_after(model, name))  # a tuple, so that they are not modules here too
        self._like = like

    def forward(self, rows: Tensor) -> Tensor:
        model, layer, after = self._held
        rows = nn.functional.dropout(rows, layer.dropout, layer.training and layer.place == "after")
        if after is None:
            inputs = torch.zeros(len(rows), *self._like.shape[1:], dtype=self._like.dtype, device=rows.device)
            with replacing_forwards({layer: lambda _: rows}):
                made: Tensor = model(inputs)
            return made
        for module in after:
            rows = module(rows)
        return rows


@dataclass(frozen=True, eq=False)
class HeadLosses:
    """Losses of the part after the layer, whose inputs are released rows."""

    losses: Losses
    head: Head

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        return self.losses(self.head, content)


def _list_after(model: nn.Module, name: str) -> tuple[nn.Module, ...] | None:
    """The modules after the layer if everything that holds it is a plain `nn.Sequential`; else None."""
    parents, found = name.split("."), []
    for depth in range(len(parents) - 1, -1, -1):
        holder = model.get_submodule(".".join(parents[:depth]))
        if type(holder) is not nn.Sequential or holder._forward_hooks or holder._forward_pre_hooks:
            return None
        children = dict(holder.named_children())
        found += list(children.values())[list(children).index(parents[depth]) + 1 :]
    return tuple(found)
