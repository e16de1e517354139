"""Tensor memory of a private step against an ordinary one, from the profiler's own count of allocations."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

from hush.datasets.models import VAE, lenet5, p1, vae_losses
from hush.per_example.gradients import per_example_gradients

BATCH = 64


def cross_entropy(model, content):
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def peak(step):
    """The largest number of tensor bytes alive during a step, over those alive before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        step()
    events = [e for e in recording.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = largest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        largest = max(largest, live)
    return largest


@pytest.mark.filterwarnings("ignore::UserWarning:torch.profiler")
@pytest.mark.parametrize(
    ("make", "shape", "losses"),
    [(lenet5, (1, 28, 28), cross_entropy), (p1, (3, 32, 32), cross_entropy), (VAE, (1, 28, 28), vae_losses)],
)
def test_clipped_sums_take_at_most_half_more_than_gradients(make, shape, losses):
    torch.manual_seed(0)
    model = make()
    content = torch.rand(BATCH, *shape), torch.randint(0, 10, (BATCH,))

    def private():
        tape = per_example_gradients(model, losses, content, engine="book-keeping")
        norms = torch.stack(list(tape.squared_norms().values())).sum(0).sqrt()
        return tape.sum((1 / norms).clamp(max=1))

    def ordinary():
        return torch.autograd.grad(losses(model, content).mean(), list(model.parameters()))

    ordinary_bytes, private_bytes = peak(ordinary), peak(private)
    held = BATCH * 4 * sum(p.numel() for p in model.parameters())  # what all per-example gradients would take
    assert private_bytes <= 1.5 * ordinary_bytes < held
