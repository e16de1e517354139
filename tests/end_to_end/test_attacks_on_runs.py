"""Attacks on a run and its surroundings (state, units, hooks, sources); each of them once succeeded."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from hush import InvalidInputError, make_plan
from hush.accounting.guarantee import FIXED, HOOKED, TRAINED, UPDATED
from hush.errors import ResumeError, RunStateError, UnsupportedModelError
from hush.guarantees import Replay, ReplayHistory
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge
from hush.per_example.chunks import MODES
from hush.per_example.functional import computing_in_float64
from hush.privacy_unit import number_units

pytestmark = pytest.mark.full_start_check

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3


def cross_entropy(model, content):
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def plan_for(examples: int, **options):
    given = {"batch_size": examples // 2, "steps": 4, "noise_multiplier": 2.0, "delta": 1e-3} | options
    return make_plan("dp-sgd", examples=examples, **given)


def test_a_run_is_not_set_back_by_hand():
    """The same noise on other sums gives away their difference, and steps that nobody counted cost what they cost."""
    plan = plan_for(24)
    run = plan.start(nn.Linear(4, 3), cross_entropy, (X, Y), secret=1)
    kept = run.state()
    run.step(run.batch(0))
    with pytest.raises(ResumeError, match="checkpoint"):
        run.restore(kept)
    other = plan.start(nn.Linear(4, 3), cross_entropy, (X + 1, Y), secret=1)
    with pytest.raises(ResumeError, match="checkpoint"):
        other.restore(run.state())
    for name, value in (("next", 0), ("history", other.history)):
        with pytest.raises(AttributeError):
            setattr(run, name, value)
    assert run.next == run.history.now.taken == 1


def test_what_a_record_says_was_taken_is_never_less_than_the_run_knows():
    run = plan_for(24).start(nn.Linear(4, 3), cross_entropy, (X, Y), secret=1)
    run.step(run.batch(0))
    for other in ((Replay(),), (Replay(0, 0), Replay(5, 5)), (Replay(1, 1),)):
        run.recall(other)
        assert run.history.attempts[0] == Replay(0, 1)
        assert run.history.current == 0
    assert ReplayHistory((Replay(0, 3),)).joined([Replay(2, 4)]).attempts == (Replay(0, 4),)


def test_a_run_is_not_copied_and_keeps_its_data():
    run = plan_for(24).start(nn.Linear(4, 3), cross_entropy, (X, Y), secret=1)
    for ask in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(RunStateError):
            ask(run)
    for name in ("source", "ranks"):
        with pytest.raises(AttributeError):
            setattr(run, name, None)


TWICE = {
    "a number and a text": [101, 7, "101", 7],
    "spaces around": ["a", "b", "a ", "b"],
    "a fraction of a whole number": ["101", "7", "101.0", "7"],
    "bytes": [b"a", "b", "a", "b"],
    "a part of a key": [("x", 1), ("y", 1), ("x", "1"), ("y", 1)],
}


@pytest.mark.parametrize("which", TWICE)
def test_one_person_under_two_names_is_not_two_units(which):
    with pytest.raises(InvalidInputError, match="units"):
        number_units(TWICE[which])
    kinds = {type(name) for name in TWICE[which]}
    if kinds == {str}:
        with pytest.raises(InvalidInputError, match="units"):
            number_units(np.asarray(TWICE[which]))


@pytest.mark.parametrize("missing", [("x", None), ("x", float("nan")), ("x", (1, float("nan")))])
def test_a_key_of_several_parts_with_one_missing_names_nobody(missing):
    with pytest.raises(InvalidInputError, match="unit"):
        number_units([("x", 1), missing])


def test_names_that_differ_on_paper_are_units():
    assert number_units(["7", "007", "a b", "ab", "7.5"]).tolist() == [0, 1, 2, 3, 4]
    assert number_units([("7", 1), ("7", 2), ("07", 1)]).tolist() == [0, 1, 2]
    assert number_units([7, 7.0, 8, np.int64(7)]).tolist() == [0, 0, 1, 0]


class InputScaled(torch.optim.SGD):
    """Divides each step by the mean square of the inputs, which it sees through a hook: a diagonal K-FAC."""

    def __init__(self, model, *, everywhere: bool) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.square = 1.0
        hook = nn.modules.module.register_module_forward_pre_hook if everywhere else model.register_forward_pre_hook
        self.handle = hook(self.look)

    def look(self, module, given):
        self.square = 0.9 * self.square + 0.1 * float(given[0].detach().square().mean())


@pytest.mark.parametrize("everywhere", [False, True])
def test_an_optimizer_that_looks_at_activations_is_refused(everywhere):
    model, made = nn.Linear(4, 3), []

    def optimizer(params):
        made.append(InputScaled(model, everywhere=everywhere))
        return made[-1]

    plan = plan_for(24, optimizer=optimizer)
    try:
        with pytest.raises(UnsupportedModelError, match="hooks"):
            plan.start(model, cross_entropy, (X, Y))
    finally:
        for each in made:
            each.handle.remove()


def test_hooks_that_the_model_brings_are_listed_and_torchs_own_are_not():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    assert HOOKED not in plan_for(24).start(model, cross_entropy, (X, Y), secret=1).guarantee.assumptions
    run = plan_for(24).start(model, cross_entropy, (X, Y), secret=1)
    model.register_forward_hook(lambda module, given, found: None)
    assert HOOKED in run.guarantee.assumptions  # also of hooks that come later


class OwnStep(torch.optim.SGD):
    """An optimizer of another module."""


SCHEDULES = {
    "none": (torch.optim.AdamW, None, False),
    "of torch": (torch.optim.SGD, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4), False),
    "a function": (torch.optim.SGD, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1.0), True),
    "own optimizer": (OwnStep, None, True),
}


@pytest.mark.parametrize("which", SCHEDULES)
def test_code_that_changes_the_weights_after_the_noise_is_assumed_not_to_look_at_the_data(which):
    """A schedule can read what a model or a loss left in a global: no noise is added after it."""
    make, scheduler, listed = SCHEDULES[which]
    plan = plan_for(24, optimizer=lambda params: make(params, lr=0.1), scheduler=scheduler)
    run = plan.start(nn.Linear(4, 3), cross_entropy, (X, Y), secret=1)
    assert (UPDATED in run.guarantee.assumptions) is listed


@pytest.mark.parametrize("first", ["sgd", "dp-sgd"])
def test_a_second_run_of_a_model_says_that_there_was_a_first(first):
    """“Some more epochs” with another plan: the ε of the second is not that of the weights."""
    model, private = nn.Linear(4, 3), {"noise_multiplier": 2.0, "delta": 1e-3} if first == "dp-sgd" else {}
    plan = make_plan(first, examples=24, batch_size=12, steps=4, **private)
    run = plan.start(model, cross_entropy, (X, Y), secret=1)
    assert TRAINED not in plan_for(24).start(model, cross_entropy, (X, Y), secret=2).guarantee.assumptions
    run.step(run.batch(0))
    for same in (model, nn.Sequential(model)):
        again = plan_for(24).start(same, cross_entropy, (X, Y), secret=3)
        assert TRAINED in again.guarantee.assumptions
    assert TRAINED not in run.guarantee.assumptions


@pytest.mark.parametrize("arithmetic", MODES)
def test_all_conditions_are_listed_before_the_first_step(arithmetic):
    model = nn.Linear(4, 3)
    model.register_forward_hook(lambda module, given, found: None)
    run = plan_for(24, arithmetic=arithmetic).start(model, cross_entropy, (X, Y), secret=1)
    before = run.guarantee.conditions
    run.step(run.batch(0))
    after = run.guarantee.conditions
    assert len(before) == len(after)
    assert all(b.startswith(a.partition(" (")[0]) for a, b in zip(before, after, strict=True))  # a figure may be added


def test_a_ledgers_total_lists_every_condition_of_its_runs(tmp_path):
    model = nn.Linear(4, 3)
    first = plan_for(24).start(model, cross_entropy, (X, Y), secret=1)
    first.step(first.batch(0))
    model.register_forward_hook(lambda module, given, found: None)
    run, ledger = plan_for(24).start(model, cross_entropy, (X, Y), secret=2), Ledger(tmp_path / "spent.jsonl")
    listed = set(run.guarantee.conditions)
    assert {HOOKED, TRAINED} <= listed
    charge(run, ledger, "d")
    run.step(run.batch(0))
    assert listed <= set(ledger.total("d").assumptions)


def test_a_forked_process_takes_no_step_of_its_parents_run():
    """It would add the same noise to other sums."""
    run = plan_for(24).start(nn.Linear(4, 3), cross_entropy, (X, Y), secret=1)
    batch, kept = run.batch(0), run.state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process that has threads
        child = os.fork()
    if not child:
        told = 1
        try:
            for use in (lambda: run.step(batch), lambda: run.restore(kept, compared=True)):
                try:
                    use()
                except RunStateError:
                    told += 1
        finally:
            os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    run.step(batch)
    assert run.next == 1


def test_two_threads_do_not_step_one_run_at_a_time():
    inside, go = threading.Event(), threading.Event()

    def slow(model, content):
        inside.set()
        assert go.wait(60)
        return cross_entropy(model, content)

    run = plan_for(24).start(nn.Linear(4, 3), slow, (X, Y), secret=1)
    batch, failed = run.batch(0), []
    other = threading.Thread(target=lambda: run.step(batch))
    other.start()
    assert inside.wait(60)
    try:
        with pytest.raises(RunStateError):
            run.step(batch)
    except BaseException as error:
        failed.append(error)
    go.set()
    other.join()
    assert not failed
    assert run.next == 1
    run.step(run.batch(1))
    assert (run.next, torch.get_default_dtype()) == (2, torch.float32)


def test_what_is_judged_in_float64_changes_no_other_thread():
    entered, leave, seen = threading.Event(), threading.Event(), []

    def judge():
        with computing_in_float64(nn.Linear(2, 2)):
            seen.append(torch.zeros(2).dtype)
            entered.set()
            assert leave.wait(60)

    other = threading.Thread(target=judge)
    other.start()
    assert entered.wait(60)
    with computing_in_float64(nn.Linear(2, 2)):
        leave.set()
        other.join()
        made = [torch.ones(2), torch.tensor([0.5]), torch.arange(3) / 2, torch.where(torch.tensor([True]), 1.0, 0.0)]
        assert [t.dtype for t in made] == [torch.float64] * 4
        asked = [torch.ones(2, dtype=torch.float32), torch.arange(3).float(), torch.arange(3), X + 1]
        assert [t.dtype for t in asked] == [torch.float32, torch.float32, torch.int64, torch.float32]
    assert seen == [torch.float64]
    assert (torch.get_default_dtype(), torch.zeros(1).dtype) == (torch.float32, torch.float32)


def test_the_price_of_fewer_steps_assumes_that_nobody_looked():
    plan = plan_for(24)
    assert FIXED in plan.guarantee(2).assumptions
    assert all(FIXED not in plan.guarantee(steps).assumptions for steps in (None, 4))


class Standardised:
    """A source of one's own that standardises each batch by its own mean."""

    def __len__(self):
        return len(X)

    def take(self, indices):
        x = X[indices]
        return (x - x.mean(0) if len(x) > 1 else x), Y[indices]


def test_a_source_in_which_examples_meet_is_refused():
    with pytest.raises(UnsupportedModelError, match="examples"):
        plan_for(24).start(nn.Linear(4, 3), cross_entropy, Standardised(), secret=1)
