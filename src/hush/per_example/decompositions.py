"""Attention and recurrent layers, decomposed into operations that every engine supports.

torch's own forwards of these modules put the sequence before the examples or call one fused kernel. During a recording
the forwards below replace them in every engine, so that model randomness is the same in all engines.

``pack_padded_sequence`` sorts a batch by length and joins its rows, so the lengths of all examples decide the place and
the kernel of every row. A recording packs nothing (`padding`): rows stay padded, steps beyond a row's length leave its
state as it is, and ``pad_packed_sequence`` pads to the length of the input, as with ``total_length``, instead of to
that of the longest example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode

from hush.per_example.linear import linear
from hush.per_example.rules import NoLayerRule, TrackedParameter, handles


def find_substitutes(modules: Iterable[nn.Module]) -> dict[nn.Module, Callable[..., Any]]:
    """The forwards of this file that replace torch's of these modules; a module's custom forward is kept."""
    ours = {m: f for m in modules if (f := _SUBSTITUTES.get(type(m))) and "forward" not in m.__dict__}
    return {m: functools.partial(f, m) for m, f in ours.items()}


def replacing_forwards(replacements: dict[nn.Module, Callable[..., Any]]) -> AbstractContextManager[None]:
    """Replace forwards of modules, and restore them afterwards, including ones assigned to an instance."""
    return _replacing(replacements) if replacements else _NOTHING


_NOTHING = nullcontext()


@contextmanager
def _replacing(replacements: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    before = {module: module.__dict__.get("forward") for module in replacements}
    try:
        for module, forward in replacements.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            module.__dict__.pop("forward", None)
            if own is not None:
                module.__dict__["forward"] = own


def _make_additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask to be added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))


def _merge_masks(m: nn.MultiheadAttention, padding: Tensor | None, mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Both masks as one, broadcast against scores of shape (n, heads, L, S)."""
    mask, padding = _make_additive(mask, like), _make_additive(padding, like)
    if mask is not None and mask.dim() == 3:
        mask = mask.view(-1, m.num_heads, *mask.shape[1:])
    if padding is None:
        return mask
    padding = padding[:, None, None, :]
    return padding if mask is None else mask + padding


def _project(m: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor, same: bool) -> tuple[Tensor, ...]:
    """The three projections; the packed weight is used as a whole, so that it has a single gradient."""
    width, weight, bias = m.embed_dim, m.in_proj_weight, m.in_proj_bias
    if same and weight is not None:
        return F.linear(q, weight, bias).chunk(3, -1)
    if weight is not None:
        return tuple(F.linear(x, weight, bias).chunk(3, -1)[i] for i, x in enumerate((q, k, v)))
    own = (F.linear(q, m.q_proj_weight), F.linear(k, m.k_proj_weight), F.linear(v, m.v_proj_weight))
    if bias is None:
        return own
    return tuple(
        (F.pad(x, (i * width, (2 - i) * width)) + bias)[..., i * width : (i + 1) * width] for i, x in enumerate(own)
    )


def attend(
    m: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention with the examples first (Vaswani et al. 2017, "Attention is all you need")."""
    if query.dim() != 3:
        return type(m).forward(
            m, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
    same = query is key and key is value
    if not m.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    each, mask = _project(m, query, key, value, same), _merge_masks(m, key_padding_mask, attn_mask, query)
    more, n = (m.bias_k is not None) + m.add_zero_attn, len(query)
    if m.bias_k is not None and m.bias_v is not None:
        biases = (m.bias_k.expand(n, 1, -1), m.bias_v.expand(n, 1, -1))
        each = (each[0], *(torch.cat([x, own], 1) for x, own in zip(each[1:], biases, strict=True)))
    if m.add_zero_attn:
        each = (each[0], *(F.pad(x, (0, 0, 0, 1)) for x in each[1:]))
    mask = F.pad(mask, (0, more)) if mask is not None and more else mask
    heads = [x.reshape(*x.shape[:2], m.num_heads, m.head_dim).transpose(1, 2) for x in each]
    dropout = m.dropout if m.training else 0.0
    weights: Tensor | None = None
    if need_weights or dropout or torch._C._functorch.peek_interpreter_stack() is not None:
        scores = heads[0] * m.head_dim**-0.5 @ heads[1].transpose(-2, -1)
        weights = F.softmax(scores if mask is None else scores + mask, -1)
        weights = F.dropout(weights, dropout)
        mixed = weights @ heads[2]
    else:
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask)
    out = m.out_proj(mixed.transpose(1, 2).flatten(2))
    if weights is not None:
        weights = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
    return out if m.batch_first else out.transpose(0, 1), weights


def _lstm_cell(gates: Tensor, state: tuple[Tensor, ...], recurrent: Tensor) -> tuple[Tensor, ...]:
    i, f, g, o = (gates + recurrent).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_cell(gates: Tensor, state: tuple[Tensor, ...], recurrent: Tensor) -> tuple[Tensor, ...]:
    (r, z, new), (hr, hz, hn) = gates.chunk(3, -1), recurrent.chunk(3, -1)
    z, new = torch.sigmoid(z + hz), torch.tanh(new + torch.sigmoid(r + hr) * hn)
    return (new + z * (state[0] - new),)


def _relu_cell(gates: Tensor, state: tuple[Tensor, ...], recurrent: Tensor) -> tuple[Tensor, ...]:
    return (torch.relu(gates + recurrent),)


def _tanh_cell(gates: Tensor, state: tuple[Tensor, ...], recurrent: Tensor) -> tuple[Tensor, ...]:
    return (torch.tanh(gates + recurrent),)


_CELLS = {"LSTM": _lstm_cell, "GRU": _gru_cell, "RNN_TANH": _tanh_cell, "RNN_RELU": _relu_cell}


def _make_cell(mode: str) -> Callable[..., Any]:
    def forward(x: Tensor, state: Any, w: Any, recurrent: Any, b: Any = None, own: Any = None) -> Any:
        """One step of a recurrent cell, as two linear layers."""
        states: tuple[Tensor, ...] = tuple(state) if isinstance(state, (tuple, list)) else (state,)
        found = _CELLS[mode](_apply_linear(x, w, b), states, _apply_linear(states[0], recurrent, own))
        return found if mode == "LSTM" else found[0]

    return forward


def _apply_linear(x: Tensor, weight: Any, bias: Any) -> Tensor:
    tracked = isinstance(weight, TrackedParameter) or isinstance(bias, TrackedParameter)
    return linear(x, weight, bias) if tracked else F.linear(x, weight, bias)


for _mode, _name in zip(_CELLS, ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), strict=True):
    handles(getattr(torch, _name))(_make_cell(_mode))

_PACK: Any = torch._C._VariableFunctions._pack_padded_sequence
_PAD: Any = torch._C._VariableFunctions._pad_packed_sequence
PACKED = (
    "the model uses the data or the batch_sizes of a packed sequence, which join the rows of all examples: convert it "
    "with pad_packed_sequence first, and compute with the padded rows"
)


class PaddedRows:
    """Both the data and the batch sizes of a packed sequence in a recording: rows of shape (n, T, …), and the number of
    steps of each. Only recurrent layers and ``pad_packed_sequence`` accept it."""

    device = torch.device("cpu")  # where torch expects batch sizes

    def __init__(self, rows: Tensor, lengths: Tensor) -> None:
        self.rows, self.lengths = rows, lengths

    def __getattr__(self, name: str) -> Any:
        return _refuse()

    def size(self, dim: int) -> int:
        """The number of steps."""
        return self.rows.shape[1]

    def pad(self, batch_first: bool, value: float, total: int) -> tuple[Tensor, Tensor]:
        """Rows of ``total`` steps, and their lengths."""
        rows = self.rows
        if total > rows.shape[1]:
            rows = torch.cat([rows, rows.new_zeros(rows.shape[0], total - rows.shape[1], *rows.shape[2:])], 1)
        rows = _fill(rows, ~_mark_steps(self.lengths, total, rows.device), value)
        return rows if batch_first else rows.transpose(0, 1), self.lengths

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _PAD and isinstance(args[0], PaddedRows):
            return args[0].pad(*args[2:])
        return _refuse()


def _refuse(*_: Any) -> Any:
    raise NoLayerRule([], PACKED)


for _name in ("getitem", "iter", "len", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "matmul"):
    setattr(PaddedRows, f"__{_name}__", _refuse)


def _mark_steps(lengths: Tensor, steps: int, device: torch.device) -> Tensor:
    """Which steps of each row are part of the sequence, of shape (n, steps)."""
    return torch.arange(steps, device=device) < lengths.to(device).unsqueeze(1)


def _fill(rows: Tensor, where: Tensor, value: float) -> Tensor:
    return rows.masked_fill(where.view(*where.shape, *[1] * (rows.dim() - 2)), value)


class _Padding(TorchFunctionMode):
    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.alone = alone

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _PACK and args[0].dim() > 1:
            rows = args[0] if args[2] else args[0].transpose(0, 1)
            if self.alone:
                data, sizes = func(*args)
                sizes.steps = rows.shape[1]
                return data, sizes
            if args[1].shape == rows.shape[:1]:
                alive = _mark_steps(args[1], rows.shape[1], rows.device)
                padded = PaddedRows(_fill(rows, ~alive, 0.0), args[1])
                return padded, padded
        if func is _PAD and self.alone:
            args = (*args[:4], max(args[4], getattr(args[1], "steps", 0)))
        return func(*args, **kwargs) if kwargs else func(*args)


def padding(replacements: dict[nn.Module, Callable[..., Any]], alone: bool) -> AbstractContextManager[Any]:
    """Within it, if one of these forwards is recurrent, sequences are not packed; that of an example ``alone`` is, and
    padded to the same length as in a batch."""
    return _Padding(alone) if any(isinstance(m, nn.RNNBase) for m in replacements) else _NOTHING


def _run_direction(
    m: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...], suffix: str, alive: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction over x of shape (n, T, features); steps that are not ``alive`` change no state."""

    def own(name: str) -> Tensor | None:
        return getattr(m, f"{name}_{suffix}", None)

    weight, recurrent, cell = own("weight_ih"), own("weight_hh"), _CELLS[m.mode]
    assert weight is not None
    assert recurrent is not None
    gates, bias, project = F.linear(x, weight, own("bias_ih")), own("bias_hh"), own("weight_hr")
    outputs: list[Tensor] = []
    order, back = list(enumerate(gates.unbind(1))), suffix.endswith("_reverse")
    for step, gate in reversed(order) if back else order:
        before, state = state, cell(gate, state, F.linear(state[0], recurrent, bias))
        if project is not None:
            state = (F.linear(state[0], project), *state[1:])
        if alive is not None:
            on = alive[:, step, None]
            state = tuple(torch.where(on, new, old) for new, old in zip(state, before, strict=True))
        outputs.append(state[0])
    out = torch.stack(outputs[::-1] if back else outputs, 1)
    return (out if alive is None else _fill(out, ~alive, 0.0)), state


def _run_recurrent(m: nn.RNNBase, input: Any, hx: Any = None) -> Any:
    """LSTM, GRU and plain recurrent layers, step by step."""
    if isinstance(input, PackedSequence):
        return _run_packed(m, input, hx)
    if not isinstance(input, Tensor) or input.dim() != 3:
        return type(m).forward(m, input, hx)
    out, state = _run_layers(m, input if m.batch_first else input.transpose(0, 1), hx, None)
    return out if m.batch_first else out.transpose(0, 1), state


def _run_packed(m: nn.RNNBase, input: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
    """The same for a packed sequence, by its padded rows."""
    given: Any = input.data
    if isinstance(given, PaddedRows):
        rows, lengths = given.rows, given.lengths
        if input.unsorted_indices is not None:
            rows, lengths = rows.index_select(0, input.unsorted_indices), lengths[input.unsorted_indices.cpu()]
    else:  # an example alone
        rows, lengths = pad_packed_sequence(input, batch_first=True)
    out, state = _run_layers(m, rows, hx, _mark_steps(lengths, rows.shape[1], rows.device))
    if input.sorted_indices is not None:
        out, lengths = out.index_select(0, input.sorted_indices), lengths[input.sorted_indices.cpu()]
    packed: Any = PaddedRows(out, lengths)
    data, sizes = packed, packed
    if not isinstance(given, PaddedRows):
        data, sizes, _, _ = pack_padded_sequence(out, lengths, batch_first=True)
    return PackedSequence(data, sizes, input.sorted_indices, input.unsorted_indices), state


def _run_layers(m: nn.RNNBase, x: Tensor, hx: Any, alive: Tensor | None) -> tuple[Tensor, Any]:
    """The output of the last layer, and the last states, for x of shape (n, T, features)."""
    sides, pair = 2 if m.bidirectional else 1, m.mode == "LSTM"
    if hx is None:
        sizes = [m.proj_size or m.hidden_size] + [m.hidden_size] * pair
        hx = tuple(x.new_zeros(m.num_layers * sides, x.shape[0], size) for size in sizes)
    states = hx if isinstance(hx, (tuple, list)) else (hx,)
    last: list[tuple[Tensor, ...]] = []
    for layer in range(m.num_layers):
        outputs = []
        for side in range(sides):
            start = tuple(s[layer * sides + side] for s in states)
            out, state = _run_direction(m, x, start, f"l{layer}{'_reverse' * side}", alive)
            outputs.append(out)
            last.append(state)
        x = torch.cat(outputs, -1)
        if m.dropout and m.training and layer < m.num_layers - 1:
            x = F.dropout(x, m.dropout)
    final = tuple(torch.stack(each) for each in zip(*last, strict=True))
    return x, final if pair else final[0]


_SUBSTITUTES: dict[type[nn.Module], Callable[..., Any]] = {
    nn.MultiheadAttention: attend,
    nn.LSTM: _run_recurrent,
    nn.GRU: _run_recurrent,
    nn.RNN: _run_recurrent,
}
