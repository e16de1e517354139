"""The contents of a store without measured times, to compare two stores."""

from __future__ import annotations

from hush.bench.store import Store

TIMES = {"started", "seconds", "train_seconds", "evaluation_seconds", "inference_seconds", "resumed", "machine"}


def contents(store: Store) -> dict[str, tuple]:
    """Everything in a store that is no measured time."""
    found = {}
    for key in sorted(store.keys()):
        record = {name: value for name, value in store.record(key).items() if name not in TIMES}
        names = ("epochs.jsonl", "model.safetensors", "private/steps.safetensors")
        found[key] = (record, *((store.folder(key) / name).read_bytes() for name in names))
    return found
