"""Units of several rows in the second-order heads: equal rows are one, no unit is more."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.heads.feature_covariance import Options, public_moment
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import (
    Design,
    Loss,
    Piece,
    cross_moment,
    second_moment,
    sum_gradients,
)
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import Source
from tests.support.second_order_data import classes_of, plan_of, rows_of

pytestmark = pytest.mark.usefixtures("several_blocks")

CLASSES = 4
HEAD_VALUES: dict[str, dict[str, Any]] = {
    "least_squares": {"head": "least_squares"},
    "newton, one step": {"head": "newton", "steps": 1},
    "newton": {"head": "newton"},
    "newton, a Hessian a class": {"head": "newton", "loss": "sigmoid", "hessian": "per_class"},
    "newton, bounded": {"head": "newton", "max_grad_norm": None},
    "feature_covariance": {"head": "feature_covariance"},
    "prototypes": {"head": "prototypes"},
}


def options_of(values: dict[str, Any]) -> MethodOptions:
    return method_options(values | {"normalize": "none", "max_row_norm": 5.0})


def repeated(
    features: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Units]:
    """Each row as often as it is counted, in a mixed order, the same rows a unit."""
    names = torch.repeat_interleave(torch.arange(len(features)), counts)
    names = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(5))]
    units = Units.number_units([f"patient {name:04d}" for name in names.tolist()])
    return features[names], labels[names], units


def trained(options: MethodOptions, rows: Rows, noise: float) -> torch.Tensor:
    releases = Releases(plan_of(options, rows.n, noise), (3, 4), rows.device)
    module = importlib.import_module(HEADS[options.head])
    fitted = module.fit(options, rows, releases, record=None)
    releases.check_counts()
    return torch.from_numpy(fitted.weights)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("name", HEAD_VALUES)
def test_units_of_equal_rows_train_the_head_of_one_row_each(name: str, noise: float) -> None:
    """Under the same noise: n, steps, ridges and rates are those of the units."""
    options = options_of(HEAD_VALUES[name])
    features, labels = classes_of(300, 12, CLASSES)
    counts = torch.arange(300) % 20 + 1
    rows, targets, units = repeated(features, labels, counts)
    alone = trained(options, rows_of(features, labels, CLASSES), noise)
    actual = trained(options, rows_of(rows, targets, CLASSES, units=units), noise)
    unweighted = trained(options, rows_of(rows, targets, CLASSES), noise)
    difference = float((actual - alone).norm() / alone.norm())
    assert difference < 2e-3
    assert difference < 0.1 * float((unweighted - alone).norm() / alone.norm())


@pytest.mark.parametrize("private", [False, True])
def test_sums_are_those_of_weighted_rows(private: bool) -> None:
    """Rows of a unit that differ, of several labels each."""
    features, labels = classes_of(200, 9, CLASSES, several=True)
    units = Units.number_units([f"{index % 37}" for index in range(200)])
    rows = rows_of(features, labels, CLASSES, units=units)
    design = Design(Options(normalize="none", max_row_norm=20.0), rows, private=private)
    assert rows.n == 37
    x = torch.cat([features, torch.full((200, 1), 4.0)], 1).double()
    weights = torch.from_numpy(units.weights).double()[:, None]
    head = torch.randn(CLASSES, 10, generator=torch.Generator().manual_seed(0)) / 30
    residuals = torch.sigmoid(x @ (head / torch.tensor([1.0] * 9 + [4.0])).T.double()) - labels
    actual = sums_of(design, head, clip=math.inf if not private else 1e3)
    expected = [x.T @ (weights * x), None, (weights * labels).T @ x, (weights * residuals).T @ x]
    for one, other in zip(actual, expected, strict=True):
        if other is not None:
            scale = 1e-3 if private else 1e-6
            torch.testing.assert_close(one.values, other, rtol=0, atol=scale * float(other.max()))


def sums_of(design: Design, head: torch.Tensor, clip: float) -> list[GridSum]:
    """Second moments, plain and with a curvature; a cross moment; a gradient."""
    loss = Loss(sigmoid=True, clip=clip)

    def curvature(_: Piece, block: torch.Tensor) -> torch.Tensor:
        p = loss.compute_probabilities(design.compute_logits(block, design.make_factors(head)))
        return (4 * p * (1 - p)).mean(1)

    def targets(piece: Piece) -> torch.Tensor:
        return design.rows.make_targets(piece.start, piece.stop)

    longest = math.sqrt(design.rows.num_classes)
    return [
        second_moment(design),
        second_moment(design, curvature),
        cross_moment(design, targets, design.rows.num_classes, longest),
        sum_gradients(design, loss, head),
    ]


ENTRIES = st.sampled_from([0.0, 1.0, -1.0, 0.3, 1e-3, 50.0, -2e4, 1e25, math.nan, math.inf])
ROW = st.lists(ENTRIES, min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    unit=st.lists(ROW, min_size=1, max_size=30),
    alike=st.booleans(),
    clip=st.sampled_from([1e-4, 1.0, 30.0]),
)
def test_nulling_a_unit_changes_a_sum_by_at_most_its_sensitivity(
    unit: list[list[float]], alike: bool, clip: float
) -> None:
    """A unit of up to 30 rows, all the same among them, beside one of two."""
    if alike:
        unit = [unit[0]] * len(unit)
    features = torch.tensor([[0.5, 0.1, -0.2], *unit, [1.0, 2.0, 3.0]], dtype=torch.float32)
    members = slice(1, 1 + len(unit))
    units = Units.number_units(["other", *["patient"] * len(unit), "other"])
    null = features.clone()
    null[members] = math.nan
    labels = torch.ones((len(features), 4), dtype=torch.uint8)
    options = Options(normalize="none", loss="sigmoid", max_row_norm=clip)
    head = torch.tensor([[1e4, -40.0, 0.0, 3e38]] * 4)
    before, after = (
        sums_of(
            Design(options, rows_of(each, labels, 4, units=units), private=True), head, clip=0.7
        )
        for each in (features, null)
    )
    claimed = [options.longest**2, options.longest**2, 2 * options.longest, 0.7]
    for one, other, sensitivity in zip(before, after, claimed, strict=True):
        assert one.step == other.step
        change = float((one.units - other.units).norm()) * one.step
        assert change <= sensitivity
        if not any(all(abs(entry) < 1e18 for entry in row) for row in unit):
            assert change == 0


@pytest.mark.parametrize("size", [1, 7, 30])
def test_a_unit_of_equal_rows_uses_its_sensitivity(size: int) -> None:
    """What the bound is for: a unit counts as much as a row alone."""
    options = Options(normalize="none")
    features = torch.tensor([[3.0, -4.0]]).expand(size, 2)
    labels = torch.zeros(size, dtype=torch.int64)
    rows = rows_of(features, labels, 2, units=Units.number_units(["patient"] * size))
    design = Design(options, rows, private=True)
    assert 0.999 < float(second_moment(design).values.norm()) / options.longest**2 <= 1
    moved = sum_gradients(design, Loss(sigmoid=False, clip=0.5), torch.zeros(2, 3))
    assert 0.999 < float(moved.values.norm()) / 0.5 <= 1


def test_sums_over_units_are_the_same_bits_in_any_order_and_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels = classes_of(400, 17, CLASSES, several=True)
    names = [f"{index * index % 61}" for index in range(400)]
    options = Options(normalize="none")
    head = torch.randn(CLASSES, 18, generator=torch.Generator().manual_seed(0))

    def sums(order: torch.Tensor) -> list[GridSum]:
        units = Units.number_units([names[index] for index in order.tolist()])
        rows = rows_of(features[order], labels[order], CLASSES, units=units)
        return sums_of(Design(options, rows, private=True), head, clip=0.5)

    expected = sums(torch.arange(400))
    monkeypatch.setattr("dpprobe.heads.training_set._CACHE_BLOCK", 4_000)
    actual = sums(torch.randperm(400, generator=torch.Generator().manual_seed(1)))
    for one, other in zip(expected, actual, strict=True):
        assert torch.equal(one.units, other.units)
        assert torch.equal(one.units, one.units.trunc())


def test_a_public_covariance_counts_as_the_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are units of their own; what they sum to is scaled to n."""
    features, labels = classes_of(200, 9, CLASSES)
    public = classes_of(150, 9, CLASSES, seed=1)[0] / 20
    monkeypatch.setattr(
        "dpprobe.features.feature_store.FeatureStore", lambda _: Source(public.numpy(), 37)
    )
    units = Units.number_units([f"{index % 37}" for index in range(200)])
    options = Options(normalize="none", intercept=0.0)
    design = Design(options, rows_of(features, labels, CLASSES, units=units), private=True)
    actual = public_moment("somewhere/manifest.json", options, design)
    expected = public.double().T @ public.double() * (37 / 150)
    torch.testing.assert_close(actual[:-1, :-1], expected, rtol=1e-3, atol=1e-3)
