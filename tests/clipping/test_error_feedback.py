"""DiceSGD: the error memory follows its formula and is not released; its claimed and proven ε."""

from __future__ import annotations

import json
import math

import pytest
import torch
from dp_accounting import dp_event
from safetensors.torch import load_file
from scipy import stats
from torch import nn

from hush.accounting.gaussian import Participating, gaussian_delta, gaussian_deltas
from hush.cli import main
from hush.clipping import ErrorFeedback
from hush.clipping.error_feedback import LARGEST_ERROR, total_norm
from hush.errors import InvalidInputError, NotProvenError
from hush.methods import make_plan
from hush.noise import Stages
from hush.noise.independent import Independent
from hush.randomness import Secret
from replay import recorded, sensitivities


def linear(model: nn.Module, content: torch.Tensor) -> torch.Tensor:
    """The loss w·x has gradient x, whatever w is."""
    return model(content)[:, 0]


def weights(size: int = 2) -> nn.Module:
    return nn.Linear(size, 1, bias=False).double()


def plan(**changes):
    how = {"examples": 4, "batch_size": 4, "steps": 5, "sample_rate": 1.0, "noise_multiplier": 1e-9, "lr": 1e-9}
    return make_plan("dp-dice", **{**how, "clip": 1.0, "clip_feedback": 0.5, **changes})


def test_two_steps_by_hand(no_noise) -> None:
    """C₁ = 1, C₂ = ½, one example with gradient (3, 4), norm 5: clipped to (0.6, 0.8).

    Step 1: v = (0.6, 0.8), e = (3, 4) − v = (2.4, 3.2), norm 4.
    Step 2: clip(e) = (0.3, 0.4), v = (0.9, 1.2), e = (2.4, 3.2) + (3, 4) − v = (4.5, 6).
    """
    x = torch.tensor([[3.0, 4.0]]).double()
    sums, _ = recorded(plan(examples=1, batch_size=1, steps=2), weights(), linear, x)
    assert torch.allclose(sums[0]["gradient"]["weight"][0], torch.tensor([0.6, 0.8]).double())
    assert torch.allclose(sums[1]["gradient"]["weight"][0], torch.tensor([0.9, 1.2]).double())
    run = plan(examples=1, batch_size=1, steps=2).start(weights(), linear, x, secret=1)
    for batch in run.batches():
        run.step(batch)
    assert torch.allclose(run.state()["private"]["error"]["weight"][0], torch.tensor([4.5, 6.0]).double())


@pytest.mark.parametrize(("clip", "feedback"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.3)])
def test_one_huge_example_is_replayed_for_as_many_steps_as_theory_says(clip, feedback) -> None:
    """Its gradient 1000·C₁ leaves e = 999·C₁, and each later step takes C₂ away: ⌊999·C₁/C₂⌋ steps at norm C₂."""
    query = ErrorFeedback(clip, feedback)
    zero = {"w": torch.zeros(3).double()}
    huge = {"w": torch.tensor([0.0, 1000.0 * clip, 0.0]).double()}
    sums = {"gradient": {"w": huge["w"] / 1000}, "raw": huge}
    _, private = query.finish(sums, {}, {"error": zero})
    replayed = 0
    while total_norm(private["error"]) > 1e-6:
        out, private = query.finish({"gradient": zero, "raw": zero}, {}, private)
        norm = total_norm(out["gradient"])
        assert norm <= feedback * (1 + 1e-12)
        replayed += norm > feedback * (1 - 1e-9)
    assert replayed == math.floor(999 * clip / feedback + 1e-9)


def test_the_error_stays_zero_where_nothing_is_clipped(no_noise) -> None:
    x = 0.1 * torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).double()
    quiet, loud = (plan().start(weights(), linear, scale * x, secret=1) for scale in (1.0, 100.0))
    for run in (quiet, loud):
        for batch in run.batches():
            run.step(batch)
    assert total_norm(quiet.state()["private"]["error"]) < 1e-15
    assert total_norm(loud.state()["private"]["error"]) > 1.0


def test_feedback_pushes_towards_what_was_cut_off(no_noise) -> None:
    """On the sum scale the sign is right: the mean release of a clipped example moves towards its gradient."""
    x = torch.tensor([[3.0, 0.0]]).double()
    sums, _ = recorded(plan(examples=1, batch_size=1, steps=9, clip_feedback=4.0), weights(), linear, x)
    released = torch.stack([s["gradient"]["weight"][0] for s in sums])
    assert torch.allclose(released.sum(0), 9 * x[0], atol=3.0)
    assert released[-1, 0] > 2.9  # 1 by clipping, 2 by feedback


def test_a_person_moves_steps_that_they_are_not_in() -> None:
    """Why the paper's formula does not hold: with e ≠ 0 a step moves by up to 2C₂ even without the example."""
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).double()
    x[-1] = torch.tensor([0.0, 1000.0, 0.0])
    p = plan(examples=20, batch_size=5, sample_rate=0.25, steps=40, noise_multiplier=1.0)
    steps = [s["gradient"] for s in sensitivities(p, lambda: weights(3), linear, x, x[:-1], secret=3)]
    secret = Secret.from_seed(3, p.fingerprint())
    taken = [19 in p.sampler.indices(secret, t, 20) for t in range(40)]
    first = taken.index(True)
    assert all(moved == 0 for moved in steps[:first])
    assert steps[first] == pytest.approx(1.0)  # C₁
    absent = [moved for moved, here in zip(steps[first + 1 :], taken[first + 1 :], strict=True) if not here]
    assert max(absent) <= 2 * 0.5 * (1 + 1e-9)
    assert min(absent) > 0.1  # DP-SGD's would be zero
    assert max(steps) <= (1.0 + 2 * 0.5) * (1 + 1e-9)


def test_the_error_cannot_overflow() -> None:
    query = ErrorFeedback(1.0, 1.0)
    for size, norm in ((1e30, LARGEST_ERROR), (math.inf, 0.0)):
        raw = {"w": torch.full((2,), size, dtype=torch.float32)}
        _, private = query.finish({"gradient": {"w": torch.zeros(2)}, "raw": raw}, {}, {"error": {"w": torch.zeros(2)}})
        assert total_norm(private["error"]) == pytest.approx(norm, rel=1e-5)
        out, _ = query.finish({"gradient": {"w": torch.zeros(2)}, "raw": {"w": torch.zeros(2)}}, {}, private)
        assert torch.isfinite(out["gradient"]["w"]).all()


def test_the_error_is_in_no_released_file_record_or_log(tmp_path) -> None:
    x = torch.tensor([[3.0, 4.0], [5.0, 1.0], [2.0, 2.0], [7.0, 0.5]]).double()
    run = plan(noise_multiplier=1.0).start(weights(), linear, x, secret=1)
    records = [run.step(batch) for batch in run.batches()]
    run.release(tmp_path)
    error = run.state()["private"]["error"]["weight"]
    assert error.abs().min() > 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "model.safetensors",
        "model.json",
        "privacy.json",
        "PRIVACY.md",
        "privacy.html",
    }
    released = load_file(tmp_path / "model.safetensors")
    assert set(released) == {"weight"}
    assert not any(torch.allclose(released["weight"], error * scale) for scale in (1.0, -1.0))
    assert "error" not in json.loads((tmp_path / "privacy.json").read_text())["plan"]["query"]
    assert all(set(record.numbers()) == {"loss", "examples", "clipped"} for record in records)
    assert "error" not in repr(records)


# T, q, s, ε at δ = 1e-5 with C₁ = C₂ = 1: MECHANISMS.md §7
@pytest.mark.parametrize(("steps", "rate", "std", "epsilon"), [(4700, 1 / 235, 200, 2.850), (1000, 0.01, 100, 2.613)])
@pytest.mark.parametrize("mode", ["plain", "normalised"])
def test_what_is_proven(steps, rate, std, epsilon, mode) -> None:
    p = make_plan(
        "dp-dice",
        examples=60_000,
        batch_size=256,
        steps=steps,
        sample_rate=rate,
        noise_multiplier=float(std),
        clip_mode=mode,
    )
    proven, claimed = p.claims()
    assert (proven.status, claimed.status) == ("proven", "refuted")
    assert proven.epsilon == pytest.approx(epsilon, abs=5e-4)
    assert claimed.event == dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(std / math.sqrt(3))), steps
    )
    assert p.guarantee().status == "proven"


def test_the_unit_of_clips_does_not_matter() -> None:
    """Everything scales: C₁ = C₂ = 3 with noise 3s is C₁ = C₂ = 1 with noise s, plain or normalised."""
    how = {"examples": 60_000, "batch_size": 256, "steps": 1000, "sample_rate": 0.01, "noise_multiplier": 100.0}
    for mode in ("plain", "normalised"):
        p = make_plan("dp-dice", **how, clip=3.0, clip_feedback=3.0, clip_mode=mode)
        assert p.guarantee().epsilon == pytest.approx(2.613, abs=5e-4)


def test_the_mixture_is_the_sum_that_it_says() -> None:
    event = Participating(50, 0.1, 0.02, always=0.003)
    for epsilon in (0.0, 0.3, 2.0):
        direct = sum(
            stats.binom.pmf(k, 50, 0.1) * gaussian_delta(epsilon, math.sqrt(50 * 0.003 + k * 0.02)) for k in range(51)
        )
        assert event.delta_of(epsilon) == pytest.approx(direct, rel=1e-6)
        assert event.delta_of(epsilon) >= direct * (1 - 1e-9)
    assert Participating(50, 0.1, 0.0, always=0.003).delta_of(0.3) == pytest.approx(
        gaussian_delta(0.3, math.sqrt(0.15)), rel=1e-6
    )


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 7.0, 60.0])
def test_the_profile_of_many_gaussians_is_that_of_each(mu) -> None:
    for epsilon in (0.0, 0.01, 1.0, 20.0, 700.0):
        one = gaussian_delta(epsilon, mu)
        assert gaussian_deltas(epsilon, torch.tensor([mu]).double().numpy())[0] == pytest.approx(
            one, rel=1e-6, abs=1e-15
        )


def test_calibration_uses_what_is_proven() -> None:
    p = make_plan("dp-dice", examples=60_000, batch_size=256, epochs=2, epsilon=2.0)
    assert 1.99 < p.guarantee().epsilon <= 2.0
    assert p.claims()[1].epsilon < 0.1  # the paper's formula would call this far more private


def test_the_shell_says_both_and_why(capsys) -> None:
    flags = "account --method dp-dice --examples 60000 --steps 4700 --noise-multiplier 200"
    flags += f" --sample-rate {1 / 235}"
    assert main([*flags.split(), "--json"]) == 0
    proven, claimed = json.loads(capsys.readouterr().out)["claims"]
    assert (proven["status"], claimed["status"]) == ("proven", "refuted")
    assert proven["epsilon"] == pytest.approx(2.850, abs=5e-4)
    assert "every step is charged" in proven["reason"]
    assert "only for the steps whose batch they are in" in claimed["reason"]
    assert main(flags.split()) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "proven" in text
    assert "refuted" in text


class TestRefusals:
    @pytest.mark.parametrize("sampling", ["shuffled", "fixed-size", "same-order"])
    def test_other_batches(self, sampling):
        with pytest.raises(NotProvenError, match="'poisson'"):
            plan(sampling=sampling, sample_rate=None)

    def test_another_adjacency(self):
        with pytest.raises(NotProvenError, match="'add-remove'"):
            plan(adjacency="replace")

    def test_a_noise_schedule(self):
        from dataclasses import replace

        with pytest.raises(NotProvenError):
            replace(plan(), noise=Independent(5, Stages(5, 0.5)))

    def test_options_that_have_no_proof_with_it(self):
        with pytest.raises(InvalidInputError, match="'clip_quantile'"):
            plan(clip_quantile=0.5)


def test_a_feedback_that_is_smaller_than_rounding_is_refused() -> None:
    """A step without the example is charged for 2·C₂ alone, which must exceed the rounding of Σ clip + clip(e)."""
    with pytest.raises(InvalidInputError, match="clip_feedback 1e-08"):
        ErrorFeedback(1.0, 1e-8)
    ErrorFeedback(1.0, 1e-6)
