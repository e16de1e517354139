"""Data of another floating type than the model's: one sentence before the run, and only where it cannot work."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hush import InvalidInputError, make_plan

X, Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2


def losses(model, content):
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def squares(model, content):
    return (model(content)[:, 0] - 1) ** 2


class Turning(nn.Linear):
    """A model that takes numbers of any type."""

    def forward(self, input):
        return super().forward(input.to(self.weight.dtype))


def start(model, data, how=losses):
    plan = make_plan("dp-sgd", examples=24, batch_size=6, steps=1, noise_multiplier=1.0)
    return plan.start(model, how, data)


@pytest.mark.parametrize(
    ("model", "data", "how", "said"),
    [
        (
            nn.Linear(3, 2),
            (X.double(), Y),
            losses,
            "float64 and the model float32: .* x.to(torch.float32), or the",
        ),
        (nn.Linear(3, 2), (X.double().numpy(), Y.numpy()), losses, "float64 and the model float32"),
        (nn.Linear(3, 2).double(), (X, Y), losses, "float32 and the model float64: .* x.to(torch.float64)$"),
        (nn.Linear(3, 2), (X.half(), Y), losses, "float16 and the model float32: .* x.to(torch.float32)$"),
        (nn.Linear(3, 2), X.double(), squares, "float64 and the model float32"),
    ],
)
def test_another_type_is_named_before_the_run(model, data, how, said) -> None:
    with pytest.raises(InvalidInputError, match="the data is " + said.replace("(", r"\(").replace(")", r"\)")):
        start(model, data, how)


@pytest.mark.parametrize("model", [Turning(3, 2), nn.Sequential(nn.Dropout(0.5), Turning(3, 2))])
def test_a_model_that_turns_its_input_runs_and_nothing_of_it_is_touched(model) -> None:
    before = torch.get_rng_state()
    run = start(model, (X.double(), Y))
    assert torch.equal(torch.get_rng_state(), before)
    run.step(run.batch(0))


def test_what_fails_for_another_reason_is_left_to_its_own_words() -> None:
    start(nn.Linear(4, 2), (X.double(), Y))
