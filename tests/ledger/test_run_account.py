"""A run account is charged once for the whole plan, counts stopped runs correctly, and never exceeds a budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hush.accounting.accountant import epsilon
from hush.accounting.events import to_json
from hush.accounting.guarantee import INDEPENDENT_ROWS
from hush.accounting.noise_precision import precision_of
from hush.accounting.noise_tails import SHARE, Tails
from hush.checkpointing import Checkpoints
from hush.clipping import ErrorFeedback
from hush.errors import BudgetExceededError, FormatError, InvalidInputError, NotProvenError, ResumeError, RunStateError
from hush.guarantees import Replay, ReplayHistory, find_accounted_delta
from hush.ledger.book import Ledger
from hush.ledger.entries import Spend, to_fields
from hush.ledger.run_account import Account, charge, cost_of, largest
from hush.ledger.total import Cost, add_up
from hush.matrix_factorization.tree import Tree
from hush.methods import make_plan
from hush.plan import Plan
from hush.run import Run
from hush.training import take_steps
from ledger_accounts import GAUSS, account, poisson

ABSENT = object()


class TestCharging:
    def test_a_run_is_charged_once_for_its_whole_plan(self, path):
        a = account(path)
        assert not a.charged
        for _ in range(3):
            a.charge()
            account(path).charge()
        assert a.charged
        assert len(path.read_text().splitlines()) == 1 + 1
        spend = Ledger(path).spends("d")["a"]
        assert (spend.steps, spend.planned) == (1000, 1000)
        assert Ledger(path).total("d").epsilon == pytest.approx(add_up([poisson(1000)], 1e-5).epsilon, rel=1e-9)

    def test_a_lost_run_stays_spent(self, path):
        account(path, "lost").charge()
        account(path, "new").charge()
        found = Ledger(path).total("d")
        assert found.spends == 2
        assert found.epsilon == pytest.approx(add_up([poisson(2000)], 1e-5).epsilon, rel=1e-9)

    def test_an_event_that_cannot_be_written_is_entered_by_its_points(self, path):
        def stated(steps):
            return Cost("add-remove", "claimed", 1e-5, points=((1e-5, 2.0),))

        account(path, cost=stated).charge()
        spend = Ledger(path).spends("d")["a"]
        assert (spend.steps, spend.planned, spend.per_step) == (1000, 1000, False)
        assert Ledger(path).total("d").epsilon == 2.0

    def test_datasets_do_not_mix(self, path):
        account(path, dataset="one", planned=10).charge()
        account(path, dataset="two", planned=500).charge()
        ledger = Ledger(path)
        assert ledger.datasets() == ["one", "two"]
        assert ledger.total("one").epsilon < ledger.total("two").epsilon

    @pytest.mark.parametrize(
        "older",
        [
            {"steps": 100, "limit": 400, "whole": to_json(poisson(400).event)},  # steps reserved in blocks
            {"steps": 100, "limit": 100},
            {"steps": 100},
            {"limit": None},
            {"limit": 0},
            {"whole": to_json(poisson(2000).event)},
            {"whole_lost": 1e-6},
        ],
    )
    def test_a_line_of_an_earlier_version_is_refused_rather_than_counted_as_too_little(self, path, older):
        fields = {**to_fields(Spend("old", "d", "dp-sgd", 1000, 1000, poisson(1000))), **older}
        with Ledger(path)._chain.locked() as chain:
            chain.append(at="now", kind="spend", **{k: v for k, v in fields.items() if v is not None})
        with pytest.raises(FormatError, match="line 2"):
            Ledger(path)


class TestBudget:
    def test_a_plan_that_does_not_fit_is_refused_and_what_fits_is_said(self, path):
        Ledger(path).set_budget("d", 1.0, 1e-5)
        a = account(path)
        room = a.room()
        assert add_up([poisson(room)], 1e-5).epsilon <= 1.0 < add_up([poisson(room + 1)], 1e-5).epsilon
        before = path.read_bytes()
        for refused in (a.check, a.charge):
            with pytest.raises(BudgetExceededError, match=rf"1000 .*'d'.*ε = 1\.83 .*ε = 1 .* {room} of them"):
                refused()
        assert path.read_bytes() == before
        fitting = account(path, planned=room)
        fitting.charge()
        assert 0.99 < Ledger(path).total("d").epsilon <= 1.0

    def test_others_leave_less_room(self, path):
        Ledger(path).set_budget("d", 1.0, 1e-5)
        alone = account(path, "b").room()
        account(path, "a", planned=100).charge()
        assert account(path, "b").room() == alone - 100

    def test_what_was_taken_is_entered_whatever_the_budget(self, path):
        Ledger(path).set_budget("d", 0.1, 1e-5)
        a = account(path, planned=500)
        a.charge(fact=True)
        assert Ledger(path).spends("d")["a"].steps == 500
        a.check()  # it is charged
        with pytest.raises(BudgetExceededError, match="'d'"):
            account(path, "b", planned=1).charge()

    def test_raising_it_makes_room(self, path):
        ledger = Ledger(path)
        assert ledger.budget("d", 0.5, 1e-5).epsilon == 0.5
        a = account(path, planned=900)
        with pytest.raises(BudgetExceededError, match=r"ε = 1\..*ε = 0\.5"):
            a.charge()
        assert "a" not in Ledger(path).spends("d")
        ledger.set_budget("d", 5.0, 1e-5)
        a.charge()
        assert Ledger(path).spends("d")["a"].steps == 900

    def test_ordinary_training_fits_no_budget(self, path):
        Ledger(path).set_budget("d", 100.0, 1e-5)
        plain = account(path, cost=lambda n: Cost("add-remove", "none", 1e-5, dp_event.NonPrivateDpEvent()))
        with pytest.raises(BudgetExceededError, match="ε = ∞"):
            plain.charge()

    def test_by_hand(self, path):
        ledger = Ledger(path)
        ledger.add("d", 0.5, 1e-6, run="census table")
        with pytest.raises(InvalidInputError, match="'census table'"):
            ledger.add("d", 0.5, 1e-6, run="census table")
        assert Ledger(path).total("d").epsilon == 0.5

    @given(most=st.integers(0, 50))
    def test_largest(self, most):
        assert largest(lambda n: n <= most, 0, 51) == most


class TestStops:
    """A stop is proven at all the steps that could have been taken; fewer count only if nobody had looked."""

    def test_closed_as_stopped_blindly_its_steps_count_and_it_takes_no_more(self, path):
        a = account(path, planned=240)
        a.charge()
        a.ledger.close("d", "a", 87)
        for ledger in (a.ledger, Ledger(path)):
            found = ledger.total("d")
            assert found.epsilon == pytest.approx(add_up([poisson(87)], 1e-5).epsilon, rel=1e-9)
            assert found.status == "proven"
            assert [text for text in found.assumptions if "run 'a' was stopped at step 87" in text]
        for again in (account(path, planned=240).check, account(path, "a+7f", planned=3).charge):
            with pytest.raises(ResumeError, match="'a'.* 87"):
                again()
        with pytest.raises(InvalidInputError, match="'a'.* 87"):
            a.ledger.close("d", "a", 50)
        with pytest.raises(InvalidInputError, match="'b'"):
            a.ledger.close("d", "b", 50)

    @pytest.mark.parametrize("steps", [240, 241])
    def test_a_run_that_took_all_its_steps_has_nothing_to_close(self, path, steps):
        a = account(path, planned=240)
        a.charge()
        with pytest.raises(InvalidInputError, match="240"):
            a.ledger.close("d", "a", steps)

    def test_what_is_beside_the_steps_stays(self, path):
        def both(steps):
            return replace(poisson(steps), event=dp_event.ComposedDpEvent([poisson(steps).event, GAUSS(3.0)]))

        a = account(path, planned=240, cost=both)
        a.charge()
        a.ledger.close("d", "a", 87)
        assert Ledger(path).total("d").epsilon == pytest.approx(add_up([both(87)], 1e-5).epsilon, rel=1e-9)

    def test_an_event_that_is_not_made_of_steps_is_not_cut(self, path):
        a = account(path, planned=240, per_step=False)
        a.charge()
        before = path.read_bytes()
        with pytest.raises(InvalidInputError, match="'a'.* 240"):
            a.ledger.close("d", "a", 87)
        assert path.read_bytes() == before

    @pytest.mark.parametrize(
        "wrong", [{"steps": 0}, {"steps": 241}, {"steps": "x"}, {"event": {"kind": "Popen"}}, {"event": ABSENT}]
    )
    def test_a_crafted_closing_is_refused(self, path, wrong):
        a = account(path, planned=240)
        a.charge()
        line = {"kind": "close", "dataset": "d", "run": "a", "steps": 87, "blindly": True}
        line |= {"event": to_json(poisson(87).event)} | wrong
        with a.ledger._chain.locked() as chain:
            chain.append(at="now", **{k: v for k, v in line.items() if v is not ABSENT})
        with pytest.raises(FormatError, match="line 3"):
            Ledger(path)


class TestNames:
    @pytest.mark.parametrize("name", ["Patients", "patients ", " PATIENTS", "ｐatients", "patientſ"])
    def test_one_dataset_however_it_is_typed(self, path, name):
        Ledger(path).set_budget("patients", 0.5, 1e-5)
        a = account(path, dataset=name)
        assert a.dataset == "patients"
        with pytest.raises(BudgetExceededError, match=r"1000 .*'patients'.*ε = 0\.5"):
            a.charge()
        account(path, dataset=name, planned=1).charge()
        assert Ledger(path).datasets() == ["patients"]
        assert Ledger(path).spends(name).keys() == {"a"}

    @pytest.mark.parametrize("name", ["default", "patient", "other"])
    def test_beside_a_budget_an_unknown_name_must_be_declared(self, path, name):
        ledger = Ledger(path)
        ledger.set_budget("patients", 0.5, 1e-5)
        before = path.read_bytes()
        with pytest.raises(BudgetExceededError, match=rf"no dataset '{name}' \(it has 'patients'\).*--new-dataset"):
            account(path, dataset=name)
        with pytest.raises(BudgetExceededError, match="--new-dataset"):
            ledger.add(name, 1.0, 1e-6, run="by hand")
        assert path.read_bytes() == before
        new = Account(Ledger(path), name, run="a", method="dp-sgd", planned=10, cost=poisson, new_dataset=True)
        new.charge()
        account(path, "b", dataset=name.upper(), planned=10).charge()  # known by now
        assert Ledger(path).datasets() == sorted([name, "patients"])

    def test_without_a_budget_names_are_free(self, path):
        account(path, dataset="one").charge()
        account(path, dataset="two").charge()
        assert Ledger(path).datasets() == ["one", "two"]
        assert [Ledger(path).spends(name)["a"].steps for name in ("one", "two")] == [1000, 1000]


# Runs and ledgers: steps taken before the ledger was attached, and the conditions of a guarantee, are entered.


N, STEPS, BATCH = 40, 8, 10


def losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none")


def other_losses(model: nn.Module, content) -> torch.Tensor:
    return functional.cross_entropy(model(content[0]), content[1], reduction="none", label_smoothing=0.1)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, 6, generator=generator), torch.randint(0, 3, (N,), generator=generator)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def plan(method: str = "dp-sgd", **changes) -> Plan:
    how = {"examples": N, "batch_size": BATCH, "steps": STEPS, "noise_multiplier": 0.9, "accept_claimed": True}
    return make_plan(method, **{**how, **changes})


def start(p: Plan, told=losses, **how) -> Run:
    return p.start(net(), told, data(), **how)


def go(run: Run, kept: Checkpoints, until: int) -> Run:
    for _ in take_steps(run, checkpoints=kept, every=1):
        if run.next == until:
            break
    return run


def begun(p: Plan, directory: Path, until: int = STEPS, ledger: Path | None = None, told=losses, **how) -> Run:
    run, kept = start(p, told, **how), Checkpoints(directory)
    try:
        if ledger is not None:
            charge(run, Ledger(ledger), "d", kept)
        kept.begin(run)
        return go(run, kept, until)
    finally:
        kept.close()


def resumed(
    p: Plan, directory: Path, until: int = STEPS, ledger: Path | None = None, told=losses, dataset="d", **how
) -> Run:
    run, kept = start(p, told, **how), Checkpoints(directory)
    try:
        kept.restore(run, kept.newest().saved)
        if ledger is not None:
            charge(run, Ledger(ledger), dataset, kept)
        return go(run, kept, until)
    finally:
        kept.close()


def renewed(p: Plan, directory: Path, **how) -> Run:
    """Four steps, the last of them taken again with another loss, and so with another secret."""
    begun(p, directory, 4, **how)
    (directory / "checkpoint-0000000004.safetensors").unlink()
    run = resumed(p, directory, 6, told=other_losses, **how)
    assert run.history.attempts == (Replay(0, 4), Replay(3, 6))
    return run


def test_points_of_an_event_that_cannot_be_written_pay_all_that_is_lost() -> None:
    p = plan("dp-dice", noise_multiplier=2.0)
    cost = cost_of(p)(STEPS)
    lost = p.delta - p.delta_left()
    assert cost.event is None
    assert len(cost.points) > 8
    event = p.guarantee().event
    for delta, stated in (cost.points[0], cost.points[-1]):
        assert stated >= epsilon(event, delta - lost, adjacency=p.neighbours) * (1 - 1e-12)


def test_the_first_secret_of_a_renewed_run_is_known_to_a_ledger_that_comes_later(tmp_path) -> None:
    p, ledger = plan(), tmp_path / "l.jsonl"
    renewed(p, tmp_path / "one", secret=7)
    resumed(p, tmp_path / "one", STEPS, ledger, told=other_losses, secret=7)
    with pytest.raises(RunStateError, match="run's"):
        begun(p, tmp_path / "two", 2, ledger, secret=7)


def test_what_a_seed_did_in_the_same_directory_before_is_entered_too(tmp_path) -> None:
    """Steps of a second secret stand in the record of sums, and the card counts them: so does a ledger that is new."""
    p, ledger = plan(), tmp_path / "l.jsonl"
    begun(p, tmp_path / "run", STEPS, secret=7)
    next((tmp_path / "run").glob(f"checkpoint-*{STEPS}.safetensors")).unlink()
    resumed(p, tmp_path / "run", STEPS, told=other_losses, secret=7)
    run = begun(p, tmp_path / "run", STEPS, ledger, told=other_losses, secret=7)
    assert len(run.history.attempts) == 3
    assert Ledger(ledger).total("d", p.delta).epsilon >= run.guarantee.epsilon * (1 - 1e-6)


@pytest.mark.parametrize("begun_later", [False, True])
def test_steps_that_were_taken_before_a_ledger_came_are_entered_without_a_checkpoint_too(
    tmp_path, begun_later: bool
) -> None:
    p, ledger = plan(), Ledger(tmp_path / "l.jsonl")
    run = start(p)
    for _ in take_steps(run):
        pass
    charge(run, ledger, "d", Checkpoints(tmp_path / "run") if begun_later else None)
    assert ledger.total("d", p.delta).epsilon >= run.guarantee.epsilon * (1 - 1e-6)


def test_a_ledger_says_what_arithmetic_assumes_and_never_counts_fast_as_proven(tmp_path) -> None:
    totals = {}
    for mode, status in (("rigorous", "proven"), ("fast", "claimed")):
        run, ledger = start(plan(arithmetic=mode)), Ledger(tmp_path / f"{mode}.jsonl")
        charge(run, ledger, "d")
        for _ in take_steps(run):
            pass
        assert run.guarantee.status == status
        totals[mode] = found = ledger.total("d")
        assert found.status == status
        for told in (run.guarantee, found):
            assert any(text.startswith(INDEPENDENT_ROWS) for text in told.assumptions) == (mode == "rigorous")
        if mode == "fast":
            charge(start(plan()), ledger, "d").charge()
            assert ledger.total("d").status == "claimed"  # a proven run beside it does not mend that
    assert totals["fast"].epsilon == totals["rigorous"].epsilon


def test_a_name_typed_otherwise_goes_on_with_its_own_entry(tmp_path) -> None:
    p, ledger = plan(), tmp_path / "l.jsonl"
    begun(p, tmp_path / "run", 4, ledger)
    facts = next((tmp_path / "run").glob("checkpoint-*4.safetensors"))
    assert facts.exists()
    resumed(p, tmp_path / "run", 6, ledger, dataset=" D")
    assert list(Ledger(ledger).datasets()) == ["d"]


def test_two_runs_that_name_new_data_differently_both_go_on(tmp_path) -> None:
    p, ledger = plan(), tmp_path / "l.jsonl"
    run, kept = start(p), Checkpoints(tmp_path / "run")
    charge(run, Ledger(ledger), "Patients", kept)
    begun_first = start(p)
    charge(begun_first, Ledger(ledger), "patients")
    next(iter(take_steps(begun_first)))
    kept.begin(run)
    go(run, kept, 3)
    kept.close()
    assert resumed(p, tmp_path / "run", 5, ledger, dataset="Patients").next == 5


def test_attempts_that_only_a_release_knows_of_are_counted(tmp_path) -> None:
    """An old checkpoint, no record of sums, and a list of releases that knows a second secret."""
    p = plan()
    begun(p, tmp_path, 3)
    old = {path.name: path.read_bytes() for path in tmp_path.glob("checkpoint-*")}
    (tmp_path / "checkpoint-0000000003.safetensors").unlink()
    run, kept = start(p, other_losses), Checkpoints(tmp_path)
    kept.restore(run, kept.newest().saved)
    go(run, kept, STEPS)
    run.release(tmp_path / "out")
    kept.close()
    assert json.loads((tmp_path / "releases.jsonl").read_text())["attempt"] == 1
    for path in (*tmp_path.glob("checkpoint-*"), *tmp_path.glob("sums-*")):
        path.unlink()
    for name, content in old.items():
        (tmp_path / name).write_bytes(content)
    again = resumed(p, tmp_path)
    assert len(again.history.attempts) == 3
    assert [a.taken for a in again.history.attempts] == [STEPS] * 3


def test_a_run_set_back_by_hand_does_not_use_its_noise_twice(tmp_path) -> None:
    """`Run.restore` compares nothing; the record that the run writes to does."""
    run, kept = start(plan()), Checkpoints(tmp_path)
    kept.begin(run)
    go(run, kept, 3)
    before = {**run.state(), "params": {n: p.clone() for n, p in run.state()["params"].items()}}
    go(run, kept, 6)
    run.restore(before)
    run._summing.losses = other_losses
    go(run, kept, STEPS)
    kept.close()
    assert run.history.attempts == (Replay(0, 6), Replay(3, STEPS))


@pytest.mark.parametrize("ledger", [["x"], {}, {"name": 1, "path": "l", "dataset": "d"}, "l.jsonl"])
def test_a_checkpoint_whose_ledger_is_none_is_said_to_be_crafted(ledger, tmp_path) -> None:
    begun(plan(), tmp_path, 2)
    run, kept = start(plan()), Checkpoints(tmp_path)
    saved = kept.newest().saved
    try:
        with pytest.raises(InvalidInputError, match="checkpoint"):
            kept.restore(run, replace(saved, facts={**saved.facts, "ledger": ledger}))
    finally:
        kept.close()


def test_tails_are_those_of_all_channels() -> None:
    """An adaptive clip releases a noisy count beside the sum: its coordinate has tails and finite precision too."""
    composed, count = plan(clip_quantile=0.5), 10**8
    assert len(composed.channels) == 2
    assert composed.with_tails(1000).precision == precision_of(2 * 1000 * STEPS)
    mu = 1 / composed.sigma
    one, two = (Tails(n * count, STEPS, mu, rate=0.25).cost() / SHARE for n in (1, 2))
    assert two > 1.5 * one
    with pytest.raises(NotProvenError, match="δ"):
        replace(composed, delta=1.2 * one).with_tails(count)
    replace(composed, delta=1.2 * two).with_tails(count)


def test_a_run_that_was_closed_does_not_go_on_with_fresh_noise_either(tmp_path) -> None:
    p, ledger = plan(steps=250), tmp_path / "l.jsonl"
    begun(p, tmp_path / "run", 3, ledger)
    (name,) = Ledger(ledger).spends("d")
    Ledger(ledger).close("d", name, 3)
    next((tmp_path / "run").glob("sums-*")).unlink()
    with pytest.raises(ResumeError, match=f"'{name}' was closed"):
        resumed(p, tmp_path / "run", 6, ledger)
    assert list(Ledger(ledger).spends("d")) == [name]


def with_short_tails() -> tuple[Plan, float]:
    """A plan whose δ has room for its tails by its own ε only, and what they cost by themselves."""
    p = plan(noise_multiplier=0.5, batch_size=1)
    adds_up = Tails(start(p).coordinates, STEPS, 2.0, rate=0.025).cost()
    return replace(p, delta=adds_up / 3 / SHARE), adds_up


def test_tails_that_one_run_can_afford_are_counted_whole_where_several_are_composed(tmp_path) -> None:
    """β ≤ e^ε·t is a bound for one ε; for the ε of several runs only what adds up counts, the tails' probability."""
    (p, adds_up), ledger = with_short_tails(), tmp_path / "l.jsonl"
    alone = Tails(start(p).coordinates, STEPS, 2.0, rate=0.025).cost(p.guarantee().epsilon)
    assert alone < SHARE * p.delta < adds_up  # one such run is let through
    for name in ("one", "two"):
        run = begun(p, tmp_path / name, STEPS, ledger)
        spends = Ledger(ledger).spends("d").values()
        if name == "one":
            assert Ledger(ledger).total("d", p.delta).epsilon == pytest.approx(run.guarantee.epsilon, rel=1e-9)
    event = dp_event.ComposedDpEvent([spend.cost.event for spend in spends])
    left = p.delta - 2 * adds_up
    exact = epsilon(event, left, adjacency=p.neighbours)
    assert Ledger(ledger).total("d", p.delta).epsilon == pytest.approx(exact, rel=1e-9)


def test_a_run_with_steps_taken_again_counts_its_tails_whole() -> None:
    p, adds_up = with_short_tails()
    run = start(p)
    run._history = ReplayHistory((Replay(0, 4), Replay(3, 6)), 1)
    event, left = run.guarantee.event, p.delta - 2 * adds_up
    assert run.guarantee.epsilon >= epsilon(event, left, adjacency=p.neighbours) * (1 - 1e-9)


def test_every_attempt_of_a_run_that_is_one_gaussian_has_tails_of_its_own() -> None:
    """Σ‖vₜ‖² ≤ μ² is true of one attempt: three of them reach beyond the noise's end three times, however short."""
    run = start(plan("dp-ftrl", noise_multiplier=0.9))
    p = run.plan
    assert p.find_tails(run.coordinates).shared  # by all steps
    assert p.tails > 0
    history = ReplayHistory((Replay(0, 2), Replay(1, 3), Replay(2, 2)), 2)
    found = find_accounted_delta(p, history, run.coordinates)
    assert p.delta - found >= 3 * p.find_tails(run.coordinates).cost() * (1 - 1e-9) - 4e-21  # δ has 53 bits
    run._history = history
    exact = epsilon(run.guarantee.event, found, adjacency=p.neighbours)
    assert run.guarantee.epsilon == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    "tree",
    [Tree(8), Tree(13), Tree(12, restart=4, complete="all"), Tree(7, estimate="honaker"), Tree(9, 4, "all", "honaker")],
)
def test_every_node_of_a_tree_has_tails(tree: Tree) -> None:
    """A step whose noise is that of several nodes draws all of them."""
    drawn = {row for step in range(tree.steps) for row, _ in tree.step(step).rows}
    assert (len(drawn) > tree.steps) == (tree.estimate == "honaker")
    assert tree.draws >= len(drawn)
    for honaker in (False, True):
        p = plan("dp-ftrl", honaker=honaker)
        assert p.find_tails(1).steps == p.noise.structure.draws >= (1.5 if honaker else 1) * STEPS


def test_what_error_feedback_remembers_moves_steps_without_the_example() -> None:
    """Two errors that one example made differ by all that is fed back, and its own gradient comes on top."""
    query = ErrorFeedback(2.0, 3.0)
    far = {"w": torch.tensor([1e6, 0.0])}
    gradient, nothing = {"w": torch.tensor([2.0, 0.0])}, {"w": torch.zeros(2)}

    def released(own: dict, error: dict) -> torch.Tensor:
        return query.finish({"gradient": own, "raw": own}, {}, {"error": error})[0]["gradient"]["w"]

    moved = released(gradient, far) - released(nothing, {"w": -far["w"]})
    assert float(moved.norm()) == pytest.approx(query.reach * query.clip, rel=1e-6)
    p = plan("dp-dice", noise_multiplier=20.0, clip=2.0, clip_feedback=3.0)
    ends = p.find_tails(1)
    assert ends.mu == pytest.approx(query.reach / p.sigma, rel=1e-12)
    assert (ends.rate, ends.shared) == (1.0, False)
