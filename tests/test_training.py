"""`hush.train` and `hush.start`, with and without a run directory and a ledger."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy

import hush
from hush.checkpointing import Checkpoints
from hush.errors import InvalidInputError, ResumeError, RunStateError
from hush.ledger.book import Ledger
from hush.training import plan_for_data, take_steps

torch.manual_seed(0)
X = torch.randn(300, 6)
Y = (X[:, 0] > 0).long()
SETTINGS = {"epsilon": 3, "epochs": 2, "batch_size": 60, "lr": 0.5}
LISTED = "the number of examples is public"


def losses(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(6, 2)


def test_five_lines_train_a_model_and_state_its_guarantee() -> None:
    result = hush.train(network(), losses, (X, Y), **SETTINGS)
    assert result.guarantee.status == "proven"
    assert 2.9 < result.guarantee.epsilon <= 3
    assert result.guarantee.adjacency == "zero-out"
    assert LISTED in result.guarantee.conditions
    assert result.directory is None
    assert not torch.equal(result.model.weight, network().weight)
    assert not result.model.training


def test_the_plan_of_a_result_has_the_noise_of_its_run(monkeypatch) -> None:
    """σ of a large model is calibrated again when the run starts."""
    monkeypatch.setattr("hush.plan.count_coordinates", lambda model: 10**9)
    asked = SETTINGS | {"epsilon": 8}
    result = hush.train(network(), losses, (X, Y), **asked)
    assert result.guarantee.epsilon <= 8
    assert result.plan.sigma > plan_for_data((X, Y), "dp-sgd", **asked).sigma


def test_its_progress_needs_no_thread(no_thread, monkeypatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("hush.training.Console", lambda **given: Console(file=shown, force_terminal=True))
    hush.train(network(), losses, (X, Y), **SETTINGS)
    assert "training with dp-sgd" in shown.getvalue()


def test_a_directory_is_finished_once_and_returned_at_no_cost(tmp_path: Path) -> None:
    kept = {"directory": tmp_path / "run", "ledger": tmp_path / "spend.jsonl", "dataset": "people"}
    first = hush.train(network(), losses, (X, Y), **SETTINGS, **kept)
    assert hush.verify(tmp_path / "run" / "release").verified
    spent = Ledger(kept["ledger"]).total("people")
    assert spent.epsilon == pytest.approx(first.guarantee.epsilon, rel=1e-6)
    again = hush.train(network(), losses, (X, Y), **SETTINGS, **kept, resume=True)
    assert torch.equal(first.model.weight, again.model.weight)
    assert again.guarantee.epsilon == first.guarantee.epsilon
    assert Ledger(kept["ledger"]).total("people") == spent
    with pytest.raises(ResumeError):
        hush.train(network(), losses, (X, Y), **SETTINGS, **kept)
    with pytest.raises((ResumeError, InvalidInputError)):
        hush.train(network(), losses, (X, Y), **{**SETTINGS, "lr": 0.1}, **kept, resume=True)


def test_an_interrupted_run_resumes_to_the_same_bits_and_is_charged_once(tmp_path: Path) -> None:
    kept = {"ledger": tmp_path / "spend.jsonl", "dataset": "people"}

    def stop(epoch: int, run: hush.Run) -> None:
        if epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hush.train(network(), losses, (X, Y), **SETTINGS, directory=tmp_path / "run", **kept, on_epoch=stop)
    secret = json.loads((tmp_path / "run" / "private" / "secret.jsonl").read_text().splitlines()[-1])
    resumed = hush.train(network(), losses, (X, Y), **SETTINGS, directory=tmp_path / "run", **kept, resume=True)
    plan = hush.make_plan(
        "dp-sgd",
        examples=300,
        counted=True,
        batch_size=60,
        epochs=2,
        epsilon=3,
        lr=0.5,
        clip=1.0,
        assumptions=(LISTED,),
    )
    whole = plan.start(network(), losses, (X, Y), secret=hush.Secret.from_json(secret))
    for _ in whole:
        pass
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert (
        len([1 for line in kept["ledger"].read_text().splitlines() if '"kind": "spend"' in line or "method" in line])
        == 1
    )


def test_groups_are_units_by_their_name() -> None:
    result = hush.train(
        network(), losses, (X, Y), **{**SETTINGS, "batch_size": 20}, groups=[i // 3 for i in range(300)]
    )
    assert result.guarantee.unit == "group"
    named = hush.train(
        network(), losses, (X, Y), **{**SETTINGS, "batch_size": 20}, groups=torch.arange(300) // 3, unit="patient"
    )
    assert named.guarantee.unit == "patient"
    assert "the number of patients is public" in named.guarantee.conditions


def test_spent_grows_to_the_guarantee_of_the_plan(tmp_path: Path) -> None:
    plan = hush.make_plan("dp-sgd", examples=300, batch_size=60, epochs=2, epsilon=3, lr=0.5)
    run = hush.start(plan, network(), losses, (X, Y), directory=tmp_path / "run")
    assert run.spent.epsilon == 0
    seen = [run.spent.epsilon for _ in run]
    assert len(seen) == plan.steps
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(run.guarantee.epsilon)
    assert run.release() == tmp_path / "run" / "release"
    assert not (tmp_path / "run" / "private" / "secret.jsonl").exists()


def test_a_run_that_was_closed_is_resumed_by_start(tmp_path: Path) -> None:
    plan = hush.make_plan("dp-sgd", examples=300, batch_size=60, epochs=2, epsilon=3, lr=0.5)
    run = hush.start(plan, network(), losses, (X, Y), directory=tmp_path / "run", checkpoint_every=1)
    run.step()
    run.close()
    with pytest.raises(ResumeError):
        hush.start(plan, network(), losses, (X, Y), directory=tmp_path / "run")
    again = hush.start(plan, network(), losses, (X, Y), directory=tmp_path / "run", resume=True)
    assert again.next == 1
    again.close()


def test_a_ledger_needs_the_name_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="dataset"):
        hush.train(network(), losses, (X, Y), **SETTINGS, ledger=tmp_path / "spend.jsonl")


def test_every_public_name_exists_and_the_import_is_light() -> None:
    assert all(hasattr(hush, name) for name in hush.__all__)
    program = "import sys, hush; hush.make_plan; print([m for m in sys.modules if m.startswith('hush.')])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not [part for part in ("hush.audit", "hush.report", "hush.bench", "hush.release.statement") if part in found]


@pytest.mark.parametrize("every", [0, -1, 2.5])
def test_checkpoints_come_after_whole_numbers_of_steps(tmp_path: Path, every: float) -> None:
    plan = hush.make_plan("dp-sgd", examples=20, batch_size=5, steps=2, noise_multiplier=1.0)
    data = (torch.rand(20, 3), torch.arange(20) % 2)
    run = plan.start(nn.Linear(3, 2), losses, data, secret=1)
    kept = Checkpoints(tmp_path / "kept")
    kept.begin(run)
    with pytest.raises(InvalidInputError):
        next(take_steps(run, checkpoints=kept, every=every))  # type: ignore[arg-type]
    assert run.next == 0
    kept.close()


def test_a_ledger_object_counts_the_run_it_was_given_to(tmp_path: Path) -> None:
    ledger = hush.Ledger(tmp_path / "spend.jsonl")
    result = hush.train(network(), losses, (X, Y), **SETTINGS, ledger=ledger, dataset="patients")
    assert ledger.total("patients", delta=result.guarantee.delta).epsilon >= 0.99 * result.guarantee.epsilon


def test_a_run_that_was_released_or_closed_takes_no_step(tmp_path: Path) -> None:
    plan = hush.make_plan("dp-sgd", examples=300, batch_size=60, epochs=2, epsilon=3, lr=0.5)
    run = hush.start(plan, network(), losses, (X, Y), directory=tmp_path / "run")
    run.step()
    with pytest.raises(InvalidInputError):
        run.release(model=network())
    run.close()
    again = hush.start(plan, network(), losses, (X, Y), directory=tmp_path / "run", resume=True)
    assert again.next == 1  # closing wrote a checkpoint
    with pytest.raises(RunStateError):
        run.step()
    again.step()
    again.release()
    kept = sorted(path.name for path in (tmp_path / "run" / "private").iterdir())
    with pytest.raises(RunStateError):
        again.step()
    run.close()
    assert sorted(path.name for path in (tmp_path / "run" / "private").iterdir()) == kept
    assert "secret.jsonl" not in kept
