"""Every release of every head: how far a unit of privacy changes it, and its noise."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.errors import ConfigError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.training_set import TrainingSet
from tests.support.linear_heads import plan_for
from tests.support.observers import Watching

pytestmark = pytest.mark.usefixtures("several_blocks")

CHANNELS = {"kind": "channels", "channels": 2, "max_mean_norm": 0.7, "max_deviation_norm": 0.3}
SGD = {"head": "sgd", "steps": 2, "learning_rate": 0.5}
PLAIN = {"normalize": "none", "max_row_norm": 30.0, "intercept": 3.0}
SIGMOID = {"loss": "sigmoid", "init_bias": 0}
OFFSETS = {"class_priors": "released", "offset_share": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "sgd": SGD | {"batch_size": "full", "max_grad_norm": 0.01, "init": "zero"},
    "sgd, sampled": SGD | {"batch_size": 4, "loss": "sigmoid"},
    "sgd, exact": SGD | {"batch_size": 4, "engine": "exact", "normalize": "layer_norm"},
    "momentum": {"head": "momentum", "steps": 2, "intercept": 3, "class_priors": "released"},
    "momentum, whitened": {"head": "momentum", "steps": 2, "normalize": "whitened"},
    "momentum, exact": {"head": "momentum", "steps": 2, "engine": "exact", "loss": "sigmoid"},
    "adam, channels": {"head": "adam", "steps": 2, "normalize": CHANNELS, "learning_rate": 0.1},
    "lamb": {"head": "lamb", "steps": 2, "normalize": "l2", "class_priors": "released"},
    "momentum, offsets": {"head": "momentum", "steps": 2, **OFFSETS},
    "newton, offsets": {"head": "newton", "steps": 2, "normalize": "l2", **OFFSETS},
    "least_squares": {"head": "least_squares"},
    "least_squares, two labels": {"head": "least_squares", "max_labels": 2, **PLAIN},
    "prototypes": {"head": "prototypes", "max_labels": 2},
    "prototypes, two labels": {"head": "prototypes", "max_labels": 2, **PLAIN},
    "prototypes, channels": {"head": "prototypes", "normalize": CHANNELS, "max_row_norm": 1e-4},
    "prototypes, long": {"head": "prototypes", **PLAIN},
    "prototypes, whitened": {"head": "prototypes", "normalize": "whitened"},
    "newton": {"head": "newton", "steps": 2, "class_priors": "released"},
    "newton, clipped": {"head": "newton", "steps": 2, "max_grad_norm": 0.05, **PLAIN},
    "newton, sigmoid": {"head": "newton", "steps": 2, "max_grad_norm": None, **SIGMOID},
    "newton, one step": {"head": "newton", "steps": 1, "max_grad_norm": None, **PLAIN},
    "newton, per class": {"head": "newton", "loss": "sigmoid", "hessian": "per_class", **PLAIN},
    "feature_covariance": {"head": "feature_covariance", "steps": 2, "max_grad_norm": 0.005},
    "feature_covariance, long": {"head": "feature_covariance", "steps": 2, **PLAIN},
    "feature_covariance, whitened": {"head": "feature_covariance", "normalize": "whitened"},
    "tuned": {
        "head": "tuned",
        "base": SGD | {"batch_size": "full"},
        "trials": 3,
        "search": {"learning_rate": [0.1, 1]},
    },
    "tuned, no loss": {
        "head": "tuned",
        "base": {"head": "least_squares"},
        "search": {"ridge": [0.0, 5.0]},
        "trials": 3,
    },
}
EACH = pytest.mark.parametrize("name", CASES)
CLASSES = 3


class Replaying(Watching):
    """Replaces each output by random numbers of a given size, equal for every dataset."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self._size, self._generator = size, np.random.default_rng(0)

    def change_output(self, _: str, output: torch.Tensor, __: float | None) -> torch.Tensor:
        square = output.ndim == 2 and len(output) == output.shape[1]
        drawn = torch.from_numpy(self._size * self._generator.standard_normal(output.shape))
        return (drawn + drawn.mT if square else drawn).to(output.dtype)


def changes_of(name: str, unit: torch.Tensor, labels: torch.Tensor, size: float) -> dict[str, Any]:
    """Returns the changes of each release, by mechanism, if null rows replace a unit's rows."""
    method = method_options(CASES[name])
    others = torch.tensor([[0.5, 0.1, -0.2, 2.0], [1.0, 2.0, 3.0, 0.3], [-4.0, 0.0, 0.2, 0.1]] * 2)
    units = Units.number_units([*"aabcde", *["patient"] * len(unit)])
    features = torch.cat([others, unit])
    null = torch.cat([others, torch.full_like(unit, math.nan)])
    plan, worlds = plan_for(method, units.count, 1.0), []
    for rows, targets in ((features, labels), (null, torch.zeros_like(labels))):
        watching = Replaying(size)
        with suppress(ConfigError):  # training diverged
            targets = torch.cat([labels[: len(others)], targets[len(others) : len(rows)]])
            data = TrainingSet(rows.clone(), targets, CLASSES, units=units)
            fit_heads(method, data, plan, [1], observer=watching)
        worlds.append(watching.sums)
    changes: dict[str, Any] = {}
    for item in plan.mechanisms:
        pairs = zip(*(world.get(item.name, []) for world in worlds), strict=True)
        moved = [one - other for one, other in pairs]
        parts = CLASSES if name == "newton, per class" and item.name == "hessians" else 1
        norms = [torch.stack(moved[at : at + parts]) for at in range(0, len(moved), parts)]
        changes[item.name] = [float(each.double().norm()) / item.sensitivity for each in norms]
    return changes


ENTRIES = st.sampled_from(
    [0.0, 1.0, -1.0, 0.3, 1e-3, 1e-20, 50.0, -2e4, 1e12, 1e25, math.nan, math.inf, -math.inf]
)


@EACH
@settings(max_examples=25)
@given(
    unit=st.lists(st.lists(ENTRIES, min_size=4, max_size=4), min_size=1, max_size=9),
    alike=st.booleans(),
    several=st.booleans(),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=15, max_size=15),
    size=st.sampled_from([1e-6, 1.0, 40.0, 1e9]),
)
def test_a_unit_moves_no_release_by_more_than_its_sensitivity(
    name: str, unit: list[list[float]], alike: bool, several: bool, labels: list[int], size: float
) -> None:
    """The bound holds for any rows of the unit and any earlier outputs."""
    rows = torch.tensor([unit[0]] * len(unit) if alike else unit)
    targets = torch.tensor(labels)
    if method_options(CASES[name]).multi_label and several:
        targets = (torch.arange(1, 1 + CLASSES) & targets[:, None] + 1 > 0).to(torch.uint8)
    changes = changes_of(name, rows, targets, size)
    exact = method_options(CASES[name]).is_exact
    for mechanism, moved in changes.items():
        of_floats = mechanism == "gradients" and not exact
        assert max(moved, default=0.0) <= (1 + 1e-5 if of_floats else 1), mechanism
        if not rows.isfinite().all(1).any():
            assert not any(moved)


@EACH
def test_a_unit_of_long_rows_nearly_uses_its_sensitivity(name: str) -> None:
    """Bounds are not loose: a unit of long rows comes near to each of them."""
    unit = torch.tensor([[300.0, -400.0, 100.0, 0.0]] * 7)
    labels = torch.zeros(13, dtype=torch.int64)
    if name in ("least_squares, two labels", "prototypes"):
        labels = torch.tensor([[1, 1, 0]] * 13, dtype=torch.uint8)
    for mechanism, moved in changes_of(name, unit, labels, 1e-6).items():
        # A unit may leave the number of correct predictions unchanged.
        assert max(moved) > 0.45 or mechanism == "score", mechanism


@pytest.mark.usefixtures("larger_blocks")
@EACH
def test_each_release_has_the_noise_that_was_priced(name: str) -> None:
    method, watching = method_options(CASES[name]), Watching(through=True)
    generator = torch.Generator().manual_seed(0)
    data = TrainingSet(
        torch.randn(60, 30, generator=generator), torch.arange(60) % CLASSES, CLASSES
    )
    plan = plan_for(method, data.n, 1.0)
    fit_heads(method, data, plan, range(40), observer=watching)
    for item in plan.mechanisms:
        pairs = zip(watching.outputs[item.name], watching.sums[item.name], strict=True)
        noises = torch.stack([output - sums for output, sums in pairs]).double()
        if noises.ndim == 3 and noises.shape[1] == noises.shape[2]:
            above = noises[:, *torch.triu_indices(noises.shape[1], noises.shape[1], 1)]
            diagonal = noises.diagonal(dim1=1, dim2=2)
            noises = torch.cat([diagonal, math.sqrt(2) * above], 1)
        numbers = noises.flatten()
        deviations = 5 / math.sqrt(2 * len(numbers))
        assert float(numbers.std()) == pytest.approx(item.noise_scale, rel=deviations), item.name
        assert len(numbers.unique()) > 0.9 * len(numbers)


class Grids(Replaying):
    """Records the grid step and the shape of each release."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.grids: list[tuple[str, float | None, torch.Size]] = []

    def change_output(self, name: str, output: torch.Tensor, step: float | None) -> torch.Tensor:
        self.grids.append((name, step, output.shape))
        return super().change_output(name, output, step)


@EACH
def test_grids_and_shapes_follow_from_public_facts(name: str) -> None:
    """Values, labels and the number of rows per unit are private, so they must not matter."""
    method, generator = method_options(CASES[name]), torch.Generator().manual_seed(0)
    seen = []
    for counts, scale in (([1] * 6, 1.0), ([1, 90, 2, 1, 7, 1], 1e9), ([3] * 6, math.nan)):
        names = [f"p{unit}" for unit, m in enumerate(counts) for _ in range(m)]
        units = Units.number_units(names)
        rows = scale * torch.randn(sum(counts), 4, generator=generator)
        labels = torch.arange(len(rows)) // 2 % CLASSES
        plan, grids = plan_for(method, 6, 1.0), Grids()
        fit_heads(
            method, TrainingSet(rows, labels, CLASSES, units=units), plan, [1], observer=grids
        )
        seen.append(grids.grids)
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]


# Options that change what a fit adds up.
OTHER_OPTIONS: list[dict[str, Any]] = [
    {"max_row_norm": 0.3},
    {"intercept": 0.6},
    {"max_labels": 1},
    {"max_grad_norm": 0.02},
    {"class_weights": [1, 0.5, 0.25]},
    {"loss": "sigmoid", "init_bias": 0.3},
    {"normalize": "layer_norm"},
]


@EACH
def test_a_fit_uses_no_sums_that_another_fit_cached(name: str) -> None:
    """All trials of a search train on one training set, which caches sums."""
    rows, labels = torch.randn(30, 4), torch.arange(30) % CLASSES
    if "max_labels" in CASES[name]:  # rows with 0 to 3 labels
        labels = ((torch.arange(30)[:, None] >> torch.arange(CLASSES)) % 2).byte()

    def sums_on(values: dict[str, Any], data: TrainingSet) -> dict[str, list[torch.Tensor]]:
        method, watching = method_options(values), Watching(through=True)
        with suppress(ConfigError):  # training diverged
            fit_heads(method, data, plan_for(method, data.n, 1.0), [1], observer=watching)
        return watching.sums

    used = TrainingSet(rows.clone(), labels, CLASSES)
    sums_on(CASES[name], used)
    compared = 0
    for other in OTHER_OPTIONS:
        values = dict(CASES[name])
        values |= {"base": values["base"] | other} if "base" in values else other
        with suppress(ConfigError):  # the head does not take this option
            method_options(values)
            fresh = sums_on(values, TrainingSet(rows.clone(), labels, CLASSES))
            torch.testing.assert_close(sums_on(values, used), fresh, rtol=0, atol=0)
            compared += bool(fresh)
    assert compared


@EACH
def test_a_record_does_not_change_the_head(name: str) -> None:
    rows = torch.randn(60, 30, generator=torch.Generator().manual_seed(0))
    data = TrainingSet(rows, torch.arange(60) % CLASSES, CLASSES)
    method = method_options(CASES[name])
    plan = plan_for(method, data.n, 1.0)
    recorded = fit_heads(method, data, plan, [1, 2], record=lambda *_: None)
    np.testing.assert_array_equal(recorded.weights, fit_heads(method, data, plan, [1, 2]).weights)
    assert len(recorded.chosen) == (2 if method.head == "tuned" else 0)


def test_published_names_stay() -> None:
    """Bundles and plans of earlier versions have these names."""
    mechanisms, arrays = set[str](), set[str]()
    rows = torch.randn(60, 30, generator=torch.Generator().manual_seed(0))
    for values in CASES.values():
        method, data = method_options(values), TrainingSet(rows, torch.arange(60) % 3, 3)
        plan = plan_for(method, data.n, 1.0)
        mechanisms |= {item.name for item in plan.mechanisms}
        arrays |= fit_heads(method, data, plan, [1]).released_arrays().keys()
    assert arrays == {"centre", "channel_deviations", "channel_means", "class_priors"}
    assert " ".join(sorted(mechanisms)) == (
        "centre channel_deviations channel_means class_counts class_offsets class_sums covariance "
        "gradients gram hessians score second_moment targets"
    )


SGD_TUNED = {"head": "tuned", "base": SGD | {"batch_size": "full"}, "score_share": 0.2}


@pytest.mark.parametrize(
    ("values", "shares"),
    [
        (SGD | {"normalize": "centred", "batch_size": 30}, {"centre": 0.04}),
        (SGD_TUNED | {"search": {"learning_rate": [0.1, 1]}}, {"score": 0.2}),
        ({"head": "momentum", "class_priors": "released"}, {"class_counts": 0.02}),
        (
            {"head": "adam", "class_priors": "released", "prior_share": 0.1},
            {"class_counts": 0.1, "centre": 0.9 * 0.04},
        ),
        (
            {"head": "adam", **OFFSETS, "offset_share": 0.2},
            {"class_counts": 0.02, "class_offsets": 0.2, "centre": 0.78 * 0.04},
        ),
        ({"head": "momentum", "normalize": "whitened"}, {"centre": 0.042, "second_moment": 0.098}),
        ({"head": "newton", "normalize": "none", "hessian_share": 0.4}, {"hessians": 0.4}),
        ({"head": "least_squares", "gram_share": 0.25}, {"centre": 0.04, "gram": 0.24}),
        ({"head": "feature_covariance", "normalize": "none", "steps": 4}, {"covariance": 0.2}),
    ],
)
def test_the_budget_is_split_as_the_shares_say(
    values: dict[str, Any], shares: dict[str, float]
) -> None:
    mechanisms = method_options(values).list_mechanisms(1000)
    costs = {i.name: i.count * (i.sample_rate / i.noise_multiplier) ** 2 for i in mechanisms}
    for name, share in shares.items():
        assert costs[name] / sum(costs.values()) == pytest.approx(share)


class Changed(Watching):
    """Adds different amounts to the numbers of one mechanism's outputs."""

    def __init__(self, mechanism: str) -> None:
        super().__init__(through=True)
        self._mechanism = mechanism

    def change_output(self, name: str, output: torch.Tensor, step: float | None) -> torch.Tensor:
        shift = torch.arange(output.numel(), dtype=output.dtype).view(output.shape)
        if output.ndim == 2 and output.shape[0] == output.shape[1]:
            shift = shift + shift.T
        shift *= round(0.01 / step) * step if step else 0.01
        return output + shift if name == self._mechanism else output


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        (name, item.name)
        for name, values in CASES.items()
        for item in method_options(values).list_mechanisms(60)
        if values["head"] != "tuned"  # the score has few possible values
    ],
)
def test_each_release_changes_the_head(name: str, mechanism: str) -> None:
    """The budget pays for no release that is left unused."""
    rows = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
    data, method = TrainingSet(rows, rows[:, :CLASSES].argmax(1), CLASSES), CASES[name]
    plan = plan_for(method_options(method), 60, 1.0)
    first, second = (
        fit_heads(method_options(method), data, plan, [7], observer=Changed(changed))
        for changed in ("", mechanism)
    )
    assert np.abs(first.weights - second.weights).max() > 0 or any(
        not torch.equal(first.transforms[0].arrays[key], value)
        for key, value in second.transforms[0].arrays.items()
    )


def test_every_private_head_is_tried_here() -> None:
    assert {values["head"] for values in CASES.values()} == set(HEADS) - {"auto", "nonprivate"}
