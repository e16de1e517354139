"""Groups of runs: the best run, its seeds, the cost of selection, and the meaning of each ε."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from dp_accounting import dp_event

from hush.accounting import events
from hush.accounting.accountant import epsilon
from hush.accounting.guarantee import AuditFinding
from hush.bench.selection_cost import Pricing
from hush.report import summary
from hush.report.rows import Reading, make_row
from hush.report.store_page import make_store_page
from hush.report.summary import describe_cost, describe_findings, format_mean, make_groups
from synthetic_stores import make_record


def read(*runs: tuple[dict[str, Any], Any]) -> Reading:
    return Reading("made up", tuple(make_row(record["key"], record, curve) for record, curve in runs))


def with_figures(number: int, test: float, validation: float, **given: Any) -> tuple[dict[str, Any], Any]:
    return make_record(number, test_accuracy=test, validation_accuracy=validation, **given)


def test_the_validation_part_chooses_and_the_test_part_is_reported() -> None:
    reading = read(
        with_figures(0, 0.99, 0.50, lr=1.0),
        with_figures(1, 0.80, 0.70, lr=0.1),
        with_figures(2, 0.84, 0.72, lr=0.1, seed=1),
    )
    (group,) = make_groups(reading)
    assert group.chosen is not None
    assert group.chosen.mean == pytest.approx(0.82)
    assert group.chosen.spread == pytest.approx(statistics.stdev([0.80, 0.84]))
    assert group.best is not None
    assert group.best.score("test") == 0.84
    assert group.chosen_by == "validation"
    assert format_mean(group) == "82.00 % ± 2.83 % (2 seeds)"


def test_a_setting_with_a_run_that_diverged_is_not_the_best() -> None:
    runs = [with_figures(0, 0.9, 0.9, lr=1.0), with_figures(1, 0.9, 0.9, lr=1.0, seed=1, outcome="diverged")]
    (group,) = make_groups(read(*runs, with_figures(2, 0.6, 0.6, lr=0.1)))
    assert group.chosen is not None
    assert group.chosen.mean == 0.6


def test_without_a_validation_part_the_report_says_who_chose() -> None:
    record, curve = make_record(0)
    del record["validation_accuracy"], record["validation_loss"]
    (group,) = make_groups(read((record, curve)))
    assert group.chosen_by == "test"


def test_less_loss_is_better() -> None:
    runs = [make_record(n, lr=lr, metric="loss") for n, lr in enumerate((0.1, 10.0))]
    (group,) = make_groups(read(*runs))
    assert group.best is not None
    assert group.best.score("test") == min(record["test_loss"] for record, _ in runs)


def test_groups_are_problem_method_and_epsilon() -> None:
    made = [
        make_record(n, method=method, epsilon=e) for n, (method, e) in enumerate([("a", 1.0), ("b", 1.0), ("a", 2.0)])
    ]
    assert [group.place for group in make_groups(read(*made))] == [
        ("digits-mlp", "a", "1"),
        ("digits-mlp", "b", "1"),
        ("digits-mlp", "a", "2"),
    ]


def test_the_price_of_a_grid_of_gaussians_is_that_of_their_composition() -> None:
    own = epsilon(dp_event.GaussianDpEvent(4.0), 1e-5, adjacency="zero-out", accountant="gdp")
    told = {"accountant": "gdp", "noise_multiplier": 4.0, "epsilon": own, "lost_delta": 0.0}
    runs = [make_record(n, lr=10.0**-n, **told) for n in range(4)]
    (group,) = make_groups(read(*runs))
    four = epsilon(dp_event.GaussianDpEvent(2.0), 1e-5, adjacency="zero-out", accountant="gdp")  # √4 times less noise
    assert group.price.epsilon == pytest.approx(four, rel=1e-6)
    assert group.price.delta == 1e-5
    assert "chosen from 4 runs" in describe_cost(group)


@pytest.mark.parametrize("told", [True, False])
def test_what_runs_lose_of_delta_is_not_spent_again(told: bool) -> None:
    """δ that the event does not know is taken off it once a run, as recorded, or as the run's own ε says."""
    own = epsilon(dp_event.GaussianDpEvent(4.0), 0.995e-5, adjacency="zero-out", accountant="gdp")
    lost = {"lost_delta": 5e-8} if told else {}
    runs = [make_record(n, lr=10.0**-n, accountant="gdp", noise_multiplier=4.0, epsilon=own, **lost) for n in range(4)]
    (group,) = make_groups(read(*runs))
    left = 0.98e-5 if told else 0.976e-5  # without a record, what tails may take comes on top
    four = epsilon(dp_event.GaussianDpEvent(2.0), left, adjacency="zero-out", accountant="gdp")
    assert group.price.epsilon == pytest.approx(four, rel=1e-6)
    assert group.price.delta == 1e-5


def test_a_run_whose_event_does_not_fit_its_epsilon_is_added_by_basic_composition() -> None:
    runs = [make_record(n, lr=10.0**-n, accountant="gdp", noise_multiplier=400.0, epsilon=2.0) for n in range(3)]
    (group,) = make_groups(read(*runs))
    assert group.price.epsilon == pytest.approx(6.0)
    assert group.price.delta == pytest.approx(3e-5)


def test_poisson_batches_are_composed_by_their_own_event() -> None:
    step = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(2.0))
    own = epsilon(dp_event.SelfComposedDpEvent(step, 100), 1e-5, adjacency="zero-out", accountant="pld")
    told = {"sample_rate": 0.05, "noise_multiplier": 2.0, "steps": 100, "accountant": "pld"}
    (group,) = make_groups(read(*(make_record(n, lr=10.0**-n, epsilon=own, **told) for n in range(3))))
    all_three = epsilon(dp_event.SelfComposedDpEvent(step, 300), 1e-5, adjacency="zero-out", accountant="pld")
    assert group.price.epsilon == pytest.approx(all_three, rel=1e-3)
    assert group.price.epsilon < 3 * own


def test_a_failed_run_counts_in_the_price() -> None:
    good = [make_record(n, lr=10.0**-n, accountant="gdp", noise_multiplier=400.0, epsilon=2.0) for n in range(2)]
    record, curve = make_record(9, outcome="failed", epsilon=2.0)
    (group,) = make_groups(read(*good, ({**record, "epsilon": 2.0, "delta": 1e-5}, curve)))
    assert group.price.runs == 3
    assert group.price.epsilon == pytest.approx(6.0)
    (silent,) = make_groups(read(*good, (record, curve)))  # what it has spent is not in its record
    assert silent.price.epsilon is None


@pytest.mark.parametrize(("status", "word"), [("claimed", "claimed"), ("none", "private")])
def test_what_is_not_proven_has_no_price(status: str, word: str) -> None:
    (group,) = make_groups(read(*(make_record(n, seed=n, status=status) for n in range(2))))
    assert group.status == status
    assert group.price.epsilon is None
    assert word in describe_cost(group)


def test_an_audit_that_measured_more_refutes_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    found = AuditFinding("dp-dice", 1.0, 4.2, 1e-5, 0.95, "claimed")
    monkeypatch.setattr(summary, "findings", lambda: (found,))
    (group,) = make_groups(read(make_record(0, method="dp-dice")))
    assert group.status == "refuted"
    assert group.audited is not None
    assert (group.audited.verdict, group.audited.epsilon_lower, group.audited.claimed_epsilon) == ("refuted", 4.2, 1.0)
    (other,) = make_groups(read(make_record(0, method="dp-sgd")))
    assert other.audited is None


def test_findings_name_the_winner_and_the_outcomes() -> None:
    runs = [with_figures(n, 0.9 + n / 1000, 0.9, method="dp-adam", seed=n) for n in range(3)]
    runs += [with_figures(9 + n, 0.7 + n / 1000, 0.7, method="dp-sgd", seed=n) for n in range(3)]
    reading = read(*runs, make_record(20, outcome="diverged", lr=10.0))
    first, second = describe_findings(reading, make_groups(reading))
    assert first.startswith("On digits-mlp at ε = 3, dp-adam is best of 2 methods: test accuracy 90.10 % ± 0.10 %")
    assert "20.00 points above dp-sgd" in first
    assert second.startswith("Of 7 runs: 6 finished, 1 diverged; ")


def test_the_largest_lead_is_named_whoever_wins_most_often() -> None:
    reached = {("dp-sgd", 1.0): 0.80, ("a", 1.0): 0.79, ("dp-sgd", 3.0): 0.85, ("a", 3.0): 0.84, ("a", 9.0): 0.95}
    reached[("dp-sgd", 9.0)] = 0.88
    runs = [with_figures(n, x, x, method=m, epsilon=e) for n, ((m, e), x) in enumerate(reached.items())]
    reading = read(*runs)
    found = describe_findings(reading, make_groups(reading))[0]
    for value in ("dp-sgd in 2", "a in 1", "ε = 9", "95.00 %", "7.00 points"):
        assert value in found


def test_a_best_setting_shows_momentum_and_what_was_varied() -> None:
    runs = []
    for number, (momentum, share) in enumerate([(0.0, 0.1), (0.9, 0.1), (0.9, 0.2)]):
        record, curve = with_figures(number, 0.5 + number / 10, 0.5 + number / 10)
        record["config"]["options"] |= {"momentum": momentum, "share": share, "same": 7}
        runs.append((record, curve))
    page = make_store_page(read(*runs))
    shown = [cell.under for row in page.table for cell in row.cells]
    (told,) = [text for text in shown if "lr 0.1" in text]
    assert {"momentum 0.9", "share 0.2"} <= set(told.split(", "))
    assert "same" not in told
    (alone,) = [c.under for row in make_store_page(read(runs[1])).table for c in row.cells if "lr 0.1" in c.under]
    assert "momentum 0.9" in alone.split(", ")
    assert "share" not in alone


def test_a_lead_within_the_spread_is_said_to_be() -> None:
    runs = [with_figures(n, value, value, method="a", seed=n) for n, value in enumerate((0.80, 0.90))]
    runs += [with_figures(5 + n, value, value, method="b", seed=n) for n, value in enumerate((0.79, 0.89))]
    reading = read(*runs)
    assert "within the spread over seeds" in describe_findings(reading, make_groups(reading))[0]


def test_a_claimed_epsilon_wins_no_comparison() -> None:
    runs = [with_figures(0, 0.99, 0.99, method="dp-dice", status="claimed")]
    runs += [with_figures(n, 0.5 + n / 10, 0.6, method=name) for n, name in enumerate(("dp-sgd", "dp-adam"), 1)]
    reading = read(*runs)
    assert "dp-adam is best of 2 methods" in describe_findings(reading, make_groups(reading))[0]


def test_the_report_and_the_sweep_name_the_same_price() -> None:
    """An event that no numbers of a record would rebuild: that of its record counts, also where there is no card."""
    event = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(8.0), dp_event.GaussianDpEvent(9.0)])
    own = epsilon(event, 1e-5, adjacency="zero-out", accountant="gdp")
    told = {"accountant": "gdp", "epsilon": own, "lost_delta": 1e-7, "event": events.to_json(event)}
    made = [make_record(n, lr=10.0**-n, **told) for n in range(10)]
    (group,) = make_groups(read(*made))
    swept = Pricing().price([record for record, _ in made]).epsilon
    assert group.price.epsilon == pytest.approx(swept, rel=1e-9)
    assert group.price.delta == 1e-5
    assert group.price.epsilon < 10 * own / 2
    nothing = ("epsilon", "delta", "status", "event", "lost_delta", "adjacency")
    record, curve = make_record(11, lr=1.0, epsilon=own, outcome="failed", begun=False)
    refused = {name: value for name, value in record.items() if name not in nothing}, curve
    (same,) = make_groups(read(*made, refused))
    assert (same.price.epsilon, same.price.runs) == (group.price.epsilon, 10)
    (again,) = make_groups(read(*made[1:], make_record(0, lr=1.0, tried_before=True, **told)))
    assert again.price.epsilon is None
    assert "an earlier try of run" in again.price.reason


def test_runs_under_different_neighbours_have_no_price_together() -> None:
    made = [make_record(n, lr=10.0**-n, adjacency=kind) for n, kind in enumerate(("zero-out", "replace"))]
    (group,) = make_groups(read(*made))
    assert group.price.epsilon is None
    assert "same neighbours" in group.price.reason
