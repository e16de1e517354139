"""`hush train --device`: the one that is there, and one sentence for the others."""

from __future__ import annotations

import pytest
import torch

from hush import InvalidInputError
from hush.cli import main
from hush.cli.options import find_device

QUICK = ["train", "--problem", "digits-logistic", "--epochs", "1", "--json"]


def test_the_cpu_is_there(capsys) -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert main([*QUICK, "--device", "cpu"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("gpu", "unknown device 'gpu': use cpu"), ("meta", "unknown device 'meta'")]
)
def test_what_is_no_device_is_one_sentence(name, said, capsys) -> None:
    assert main([*QUICK, "--device", name]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


@pytest.mark.parametrize("kind", ["cuda", "mps", "cuda:7", "cpu:1"])
def test_a_device_that_is_not_there_is_one_sentence(kind, capsys, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 0)
    assert main([*QUICK, "--device", kind]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"device '{kind}' does not exist: this machine has cpu" in line


def test_the_devices_of_the_machine_are_named(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(InvalidInputError, match="cuda:0.*cuda:1"):
        find_device("cuda:2")
