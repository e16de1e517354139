"""Methods with correlated noise: declarations, refusals, and the noise that a run adds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from torch import nn
from torch.nn import functional

from hush.accounting.noise_tails import grid
from hush.cli import main
from hush.errors import InvalidInputError, NotProvenError
from hush.guarantees import check_proof, own_adjacency
from hush.matrix_factorization import BLT, Diagonal, Tree, inverse_square_root, optimal_banded, prefix_sums
from hush.methods import make_plan
from hush.noise import make_noise
from hush.randomness import Secret, normal, streams
from hush.sampling import (
    CyclicPoisson,
    CyclicPoissonSampled,
    OnePass,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Separated,
    WithoutReplacement,
)
from hush.textbook.gaussian import analytic_sigma
from replay import distance, recorded

N, BATCH, B = 48, 8, 6  # six steps an epoch
SETTING = {"examples": N, "batch_size": BATCH, "noise_multiplier": 0.8}

# method, its options, epochs
METHODS = {
    "ftrl": ("dp-ftrl", {}, 3),
    "ftrl-momentum": ("dp-ftrl", {"momentum": 0.9}, 2),
    "ftrl-honaker": ("dp-ftrl", {"honaker": True}, 3),
    "ftrl-read": ("dp-ftrl", {"nodes": "read"}, 3),
    "ftrl-restart": ("dp-ftrl", {"restart": True}, 3),
    "ftrl-restart-complete": ("dp-ftrl", {"restart": True, "complete": "all-but-last", "honaker": True}, 3),
    "se": ("dp-matrix-se", {}, 1),
    "se-momentum": ("dp-matrix-se", {"momentum": 0.5, "weight_decay": 0.1}, 1),
    "se-lambda": ("dp-matrix-se-lambda", {}, 1),
    "me": ("dp-matrix-me", {}, 3),
    "me-momentum": ("dp-matrix-me", {"momentum": 0.5}, 2),
    "me-lambda": ("dp-matrix-me-lambda", {"tau": 6}, 3),
    "bandmf": ("dp-bandmf", {"bands": 3}, 3),
    "bisr": ("dp-bisr", {"bands": 5}, 3),
    "blt": ("dp-blt", {"buffers": 2}, 3),
}


def plan_of(name: str, **changes):
    method, options, epochs = METHODS[name]
    return make_plan(method, **{**SETTING, "epochs": epochs, **options, **changes})


def patterns(plan) -> list[tuple[int, ...]]:
    """The steps that one example can meet in one unit of the plan's event."""
    steps = range(plan.steps)
    match plan.sampler.participation:
        case SameOrder(per_epoch=b):
            return [tuple(range(t, plan.steps, b)) for t in range(b)]
        case OnePass() | Reshuffled() | CyclicPoissonSampled():
            return [(t,) for t in steps]
    raise AssertionError(plan.sampler.participation)


@pytest.mark.parametrize("name", METHODS)
def test_sensitivity_is_that_of_the_matrix(name: str) -> None:
    plan = plan_of(name)
    C = plan.noise.structure.strategy()
    X = np.abs(C.T @ C)
    worst = max(math.sqrt(X[np.ix_(p, p)].sum()) for p in patterns(plan))
    assert plan.sensitivity == pytest.approx(worst, rel=1e-9)
    assert plan.noise_std == pytest.approx(0.8 * worst, rel=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_the_event_is_the_tables(name: str) -> None:
    event, plan = plan_of(name).event(), plan_of(name)
    gaussian = dp_event.GaussianDpEvent(0.8)
    expected = {
        "ftrl-restart": (gaussian, 3),
        "ftrl-restart-complete": (gaussian, 3),
        "bandmf": (dp_event.PoissonSampledDpEvent(0.5, gaussian), 6),  # q = 8·3/48, 18 steps in turns of 3 groups
    }
    if name in expected:
        inner, count = expected[name]
        assert isinstance(event, dp_event.SelfComposedDpEvent)
        assert event.count == count
        _same(event.event, inner)
    else:
        _same(event, gaussian)
    assert plan.guarantee().adjacency == "zero-out"
    assert plan.guarantee().status == "proven"


def _same(event, wanted) -> None:
    if isinstance(wanted, dp_event.PoissonSampledDpEvent):
        assert event.sampling_probability == wanted.sampling_probability
        event, wanted = event.event, wanted.event
    assert type(event) is type(wanted)
    assert event.noise_multiplier == pytest.approx(wanted.noise_multiplier, rel=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_the_first_steps_cost_no_more_than_the_whole(name: str) -> None:
    plan = plan_of(name)
    spent = [plan.guarantee(steps).epsilon for steps in (1, B, plan.steps)]
    assert spent == sorted(spent)


def test_one_epoch_is_one_pass() -> None:
    default = make_plan("dp-matrix-se", **SETTING)
    assert default.steps == B
    assert default.sensitivity == pytest.approx(1.0)
    assert plan_of("se-momentum").noise.structure.C[1, 0] != pytest.approx(plan_of("se").noise.structure.C[1, 0])


FIXED = [name for name in METHODS if name != "bandmf"]


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize("name", FIXED)
def test_batches_sampled_anew_are_refused_with_the_remedy(name: str, sampling: str) -> None:
    with pytest.raises(NotProvenError, match=r"sampling 'same-order'.*cyclic Poisson sampling \(method dp-bandmf\)"):
        plan_of(name, sampling=sampling)


RESTARTED = {"ftrl-restart", "ftrl-restart-complete", "me-lambda"}  # τ = b makes ME-λ start anew every epoch


@pytest.mark.parametrize("name", sorted(RESTARTED))
def test_noise_that_restarts_is_proven_on_reshuffled_epochs(name: str) -> None:
    plan = plan_of(name, sampling="shuffled")
    event = plan.event()
    assert isinstance(event, dp_event.SelfComposedDpEvent)
    assert event.count == 3  # epochs, each the release of a matrix whose σ counts one participation
    _same(event.event, dp_event.GaussianDpEvent(0.8))
    C = plan.noise.structure.strategy()
    assert plan.sensitivity == pytest.approx(max(np.linalg.norm(C, axis=0)), rel=1e-9)
    in_first, later = (np.abs(part).sum(1) > 1e-9 for part in (C[:, :B], C[:, B:]))
    assert not np.logical_and(in_first, later).any()  # no row of C spans two epochs


@pytest.mark.parametrize("name", [n for n in FIXED if METHODS[n][2] > 1 and n not in RESTARTED])
def test_reshuffled_epochs_are_refused_unless_the_noise_restarts(name: str) -> None:
    with pytest.raises(NotProvenError, match="epoch"):
        plan_of(name, sampling="shuffled")


def test_a_sample_rate_is_refused_on_fixed_batches() -> None:
    with pytest.raises(NotProvenError, match="'poisson'"):
        plan_of("me", sample_rate=0.1)


@pytest.mark.parametrize("change", [{"sampling": "poisson"}, {"sampling": "same-order"}, {"sample_rate": 0.1}])
def test_bandmf_has_its_own_sampling(change) -> None:
    with pytest.raises(InvalidInputError, match="sampling"):
        plan_of("bandmf", **change)


def test_bandmf_with_too_few_groups() -> None:
    plan = plan_of("bandmf")
    with pytest.raises(NotProvenError, match="2.*2"):
        replace(plan, sampler=CyclicPoisson(N, 2, 1 / 3, plan.steps))
    with pytest.raises(InvalidInputError, match="6"):
        plan_of("bandmf", bands=7)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"noise_end": 0.5}, "leave noise_end at 1, or use dp-sgd"),
        ({"clip_quantile": 0.5}, "use clip_mode 'normalised'"),
        ({"adjacency": "add-remove"}, "use 'zero-out'"),
    ],
)
def test_options_without_a_proof_are_refused(change, remedy) -> None:
    with pytest.raises(NotProvenError, match=remedy):
        plan_of("me", **change)


# The real structures against every participation: exactly these pairs are proven.
T = 12
STRUCTURES = {
    "independent": Diagonal(T),
    "3 bands": optimal_banded(prefix_sums(T), 3).structure,
    "bisr": inverse_square_root(prefix_sums(T), 3),
    "blt": BLT(T, np.array([0.8]), np.array([0.4])),
    "tree": Tree(T),
    "tree of 4": Tree(T, restart=4),
    "tree of 2": Tree(T, restart=2),
}
FIXED_BATCHES = {"one pass", "same order", "separated"}
PARTICIPATIONS = {
    "poisson": PoissonSampled(0.1, T),
    "fixed size": WithoutReplacement(40, 4, T),
    "one pass": OnePass(T),
    "same order": SameOrder(4, T),
    "separated": Separated(2, 4, T),
    "reshuffled": Reshuffled(4, T),
    "2 groups": CyclicPoissonSampled(2, 0.3, T),
    "4 groups": CyclicPoissonSampled(4, 0.3, T),
}
PROVEN = {
    "independent": set(PARTICIPATIONS),
    "3 bands": FIXED_BATCHES | {"4 groups"},
    "bisr": FIXED_BATCHES,
    "blt": FIXED_BATCHES,
    "tree": FIXED_BATCHES,
    "tree of 4": FIXED_BATCHES | {"reshuffled", "4 groups"},
    "tree of 2": FIXED_BATCHES | {"reshuffled", "4 groups", "2 groups"},
}


@pytest.mark.parametrize("participation", PARTICIPATIONS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_exactly_the_proven_pairs_are_accepted(structure: str, participation: str) -> None:
    how = PARTICIPATIONS[participation]
    if participation in PROVEN[structure]:
        check_proof(how, STRUCTURES[structure], own_adjacency(how))
    else:
        with pytest.raises(NotProvenError):
            check_proof(how, STRUCTURES[structure], own_adjacency(how))


# --- golden values, through the shell


def answer(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


FTRL = ("account", "--method", "dp-ftrl", "--examples", 60000, "--batch-size", 500, "--epochs", 10, "--delta", 1e-5)


# MECHANISMS.md §5: the published Table III by RDP over α = 1.1, 1.2, … 200, and exactly
@pytest.mark.parametrize(
    ("node", "rdp", "exact"),
    [(25, 2.653, 2.445), (20, 3.408, 3.147), (12.5, 5.838, 5.413), (8, 9.915, 9.236), (4, 23.80, 22.36)],
)
def test_table_three(capsys, node, rdp, exact) -> None:
    places = 2 if rdp > 10 else 3
    found = answer(capsys, *FTRL, "--node-noise", node, "--accountant", "rdp")
    assert round(found["epsilon"], places) == rdp
    assert found["sensitivity"] == 15.0  # S_max = 225
    assert found["noise_std"] == pytest.approx(node)
    assert found["noise_multiplier"] == pytest.approx(node / 15)
    assert round(answer(capsys, *FTRL, "--node-noise", node)["epsilon"], places) == exact


# MECHANISMS.md §5: S_max of trees that restart every epoch
@pytest.mark.parametrize(("complete", "nodes"), [("none", 70), ("all-but-last", 79), ("all", 80)])
def test_restarted_trees(capsys, complete, nodes) -> None:
    """The same batches every epoch, so that one example's nodes of all epochs count together."""
    settings = ("--set", "restart=true", "--set", f"complete={complete}", "--sampling", "same-order")
    assert answer(capsys, *FTRL, *settings, "--node-noise", 10)["sensitivity"] ** 2 == pytest.approx(nodes)


def test_counting_only_the_nodes_that_are_read_lowers_epsilon_and_leaves_the_noise(capsys) -> None:
    """Same noise on the same nodes; S_max 174 of 225, and then ε is that of one Gaussian with σ = 25/√174."""
    published, read = (answer(capsys, *FTRL, "--node-noise", 25, "--set", f"nodes={n}") for n in ("complete", "read"))
    assert read["sensitivity"] ** 2 == pytest.approx(174)
    assert read["noise_std"] == pytest.approx(published["noise_std"])
    assert read["epsilon"] < published["epsilon"]
    assert analytic_sigma(read["epsilon"], 1e-5) == pytest.approx(25 / math.sqrt(174), rel=1e-6)
    with pytest.raises(InvalidInputError, match="Honaker's"):
        make_plan("dp-ftrl", examples=100, batch_size=10, noise_multiplier=1.0, honaker=True, nodes="read")


# MECHANISMS.md §6: N = 50 000, L = 500, T = 2000, 10 groups, PLD
@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 9.971), (2.0, 3.360)])
def test_amplified_bandmf(capsys, sigma, epsilon) -> None:
    flags = ("--examples", 50000, "--batch-size", 500, "--steps", 2000, "--set", "bands=10")
    found = answer(capsys, "account", "--method", "dp-bandmf", *flags, "--noise-multiplier", sigma)
    assert round(found["epsilon"], 3) == epsilon
    assert found["sample_rate"] == pytest.approx(0.1)
    assert found["accountant"] == "pld"


# MECHANISMS.md §6: rmse · sens for k epochs of b steps, and for one pass
@pytest.mark.parametrize(
    ("method", "epochs", "per_epoch", "options", "error"),
    [
        ("dp-matrix-me", 4, 16, {}, 4.4079),
        ("dp-matrix-me", 8, 8, {}, 7.0085),
        ("dp-matrix-me-lambda", 4, 16, {"tau": 16}, 5.017),
        ("dp-matrix-me-lambda", 4, 16, {}, 4.649),
        ("dp-matrix-se", 1, 64, {}, 2.100),
        ("dp-matrix-se-lambda", 1, 64, {}, 2.246),
    ],
)
def test_errors_of_the_optima(method, epochs, per_epoch, options, error) -> None:
    plan = make_plan(method, examples=10 * per_epoch, batch_size=10, epochs=epochs, noise_multiplier=1.0, **options)
    found = plan.noise_std * plan.noise.structure.rmse()
    digits = 4 if error == round(error, 4) and error != round(error, 3) else 3
    assert found == pytest.approx(error, abs=0.6 * 10**-digits)


def test_poisson_batches_are_refused_in_the_shell(capsys) -> None:
    code = main([*map(str, FTRL), "--node-noise", "25", "--sampling", "poisson"])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert "sampling 'same-order'" in captured.err
    assert "method dp-bandmf" in captured.err
    assert len(captured.err.strip().splitlines()) == 1


# --- real runs


def losses(model: nn.Module, content) -> torch.Tensor:
    x, y = content
    return functional.cross_entropy(model(x), y, reduction="none")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(N, 5, generator=generator), torch.randint(0, 3, (N,), generator=generator)


class Without:
    """The data, with one example whose gradient is not finite: it contributes exactly nothing."""

    def __init__(self, victim: int) -> None:
        self.x, self.y = data()
        self.x[victim] = math.nan

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[indices], self.y[indices]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def flat(named) -> np.ndarray:
    return torch.cat([value.detach().flatten() for value in named.values()]).double().numpy()


@pytest.mark.parametrize("name", METHODS)
def test_a_run_injects_exactly_the_declared_noise(name: str) -> None:
    """release · divisor − sum = σ · clip · sens(C) · MZ, with Z from the run's own secret."""
    plan = plan_of(name, clip=0.7)
    sums, releases = recorded(plan, network(), losses, data(), secret=5)
    secret = Secret.from_seed(5, plan.fingerprint())
    M = plan.noise.structure.noise_map()
    like = torch.empty(len(flat(sums[0]["gradient"])), dtype=torch.float64)
    Z = np.stack([normal(secret, streams.noise("gradient"), row, like).numpy() for row in range(M.shape[1])])
    found = np.stack([BATCH * flat(r.gradient) - flat(s["gradient"]) for r, s in zip(releases, sums, strict=True)])
    bound = 0.7 * (1 + plan.charge)
    expected = 0.8 * bound * plan.sensitivity * (M @ Z)
    rounding = [grid(plan.noise_std * 0.7 * plan.noise.std(step)) / 2 for step in range(plan.steps)]
    assert (np.abs(found - expected) <= np.array(rounding)[:, None] + 2e-5 * np.abs(expected).max()).all()
    for step, release in enumerate(releases):
        own = 0.8 * bound * plan.sensitivity * np.linalg.norm(M[step]) / BATCH
        assert release.noise_std == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_what_one_example_contributes_to_a_whole_run_is_bounded(name: str) -> None:
    """Replay the releases without one example: step by step its part is at most the clip, in all ‖CΔ‖ ≤ clip · sens."""
    plan = plan_of(name, clip=0.7)
    sums, releases = recorded(plan, network(), losses, data())
    C = plan.noise.structure.strategy()
    others, _ = recorded(plan, network(), losses, Without(11), given=releases)
    steps = [distance(a["gradient"], b["gradient"]) for a, b in zip(sums, others, strict=True)]
    taken = [t for t, size in enumerate(steps) if size > 0]
    assert taken
    assert max(steps) <= 0.7 * (1 + 1e-5)
    assert max(steps) > 0.6  # the bound is met, so that a smaller one would be found out
    delta = np.stack([flat(a["gradient"]) - flat(b["gradient"]) for a, b in zip(sums, others, strict=True)])
    if isinstance(plan.sampler.participation, (SameOrder, OnePass)):
        assert tuple(taken) in patterns(plan)
        assert np.linalg.norm(C @ delta) <= 0.7 * plan.sensitivity * (1 + 1e-5)
    else:
        length = plan.sampler.participation.groups if name == "bandmf" else B
        for start in range(0, plan.steps, length):
            part = np.zeros_like(delta)
            part[start : start + length] = delta[start : start + length]
            assert np.count_nonzero(np.abs(part).sum(axis=1)) <= 1
            assert np.linalg.norm(C @ part) <= 0.7 * plan.sensitivity * (1 + 1e-5)


def test_one_band_is_the_noise_of_dp_sgd_bit_for_bit() -> None:
    plan = make_plan("dp-bandmf", **SETTING, epochs=2, bands=1)
    noise, like, secret = make_noise(plan.noise.structure), torch.empty(100), Secret.from_seed(1)
    state = noise.init(like)
    for step in range(plan.steps):
        drawn, state = noise.draw(step, lambda row: normal(secret, "noise/gradient", row, like), state)
        assert torch.equal(drawn, normal(secret, "noise/gradient", step, like))
    assert plan.event() == make_plan("dp-sgd", **SETTING, epochs=2).event()
