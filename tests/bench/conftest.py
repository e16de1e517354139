"""A small sweep on embedded data: four runs of a few steps, with given noise so that nothing needs calibration."""

from __future__ import annotations

from pathlib import Path

import pytest

from hush.bench.spec import Spec, read_spec

SMALL = """
name = "small"
secret_seed = 7
[defaults]
problem = "breast-cancer-logistic"
batch_size = 64
epochs = 1
noise_multiplier = 1.0
[[grid]]
method = ["dp-sgd", "dp-adam"]
lr = [0.1, 0.5]
"""


@pytest.fixture
def write_spec(tmp_path: Path):
    """A function from text to the path of a spec."""

    def write(text: str, name: str = "spec.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def small(write_spec) -> Spec:
    return read_spec(write_spec(SMALL))
