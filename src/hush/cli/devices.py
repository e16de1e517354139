"""Where to train: a device that this machine has."""

from __future__ import annotations

import torch

from hush.errors import BadInput
from hush.ranks import find_own_device

KINDS = ("cpu", "cuda", "mps")


def find_device(name: str) -> torch.device:
    """The device of that name, of several processes the own one of each; refused where there is none."""
    try:
        device = find_own_device(name)
    except RuntimeError as error:
        raise BadInput(f"unknown device '{name}': use cpu, cuda, cuda:0 or mps") from error
    if device.type not in KINDS:
        raise BadInput(f"unknown device '{name}': use cpu, cuda, cuda:0 or mps")
    if (device.index or 0) >= _count(device.type):
        raise BadInput(
            f"device '{device}' is not there: this machine has {_list_devices()}; leave --device out for cpu"
        )
    return device


def _count(kind: str) -> int:
    counts = {"cuda": torch.cuda.device_count, "mps": torch.mps.device_count}
    return counts[kind]() if kind in counts else 1


def _list_devices() -> str:
    found = ["cpu", *(f"cuda:{place}" for place in range(_count("cuda")))]
    return ", ".join([*found, "mps"] if _count("mps") else found)
