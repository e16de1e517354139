"""The two early-stopping flags against values worked out by hand, and what is said of a run that stopped."""

from __future__ import annotations

import math

import pytest
import torch
from networks import data, losses, network, plan

from hush.accounting.guarantee import Guarantee
from hush.errors import InvalidInputError
from hush.sanitize.early_stopping import (
    Stop,
    find_chord_slope,
    find_stop,
    fit_slope,
    flag_flat,
    flag_steady,
    measure_spread,
    state_stop,
    take_until,
    watch_epochs,
)
from hush.training import take_steps

NO, YES = False, True
PLATEAU = [8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0]
NOISY = [5.0, 1.0, 3.0, 1.5, 2.5, 2.0]


@pytest.mark.parametrize(
    ("series", "length", "threshold", "flags"),
    [
        # Chords of three epochs: (2−8)/2 = −3, (1−4)/2 = −1.5, (1−2)/2 = −0.5, 0, 0.
        (PLATEAU, 3, 0.0, [NO, NO, NO, NO, NO, YES, YES]),
        (PLATEAU, 3, 0.5, [NO, NO, NO, NO, YES, YES, YES]),  # the threshold itself counts
        (PLATEAU, 3, 0.49, [NO, NO, NO, NO, NO, YES, YES]),
        # Chords of two epochs are differences: −4, 2, −1.5, 1, −0.5; of four: (1.5−5)/3, (2.5−1)/3, (2−3)/3.
        (NOISY, 2, 0.5, [NO, NO, NO, NO, NO, YES]),
        (NOISY, 4, 0.4, [NO, NO, NO, NO, NO, YES]),
        (NOISY, 4, 0.5, [NO, NO, NO, NO, YES, YES]),
        # A window's inside does not matter: the ends agree, the chord is flat.
        ([1.0, 9.0, -9.0, 1.0], 4, 0.0, [NO, NO, NO, YES]),
        ([1.0, 1.0], 3, 1.0, [NO, NO]),  # shorter than the window
        ([1.0, 1.0, 1.0], 3, 0.0, [NO, NO, YES]),  # exactly as long
        ([], 3, 1.0, []),
        ([3.0, 2.0, 1.0, 0.0], 2, 0.99, [NO, NO, NO, NO]),  # a steady fall is no plateau
    ],
)
def test_flat(series: list[float], length: int, threshold: float, flags: list[bool]) -> None:
    assert flag_flat(series, length, threshold) == flags


@pytest.mark.parametrize(
    ("series", "length", "tolerance", "flags"),
    [
        # Least squares over three epochs is the chord: −3, −1.5, −0.5, 0, 0; differences 1.5, 1, 0.5, 0.
        (PLATEAU, 3, 0.0, [NO, NO, NO, NO, NO, NO, YES]),
        (PLATEAU, 3, 0.5, [NO, NO, NO, NO, NO, YES, YES]),
        (PLATEAU, 3, 1.0, [NO, NO, NO, NO, YES, YES, YES]),
        # Four epochs: slope (−1.5a − 0.5b + 0.5c + 1.5d)/5: −0.85, 0.3, −0.2; differences 1.15, 0.5.
        (NOISY, 4, 0.5, [NO, NO, NO, NO, NO, YES]),
        (NOISY, 4, 1.2, [NO, NO, NO, NO, YES, YES]),
        ([3.0, 2.0, 1.0, 0.0], 3, 0.0, [NO, NO, NO, YES]),  # a steady fall is steady
        ([1.0, 1.0, 1.0], 3, 9.0, [NO, NO, NO]),  # one window has none before it
        ([1.0], 2, 9.0, [NO]),
        ([], 2, 9.0, []),
    ],
)
def test_steady(series: list[float], length: int, tolerance: float, flags: list[bool]) -> None:
    assert flag_steady(series, length, tolerance + 1e-12) == flags


def test_slopes() -> None:
    assert find_chord_slope([5.0, 9.0, 2.0, 2.0]) == -1.0
    # x − x̄ = −1.5, −0.5, 0.5, 1.5: (−7.5 − 4.5 + 1 + 3)/5 = −1.6
    assert fit_slope([5.0, 9.0, 2.0, 2.0]) == pytest.approx(-1.6)


def test_the_first_flag_stops() -> None:
    assert find_stop([NO, NO, YES, NO, YES]) == 3
    assert find_stop([NO, NO]) is None
    assert find_stop([]) is None


@pytest.mark.parametrize("flag", [flag_flat, flag_steady])
def test_bad_windows_get_a_sentence(flag: object) -> None:
    assert callable(flag)
    with pytest.raises(InvalidInputError, match="2"):
        flag([1.0, 2.0], 1, 0.1)
    with pytest.raises(InvalidInputError):
        flag([1.0, 2.0], 2, -0.1)
    with pytest.raises(InvalidInputError, match="1"):
        flag([1.0, math.nan], 2, 0.1)


def test_the_spread_is_that_of_each_example() -> None:
    """[1, 3] has deviation 1 and [0, 8] has 4: 2.5 on average, however far apart the two lie."""
    assert measure_spread(torch.tensor([[1.0, 3.0], [1000.0, 1008.0]])) == pytest.approx(2.5)


def test_a_stop_is_proven_at_the_plan_and_claimed_at_itself() -> None:
    planned, early = Guarantee(3.0, 1e-5), Guarantee(2.0, 1e-5)
    first, second = state_stop(planned, early)
    assert first == planned
    assert (second.epsilon, second.status) == (2.0, "claimed")
    assert "stopped by what it had released" in second.sentence()
    assert second.sentence().startswith("Not a guarantee")
    with pytest.raises(InvalidInputError, match="plan"):
        state_stop(early, planned)
    claimed = Guarantee(2.0, 1e-5, status="claimed", reason="a paper says so")
    assert state_stop(planned, claimed)[1].reason.endswith("; a paper says so")


def test_a_run_stops_where_its_own_series_is_flat() -> None:
    """The series of a run that goes on, and of one that is stopped by it: the same epochs, then none."""
    per_epoch, made = 5, plan("sanitize", steps=30)

    def begin():
        return made.start(network("sanitize"), losses, data(), secret=1)

    whole = list(watch_epochs((record.numbers() for record in take_steps(begin())), per_epoch))
    assert len(whole) == 6
    slopes = [abs(find_chord_slope(whole[end - 3 : end])) for end in range(3, 7)]
    stop = Stop(3, sorted(slopes)[1])
    expected = stop.find(whole)
    assert expected is not None
    run = begin()
    assert take_until((record.numbers() for record in take_steps(run)), stop, per_epoch) == expected
    assert run.next == expected * per_epoch
    planned, early = state_stop(made.guarantee(), made.guarantee(run.next))
    assert (planned.status, early.status) == ("refuted", "refuted")
    assert early.epsilon <= planned.epsilon
    assert take_until((record.numbers() for record in take_steps(begin())), Stop(3, 0.0), per_epoch) is None


def test_the_series_is_that_of_the_noisy_outputs() -> None:
    made = plan("sanitize", steps=5, noise_multiplier=50.0)
    run = made.start(network("sanitize"), losses, data(), secret=1)
    (found,) = watch_epochs((record.numbers() for record in take_steps(run)), 5)
    assert found == pytest.approx(run.model[1].noise_std, rel=0.2)  # which here are nearly all noise


def test_a_stop_by_steady_slopes_is_that_of_the_flags() -> None:
    series = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert Stop(3, 1e-9, adaptive=True).find(series) == 4
    assert Stop(3, 1e-9).find(series) is None
