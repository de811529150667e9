"""Second-order heads: NumPy and scikit-learn without noise, bounds, papers, and units."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import ConfigError, DataError
from dpprobe.heads import (
    dimension_limits,
    feature_covariance,
    least_squares,
    newton,
    second_order,
    whitening,
)
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.newton import HESSIANS
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.preconditioned_descent import Descent
from dpprobe.heads.public_inputs import PublicInputs
from dpprobe.heads.registry import method_options
from dpprobe.heads.second_order import (
    Design,
    Loss,
    Piece,
    Spectrum,
    cross_moment,
    estimate_spectrum,
    second_moment,
    sum_gradients,
)
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import Source, plan_for
from tests.support.observers import Watching
from tests.support.second_order_data import (
    check_logistic_regression,
    classes_of,
    fit,
    rows_of,
)

pytestmark = pytest.mark.usefixtures("larger_blocks")


def test_least_squares_without_noise_are_numpys() -> None:
    """Rows have one label or several, and exceed max_row_norm by far."""
    for several in (False, True):
        features, labels = classes_of(several=several)
        fitted = fit(least_squares.Options(normalize="none", ridge=0), features, labels, 4)
        rows = np.column_stack([features.double().numpy(), np.ones(len(features))])
        targets = labels.numpy() if several else np.eye(4)[labels.numpy()]
        expected, *_ = np.linalg.lstsq(rows, targets, rcond=None)
        for weights in fitted.weights:
            np.testing.assert_allclose(weights, expected.T, atol=2e-5)


def test_one_step_from_zero_is_least_squares() -> None:
    """The first step is K times the least-squares gradient for centred labels."""
    features, labels = classes_of()
    one = fit(
        feature_covariance.Options(normalize="none", steps=1, step=1.0),
        features,
        labels,
        4,
        seeds=(1,),
    )
    other = fit(least_squares.Options(normalize="none"), features, labels, 4, seeds=(1,))
    other.weights[..., -1] -= 1 / 4
    np.testing.assert_allclose(one.weights, 4 * other.weights, rtol=1e-3, atol=2e-4)


def test_published_settings_are_the_published_update() -> None:
    """Mehta et al. 2023: 10 steps, rate 0.2, lambda 100, C 0.005, bias -10, equal noise."""
    options = feature_covariance.Options(
        normalize="none",
        loss="sigmoid",
        steps=10,
        learning_rate=0.2,
        ridge=100,
        max_grad_norm=0.005,
        covariance_share=1 / 11,
        intercept=0,
        init_bias=-10,
        penalised=False,
        average="last",
    )
    covariance, gradients = options.list_mechanisms(100)
    assert covariance.noise_multiplier == pytest.approx(gradients.noise_multiplier)
    features, labels = classes_of(100, 6, 3)
    features = features / 20
    actual = fit(options, features, labels, 3, noise=1e-9, seeds=(1,)).weights[0]
    rows = features.double()
    targets = torch.nn.functional.one_hot(labels, 3).double()
    weights = torch.zeros(3, 6, dtype=torch.float64)
    matrix = rows.T @ rows + 100 * torch.eye(6, dtype=torch.float64)
    for _ in range(10):
        residuals = torch.sigmoid(rows @ weights.T - 10) - targets
        norms = residuals.norm(dim=1) * rows.norm(dim=1)
        clipped = residuals * (0.005 / norms).clamp(max=1)[:, None]
        weights -= 0.2 * (clipped.T @ rows) @ torch.linalg.inv(matrix)
    np.testing.assert_allclose(actual[:, :-1], weights, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(actual[:, -1], -10)


@pytest.mark.parametrize("hessian", ["shared", "per_class"])
def test_newton_s_steps_are_a_plain_loop(hessian: Any) -> None:
    """A shared Hessian is the running mean, with each step's mean curvature over classes."""
    options = newton.Options(
        normalize="none",
        loss="sigmoid",
        hessian=hessian,
        steps=3,
        learning_rate=0.2,
        ridge=0,
        max_grad_norm=None,
        intercept=0,
        init_bias=0.5,
        average="last",
    )
    features, labels = classes_of(100, 4, 3)
    actual = fit(options, features, labels, 3, seeds=(1,)).weights[0]
    rows, targets = features.double(), torch.nn.functional.one_hot(labels, 3).double()
    weights = torch.zeros(3, 4, dtype=torch.float64)
    moments = torch.zeros(3, 4, 4, dtype=torch.float64)
    for step in range(3):
        p = torch.sigmoid(rows @ weights.T + 0.5)
        curvatures = (p * (1 - p) * (2 + 2 * math.cosh(0.5))).clamp(max=1)  # by the start's
        if hessian == "shared":
            curvatures = curvatures.mean(1, keepdim=True).expand(-1, 3)
        now = torch.stack([rows.T @ (each[:, None] * rows) for each in curvatures.T])
        moments = now if hessian == "per_class" else (step * moments + now) / (step + 1)
        gradients = (p - targets).T @ rows
        weights -= 0.2 * torch.linalg.solve(moments, gradients)
    np.testing.assert_allclose(actual[:, :-1], weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual[:, -1], 0.5)


class Flat(Watching):
    """Replaces matrices by a multiple of the identity, and other sums by 1, 2, 3, ..."""

    def __init__(self, eigenvalue: float) -> None:
        super().__init__()
        self._eigenvalue = eigenvalue

    def change_output(self, name: str, output: torch.Tensor, step: float | None) -> torch.Tensor:
        del step
        if name in ("gram", "covariance"):
            return output * self._eigenvalue
        return torch.arange(1.0, output.numel() + 1, dtype=output.dtype).view(output.shape)


@pytest.mark.parametrize("ridge", [None, 30.0])
@pytest.mark.parametrize(
    "values",
    [
        {"head": "feature_covariance", "steps": 1, "learning_rate": 1.0, "average": "last"},
        {"head": "least_squares"},
    ],
)
def test_the_ridge_is_the_given_one_or_the_rule_for_noise(
    values: dict[str, Any], ridge: float | None
) -> None:
    """A released matrix a I gives weights b / (a + ridge), so two fits reveal the ridge."""
    classes, dimension, rows = 3, 15, 300
    method = method_options({**values, "normalize": "l2", "intercept": 0, "ridge": ridge})
    plan = plan_for(method, rows, 5.0)
    first, second = (
        fit_heads(
            method,
            TrainingSet(*classes_of(rows, dimension, classes), classes),
            plan,
            [1],
            observer=Flat(eigenvalue),
        ).weights[0, 0, 0]
        for eigenvalue in (100.0, 1000.0)
    )
    found = (1000 * second - 100 * first) / (first - second)
    if ridge is None:
        matrix, target = (each.noise_multiplier for each in plan.mechanisms)
        ridge = math.sqrt(dimension + 1) * (0.07 * matrix + 0.02 * classes * target)
        if method.head == "least_squares":  # at least half of the noise's reach
            ridge = max(ridge, 0.5 * (ridge + matrix * math.sqrt((dimension + 1) / 2)))
    assert found == pytest.approx(ridge, rel=1e-3)


def test_a_diverged_head_is_refused() -> None:
    features, labels = classes_of()
    options = feature_covariance.Options(
        normalize="none", max_row_norm=10, learning_rate=1e300, steps=3
    )
    with pytest.raises(ConfigError, match="smaller learning_rate"):
        fit(options, features, labels, 4, noise=1.0)


def test_public_covariance_is_the_private_one_of_other_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A public sum is scaled to n: here its rows are twice as long and twice as many."""
    features, labels = classes_of()
    public = 2 * torch.cat([features, features])
    rows = public.numpy()
    monkeypatch.setattr("dpprobe.features.public_features.FeatureStore", lambda _: Source(rows))
    options = feature_covariance.Options(
        normalize="l2", ridge=3.0, public_covariance="somewhere/manifest.json"
    )
    fitted = fit(options, features, labels, 4, noise=1e-7)
    private = fit(
        feature_covariance.Options(normalize="l2", ridge=3.0), features, labels, 4, noise=1e-7
    )
    np.testing.assert_allclose(fitted.weights, private.weights, rtol=1e-3, atol=1e-3)
    assert options.paths == ("init_file", "public_covariance")
    assert options.input_files() == ("somewhere/manifest.json",)
    narrow = rows[:, :3]
    monkeypatch.setattr("dpprobe.features.public_features.FeatureStore", lambda _: Source(narrow))
    with pytest.raises(DataError, match="dimension 3"):
        fit(options, features, labels, 4, noise=0.05)


def descent_of(options: newton.Options, features: torch.Tensor, labels: torch.Tensor) -> Descent:
    """Returns a private descent on 4 classes."""
    rows = rows_of(features, labels, 4)
    releases = Releases(plan_for(options, rows.n, 1.0), (1,), rows.device)
    clip = options.gradient_bound * options.gradient_scale(4)
    return Descent(options, rows, releases, clip, scale=options.gradient_scale(4), record=None)


@pytest.mark.parametrize(
    ("loss", "bias", "steps", "bound"),
    [
        ("softmax", None, 3, math.sqrt(2)),
        ("softmax", None, 1, 1.0),
        ("sigmoid", 0.0, 3, 1.0),
        ("sigmoid", 0.0, 1, 0.5),
        ("sigmoid", None, 1, 1.0),
    ],
)
def test_the_inherent_gradient_bound_clips_no_gradients(
    loss: Any, bias: Any, steps: int, bound: float
) -> None:
    """The bound is derived correctly and causes no bias: the clipped sum equals the plain sum."""
    options = newton.Options(
        normalize="none", loss=loss, max_grad_norm=None, steps=steps, init_bias=bias, intercept=0
    )
    assert options.gradient_bound == pytest.approx(bound)
    features, labels = classes_of(80, 3, 4)
    features = features / features.norm(dim=1).max() * 0.999
    descent = descent_of(options, features, labels)
    head = descent.start
    if steps > 1:
        head = 20 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    logits = features @ head[:, :-1].T + head[:, -1]
    p = torch.softmax(logits, 1) if loss == "softmax" else torch.sigmoid(logits)
    plain = (p - torch.nn.functional.one_hot(labels, 4)).T @ features
    actual = sum_gradients(descent.design, descent.loss, head)
    # residuals are rounded towards zero to 2^-16
    torch.testing.assert_close(actual.values[:, :-1], plain.double(), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_curvatures_are_second_derivatives_over_their_bound(loss: Any) -> None:
    """Sigmoids have a curvature for each class's logit; softmax uses their mean for all classes."""
    features, labels = classes_of(30, 3, 4)
    options = newton.Options(normalize="none", loss=loss, max_grad_norm=None, init_bias=0.0)
    descent = descent_of(options, features, labels)
    head = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    factors = descent.design.make_factors(head)

    def compute_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if loss == "softmax":
            return torch.nn.functional.cross_entropy(logits, target.argmax())
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")

    second = torch.func.vmap(torch.func.hessian(compute_loss))
    for piece, block in descent.design.read_blocks():
        logits = descent.design.compute_logits(block, factors)
        targets = torch.nn.functional.one_hot(labels[piece.start : piece.stop], 4)
        curvatures = second(logits.double(), targets.double()).diagonal(dim1=1, dim2=2)
        if loss == "softmax":  # the mean of p (1 - p) is largest if every p is 1 / 4
            expected = curvatures.mean(1, keepdim=True) / (0.25 * 0.75)
        else:
            expected = curvatures / 0.25
        actual = descent.compute_curvatures(block, factors)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("max_grad_norm", [None, 0.7, 0.05])
def test_newtons_gradients_are_clipped_to_their_sensitivity(
    loss: Any, max_grad_norm: float | None
) -> None:
    """A row with wrong, random or zero logits adds r x^T, clipped or divided by sqrt(K) = 2."""
    options = newton.Options(
        normalize="none", loss=loss, max_grad_norm=max_grad_norm, intercept=0, init_bias=1.0
    )
    sensitivity = options.gradient_bound
    row = torch.tensor([[0.6, 0.0, -0.8]])
    wrong = torch.tensor([-1.0, 1, 1, 1]) if loss == "sigmoid" else torch.tensor([-1.0, 1, 0, 0])
    chance = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    heads = [1e3 * wrong[:, None] * row, chance, torch.zeros(4, 3)]
    lengths = []
    for head in heads:
        descent = descent_of(options, row, torch.tensor([0]))
        weights = torch.cat([head, torch.ones(4, 1)], 1)
        summed = sum_gradients(descent.design, descent.loss, weights)
        released = summed.divide_by(options.gradient_scale(4)).values[:, :-1]
        logits = (head @ row[0] + 1).double()
        p = torch.softmax(logits, 0) if loss == "softmax" else torch.sigmoid(logits)
        plain = (p - torch.tensor([1.0, 0, 0, 0]))[:, None] * row.double()
        if max_grad_norm is not None:
            plain *= min(1.0, max_grad_norm / float(plain.norm()))
        elif loss == "sigmoid":
            plain /= 2
        torch.testing.assert_close(released, plain, rtol=1e-3, atol=1e-4)
        lengths.append(float(released.norm()))
    assert 0.999 * sensitivity < max(lengths) <= sensitivity


@pytest.mark.parametrize(
    ("several", "values"),
    [
        (False, {"head": "newton", "steps": 80}),
        (True, {"head": "newton", "loss": "sigmoid", "steps": 60, "step": 0.9}),
        (
            True,
            {"head": "newton", "loss": "sigmoid", "hessian": "per_class", "steps": 60, "step": 0.9},
        ),
        (False, {"head": "feature_covariance", "steps": 300}),
        (True, {"head": "feature_covariance", "loss": "sigmoid", "steps": 300}),
    ],
)
def test_without_noise_many_steps_are_scikit_learns_logistic_regression(
    several: bool, values: dict[str, Any]
) -> None:
    features, labels = classes_of(300, 4, 3, noise=2.5, several=several)
    options = method_options({"normalize": "none", "ridge": 0, "average": "last", **values})
    check_logistic_regression(fit(options, features, labels, 3, seeds=(1,)), features, labels)


def test_per_class_noise_equals_that_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """For zero rows, each class's matrix is pure noise, sqrt(K) times the priced noise."""
    options = newton.Options(
        normalize="none", loss="sigmoid", hessian="per_class", steps=2, intercept=0, ridge=1.0
    )
    seen: list[tuple[torch.Tensor, float]] = []

    def spy(matrix: torch.Tensor, deviation: float) -> Spectrum:
        seen.append((matrix.clone(), deviation))
        return estimate_spectrum(matrix, deviation)

    monkeypatch.setattr(second_order, "estimate_spectrum", spy)
    fit(options, torch.zeros(12, 60), torch.arange(12) % 4, 4, noise=5.0, seeds=(1, 2))
    wanted = plan_for(options, 12, 5.0).find_mechanism(HESSIANS).noise_multiplier * math.sqrt(4)
    assert [deviation for _, deviation in seen] == pytest.approx([wanted] * 2 * 2 * 4)
    noise = torch.stack([matrix[:60, :60] for matrix, _ in seen])
    assert float(noise.diagonal(dim1=1, dim2=2).std()) == pytest.approx(wanted, rel=0.1)
    above = noise[:, *torch.triu_indices(60, 60, 1)]
    assert float(above.std()) == pytest.approx(wanted / math.sqrt(2), rel=0.03)
    assert float(torch.corrcoef(above).fill_diagonal_(0).abs().max()) < 0.15


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        *(
            ({"head": head}, f"head {head}")
            for head in ("feature_covariance", "least_squares", "newton")
        ),
        ({"head": "momentum", "normalize": "whitened"}, "normalize: whitened"),
        *(({"head": head}, None) for head in ("prototypes", "momentum", "nonprivate")),
    ],
)
def test_heads_that_sum_outer_products_are_those_with_few_features(
    values: dict[str, Any], refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = method_options(values)
    rows = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    data, plan = TrainingSet(rows, torch.arange(30) % 2, 2), plan_for(method, 30, 1.0)
    summed: list[int] = []

    def counted(design: Design, *args: Any) -> GridSum:
        summed.append(design.rows.dimension)
        return second_moment(design, *args)

    for module in (second_order, whitening):
        monkeypatch.setattr(module, "second_moment", counted)
    for most in (5, 4):
        monkeypatch.setattr(dimension_limits, "MOST_FEATURES", most)
        summed.clear()
        if refused and most == 4:
            with pytest.raises(ConfigError, match=f"{refused}: 5 features are too many"):
                fit_heads(method, data, plan, [1])
        else:
            fit_heads(method, data, plan, [1])
        assert bool(summed) == (refused is not None and most == 5)


# --- units of several rows ----------------------------------------------------------------------


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
            "kind": "channels",
            "channels": 3,
            "max_mean_norm": 9,
            "max_deviation_norm": 3,
        },
    },
}


def options_of(values: dict[str, Any]) -> MethodOptions:
    return method_options({"normalize": "none", "max_row_norm": 5.0} | values)


def repeated(
    features: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Units]:
    """Repeats each row `counts` times in mixed order; all copies of a row are one unit."""
    names = torch.repeat_interleave(torch.arange(len(features)), counts)
    names = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(5))]
    units = Units.number_units([f"patient {name:04d}" for name in names.tolist()])
    return features[names], labels[names], units


def trained(
    options: MethodOptions, rows: tuple[torch.Tensor, torch.Tensor], noise: float, **units: Any
) -> torch.Tensor:
    data = TrainingSet(rows[0].clone(), rows[1], CLASSES, **units)
    fitted = fit_heads(options, data, plan_for(options, data.n, noise), (3, 4))
    return torch.from_numpy(fitted.weights)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("name", HEAD_VALUES)
def test_units_of_equal_rows_train_the_head_of_one_row_each(name: str, noise: float) -> None:
    """With or without noise, n, steps, ridges and rates follow from the number of units."""
    options = options_of(HEAD_VALUES[name])
    features, labels = classes_of(100, 6, CLASSES)
    counts = torch.arange(100) % 9 + 1
    *rows, units = repeated(features, labels, counts)
    alone = trained(options, (features, labels), noise)
    actual = trained(options, (rows[0], rows[1]), noise, units=units)
    unweighted = trained(options, (rows[0], rows[1]), noise)
    difference = float((actual - alone).norm() / alone.norm())
    assert difference < 2e-3
    assert difference < 0.1 * float((unweighted - alone).norm() / alone.norm())


@pytest.mark.parametrize("private", [False, True])
def test_sums_equal_those_of_weighted_rows(private: bool) -> None:
    """Rows within a unit differ, and each row has several labels."""
    features, labels = classes_of(200, 9, CLASSES, several=True)
    units = Units.number_units([f"{index % 37}" for index in range(200)])
    rows = rows_of(features, labels, CLASSES, units=units)
    design = Design(
        feature_covariance.Options(normalize="none", max_row_norm=20.0), rows, private=private
    )
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
    """Returns second moments without and with curvature, a cross moment, and a gradient."""
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


def test_a_public_covariance_counts_as_the_units() -> None:
    """Each public row counts as one unit; their sum is scaled to n units."""
    features, labels = classes_of(200, 9, CLASSES)
    public = classes_of(150, 9, CLASSES, seed=1)[0] / 20
    opened = PublicInputs(open_rows=lambda _: Source(public.numpy(), 37))
    units = Units.number_units([f"{index % 37}" for index in range(200)])
    options = feature_covariance.Options(normalize="none", intercept=0.0)
    rows = rows_of(features, labels, CLASSES, units=units)
    rows.data.public = opened
    design = Design(options, rows, private=True)
    actual = feature_covariance.public_moment("somewhere/manifest.json", options, design)
    expected = public.double().T @ public.double() * (37 / 150)
    torch.testing.assert_close(actual[:-1, :-1], expected, rtol=1e-3, atol=1e-3)
