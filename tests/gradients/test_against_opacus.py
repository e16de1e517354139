"""hush's clipped sums and norms against Opacus' per-example gradients, on the models of the literature."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from hush.datasets.models import lenet5, mlp, p1, p2
from hush.per_example.gradients import per_example_gradients

opacus = pytest.importorskip("opacus")

MODELS = {
    "MLP": (lambda: mlp([784, 512, 256, 128, 10]), (1, 28, 28), 567_434),
    "LeNet-5": (lenet5, (1, 28, 28), 61_706),
    "P1": (p1, (3, 32, 32), 258_762),
    "P2": (p2, (1, 28, 28), 225_034),
}


def cross_entropy(model, content):
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


@pytest.mark.filterwarnings("ignore::UserWarning:opacus")
@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("name", MODELS)
def test_sums_and_norms_equal_opacus(name):
    make, shape, size = MODELS[name]
    torch.manual_seed(0)
    model = make()
    assert sum(p.numel() for p in model.parameters()) == size  # MECHANISMS, section 10
    content = torch.randn(4, *shape), torch.randint(0, 10, (4,))
    tape = per_example_gradients(model, cross_entropy, content, engine="book-keeping")
    norms, clip = tape.squared_norms(), 0.5
    total = torch.stack(list(norms.values())).sum(0).sqrt()
    sums = tape.sum((clip / total).clamp(max=1))
    usual = nn.Sequential(*model)  # Opacus 1.6.0 errs by several per cent where channels are last in memory
    wrapped = opacus.GradSampleModule(usual, loss_reduction="sum")
    cross_entropy(wrapped, content).sum().backward()
    theirs = {key.removeprefix("_module."): p.grad_sample for key, p in wrapped.named_parameters()}
    right = torch.stack([g.flatten(1).square().sum(1) for g in theirs.values()]).sum(0).sqrt()
    torch.testing.assert_close(total.float(), right, rtol=1e-4, atol=1e-6)
    factor = (clip / right).clamp(max=1)
    for key, g in theirs.items():
        torch.testing.assert_close(sums[key], torch.tensordot(factor, g, 1), rtol=1e-3, atol=1e-5)
