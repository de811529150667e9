"""Units of several rows in the second-order heads: equal rows are one, no unit is more."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpprobe.heads.feature_covariance import Options, public_moment
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.second_order import (
    Design,
    Loss,
    Piece,
    cross_moment,
    second_moment,
    sum_gradients,
)
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.grid import GridSum
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
    "prototypes, centred": {"head": "prototypes", "normalize": "centred"},
    "prototypes, channels": {
        "head": "prototypes",
        "normalize": {
            "kind": "channels", "channels": 3, "max_mean_norm": 9, "max_deviation_norm": 3,
        },
    },
}  # fmt: skip


def options_of(values: dict[str, Any]) -> MethodOptions:
    return method_options({"normalize": "none", "max_row_norm": 5.0} | values)


def repeated(
    features: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Units]:
    """Each row as often as it is counted, in a mixed order, the same rows a unit."""
    names = torch.repeat_interleave(torch.arange(len(features)), counts)
    names = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(5))]
    units = Units.number_units([f"patient {name:04d}" for name in names.tolist()])
    return features[names], labels[names], units


def trained(
    options: MethodOptions, rows: tuple[torch.Tensor, torch.Tensor], noise: float, **units: Any
) -> torch.Tensor:
    data = TrainingSet(rows[0].clone(), rows[1], CLASSES, **units)
    fitted = fit_heads(options, data, plan_of(options, data.n, noise), (3, 4))
    return torch.from_numpy(fitted.weights)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("name", HEAD_VALUES)
def test_units_of_equal_rows_train_the_head_of_one_row_each(name: str, noise: float) -> None:
    """Under the same noise: n, steps, ridges and rates are those of the units."""
    options = options_of(HEAD_VALUES[name])
    features, labels = classes_of(300, 12, CLASSES)
    counts = torch.arange(300) % 20 + 1
    *rows, units = repeated(features, labels, counts)
    alone = trained(options, (features, labels), noise)
    actual = trained(options, (rows[0], rows[1]), noise, units=units)
    unweighted = trained(options, (rows[0], rows[1]), noise)
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
