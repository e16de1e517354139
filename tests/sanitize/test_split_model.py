"""The hybrid's head sees rows, labels and coins: what a loss writes into labels, and how often a front draws, is not in
its sums."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from scipy import stats
from torch import Tensor, nn

from hush.clipping import Clipping, Start
from hush.data_source import as_source
from hush.per_example.chunks import Chunk
from hush.per_example.model_rng import model_randomness
from hush.per_example.result import microbatch_scope
from hush.randomness import Secret
from hush.sanitize.layer import Sanitize
from hush.sanitize.privatised import Hybrid

STDS = {"rows": 2.0, "gradient": 0.02, "head": 0.0}
CODE, HUGE = -99.0, 1000.0
X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3
pytestmark = pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")


class Network(nn.Module):
    """A front that does not look at the first feature, so that a row says nothing of it."""

    def __init__(self, *, draws: bool = False) -> None:
        super().__init__()
        self.draws = draws
        self.front, self.layer, self.head = nn.Linear(4, 5), Sanitize(1.0, 1.0), nn.Linear(5, 3)
        with torch.no_grad():
            self.front.weight[:, 0] = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.draws and abs(float(x.detach().max()) - HUGE) < 1:  # nothing that is tried beforehand is so
            x = x + 0 * torch.rand(())
        row = self.layer(self.front(x))
        return self.head(torch.tanh(row) if self.draws and torch.rand(()) < 0.5 else row)


def cross_entropy(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(content[0]), content[1], reduction="none", ignore_index=-100)


def ignoring(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    """Rows whose first feature is missing are not scored, by the usual way of writing it."""
    features, labels = content
    labels.masked_fill_(features[:, 0] == CODE, -100)
    return cross_entropy(model, content)


def prepare(model: nn.Module, losses) -> Hybrid:
    start = Start(model, losses, as_source((X, Y)), lambda: Secret.from_seed(0, "t"), STDS)
    return Hybrid(Clipping(0.01)).prepare(start)[0]


def sum_heads(model: nn.Module, losses, features: Tensor, step: int, query: Hybrid | None = None) -> dict[str, Tensor]:
    data, query = (features, Y.clone()), query or prepare(model, losses)
    places = torch.arange(len(features))
    piece = Chunk(places, places)
    randomness = model_randomness(Secret.from_seed(1, "test"), step, places, torch.device("cpu"))
    with randomness, torch.enable_grad(), microbatch_scope(piece):
        return query.piece(model, losses, data, {})["head"]


@pytest.mark.parametrize(("draws", "losses", "value"), [(False, ignoring, CODE), (True, cross_entropy, HUGE)])
def test_a_feature_that_no_row_shows_is_not_in_the_sums_of_the_head(draws: bool, losses, value: float) -> None:
    model = Network(draws=draws).train()
    other = X.clone()
    other[3, 0] = value
    seen = []
    for step in range(6):
        first, second = (sum_heads(model, losses, features, step) for features in (X, other))
        assert all(torch.equal(first[name], second[name]) for name in first)
        seen.append(first["head.bias"])
    assert not torch.equal(seen[0], seen[1])


def test_a_feature_that_rows_show_is() -> None:
    model, other = Network().train(), X.clone()
    other[3, 1] = HUGE
    first, second = (sum_heads(model, cross_entropy, features, 0) for features in (X, other))
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_the_rows_that_a_step_trains_on_have_the_noise_that_was_accounted() -> None:
    """With a front of zeros and a loss that is one output, the gradient of the head is the sum of the rows' noise."""
    model = Network().train()
    with torch.no_grad():
        for parameter in model.front.parameters():
            parameter.zero_()

    def first_output(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
        return model(content[0])[:, 0]

    query = prepare(model, first_output)
    found = [sum_heads(model, first_output, X, step, query)["head.weight"][0] for step in range(400)]
    std = math.sqrt(len(X)) * query.apart.layer.copy.noise_std
    noise = torch.stack(found).double() / std
    assert query.apart.layer.copy.noise_std == pytest.approx(STDS["rows"] * math.sqrt(noise.shape[1]))
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(1.2 * noise.flatten().numpy(), "norm").pvalue < 1e-4  # the wrong scale
    assert abs(float((noise[1:] * noise[:-1]).mean())) < 0.1  # every step has its own
    assert abs(float((noise[:, 1:] * noise[:, :-1]).mean())) < 0.1  # and every number
