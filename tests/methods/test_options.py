"""torch optimizers and schedulers in place of a method's SGD: the same noisy gradients and ε, another update rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.optim import AdamW, lr_scheduler

from hush import InvalidInputError, NotProvenError, make_plan
from hush.checkpointing import Checkpoints
from hush.methods import catalogue
from hush.optimizers import TorchOptim
from hush.training import take_steps

N, STEPS = 40, 6
X = torch.linspace(-1, 1, N * 3).view(N, 3).sin()
Y = torch.arange(N) % 2
OWN_RULE = ["dp-adam", "dp-adam-bc", "dp-disk", "dp-ftrl"]
REPLACEABLE = [name for name in catalogue() if name not in OWN_RULE and not name.startswith("sanitize")]


def network() -> torch.nn.Module:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    return model


def losses(model, content):
    return torch.nn.functional.cross_entropy(model(content[0]), content[1], reduction="none")


def plan(method="dp-sgd", **more):
    usual = {"examples": N, "batch_size": 10, "steps": STEPS, "accept_claimed": True, "optimizer": adamw}
    noise = {} if method == "sgd" else {"noise_multiplier": 1.0}
    return make_plan(method, **(usual | noise | more))


def adamw(params):
    return AdamW(params, lr=0.05, weight_decay=0.1)


def cosine(optimizer):
    return lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)


def weights(p, secret=1) -> dict[str, torch.Tensor]:
    run = p.start(network(), losses, (X, Y), secret=secret)
    for _ in take_steps(run):
        pass
    return run.model.state_dict()


def same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", REPLACEABLE)
def test_the_optimizer_takes_the_place_of_sgd_at_the_same_guarantee(method) -> None:
    ours, theirs = plan(method), plan(method, optimizer=None)
    assert isinstance(ours.optimizer, TorchOptim)
    assert replace(ours, optimizer=theirs.optimizer).fingerprint() == theirs.fingerprint()
    if ours.has_guarantee:
        assert ours.claims() == theirs.claims()
    assert not same(weights(ours), network().state_dict())


def test_it_is_the_optimizer_by_itself_on_what_is_released() -> None:
    seen: list[list[torch.Tensor]] = []

    def spied(params):
        optimizer = adamw(params)
        optimizer.register_step_pre_hook(lambda given, *_: seen.append([p.grad.clone() for _, p in params]))
        return optimizer

    run = plan(optimizer=spied, scheduler=cosine).start(network(), losses, (X, Y))
    for _ in take_steps(run):
        pass
    expected = network()
    optimizer = adamw(expected.parameters())
    schedule = cosine(optimizer)
    assert len(seen) == STEPS
    for gradients in seen:
        for parameter, gradient in zip(expected.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(run.model.state_dict(), expected.state_dict())
    assert same(run.model.state_dict(), weights(plan(scheduler=cosine), run.secret))


def test_the_scheduler_is_stepped_once_a_step() -> None:
    kept = []

    def schedule(optimizer):
        kept.append(optimizer)
        return lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.5, total_iters=STEPS)

    run = plan(scheduler=schedule).start(network(), losses, (X, Y))
    for count, _ in enumerate(take_steps(run), start=1):
        assert kept[0].param_groups[0]["lr"] == pytest.approx(0.05 * (1 - 0.5 * count / STEPS))
    assert count == STEPS


def test_parameters_come_by_name_so_that_they_can_be_grouped() -> None:
    def grouped(params):
        return torch.optim.SGD(
            [
                {"params": [p for name, p in params if name == "weight"], "lr": 0.0},
                {"params": [p for name, p in params if name == "bias"], "lr": 1.0},
            ]
        )

    found = weights(plan(optimizer=grouped))
    assert torch.equal(found["weight"], network().weight)
    assert not torch.equal(found["bias"], network().bias)


@pytest.mark.parametrize("more", [{}, {"average": "tail:0.5"}, {"clip_quantile": 0.5}], ids=str)
def test_a_stopped_run_goes_on_to_the_same_bits(more, tmp_path) -> None:
    p = plan(scheduler=cosine, **more)
    run, kept = p.start(network(), losses, (X, Y), secret=1), Checkpoints(tmp_path)
    for _ in take_steps(run, checkpoints=kept, every=1):
        if run.next == 3:
            break
    kept.close()
    again, kept = p.start(network(), losses, (X, Y)), Checkpoints(tmp_path)
    kept.restore(again, kept.newest().saved)
    for _ in take_steps(again):
        pass
    kept.close()
    assert same(again.model.state_dict(), weights(p))


def test_adaptive_clipping_keeps_its_units() -> None:
    p = plan(clip_quantile=0.5)
    assert (type(p.optimizer).__name__, type(p.optimizer.optimizer)) == ("ClipUnits", TorchOptim)


@pytest.mark.parametrize("method", OWN_RULE)
def test_a_method_that_is_its_rule_refuses_another(method) -> None:
    with pytest.raises(InvalidInputError, match=f"'{method}'.* dp-sgd"):
        plan(method)


@pytest.mark.parametrize("method", ["dp-sgd", "sgd", "dp-dice", "dp-bandmf"])
def test_options_of_the_rule_beside_an_optimizer_are_refused(method) -> None:
    with pytest.raises(InvalidInputError, match="optimizer"):
        plan(method, lr=0.1)
    with pytest.raises(InvalidInputError):
        plan(method, lr=0.1, momentum=0.9)


def test_what_is_no_function_is_refused_in_words() -> None:
    with pytest.raises(InvalidInputError, match="AdamW"):
        plan(optimizer=AdamW(network().parameters()))
    with pytest.raises(InvalidInputError, match="scheduler"):
        plan(scheduler=3)
    with pytest.raises(InvalidInputError, match="optimizer"):
        plan(optimizer=None, scheduler=cosine)


def test_optimizers_that_read_the_loss_are_refused() -> None:
    with pytest.raises(NotProvenError):
        plan(optimizer=torch.optim.LBFGS).start(network(), losses, (X, Y))
    with pytest.raises(NotProvenError, match="ReduceLROnPlateau"):
        plan(scheduler=lr_scheduler.ReduceLROnPlateau).start(network(), losses, (X, Y))
