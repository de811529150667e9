"""Laws of every head's fit: blocks, class names, order of rows, other seeds, and crops.

Tests of single heads compare numbers with NumPy, PyTorch, Opacus and scikit-learn; these tests
cover every option of every head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from tests.support.linear_heads import Source, plan_for
from tests.support.observers import Watching

pytestmark = pytest.mark.usefixtures("several_blocks")

ROWS, DIMENSION, CLASSES = 90, 6, 4
SGD: dict[str, Any] = {"head": "sgd", "steps": 7, "batch_size": 30, "learning_rate": 0.5}
FULL = SGD | {"batch_size": "full", "init": "zero"}
CHANNELS = {"kind": "channels", "channels": 3, "max_mean_norm": 0.7, "max_deviation_norm": 0.3}
WHITENED = {"kind": "whitened", "share": 0.3, "moment_share": 0.5, "exponent": 0.5}
SIGMOID, RELEASED = {"loss": "sigmoid"}, {"class_priors": "released", "prior_share": 0.2}
BALANCED = {"class_weights": [1, 0.5, 0.25, 0.8], "class_priors": [4, 1, 2, 3]}
SEARCH = {"search": {"max_grad_norm": [0.1, 1.0], "learning_rate": {"low": 0.1, "high": 9}}}
# Full batches, whose sums do not depend on the order of rows.
WHOLE: dict[str, dict[str, Any]] = {
    "sgd": FULL,
    "sgd sigmoid": FULL | SIGMOID | {"init_bias": -2.0, "max_grad_norm": 0.1},
    "sgd exact": FULL | {"engine": "exact", "normalize": "centred"},
    "sgd exact whitened": FULL | {"engine": "exact", "normalize": WHITENED},
    "sgd exact channels": FULL | {"engine": "exact", "normalize": CHANNELS} | RELEASED,
    "sgd schedule": FULL | {"schedule": "warmup_linear", "warmup": 0.3, "average": "mean"},
    "sgd balanced": FULL | BALANCED,
    "sgd group norm": FULL | {"normalize": {"kind": "group_norm", "groups": 2}},
    "momentum": {"head": "momentum", "steps": 6, "normalize": WHITENED, "beta": 0.5},
    "momentum released": {"head": "momentum", "steps": 6, **RELEASED},
    "adam": {"head": "adam", "steps": 5, "noise_correction": None, "beta1": 0.5, "beta2": 0.9},
    "lamb": {"head": "lamb", "steps": 5, "noise_correction": 0.5, "learning_rate": 0.1},
    "least squares": {"head": "least_squares", "ridge": 3.0},
    "least squares l2": {"head": "least_squares", "normalize": "l2", "max_row_norm": 0.3},
    "prototypes": {"head": "prototypes", "normalize": "l2", "intercept": 0},
    "prototypes labels": {"head": "prototypes", "max_labels": 2},
    "newton": {"head": "newton", "steps": 3, "normalize": WHITENED},
    "newton sigmoid": {"head": "newton", "steps": 3, **SIGMOID, "hessian": "per_class"},
    "newton balanced": {"head": "newton", "steps": 3, **BALANCED},
    "feature covariance": {"head": "feature_covariance", "steps": 3, "average": "mean"},
    "feature covariance ridge": {"head": "feature_covariance", "ridge": 2.0, "penalised": False},
    "tuned": {"head": "tuned", "base": FULL, "trials": 6, **SEARCH},
    "auto": {"head": "auto"},
    "auto balanced": {"head": "auto", "balanced": True},
}
SAMPLED: dict[str, dict[str, Any]] = {
    "sgd": SGD,
    "sgd exact": SGD | {"engine": "exact", "normalize": "layer_norm"},
    "sgd init": SGD | {"init": "scaled", "init_scale": 0.5},
    "sgd ema": SGD | {"max_batch_grad_norm": 0.01, "average": "ema", "ema_decay": 0.5},
    "adam": {"head": "adam", "steps": 6, "batch_size": 30, **RELEASED},
    "lamb exact": {"head": "lamb", "steps": 6, "batch_size": 30, "engine": "exact"},
    "momentum": {"head": "momentum", "steps": 6, "batch_size": 30, "intercept": 1.0},
    "whitened": SGD | {"engine": "exact", "normalize": WHITENED},
    "whitened init": FULL | {"engine": "exact", "normalize": WHITENED, "init": "scaled"},
}


def rows_of() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns unequal classes in mixed order; rows include NaN, a zero and a nearly zero row."""
    generator = torch.Generator().manual_seed(4)
    labels = (torch.arange(ROWS) ** 2 % 11).clamp(max=CLASSES - 1)
    features = torch.randn(ROWS, DIMENSION, generator=generator) + 0.5
    features[torch.arange(ROWS), labels] += 2
    features[5], features[17], features[23] = torch.nan, 0, 1e-25
    return features, labels


def one_hot(labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(labels, CLASSES).to(torch.uint8)


def planned(values: dict[str, Any], data: TrainingSet, noise: float) -> tuple[MethodOptions, Plan]:
    facts = DataFacts(data.n, DIMENSION, data.num_classes, data.multi_label, 1.0, 1e-5, "image")
    method = method_options(values).resolve_choice(facts)
    return method, plan_for(method, data.n, noise)


def fit(
    values: dict[str, Any], data: TrainingSet, *, noise: float, seeds: tuple[int, ...] = (3, 11)
) -> Heads:
    method, plan = planned(values, data, noise)
    return fit_heads(method, data, plan, list(seeds))


def assert_equal(first: Heads, second: Heads, law: str, atol: float = 2e-4) -> None:
    rows = torch.eye(DIMENSION)
    scale = max(1.0, float(np.abs(first.weights).max()))
    np.testing.assert_allclose(
        second.weights, first.weights, atol=atol * scale, rtol=atol, err_msg=law
    )
    found, wanted = score_rows(second, rows), score_rows(first, rows)
    np.testing.assert_allclose(found, wanted, atol=atol * scale * 3, rtol=atol, err_msg=law)
    assert first.chosen == second.chosen


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_streamed_rows_train_the_heads_of_rows_in_memory(name: str, noise: float) -> None:
    features, labels = rows_of()
    held = fit(WHOLE[name], TrainingSet(features.clone(), labels, CLASSES), noise=noise)
    source: Any = Source(features.numpy(), 20)
    streamed = fit(WHOLE[name], TrainingSet(source, labels, CLASSES), noise=noise)
    assert_equal(held, streamed, "streamed as in memory")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_fit_does_not_depend_on_the_order_of_the_rows(name: str, noise: float) -> None:
    features, labels = rows_of()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    first = fit(WHOLE[name], TrainingSet(features.clone(), labels, CLASSES), noise=noise)
    second = fit(WHOLE[name], TrainingSet(features[order], labels[order], CLASSES), noise=noise)
    assert_equal(first, second, "rows in another order")


@pytest.mark.parametrize("name", [each for each in WHOLE if "tuned" not in each])
def test_without_noise_the_order_of_classes_is_the_order_of_heads(name: str) -> None:
    features, labels = rows_of()
    order = torch.tensor([2, 0, 3, 1])  # maps each new class number to the old one
    values = dict(WHOLE[name])
    first = fit(values, TrainingSet(features.clone(), labels, CLASSES), noise=0.0)
    for option in ("class_weights", "class_priors"):
        if isinstance(values.get(option), list):
            values[option] = [values[option][old] for old in order.tolist()]
    renamed = order.argsort()[labels]
    second = fit(values, TrainingSet(features.clone(), renamed, CLASSES), noise=0.0)
    found = second.weights
    wanted = first.weights[:, order.numpy()]
    np.testing.assert_allclose(found, wanted, atol=2e-4 * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("name", [*WHOLE, *(f"{name} sampled" for name in SAMPLED)])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_seed_s_head_does_not_depend_on_other_seeds(name: str, noise: float) -> None:
    features, labels = rows_of()
    values = WHOLE.get(name) or SAMPLED[name.removesuffix(" sampled")]

    def make(seeds: tuple[int, ...]) -> Heads:
        data = TrainingSet(features.clone(), labels, CLASSES)
        return fit(values, data, noise=noise, seeds=seeds)

    both, alone = make((3, 11)), make((11,))
    scale = max(1.0, float(np.abs(alone.weights).max()))
    np.testing.assert_allclose(both.weights[1], alone.weights[0], atol=2e-4 * scale)
    if noise:
        assert np.abs(both.weights[0] - both.weights[1]).max() > 1e-4, "noise of its own"


@pytest.mark.parametrize(
    ("values", "noise", "times"),
    [
        (WHOLE["momentum"], 0.0, 1),
        (WHOLE["momentum"], 1.0, 3),
        (SAMPLED["whitened"], 0.0, 3),
        (SAMPLED["whitened init"], 0.0, 3),
        (WHOLE["tuned"] | {"base": WHOLE["sgd exact whitened"]}, 0.0, 3),
    ],
)
def test_seeds_share_one_fit_unless_the_fit_depends_on_the_seed(
    values: dict[str, Any], noise: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only seeds with their own statistics need a fit; at epsilon inf all fits are often equal."""
    features, labels = rows_of()
    fits = []

    def counted(*args: Any) -> Any:
        fits.append(args)
        return normalise_rows(*args)

    monkeypatch.setattr("dpprobe.heads.fit.normalise_rows", counted)
    heads = fit(values, TrainingSet(features, labels, CLASSES), noise=noise, seeds=(3, 11, 4))
    assert len(fits) == times
    assert len(heads.weights) == len({id(each) for each in heads.transforms}) == 3
    different = {weights.tobytes() for weights in heads.weights}
    assert len(different) == times, f"{len(different)} different heads"


@pytest.mark.parametrize("name", WHOLE)
def test_units_of_one_row_are_rows(name: str) -> None:
    features, labels = rows_of()
    values = WHOLE[name]
    units = Units.number_units([f"{row}" for row in range(ROWS)])
    rows = fit(values, TrainingSet(features.clone(), labels, CLASSES), noise=1.0)
    data = TrainingSet(features.clone(), labels, CLASSES, units=units)
    assert_equal(rows, fit(values, data, noise=1.0), "each row a unit")


SIGMOIDS = [name for name, values in WHOLE.items() if "loss" in values]


@pytest.mark.parametrize("name", SIGMOIDS)
def test_one_of_several_labels_is_a_class(name: str) -> None:
    """With a separate loss per label, single labels may be given as classes or as one-hot rows."""
    features, labels = rows_of()
    values = WHOLE[name]
    classes = fit(values, TrainingSet(features.clone(), labels, CLASSES), noise=0.0)
    data = TrainingSet(features.clone(), one_hot(labels), CLASSES)
    assert_equal(classes, fit(values, data, noise=0.0), "labels in two forms")


@pytest.mark.parametrize(
    "name", ["sgd", "sgd exact", "sgd exact whitened", "sgd balanced", "momentum", "adam"]
)
def test_null_rows_change_no_head(name: str) -> None:
    """Null rows count only in n: changing their labels does not change the head."""
    features, labels = rows_of()
    nulls = features.clone()
    nulls[::3] = torch.nan
    other = labels.clone()
    other[::3] = (other[::3] + 1) % CLASSES  # the label of a null row does not matter
    first = fit(WHOLE[name], TrainingSet(nulls.clone(), labels, CLASSES), noise=0.0)
    second = fit(WHOLE[name], TrainingSet(nulls.clone(), other, CLASSES), noise=0.0)
    assert_equal(first, second, "labels of null rows")


@pytest.mark.parametrize("name", WHOLE)
def test_float64_adds_the_units_of_all_sites_in_each_site_s_steps(name: str) -> None:
    """A sum of n units' longest vectors has at most 2^53 steps, even if few rows are here."""
    data, steps = TrainingSet(*rows_of(), CLASSES, public_n=2**30), dict[str, float]()

    class Watched(Watching):
        def change_output(self, name: str, output: torch.Tensor, step: float | None) -> Any:
            steps[name] = min(step or 1.0, steps.get(name, 1.0))
            return output

    method, plan = planned(WHOLE[name], data, 1.0)
    fit_heads(method, data, plan, [1], observer=Watched(through=True))
    assert {*steps} == {item.name for item in plan.mechanisms}
    for item in plan.mechanisms:
        assert data.n * item.sensitivity / steps[item.name] <= 2**53, item.name


@pytest.mark.parametrize("weights", [[1, 1, 1], [1, 0.5, 1, 1, 1]])
def test_weights_of_other_classes_are_refused(weights: list[int]) -> None:
    features, labels = rows_of()
    with pytest.raises(
        ConfigError, match=f"class_weights has {len(weights)} numbers for 4 classes"
    ):
        fit(SGD | {"class_weights": weights}, TrainingSet(features, labels, CLASSES), noise=0.0)
