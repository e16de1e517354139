"""A mislabelled digit as canary, detected from the released model alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hush
from faulty_plans import Scaled
from hush.audit.adversaries import BlackBox
from hush.audit.audit import audit_claims, collect_scores
from hush.audit.canary import make_mislabelled_setup


def test_a_mislabelled_example_shows_where_there_is_little_noise_and_is_hidden_by_enough() -> None:
    given = {"examples": 16, "batch_size": 16, "steps": 2, "sampling": "same-order"}
    plan, setup = hush.make_plan("dp-sgd", epsilon=4.0, **given), make_mislabelled_setup()
    found = audit_claims(plan, setup, adversary=BlackBox(), runs=40, seed=5)
    assert (found.verdicts[0].adversary, found.verdicts[0].verdict) == ("black-box", "consistent")
    bare = collect_scores(replace(plan, noise=Scaled(plan.noise, 0.02)), setup, BlackBox(), runs=16, seed=5)
    assert bare.inside.min() > bare.outside.max()
    assert found.scores.inside.min() < found.scores.outside.max()


def test_the_canary_of_the_stage_has_another_label_than_its_twin_in_the_data() -> None:
    setup = make_mislabelled_setup()
    image, label = setup.canary
    alike = (setup.rows[0] == image).all(1)
    assert int(label) not in setup.rows[1][alike]
    assert float(np.linalg.norm(setup.components)) == pytest.approx(1.0)
