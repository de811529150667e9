"""Heads of several sites: those of one place to the last bit, or with noise in shares."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.noise_shares import split_noise
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.rounded_gaussian import RoundedGaussian
from dpprobe.sites.shared_sums import Sum
from dpprobe.sites.simulated_fit import _Site, fit_together
from tests.support.mechanisms import made_plan

ROWS, DIMENSION, CLASSES = 240, 5, 3
HEADS: dict[str, dict[str, Any]] = {
    "least_squares": {"head": "least_squares", "normalize": "l2"},
    "prototypes": {"head": "prototypes", "normalize": "none"},
    "feature_covariance": {"head": "feature_covariance", "normalize": "layer_norm", "steps": 3},
    "newton": {"head": "newton", "normalize": "l2", "steps": 2},
    "full_batch": {
        "head": "sgd", "engine": "exact", "normalize": "l2", "batch_size": "full", "steps": 4,
    },
    "around_centre": {"head": "feature_covariance", "steps": 2},
    "whitened": {
        "head": "sgd", "engine": "exact", "normalize": "whitened", "batch_size": "full", "steps": 2,
    },
    "channels": {
        "head": "prototypes",
        "normalize": {
            "kind": "channels", "channels": DIMENSION, "max_mean_norm": 4.0,
            "max_deviation_norm": 4.0,
        },
    },
    "priors": {"head": "feature_covariance", "normalize": "l2", "class_priors": "released"},
}  # fmt: skip


def draw_rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(3)
    labels = generator.integers(CLASSES, size=ROWS)
    features = generator.normal(size=(ROWS, DIMENSION)).astype(np.float32)
    features[np.arange(ROWS), labels] += 2
    features[7] = np.nan
    return torch.from_numpy(features), torch.from_numpy(labels.astype(np.int64))


def make_plan(options: Any, *, n: int = ROWS, unit: str = "image") -> Plan:
    selection = options.priced_selection(n)
    return made_plan(options.list_mechanisms(n), n, 2.0, unit=unit, selection=selection)


def split_rows(sizes: list[int], patients: np.ndarray | None = None) -> list[TrainingSet]:
    features, labels = draw_rows()
    edges = np.cumsum([0, *sizes])
    assert edges[-1] == ROWS
    names = None if patients is None else [str(each) for each in patients]
    total = ROWS if names is None else len(set(names))
    return [
        TrainingSet(
            features[start:stop].clone(), labels[start:stop], CLASSES,
            units=None if names is None else Units.number_units(names[start:stop]), agreed_n=total,
        )
        for start, stop in itertools.pairwise(edges)
    ]  # fmt: skip


@pytest.mark.parametrize("sizes", [[240], [100, 140], [1, 9, 230], [48] * 5])
@pytest.mark.parametrize("head", HEADS)
def test_a_trusted_aggregator_trains_the_bits_of_one_place(head: str, sizes: list[int]) -> None:
    options = method_options(HEADS[head])
    plan = make_plan(options)
    together = fit_together(options, split_rows(sizes), plan, 5, colluders=None)
    pooled = fit_heads(options, split_rows([ROWS])[0], plan, [5])
    assert together.weights.tobytes() == pooled.weights.tobytes()
    assert together.steps == pooled.steps


def test_patients_of_several_sites_are_the_units_of_one_place() -> None:
    options = method_options(HEADS["least_squares"])
    patients = np.arange(ROWS) // 4
    plan = make_plan(options, n=ROWS // 4, unit="patient")
    together = fit_together(options, split_rows([80, 160], patients), plan, 5, colluders=None)
    pooled = fit_heads(options, split_rows([ROWS], patients)[0], plan, [5])
    assert together.weights.tobytes() == pooled.weights.tobytes()


@pytest.mark.parametrize("colluders", [None, 0, 2])
def test_each_site_draws_its_share_from_its_own_stream(colluders: int | None) -> None:
    zero = Sum(name="gram", step=1.0, deviation=9.0, symmetric=False, numbers=np.zeros(3, np.int64))
    for number in range(3):
        site = _Site(number, 3, 7, colluders)
        alone = 100.0 * (number == 0)
        share = alone if colluders is None else split_noise(100.0, 3, colluders)
        assert site.share_noise(100.0) == share
        name = "noise of gram" if colluders is None else f"noise of gram at site {number}"
        wanted = RoundedGaussian(SEEDED.open_keystream(7, name))
        for place in range(2):  # one stream gives all releases of a mechanism
            drawn = site.open_noise(place, zero).draw_numbers(9, 50.0)
            np.testing.assert_array_equal(drawn, wanted.draw_numbers(9, 50.0))


@pytest.mark.parametrize("head", ["least_squares", "feature_covariance"])
def test_noise_in_shares_makes_another_head_of_the_same_quality(head: str) -> None:
    options = method_options(HEADS[head])
    plan = make_plan(options)
    features, labels = draw_rows()
    whole = features.isfinite().all(1)
    scores = []
    for colluders in (None, 1, 2):
        heads = fit_together(options, split_rows([80] * 3), plan, 5, colluders=colluders)
        rows = torch.from_numpy(heads.transforms[0](features[whole]).numpy())
        weights = torch.from_numpy(heads.weights[0])
        answers = (rows @ weights[:, :-1].T + weights[:, -1]).argmax(1)
        scores.append(float((answers == labels[whole]).float().mean()))
    assert len(set(scores)) > 1
    assert min(scores) > 0.6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head": "sgd", "batch_size": 30, "steps": 5}, "does not compute; write `engine: exact`"),
        ({"head": "sgd", "engine": "exact", "batch_size": 30}, 'write `batch_size: "full"`'),
        ({"head": "tuned", "base": HEADS["prototypes"], "search": {"max_row_norm": [0.5, 1]}},
         "sites cannot search together"),
    ],
)  # fmt: skip
def test_heads_that_are_no_sums_of_all_rows_are_refused(options: Any, words: str) -> None:
    method = method_options(options)
    plan = make_plan(method)
    with pytest.raises(ConfigError, match=words):
        fit_together(method, split_rows([120, 120]), plan, 1)
