"""Which data and which frozen weights a run is on, as digests keyed with its secret: private, and useless without it.

A run that went on with other data would add the same noise to other sums, and the difference of the two would be free
of noise. So other data is refused. All of it is digested: tensors as they lie in memory, at ten gigabytes a second; any
other source by reading every example once, which takes as long as reading an epoch does. Where reading twice gives two
results (augmentation inside the dataset that torch's generator does not decide), only the length is known here, and
the record of sums (`hush.checkpoint.sums`) is what sees a change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hush.randomness import Secret, generator, seeded
from hush.randomness.cipher import Octets, compute_tag
from hush.source import Source, Tensors
from hush.units import Units

Tell = Callable[[str], None]
LOOKED_AT = 256  # examples that are read twice, to see whether they are the same
CHUNK = 256  # examples read at a time
PATIENCE = 2.0  # seconds before anything is said
VARYING = "changes from one reading to the next"


def digest_data(source: Source, secret: Secret, tell: Tell) -> str:
    """The digest of all data under the run's secret, or `VARYING` with its length where there is no such thing."""
    if isinstance(source, Units):
        grouping = _tag(secret, "units", _bytes((source.order, source.starts, source.most)))
        return f"{digest_data(source.rows, secret, tell)}, in units: {grouping}"
    if isinstance(source, Tensors):
        return _tag(secret, "data", (part for tensor in source.tensors for part in _bytes(tensor)))
    if is_varying(source, secret):
        return f"{VARYING}: {len(source)} examples"
    return _whole(source, secret, tell)


def is_varying(source: Source, secret: Secret) -> bool:
    """Whether some examples differ from one reading to the next."""
    size = min(LOOKED_AT, len(source))
    chosen = generator(secret, "digest", 0).choice(len(source), size, replace=False, shuffle=False)
    indices = torch.from_numpy(chosen)
    readings = []
    for _ in range(2):
        with seeded(0):
            readings.append(_tag(secret, "examples", _bytes(source.take(indices))))
    return readings[0] != readings[1]


def digest_frozen(model: nn.Module, secret: Secret) -> str:
    """The digest of the parameters that training does not change; they are not in a checkpoint."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return _tag(secret, "frozen", _bytes(frozen))


def digest_weights(model: nn.Module, secret: Secret) -> str:
    """The digest of a model's state, as it is released."""
    return _tag(secret, "weights", _bytes(dict(model.state_dict())))


def _whole(source: Source, secret: Secret, tell: Tell) -> str:
    def parts() -> Iterator[Octets]:
        said = time.monotonic()
        for start in range(0, len(source), CHUNK):
            if time.monotonic() - said > PATIENCE:
                said = time.monotonic()
                tell(f"reading all data once, for its digest: {start} of {len(source)} examples")
            yield from _bytes(source.take(torch.arange(start, min(start + CHUNK, len(source)))))

    with seeded(0):
        return _tag(secret, "data", parts())


def _tag(secret: Secret, purpose: str, parts: Iterator[Octets]) -> str:
    return compute_tag(secret.derive(f"digest/{purpose}", 0, size=32), bytes(12), parts).hex()


def _bytes(content: Any) -> Iterator[Octets]:
    """The bytes of everything in a nested content, each with its type and shape before it."""
    if isinstance(content, Tensor):
        flat = content.detach().cpu().contiguous().reshape(-1)
        yield _text(f"{content.dtype} {tuple(content.shape)}")
        if flat.numel():
            yield flat.view(torch.uint8).numpy()
    elif isinstance(content, np.ndarray) and not content.dtype.hasobject:
        yield _text(f"{content.dtype.str} {content.shape}")
        yield np.frombuffer(np.ascontiguousarray(content).tobytes(), np.uint8)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield _text(f"key {key!r}")
            yield from _bytes(value)
    elif isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        yield _text(f"{len(content)} items")
        for value in content:
            yield from _bytes(value)
    else:
        yield _text(repr(content))


def _text(text: str) -> Octets:
    return np.frombuffer(f"\0{text}\0".encode(), np.uint8)
