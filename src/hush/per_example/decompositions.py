"""Attention and recurrent layers, decomposed into operations that every engine supports.

torch's own forwards of these modules put the sequence before the examples or call one fused kernel. During a recording
the forwards below replace them in every engine, so that model randomness is the same in all engines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


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
    if query.dim() != 3 or m.bias_k is not None or m.add_zero_attn:
        return type(m).forward(
            m, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
    same = query is key and key is value
    if not m.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    each = _project(m, query, key, value, same)
    heads = [x.reshape(*x.shape[:2], m.num_heads, m.head_dim).transpose(1, 2) for x in each]
    mask = _merge_masks(m, key_padding_mask, attn_mask, query)
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


def _run_direction(
    m: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...], suffix: str
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction over x of shape (n, T, features)."""

    def own(name: str) -> Tensor | None:
        return getattr(m, f"{name}_{suffix}", None)

    weight, recurrent, cell = own("weight_ih"), own("weight_hh"), _CELLS[m.mode]
    assert weight is not None
    assert recurrent is not None
    gates, bias, project = F.linear(x, weight, own("bias_ih")), own("bias_hh"), own("weight_hr")
    outputs: list[Tensor] = []
    for gate in gates.flip(1).unbind(1) if suffix.endswith("_reverse") else gates.unbind(1):
        state = cell(gate, state, F.linear(state[0], recurrent, bias))
        if project is not None:
            state = (F.linear(state[0], project), *state[1:])
        outputs.append(state[0])
    out = torch.stack(outputs, 1)
    return (out.flip(1) if suffix.endswith("_reverse") else out), state


def _run_recurrent(m: nn.RNNBase, input: Any, hx: Any = None) -> Any:
    """LSTM, GRU and plain recurrent layers, step by step."""
    if not isinstance(input, Tensor) or input.dim() != 3:
        return type(m).forward(m, input, hx)
    x = input if m.batch_first else input.transpose(0, 1)
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
            out, state = _run_direction(m, x, start, f"l{layer}{'_reverse' * side}")
            outputs.append(out)
            last.append(state)
        x = torch.cat(outputs, -1)
        if m.dropout and m.training and layer < m.num_layers - 1:
            x = F.dropout(x, m.dropout)
    final = tuple(torch.stack(each) for each in zip(*last, strict=True))
    return x if m.batch_first else x.transpose(0, 1), final if pair else final[0]


_SUBSTITUTES: dict[type[nn.Module], Callable[..., Any]] = {
    nn.MultiheadAttention: attend,
    nn.LSTM: _run_recurrent,
    nn.GRU: _run_recurrent,
    nn.RNN: _run_recurrent,
}
