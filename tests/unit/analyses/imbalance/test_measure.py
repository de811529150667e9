"""Test rows ranked by a rare class, and the heads that gradients are taken at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import softmax

from dpprobe.analyses.imbalance.measure import one_against_rest, read_heads
from dpprobe.heads.balance import log_shifts
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.registry import method_options
from dpprobe.results.cell_record import WEIGHTS_FILE

SCORES = np.random.default_rng(3).normal(size=(50, 4)).astype(np.float32)


def test_logits_rank_by_the_probability_of_the_class() -> None:
    shares = softmax(SCORES.astype(np.float64), axis=1)[:, 2]
    odds = one_against_rest(SCORES, 2, "softmax")
    np.testing.assert_allclose(odds, np.log(shares / (1 - shares)), rtol=1e-6)
    large = one_against_rest(1000 * SCORES, 2, "softmax")  # no overflow
    assert np.isfinite(large).all()
    np.testing.assert_array_equal(one_against_rest(SCORES, 2, "sigmoid"), SCORES[:, 2])


@pytest.mark.parametrize("link", ["softmax", "none"])
def test_a_part_that_all_classes_share_says_nothing(link: str) -> None:
    common = np.linspace(-5, 5, 50, dtype=np.float64)[:, None]
    moved = one_against_rest(SCORES.astype(np.float64) + common, 1, link)  # type: ignore[arg-type]
    np.testing.assert_allclose(moved, one_against_rest(SCORES, 1, link), atol=1e-6)  # type: ignore[arg-type]


def test_the_lead_is_positive_where_the_class_is_predicted() -> None:
    lead = one_against_rest(SCORES, 0, "none")
    np.testing.assert_array_equal(lead > 0, SCORES.argmax(axis=1) == 0)


def test_gradients_are_taken_where_training_ended(tmp_path: Path) -> None:
    """Priors are taken off the released head, which never saw a gradient there."""
    values = {"head": "sgd", "steps": 3, "class_priors": [0.9, 0.1]}
    options = method_options(values)
    assert isinstance(options, GradientOptions)
    trained = np.random.default_rng(0).normal(size=(2, 2, 4)).astype(np.float32)
    released = trained.copy()
    released[..., -1] += np.asarray(options.bias_shifts(), dtype=np.float32)
    save_file({"weights": released}, tmp_path / WEIGHTS_FILE)
    np.testing.assert_allclose(read_heads(tmp_path, options).weights, trained, atol=1e-6)


def test_released_priors_are_put_back_on_their_seed_s_head(tmp_path: Path) -> None:
    options = method_options({"head": "sgd", "steps": 3, "class_priors": "released"})
    assert isinstance(options, GradientOptions)
    trained = np.random.default_rng(0).normal(size=(2, 2, 4)).astype(np.float32)
    priors = np.array([[0.9, 0.1], [0.6, 0.4]], dtype=np.float32)
    released = trained.copy()
    released[..., -1] += np.asarray(list(map(log_shifts, priors.tolist())), dtype=np.float32)
    save_file({"weights": released, "class_priors": priors}, tmp_path / WEIGHTS_FILE)
    heads = read_heads(tmp_path, options)
    np.testing.assert_allclose(heads.weights, trained, atol=1e-6)
    assert not heads.transforms[0].arrays
