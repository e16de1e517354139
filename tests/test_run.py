"""A run does what its plan declares: bounded sums, noise at the declared scale, steps in order."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy import stats
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from hush.accounting.guarantee import SECRET_SEED
from hush.checkpointing import Checkpoints
from hush.errors import InvalidInputError, ReleaseError, RunStateError, UnsupportedModelError
from hush.methods import make_plan
from hush.per_example.result import GradientWarning
from hush.randomness import Secret
from replay import recorded, sensitivities

N = 40


def losses(model: nn.Module, content) -> torch.Tensor:
    x, y = content
    return functional.cross_entropy(model(x), y, reduction="none")


def data(n: int = N, features: int = 6, seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, features, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def mlp(features: int = 6, seed: int = 0, width: int = 8, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 3))


def plan(method: str = "dp-sgd", **changes):
    how = {"examples": N, "batch_size": 8, "steps": 5, "noise_multiplier": 0.7, "lr": 0.3, "clip": 0.9, **changes}
    return make_plan(method, **how)


class Rows:
    """A source of examples that may hold values which are not finite."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[indices], self.y[indices]


def zeroed(x: torch.Tensor, y: torch.Tensor, victim: int) -> Rows:
    """The zero-out neighbour: an example without a finite gradient contributes exactly nothing."""
    x = x.clone()
    x[victim] = math.nan
    return Rows(x, y)


class TestSensitivity:
    @settings(max_examples=25, deadline=None)
    @given(
        seed=st.integers(0, 10**6),
        clip=st.floats(0.01, 30),
        scale=st.sampled_from([1e-3, 1.0, 1e3]),
        mode=st.sampled_from(["plain", "normalised"]),
        dropout=st.sampled_from([0.0, 0.4]),
        method=st.sampled_from(["dp-sgd", "dp-adam"]),
    )
    def test_removing_an_example_moves_no_sum_further_than_the_bound(self, seed, clip, scale, mode, dropout, method):
        x, y = data(seed=seed, scale=scale)
        x, model = x.double(), lambda: mlp(seed=seed, dropout=dropout).double()
        p = plan(method, clip=clip, clip_mode=mode, sample_rate=0.5)
        bound = p.query.channels["gradient"].bound
        assert bound == (clip if mode == "plain" else 1.0)
        moved = [s["gradient"] for s in sensitivities(p, model, losses, (x, y), (x[:-1], y[:-1]), secret=seed)]
        assert max(moved) <= bound * (1 + 1e-9)

    def test_an_example_takes_part_at_the_sampling_rate(self):
        x, y = data(seed=0)
        p = plan(sample_rate=0.5)
        moved = [
            s["gradient"] > 0
            for seed in range(20)
            for s in sensitivities(p, lambda: mlp(seed=0), losses, (x, y), (x[:-1], y[:-1]), secret=seed)
        ]
        assert 0.35 < sum(moved) / len(moved) < 0.65

    @settings(max_examples=15, deadline=None)
    @given(seed=st.integers(0, 10**6), sampling=st.sampled_from(["same-order", "shuffled", "fixed-size"]))
    def test_other_batches(self, seed, sampling):
        x, y = data(seed=seed, scale=50.0)
        x, make = x.double(), lambda: mlp(seed=seed).double()
        p = plan(sampling=sampling, steps=10)
        twin = (x.clone(), y.clone())
        twin[0][3], twin[1][3] = -x[3], (y[3] + 1) % 3
        replaced = [s["gradient"] for s in sensitivities(p, make, losses, (x, y), twin, secret=seed)]
        assert max(replaced) <= 2 * 0.9 * (1 + 1e-9)
        if sampling == "fixed-size":
            return
        moved = [s["gradient"] for s in sensitivities(p, make, losses, (x, y), zeroed(x, y, 3), secret=seed)]
        assert max(moved) <= 0.9 * (1 + 1e-9)
        assert sum(m > 0 for m in moved) == 2  # ten steps of five an epoch: it takes part twice

    def test_a_query_that_forgets_to_clip_is_caught(self):
        x, y = data(scale=50.0)
        p = plan(clip=1e9, sample_rate=0.9)
        moved = sensitivities(p, mlp, losses, (x, y), (x[:-1], y[:-1]))
        assert max(s["gradient"] for s in moved) > 2 * 0.9

    def test_the_bound_is_attained(self):
        x, y = data(scale=50.0)
        p = plan(sample_rate=0.9)
        moved = sensitivities(p, mlp, losses, (x, y), (x[:-1], y[:-1]))
        assert max(s["gradient"] for s in moved) > 0.99 * 0.9


class TestNoise:
    @pytest.mark.parametrize("mode", ["plain", "normalised"])
    @pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled", "same-order"])
    def test_released_minus_sum_has_the_declared_scale(self, mode, sampling):
        p = plan(clip_mode=mode, sampling=sampling, steps=12)
        sums, releases = recorded(p, mlp(width=64), losses, data(), secret=5)
        noise = torch.cat(
            [
                (r.gradient[n].double() * p.divisor - s["gradient"][n].double()).flatten()
                for s, r in zip(sums, releases, strict=True)
                for n in r.gradient
            ]
        ).numpy()
        repeats = math.sqrt(3) if sampling == "same-order" else 1.0  # 12 steps, 5 an epoch: an example comes 3 times
        std = 0.7 * (0.9 if mode == "plain" else 1.0) * (1 + p.charge) * repeats
        assert releases[0].noise_std == pytest.approx(std / p.divisor)
        assert stats.kstest(noise / std, "norm").pvalue > 1e-6
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(noise / (std * wrong), "norm").pvalue < 1e-9

    def test_steps_and_coordinates_are_uncorrelated(self):
        p = plan(steps=2)
        sums, releases = recorded(p, mlp(width=512), losses, data())
        rows = [
            torch.cat([(r.gradient[n] * 8 - s["gradient"][n]).flatten() for n in r.gradient]).double()
            for s, r in zip(sums, releases, strict=True)
        ]
        corr = torch.corrcoef(torch.stack(rows))[0, 1]
        assert abs(corr) < 5 / math.sqrt(len(rows[0]))
        lagged = torch.corrcoef(torch.stack([rows[0][1:], rows[0][:-1]]))[0, 1]
        assert abs(lagged) < 5 / math.sqrt(len(rows[0]))

    def test_two_runs_of_one_plan_never_share_noise(self):
        p = plan(steps=1)
        values = []
        for _ in range(2):
            run = p.start(mlp(), losses, data())
            for batch in run.batches():
                run.step(batch)
            values.append(run.model[0].weight.detach().clone())
        assert not torch.allclose(values[0], values[1])

    def test_a_secret_seed_is_bound_to_the_plan(self):
        def noise_of(p):
            _, releases = recorded(p, mlp(), losses, data(), secret=3)
            return releases[0].gradient["0.bias"]

        same = noise_of(plan(lr=0.3)), noise_of(plan(lr=0.3))
        assert torch.equal(*same)
        assert not torch.allclose(same[0], noise_of(plan(lr=0.300001)))


def test_pieces_give_the_same_sum():
    x, y = data()
    p = plan(sample_rate=0.8)
    whole, releases = recorded(p, mlp().double(), losses, (x.double(), y))
    pieces, _ = recorded(p, mlp().double(), losses, (x.double(), y), given=releases, microbatch=3)
    for a, b in zip(whole, pieces, strict=True):
        for name in a["gradient"]:
            assert torch.allclose(a["gradient"][name], b["gradient"][name], atol=1e-12)


def test_an_empty_batch_is_a_step_of_noise_alone():
    p = plan(sample_rate=1e-9)
    sums, releases = recorded(p, mlp(), losses, data())
    assert all(not value.any() for s in sums for value in s["gradient"].values())
    assert len(releases) == 5
    assert all(r.gradient["0.weight"].std() > 0 for r in releases)


def test_examples_without_a_finite_gradient_contribute_zero():
    x, y = data()
    p = plan(sample_rate=1.0, steps=1)
    good, releases = recorded(p, mlp(), losses, (x[:-1], y[:-1]))
    bad, _ = recorded(p, mlp(), losses, zeroed(x, y, N - 1), given=releases)
    for name in good[0]["gradient"]:
        assert torch.isfinite(bad[0]["gradient"][name]).all()
        assert torch.allclose(good[0]["gradient"][name], bad[0]["gradient"][name], atol=1e-6)


def test_a_dataset_trains_like_its_tensors():
    x, y = data()
    first, _ = recorded(plan(), mlp(), losses, (x, y))
    second, _ = recorded(plan(), mlp(), losses, TensorDataset(x, y))
    assert torch.equal(first[0]["gradient"]["0.weight"], second[0]["gradient"]["0.weight"])


def test_ordinary_training_is_torch_sgd():
    x, y = data()
    p = make_plan("sgd", examples=N, batch_size=N, steps=4, lr=0.2)
    run = p.start(mlp(), losses, (x, y))
    for batch in run.batches():
        run.step(batch)
    other = mlp()
    optimizer = torch.optim.SGD(other.parameters(), 0.2)
    for _ in range(4):
        optimizer.zero_grad()
        functional.cross_entropy(other(x), y).backward()
        optimizer.step()
    assert torch.allclose(run.model[0].weight, other[0].weight, atol=1e-6)
    assert run.guarantee.status == "none"
    assert run.guarantee.epsilon == math.inf


class TestRefusals:
    def test_foreign_batch(self):
        first, second = (plan().start(mlp(), losses, data()) for _ in range(2))
        with pytest.raises(RunStateError):
            first.step(next(second.batches()))
        with pytest.raises(RunStateError):
            first.step(data())

    def test_out_of_order(self):
        run = plan().start(mlp(), losses, data())
        with pytest.raises(RunStateError, match="2.*0"):
            run.step(run.batch(2))
        batch = run.batch(0)
        run.step(batch)
        with pytest.raises(RunStateError, match="0"):
            run.step(batch)

    def test_more_steps_than_planned(self):
        run = plan(steps=2).start(mlp(), losses, data())
        for batch in run.batches():
            run.step(batch)
        with pytest.raises(RunStateError, match="2"):
            run.step(run.batch(2))

    def test_skipped_batch(self):
        batches = plan().start(mlp(), losses, data()).batches()
        next(batches)
        with pytest.raises(InvalidInputError):
            next(batches)

    def test_scalar_loss(self):
        run = plan(sample_rate=1.0).start(mlp(), lambda m, c: functional.cross_entropy(m(c[0]), c[1]), data())
        with pytest.raises(InvalidInputError, match="one loss per example|one per example"):
            run.step(run.batch(0))

    @pytest.mark.parametrize(("width", "advice"), [(1, ", or .squeeze(1)"), (2, "")])
    def test_losses_of_two_dimensions(self, width, advice):
        run = plan(sample_rate=1.0).start(mlp(), lambda m, c: m(c[0])[:, :width] ** 2, data())
        with pytest.raises(InvalidInputError) as caught:
            run.step(run.batch(0))
        assert str(caught.value).endswith(f"got 2 dimensions: take the mean over the other dimensions{advice}")

    def test_batch_norm(self):
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        with pytest.raises(UnsupportedModelError, match="to_group_norm"):
            plan().start(model, losses, data())

    def test_a_buffer_that_learns(self):
        class Learns(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(6, 3)
                self.register_buffer("mean", torch.zeros(6))

            def forward(self, x):
                if self.training and x.dim() == 2:
                    self.mean.add_(1.0)
                return self.linear(x)

        run = plan(sample_rate=1.0).start(Learns(), losses, data())
        with pytest.raises(UnsupportedModelError, match="'mean'"):
            run.step(run.batch(0))

    def test_frozen_model(self):
        model = mlp()
        for p in model.parameters():
            p.requires_grad_(False)
        with pytest.raises(InvalidInputError, match="parameter"):
            plan().start(model, losses, data())

    def test_features_that_are_not_finite(self):
        x, y = data()
        x[3, 2] = math.nan
        with pytest.raises(InvalidInputError):
            plan().start(mlp(), losses, (x, y))


class TestArtefact:
    def test_weights_and_card(self, tmp_path):
        run = plan(epochs=None).start(mlp(), losses, data())
        for batch in run.batches():
            run.step(batch)
        run.release(tmp_path / "out")
        weights = load_file(tmp_path / "out" / "model.safetensors")
        assert all(torch.equal(weights[n], v) for n, v in run.model.state_dict().items())
        card = json.loads((tmp_path / "out" / "privacy.json").read_text())
        assert card["guarantee"]["epsilon"] == pytest.approx(run.guarantee.epsilon)
        assert card["guarantee"]["status"] == "proven"
        page = (tmp_path / "out" / "PRIVACY.md").read_text()
        assert "(epsilon, here 7.44)" in page
        assert "Proven: what the released files can reveal" in page

    def test_the_card_has_the_gradient_paths_also_of_a_run_that_is_resumed_to_be_released(self, tmp_path):
        class Distances(nn.Linear):
            def forward(self, x):
                return -torch.cdist(x, self.weight)

        def begin():
            return plan(epochs=None).start(nn.Sequential(mlp(), Distances(3, 3, bias=False)), losses, data())

        def release(run, name):
            return json.loads((run.release(tmp_path / name) / "privacy.json").read_text())["gradients"]

        assert release(begin(), "none") == {}
        run, kept = begin(), Checkpoints(tmp_path / "private")
        kept.begin(run)
        with pytest.warns(GradientWarning):
            run.step(run.batch(0))
        kept.save(run)
        kept.close()
        paths = release(run, "first")
        assert paths == {"book-keeping": ["Linear"], "torch.func": ["Distances"]}
        again = begin()
        kept.restore(again, kept.newest().saved)
        assert release(again, "second") == paths

    def test_nothing_private_is_in_it(self, tmp_path):
        secret = Secret.from_seed(12345678)
        run = plan(noise_multiplier=0.7123).start(mlp(), losses, data(), secret=secret)
        records = [run.step(batch) for batch in run.batches()]
        run.release(tmp_path)
        text = (tmp_path / "privacy.json").read_text() + (tmp_path / "PRIVACY.md").read_text()
        assert secret.key.hex() not in text
        assert "12345678" not in text
        assert {p.name for p in tmp_path.iterdir()} == {
            "model.safetensors",
            "model.json",
            "privacy.json",
            "PRIVACY.md",
            "privacy.html",
        }
        assert set(load_file(tmp_path / "model.safetensors")) == set(run.model.state_dict())
        for record in records:
            for value in record.numbers().values():
                assert value == int(value) or repr(value) not in text
        assert "loss" not in text.replace("the model and its loss treat every example separately", "")

    def test_a_state_dict_that_differs_from_the_model_is_not_released(self, tmp_path):
        run = plan().start(mlp(), losses, data(), secret=4)
        run.step()
        name = next(iter(run.model.state_dict()))
        run.model._register_state_dict_hook(lambda module, state, *_: state.update({name: state[name] + 1}))
        with pytest.raises(ReleaseError, match=name):
            run.release(tmp_path / "released")
        assert not (tmp_path / "released").exists()

    def test_a_chosen_secret_seed_is_said(self, tmp_path):
        seeded, fresh = plan().start(mlp(), losses, data(), secret=4), plan().start(mlp(), losses, data())
        assert SECRET_SEED in seeded.guarantee.conditions
        assert SECRET_SEED not in fresh.guarantee.conditions

    def test_the_secret_is_never_printed(self):
        secret = Secret.fresh()
        assert secret.key.hex() not in repr(secret)
        assert str(secret.key) not in f"{secret}"


def test_the_users_own_randomness_is_left_alone():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    run = plan().start(mlp_without_seeding(), losses, data())
    state = torch.get_rng_state()
    run.step(run.batch(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert expected.shape == (3,)


def mlp_without_seeding() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3))


FIRST_STEP = """
import sys, torch, hush
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
plan = hush.make_plan("dp-sgd", examples=40, batch_size=20, steps=1, noise_multiplier=1.0, lr=0.1)
plan.start(model, lambda m, x: m(x).square().sum(1), torch.rand(40, 4)).step()
print("torch._dynamo" in sys.modules)
"""


def test_the_first_step_does_not_load_the_compiler_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_STEP], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
