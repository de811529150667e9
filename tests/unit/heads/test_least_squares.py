"""Least squares: numpy's without noise, sensitivities by brute force, floors under noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.errors import PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.least_squares import GRAM, TARGETS, Options, regression_targets
from dpprobe.heads.second_order import Design, cross_moment
from dpprobe.heads.training_set import TrainingSet
from tests.support.second_order_data import SEEDS, classes_of, fit, plan_of, rows_of

pytestmark = pytest.mark.usefixtures("several_blocks")


def test_without_noise_it_is_numpys() -> None:
    """With one label per row and with several, rows far beyond max_row_norm."""
    for several in (False, True):
        features, labels = classes_of(several=several)
        fitted = fit(Options(normalize="none", ridge=0), features, labels, 4)
        rows = np.column_stack([features.double().numpy(), np.ones(len(features))])
        targets = labels.numpy() if several else np.eye(4)[labels.numpy()]
        expected, *_ = np.linalg.lstsq(rows, targets, rcond=None)
        for weights in fitted.weights:
            np.testing.assert_allclose(weights, expected.T, atol=2e-5)


def test_gram_share_divides_the_budget() -> None:
    gram, targets = Options(normalize="none", gram_share=0.25).list_mechanisms(100)
    assert (gram.name, targets.name) == (GRAM, TARGETS)
    assert gram.sensitivity == pytest.approx(1.04)
    assert targets.sensitivity == pytest.approx(math.sqrt(1.04))
    gram_cost, other = (1 / item.noise_multiplier**2 for item in (gram, targets))
    assert gram_cost / (gram_cost + other) == pytest.approx(0.25)
    names = [item.name for item in Options().list_mechanisms(100)]
    assert names == ["centre", GRAM, TARGETS]


@settings(max_examples=60, deadline=None)
@given(
    row=st.lists(
        st.sampled_from([0.0, 2.0, -0.3, 1e9, math.nan, math.inf]), min_size=3, max_size=3
    ),
    chosen=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    max_labels=st.integers(1, 3),
    several=st.booleans(),
)
def test_a_row_changes_the_cross_moment_by_at_most_its_sensitivity(
    row: list[float], chosen: list[int], max_labels: int, several: bool
) -> None:
    options = Options(normalize="none", max_labels=max_labels)
    sensitivity = options.list_releases(3)[1].sensitivity
    features = torch.tensor([[1.0, 0.2, 0.1], [0.4, -3.0, 0.0], row])
    labels = (
        torch.tensor([[1, 1, 0, 0], [0, 0, 0, 1], chosen], dtype=torch.uint8)
        if several
        else torch.tensor([0, 1, sum(chosen) % 4])
    )
    null = torch.cat([features[:2], torch.full((1, 3), math.nan)])
    sums, longest = [], math.sqrt(max_labels)
    for each in (null, features):
        rows = rows_of(each, labels, 4)
        design = Design(options, rows, private=True)
        sums.append(cross_moment(design, regression_targets(rows, longest), 4, longest).values)
    change = float(torch.linalg.norm(sums[1] - sums[0]))
    assert change <= sensitivity
    if not np.isfinite(row).all():
        assert change == 0


def test_noise_of_the_priced_size_reaches_the_weights() -> None:
    """With lambda far above the Gram matrix, W = (B + noise) / lambda."""
    options = Options(normalize="none", ridge=1e7, intercept=0.0)
    features, labels = classes_of(30, 40, 4)
    noise = 50.0
    seeds = tuple(range(60))
    private = fit(options, features, labels, 4, noise=noise, seeds=seeds)
    deviation = plan_of(options, 30, noise).find_mechanism(TARGETS).noise_multiplier
    spread = private.weights[..., :-1].std(axis=0).mean()
    assert spread * 1e7 == pytest.approx(deviation * math.sqrt(3 / 4), rel=0.03)


def test_releases_are_counted() -> None:
    features, labels = classes_of()
    fitted = fit(Options(), features, labels, 4, noise=1.0)
    assert fitted.steps == 1
    assert fitted.weights.shape == (2, 4, 13)
    assert not np.allclose(fitted.weights[0], fitted.weights[1])
    plan = plan_of(Options(gram_share=0.9), len(features), 1.0)
    with pytest.raises(PrivacyError, match="plan"):
        fit_heads(Options(), TrainingSet(features, labels, 4), plan, SEEDS)
