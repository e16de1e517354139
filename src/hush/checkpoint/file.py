"""One checkpoint as bytes: a safetensors file whose metadata holds JSON and a digest of everything.

Any safetensors reader opens it. The digest is BLAKE2b over the JSON and over every tensor's name, type, shape and
bytes, so a file that was cut short, overwritten in part or damaged on the disk is never mistaken for a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hush.checkpoint.tree import flatten, unflatten
from hush.errors import BadInput
from hush.named import Named, State

FORMAT = "hush checkpoint 3"
MOST_THREADS = 4096


class Unreadable(BadInput):
    """A checkpoint that is damaged or is none; the text says how."""


class OtherVersion(Unreadable):
    """A whole checkpoint in the format of another version of hush."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read and found whole: facts about its run, and the run's state."""

    path: Path
    facts: dict[str, Any]
    state: State

    @property
    def step(self) -> int:
        """How many steps the run had taken."""
        return int(self.state["step"])


def to_bytes(facts: dict[str, Any], state: State) -> bytes:
    """The file's content."""
    tensors: Named = {}
    text = json.dumps({"format": FORMAT, **facts, "state": flatten(state, tensors)}, allow_nan=False)
    plain = unshare({name: value.cpu().contiguous() for name, value in tensors.items()})
    return save(plain, metadata={"hush": text, "digest": digest_content(text, plain)})


def read_checkpoint(path: Path) -> Saved:
    """The checkpoint at ``path``, or `Unreadable`."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["hush"]
        if metadata["digest"] != digest_content(text, tensors):
            raise Unreadable(f"'{path.name}' is damaged: its digest does not fit its content")
        facts = json.loads(text)
        if (found := facts.pop("format")) != FORMAT:
            raise OtherVersion(
                f"'{path}' is a checkpoint of another version of hush ('{found}'; this one reads '{FORMAT}'), and "
                "stays as it is: finish the run with that version, or start a new one in another directory"
            )
        state = unflatten(facts.pop("state"), tensors)
        _check_kinds(facts, state)
        return Saved(path, facts, state)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"'{path.name}' is damaged or cut short ({type(error).__name__})") from error


def _check_kinds(facts: dict[str, Any], state: State) -> None:
    """The digest says that a file is whole, not that hush wrote it: look at the kinds of what is relied on."""
    good = (
        isinstance(facts.get("run", ""), str)
        and all(isinstance(facts.get(name, {}), dict) for name in ("versions", "digests"))
        and all(_is_count(facts.get(name, 1)) for name in ("steps", "step", "threads"))
        and facts.get("threads", 1) <= MOST_THREADS
        and all(_is_count(state.get(name, 1)) for name in ("step", "microbatch", "world"))
        and all(isinstance(value, Tensor) for kind in ("params", "buffers") for value in state.get(kind, {}).values())
        and isinstance(state.get("noise", {}), dict)
        and (not facts.get("ledger") or all(isinstance(facts["ledger"][k], str) for k in ("name", "path", "dataset")))
    )
    if not good:
        raise ValueError


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def digest_content(text: str, tensors: Named) -> str:
    """BLAKE2b over the JSON and all tensors."""
    total = hashlib.blake2b(text.encode(), digest_size=32)
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"\0{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        total.update(tensor_bytes(value))
    return total.hexdigest()


def tensor_bytes(value: Tensor) -> memoryview:
    """The bytes of a tensor, without a copy where it lies in one piece on the CPU."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    raw: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return memoryview(raw)


def unshare(tensors: Named) -> Named:
    """Tensors that share memory, each with its own: safetensors refuses others."""
    seen: set[int] = set()
    found: Named = {}
    for name, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        found[name] = value if whole and place not in seen else value.clone()
        seen.add(place)
    return found
