"""Releases before training: in the plan's event, charged first, made once, and identical after a crash."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation, dp_event, pld, privacy_accountant
from dp_accounting.pld import PLDAccountant
from torch import Tensor, nn
from torch.nn import functional

from hush import make_plan
from hush.accounting import events
from hush.accounting.accountant import epsilon
from hush.accounting.guarantee import INDEPENDENT_ROWS
from hush.checkpointing import Checkpoints
from hush.data_release import ComposedRelease, DataRelease, Values, make_releases
from hush.errors import BudgetExceededError, InvalidInputError, NotProvenError, ResumeError
from hush.guarantees import Replay, ReplayHistory, account_attempts, claim_attempts, make_card
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge, cost_of
from hush.plan import Plan
from hush.randomness import Secret
from hush.run import Run
from hush.statistics.ranges import calibrate_ranges, plan_ranges

ROWS = 400
SETTING = {"examples": ROWS, "batch_size": 40, "steps": 20, "delta": 1e-5, "counted": True}


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(ROWS, 2, generator=generator) * torch.tensor([3.0, 500.0])
    return rows, (rows[:, 0] > 0).long()


def losses(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(content[0] / 100), content[1], reduction="none")


def part_for(rows: Tensor, near: str = "zero-out") -> DataRelease:
    return plan_ranges(rows, [0, 1], calibrate_ranges(1.0, 1e-6, columns=2, adjacency=near), population=ROWS)


def start(rows: tuple[Tensor, Tensor], part: DataRelease, secret: int | Secret | None = 3, **given: object) -> Run:
    torch.manual_seed(0)
    plan = make_plan("dp-sgd", **SETTING, epsilon=3.0, composed=(part.composed,), **given)
    return plan.start(nn.Linear(2, 2), losses, rows, secret=secret)


def start_on_pairs(part: DataRelease) -> Run:
    """A run in which two rows are one example."""
    torch.manual_seed(0)
    setting = SETTING | {"examples": ROWS // 2, "unit": "pair", "epsilon": 3.0}
    plan = make_plan("dp-sgd", **setting, composed=(part.composed,))
    return plan.start(nn.Linear(2, 2), losses, data(), secret=3, unit=np.arange(ROWS) // 2)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is a process of its own, as far as noise that was drawn is concerned."""
    monkeypatch.setattr("hush.data_release._noised_content", {})
    monkeypatch.setattr("hush.data_release._made", {})


def spent(path: Path) -> list[object]:
    ledger = Ledger(path)
    with ledger.turn():
        return list(ledger.spends("default").values())


@pytest.mark.parametrize("near", ["zero-out", "replace"])
def test_the_event_is_composed_and_dp_accounting_agrees(near: str) -> None:
    part = part_for(data()[0], near)
    plan = make_plan("dp-sgd", **SETTING, noise_multiplier=2.0, adjacency=near, composed=(part.composed,))
    sigma = part.composed.event.noise_multiplier
    scale = 1.0 if near == "replace" else 2.0
    training = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(scale)), 20)
    assert plan.event() == dp_event.ComposedDpEvent([training, dp_event.GaussianDpEvent(sigma)])
    if near == "zero-out":  # dp-accounting's Poisson under replace doubles a sensitivity that is in the event already
        accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
        expected = accountant.compose(plan.event()).get_epsilon(1e-5 - part.composed.lost)
        assert plan.guarantee().epsilon == pytest.approx(expected, rel=2e-3)
    alone = make_plan("dp-sgd", **SETTING, noise_multiplier=2.0, adjacency=near)
    assert plan.guarantee().epsilon > 1.01 * alone.guarantee().epsilon
    assert "this covers the model and the noisy ranges of the columns together" in plan.guarantee().reason


def test_sigma_is_calibrated_for_both() -> None:
    part = part_for(data()[0])
    plan = make_plan("dp-sgd", **SETTING, epsilon=3.0, composed=(part.composed,))
    assert 2.97 < plan.guarantee().epsilon <= 3.0
    assert plan.sigma > 1.01 * make_plan("dp-sgd", **SETTING, epsilon=3.0).sigma


def test_the_ledger_is_written_before_the_release(tmp_path: Path) -> None:
    rows, seen = data(), []
    part = part_for(rows[0])

    def release(secret: Secret) -> Values:
        seen.extend(spent(tmp_path / "ledger"))
        raise OSError("killed here")

    run = start(rows, part)
    charge(run, Ledger(tmp_path / "ledger"), "default")
    assert spent(tmp_path / "ledger") == []
    with pytest.raises(OSError, match="killed here"):
        make_releases(run, [replace(part, release=release)])
    assert len(seen) == 1
    assert part.composed.event in seen[0].cost.event.events
    assert spent(tmp_path / "ledger") == seen


def test_no_room_in_the_budget_means_no_release(tmp_path: Path) -> None:
    part = part_for(data()[0])
    ledger = Ledger(tmp_path / "ledger")
    ledger.set_budget("default", 0.01, 1e-5)
    run = start(data(), part)
    with pytest.raises(BudgetExceededError):
        charge(run, ledger, "default", new_dataset=True)
    ledger.set_budget("default", 100.0, 1e-5)
    charge(run, ledger, "default")
    ledger.set_budget("default", 0.01, 1e-5)  # lowered since
    with pytest.raises(BudgetExceededError):
        make_releases(run, [replace(part, release=lambda secret: pytest.fail("released"))], tmp_path)
    assert not list(tmp_path.glob("before-*"))


def in_a_child(work: Callable[[], None]) -> int:
    """The exit code of a forked process that does this."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begin(folder: Path, rows: tuple[Tensor, Tensor], part: DataRelease) -> tuple[Run, Checkpoints]:
    """A run in its private directory, new or resumed, entered in a ledger."""
    checkpoints = Checkpoints(folder)
    checkpoints.notify = lambda text: None
    run, found = start(rows, part, None), checkpoints.newest()
    if found.saved is not None:
        checkpoints.restore(run, found.saved)
    charge(run, Ledger(folder.parent / "ledger"), "default", checkpoints)
    if found.saved is None:
        checkpoints.begin(run)
    return run, checkpoints


@pytest.mark.parametrize("instant", ["before", "after"])
def test_killed_around_the_release_it_is_the_same_release(tmp_path: Path, instant: str) -> None:
    rows, private = data(), tmp_path / "private"
    part = part_for(rows[0])

    def killed(secret: Secret) -> Values:
        if instant == "after":
            torch.save(part.release(secret)["limits"], tmp_path / "seen")  # what somebody may have seen
        os._exit(9)

    def work() -> None:
        run, _ = begin(private, rows, part)
        make_releases(run, [replace(part, release=killed)], private)

    assert in_a_child(work) == 9
    covered = spent(tmp_path / "ledger")
    assert len(covered) == 1
    assert part.composed.event in covered[0].cost.event.events
    run, checkpoints = begin(private, rows, part)
    values = make_releases(run, [part], private)["ranges"]["limits"]
    assert spent(tmp_path / "ledger") == covered  # and costs nothing more
    expected = part.release(run.secret.first.child("before ranges"))["limits"]
    assert torch.equal(values, expected)
    if instant == "after":
        assert torch.equal(values, torch.load(tmp_path / "seen", weights_only=True))
    checkpoints.close()


def test_a_run_that_goes_on_reads_the_values_and_does_not_draw_again(tmp_path: Path) -> None:
    rows, private = data(), tmp_path / "private"
    part = part_for(rows[0])
    run, checkpoints = begin(private, rows, part)
    first = make_releases(run, [part], private)["ranges"]["limits"]
    for batch in run.batches():
        run.step(batch)
        if run.next == 5:
            break
    checkpoints.save(run)
    checkpoints.close()
    run, checkpoints = begin(private, rows, part)
    assert run.next == 5
    never = replace(part, release=lambda secret: pytest.fail("drawn again"))
    assert torch.equal(make_releases(run, [never], private)["ranges"]["limits"], first)
    (private / "before-ranges.safetensors").unlink()
    with pytest.raises(ResumeError, match="5"):
        make_releases(run, [never], private)
    checkpoints.close()


def test_a_ledger_that_comes_later_covers_what_was_released(tmp_path: Path) -> None:
    rows, part = data(), part_for(data()[0])
    with_nothing = Checkpoints(tmp_path / "private")
    run = start(rows, part, None)
    with_nothing.begin(run)
    first = make_releases(run, [part], tmp_path / "private")["ranges"]["limits"]
    with_nothing.close()
    run, checkpoints = begin(tmp_path / "private", rows, part)
    assert spent(tmp_path / "ledger") == []
    assert torch.equal(make_releases(run, [part], tmp_path / "private")["ranges"]["limits"], first)
    assert part.composed.event in spent(tmp_path / "ledger")[0].cost.event.events
    checkpoints.close()


def test_the_same_noise_never_meets_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, other = data(), data(1)
    run = start(rows, part_for(rows[0]))
    make_releases(run, [part_for(rows[0])], tmp_path)
    again = start(other, part_for(other[0]))
    assert again.secret == run.secret
    with pytest.raises(ResumeError):
        make_releases(again, [part_for(other[0])], tmp_path)
    with pytest.raises(ResumeError):
        make_releases(again, [part_for(other[0])])  # in this process, with nothing kept
    monkeypatch.setattr("hush.data_release._noised_content", {})  # in another process the file knows
    with pytest.raises(ResumeError):
        make_releases(again, [part_for(other[0])], tmp_path)
    one = rows[0].clone()
    one[7, 1] += 0.01
    with pytest.raises(ResumeError):
        make_releases(again, [part_for(one)], tmp_path)
    assert make_releases(start(rows, part_for(rows[0])), [part_for(rows[0])], tmp_path)


def test_the_same_noise_never_comes_at_two_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """v + s·z and v + t·z give v away. A seed is bound to the plan, but a secret may be given as it is."""
    rows = data()
    more = plan_ranges(rows[0], [0, 1], calibrate_ranges(2.0, 1e-6, columns=2, adjacency="zero-out"), population=ROWS)
    secret = Secret.from_seed(5, "one")
    make_releases(start(rows, part_for(rows[0]), secret), [part_for(rows[0])], tmp_path)
    for folder in (None, tmp_path):
        with pytest.raises(ResumeError):
            make_releases(start(rows, more, secret), [more], folder)
        monkeypatch.setattr("hush.data_release._noised_content", {})


def test_one_entry_of_the_plan_pays_for_one_release() -> None:
    rows = data()
    first = part_for(rows[0])
    second = replace(first, key="again")
    run = start(rows, first)
    with pytest.raises(InvalidInputError, match="ranges"):
        make_releases(run, [first, second])
    with pytest.raises(InvalidInputError, match="ranges"):
        make_releases(run, [second])  # nor later, in a call of its own
    make_releases(run, [first])
    torch.manual_seed(0)
    both = make_plan("dp-sgd", **SETTING, epsilon=3.0, composed=(first.composed, second.composed))
    paid = both.start(nn.Linear(2, 2), losses, rows, secret=3)
    assert make_releases(paid, [first, second]).keys() == {"ranges", "again"}


def test_a_release_that_counts_rows_does_not_protect_units() -> None:
    """One pair moves counts of rows twice as far as the event says; and one row changes what its pair counts as."""
    rows, noise = data()[0], calibrate_ranges(1.0, 1e-6, columns=2, adjacency="zero-out")
    by_row = plan_ranges(rows, [0, 1], noise, population=ROWS)
    with pytest.raises(NotProvenError, match="rows"):
        make_releases(start_on_pairs(by_row), [by_row])
    by_pair = plan_ranges(rows, [0, 1], noise, population=ROWS // 2, units=np.arange(ROWS) // 2)
    with pytest.raises(NotProvenError, match="units"):
        make_releases(start(data(), by_pair), [by_pair])
    assert make_releases(start_on_pairs(by_pair), [by_pair])


def test_units_are_content_too(tmp_path: Path) -> None:
    rows, noise = data()[0], calibrate_ranges(1.0, 1e-6, columns=2, adjacency="zero-out")
    by_two = plan_ranges(rows, [0, 1], noise, population=200, units=np.arange(ROWS) // 2)
    run = start_on_pairs(by_two)
    make_releases(run, [by_two], tmp_path)
    uneven = plan_ranges(rows, [0, 1], noise, population=200, units=np.minimum(np.arange(ROWS), 199))
    with pytest.raises(ResumeError):
        make_releases(run, [uneven], tmp_path)


def test_what_the_event_does_not_hold_is_refused() -> None:
    part = part_for(data()[0])
    run = make_plan("dp-sgd", **SETTING, epsilon=3.0).start(nn.Linear(2, 2), losses, data())
    with pytest.raises(InvalidInputError, match="plan's"):
        make_releases(run, [part])
    less = replace(part, composed=replace(part.composed, event=dp_event.GaussianDpEvent(0.1)))
    with pytest.raises(InvalidInputError):
        make_releases(start(data(), part), [less])
    with pytest.raises(InvalidInputError, match="key"):
        make_releases(start(data(), part), [part, part])


def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    part = part_for(data()[0])
    (tmp_path / "before-ranges.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InvalidInputError, match="before-ranges.safetensors' is damaged"):
        make_releases(start(data(), part), [part], tmp_path)


def test_a_proof_of_its_own_and_another_adjacency_are_refused() -> None:
    part = part_for(data()[0], "add-remove")
    with pytest.raises(NotProvenError, match="columns"):
        make_plan("dp-dice", **{**SETTING, "counted": False}, noise_multiplier=50.0, composed=(part.composed,))
    with pytest.raises(NotProvenError, match="'add-remove'"):
        make_plan("dp-sgd", **SETTING, epsilon=3.0, composed=(part.composed,))


def test_every_secret_has_its_own_noise() -> None:
    rows = data()
    part = part_for(rows[0])
    first, second = (make_releases(start(rows, part, seed), [part])["ranges"]["limits"] for seed in (1, 2))
    assert not torch.equal(first, second)
    assert math.isfinite(float(first.abs().max()))


def test_plans_are_told_apart_by_their_releases() -> None:
    part = part_for(data()[0])
    plan: Plan = make_plan("dp-sgd", **SETTING, noise_multiplier=2.0)
    assert replace(plan, composed=(part.composed,)).fingerprint() != plan.fingerprint()


def test_a_release_of_an_earlier_version_is_refused_by_its_name(tmp_path) -> None:
    """Its noise came from another transform of the same bits: the two must never meet."""
    from safetensors.torch import save_file

    from hush.data_release import _read
    from hush.errors import FormatError

    path = tmp_path / "before-ranges.safetensors"
    told = {"format": "hush released before training 1", "noise": "n", "content": "c", "made": "yes"}
    save_file({"x": torch.zeros(1)}, path, metadata=told)
    with pytest.raises(FormatError, match="1"):
        _read(path)


# Releases composed with training: one event and one ε in every claim, the ledger, the statement and the fingerprint.


SETTING_COMPOSED = {"examples": 1000, "batch_size": 100, "steps": 50, "delta": 1e-5}
AGES = ComposedRelease(
    "a noisy histogram of the ages", dp_event.GaussianDpEvent(8.0), "add-remove", assumptions=("bins",)
)
FIGURES = ComposedRelease("noisy figures", dp_event.GaussianDpEvent(5.0), "add-remove", lost=1e-8)


def plan(sigma: float = 1.5, **given: object) -> Plan:
    return make_plan("dp-sgd", **SETTING_COMPOSED, noise_multiplier=sigma, **given)


def by_dp_accounting(event: object, delta: float) -> float:
    near = privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = pld.PLDAccountant(near, value_discretization_interval=1e-4)
    return float(accountant.compose(event).get_epsilon(delta))


def test_the_event_is_the_composition_and_dp_accounting_agrees() -> None:
    training = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.5)), 50)
    both = plan(composed=(AGES, FIGURES))
    assert both.event() == dp_event.ComposedDpEvent([training, AGES.event, FIGURES.event])
    assert both.guarantee().epsilon == pytest.approx(by_dp_accounting(both.event(), 1e-5 - 1e-8), rel=2e-3)
    assert both.guarantee().epsilon > 1.02 * plan().guarantee().epsilon  # a twin without them costs less


def test_what_is_lost_of_delta_is_charged() -> None:
    costly = replace(FIGURES, lost=0.9e-5)
    kept = epsilon(plan(composed=(costly,)).event(), 0.1e-5, adjacency="add-remove")
    assert plan(composed=(costly,)).guarantee().epsilon == pytest.approx(kept, rel=1e-3)
    assert math.isinf(plan(composed=(replace(FIGURES, lost=1e-5),)).guarantee().epsilon)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-ftrl", "dp-bandmf"])
def test_calibration_sees_them(method: str) -> None:
    alone = make_plan(method, **SETTING_COMPOSED, epsilon=2.0)
    release = replace(FIGURES, adjacency=alone.neighbours)
    both = make_plan(method, **SETTING_COMPOSED, epsilon=2.0, composed=(release,))
    assert 1.98 < both.guarantee().epsilon <= 2.0
    assert both.sigma > 1.01 * alone.sigma
    assert replace(alone, composed=(release,)).guarantee().epsilon > 2.01


def test_nothing_left_for_training_is_one_sentence() -> None:
    with pytest.raises(InvalidInputError, match=r"ε = 0.5.*ε = 0\.\d+"):
        make_plan("dp-sgd", **SETTING_COMPOSED, epsilon=0.5, composed=(FIGURES,))
    with pytest.raises(InvalidInputError, match="δ"):
        make_plan("dp-sgd", **SETTING_COMPOSED, epsilon=5.0, composed=(replace(FIGURES, lost=1e-4),))


def test_every_number_of_steps_holds_them() -> None:
    both = plan(composed=(FIGURES,))
    for steps in (1, 20, 50):
        assert both.event(steps).events[1:] == [FIGURES.event]
        assert both.guarantee(steps).epsilon > plan().guarantee(steps).epsilon
    assert both.guarantee(1).epsilon >= epsilon(FIGURES.event, 1e-5, accountant="gdp")


def test_steps_taken_again_are_composed_with_them_once() -> None:
    both, history = plan(composed=(FIGURES,)), ReplayHistory((Replay(0, 30), Replay(10, 50)), 1)
    claim = claim_attempts(both, history.attempts)[0]
    alone = claim_attempts(plan(), history.attempts)[0]
    assert claim.event == dp_event.ComposedDpEvent([alone.event, FIGURES.event])
    assert account_attempts(both, history)[0].epsilon > account_attempts(plan(), history)[0].epsilon
    assert "steps 11 to 50 were taken again" in account_attempts(both, history)[0].reason


def test_the_sentence_and_the_card_name_them() -> None:
    both = plan(composed=(AGES, FIGURES), assumptions=("coins",))
    assert "a noisy histogram of the ages and noisy figures" in both.guarantee().sentence()
    assert both.guarantee().assumptions == ("coins", "bins", INDEPENDENT_ROWS)
    card = json.loads(json.dumps(make_card(both, steps_taken=50, metrics={"private_metrics": {"rows": 3}})))
    assert card["private_metrics"] == {"rows": 3}
    assert [entry["name"] for entry in card["beside"]] == [AGES.name, FIGURES.name]
    assert card["beside"][1] == {
        "name": "noisy figures",
        "event": "Gaussian(σ 5)",
        "adjacency": "add-remove",
        "delta": 1e-8,
    }
    assert "together" not in plan().guarantee().sentence()


@pytest.mark.parametrize("name", ["guarantee", "claims", "accounting", "steps", "plan", "digests", "own_digest"])
def test_figures_take_no_place_of_the_card(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"cannot have the name '{name}'"):
        make_card(plan(), steps_taken=50, metrics={"accuracy": 0.5, name: {"epsilon": 0.1}})


def test_the_ledger_pays_for_them_from_the_first_step_on() -> None:
    first, last = (cost_of(plan(composed=(FIGURES,)))(steps) for steps in (1, 50))
    assert first.event.events[1] == last.event.events[1] == FIGURES.event
    assert first.lost >= 1e-8
    assert events.from_json(events.to_json(last.event)) == last.event


def test_the_identity_speaks_of_them_only_where_they_are() -> None:
    assert "beside" not in plan().identity()
    assert plan(composed=(FIGURES,)).fingerprint() != plan().fingerprint()
    other = replace(FIGURES, event=dp_event.GaussianDpEvent(5.000001))
    assert plan(composed=(FIGURES,)).fingerprint() != plan(composed=(other,)).fingerprint()


def test_a_run_says_so_too() -> None:
    run = plan(composed=(FIGURES,)).start(nn.Linear(2, 1), lambda m, x: m(x).squeeze(1), torch.zeros(1000, 2))
    assert run.guarantee.epsilon > plan().guarantee().epsilon
    assert "noisy figures" in str(run.guarantee)


def test_the_page_runs(capsys) -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "accounting.md").read_text()
    exec(page.split("```python\n")[-1].split("```")[0], {})
    said = capsys.readouterr().out
    assert said.startswith("(ε = 3, δ = 1e-5)-differentially private per example")
    assert "the model and a noisy histogram of the ages" in said


def test_what_cannot_be_composed_is_refused() -> None:
    with pytest.raises(NotProvenError, match="'replace'.*'add-remove'"):
        plan(composed=(replace(FIGURES, adjacency="replace"),))
    with pytest.raises(NotProvenError):
        make_plan("dp-dice", **SETTING_COMPOSED, noise_multiplier=2.0, composed=(FIGURES,))
    with pytest.raises(NotProvenError, match="noise"):
        replace(make_plan("sgd", **SETTING_COMPOSED), composed=(FIGURES,))
    with pytest.raises(InvalidInputError, match="'mystery'"):
        ComposedRelease("mystery", object(), "add-remove")
    with pytest.raises(InvalidInputError):
        ComposedRelease(" ", dp_event.GaussianDpEvent(1.0), "add-remove")
    with pytest.raises(InvalidInputError, match="0.*1"):
        replace(FIGURES, lost=1.0)
