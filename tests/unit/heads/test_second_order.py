"""Clipped and noisy second moments: sensitivity by brute force, estimates, and steps."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe import devices
from dpprobe.errors import PrivacyError
from dpprobe.heads import second_order
from dpprobe.heads.feature_covariance import Options
from dpprobe.heads.normalisation import CENTRE, Centred, NoNormalisation
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import (
    Design,
    Loss,
    Piece,
    Spectrum,
    average_descent,
    clipped_labels,
    cross_moment,
    damp_ridge,
    estimate_spectrum,
    floor_ridge,
    ridge_of,
    second_moment,
    step_rate,
    sum_gradients,
)
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy import grid
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import Source
from tests.support.mechanisms import gaussians, made_plan
from tests.support.second_order_data import accuracy, classes_of, fit, rows_of, with_unusable


def design_of(
    features: torch.Tensor,
    labels: torch.Tensor,
    classes: int = 3,
    *,
    private: bool = True,
    **c: float,
) -> Design:
    options = Options(normalize="none", **c)
    return Design(options, rows_of(features, labels, classes), private=private)


def tilted(design: Design) -> torch.Tensor:
    """Returns the clipped rows with their constants, float64 [n, d + 1]."""
    pieces = []
    for p in design.read_pieces():
        features = p.features.double() * p.scale[:, None]
        if p.shift is not None and p.centre is not None:
            features -= p.shift[:, None].double() * p.centre
        pieces.append(torch.cat([features, p.constant[:, None].double()], 1))
    return torch.cat(pieces)


@pytest.mark.parametrize("length", [1e-7, 3e-8, 1e-8, 1e-12])
def test_the_gradient_of_a_short_row_is_clipped_as_well(length: float) -> None:
    options = Options(loss="sigmoid", normalize=NoNormalisation(), intercept=0, max_grad_norm=1e-9)
    features = torch.zeros(1, 3)
    features[0, 1] = length
    design = Design(options, rows_of(features, torch.tensor([0]), 100), private=True)
    actual = sum_gradients(design, Loss(sigmoid=True, clip=1e-9), torch.zeros(100, 4))
    assert float(actual.values.norm()) <= 1e-9


@pytest.mark.parametrize("private", [False, True])
def test_sums_equal_those_of_numpy_and_of_a_stream(private: bool) -> None:
    """The rows have more columns than a panel, and take several blocks."""
    features, labels = classes_of(150, 530, 3)
    design = design_of(features, labels, private=private, intercept=0.5, max_row_norm=60.0)
    rows = tilted(design).numpy()
    assert private == bool((np.linalg.norm(rows[:, :-1], axis=1) < 60.001).all())
    # rows are rounded towards zero to 2^-17 of the longest row
    tolerance = 1e-12 if not private else 1e-3
    actual = second_moment(design).values.numpy()
    scale = np.abs(rows.T @ rows).max()
    np.testing.assert_allclose(actual, rows.T @ rows, atol=tolerance * scale)
    assert (actual == actual.T).all()
    stream = Rows(
        TrainingSet(Source(features.numpy(), 37), labels, 3), Transform(NoNormalisation())
    )
    streamed = Design(
        Options(normalize="none", intercept=0.5, max_row_norm=60.0), stream, private=private
    )
    of_stream = second_moment(streamed).values.numpy()
    if private:
        np.testing.assert_array_equal(of_stream, actual)
    else:
        np.testing.assert_allclose(of_stream, actual, atol=tolerance * scale)


def centred(
    features: torch.Tensor,
    labels: torch.Tensor,
    centre: torch.Tensor,
    units: Units | None = None,
    **c: float,
) -> Design:
    data = TrainingSet(features.clone(), labels, 3, units=units)
    rows = Rows(data, Transform(Centred(), {CENTRE: centre}))
    return Design(Options.model_validate(c), rows, private=True)


def test_centred_rows_without_copies_are_the_centred_rows() -> None:
    """Sums equal sums over the transform's rows; some rows are unusable."""
    features, labels = with_unusable(*classes_of(80, 9, 3))
    centre = torch.nn.functional.normalize(classes_of(80, 9, 3)[0]).mean(0)
    design = centred(features, labels, centre, intercept=0.3, max_row_norm=0.8)
    assert next(design.read_pieces()).shift is not None
    usable = design.rows.norms.isfinite()
    rows = design.rows.transform(features[usable]).double() * 0.8
    rows = torch.cat([rows, torch.full((len(rows), 1), 0.24, dtype=torch.float64)], 1)
    targets = torch.nn.functional.one_hot(labels[usable], 3).double()
    torch.testing.assert_close(second_moment(design).values, rows.T @ rows, rtol=1e-4, atol=1e-4)
    actual = cross_moment(design, lambda p: design.rows.make_targets(p.start, p.stop), 3, 1.0)
    torch.testing.assert_close(actual.values, targets.T @ rows, rtol=1e-4, atol=1e-4)
    head = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    weights = torch.cat([head[:, :-1], head[:, -1:] / 0.24], 1).double()
    residuals = torch.softmax(rows @ weights.T, 1) - targets
    norms = residuals.norm(dim=1) * rows.norm(dim=1)
    clipped = residuals * (0.5 / norms).clamp(max=1)[:, None]
    actual = sum_gradients(design, Loss(sigmoid=False, clip=0.5), head)
    torch.testing.assert_close(actual.values, clipped.T @ rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("clip", [1.0, 0.3, 1e-2, 1e-4])
@pytest.mark.parametrize("gap", [1.0, 1e-3, 1e-6, 1e-7, 0.0])
def test_rows_next_to_the_centre_stay_within_their_norm(gap: float, clip: float) -> None:
    """Differences to the centre may be float32 rounding only."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.nn.functional.normalize(torch.randn(1, 40, generator=generator))[0]
    features = 3 * (centre + gap * torch.randn(30, 40, generator=generator))
    options: dict[str, Any] = {"intercept": 0.0, "max_row_norm": clip}
    design = centred(features, torch.arange(30) % 3, centre, **options)
    assert float(tilted(design).norm(dim=1).max()) <= clip
    total = second_moment(design).values
    assert float(total.trace()) <= 30 * clip**2
    for row in features[:10]:
        alone = centred(row[None], torch.tensor([0]), centre, **options)
        assert float(second_moment(alone).values.norm()) <= clip**2


@pytest.mark.parametrize("clip", [1.0, 1e-2, 1e-4])
def test_a_row_at_the_centre_but_for_its_last_bits_stays_within_its_norm(clip: float) -> None:
    centre = torch.tensor([1.0, 5e-17])  # 2^-54 from the row, in an entry that float32 resolves
    for length in (1000.0, 3.0, 7.7, 123.4):
        row = torch.tensor([[length, 1e-30]])
        design = centred(row, torch.tensor([0]), centre, intercept=0.0, max_row_norm=clip)
        assert float(second_moment(design).values.norm()) <= clip**2
        targets = partial(clipped_labels, design.rows, longest=1.0)
        labels = cross_moment(design, targets, 3, 1.0)
        assert float(labels.values.norm()) <= clip


@pytest.mark.parametrize("longest", [0.5, 1.0, 1.5, 9.0])
def test_labels_of_a_row_are_shortened_to_the_limit_and_keep_their_direction(
    longest: float,
) -> None:
    labels = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.uint8)
    rows = rows_of(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), labels, 3)
    design = Design(Options(normalize="none"), rows, private=True)
    clipped = torch.cat([clipped_labels(rows, piece, longest) for piece in design.read_pieces()])
    lengths = torch.tensor([1.0, math.sqrt(2), math.sqrt(3), 1.0])
    expected = labels * torch.clamp(longest / lengths, max=1)[:, None]
    torch.testing.assert_close(clipped, expected.double(), rtol=1e-6, atol=0)
    assert float(clipped.norm(dim=1).max()) <= longest


@pytest.mark.parametrize(
    ("sigmoid", "clip", "bias"),
    [(True, 0.005, -4.0), (True, 0.005, -10.0), (True, 0.7, -7.0), (False, 0.7, 0.0)],
)
def test_many_classes_and_a_short_clip_leave_the_gradient_its_direction(
    sigmoid: bool, clip: float, bias: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the grid for 1,281,167 rows, rounding towards zero takes little of each residual."""
    for name in ("entry_bits", "factor_bits"):
        bits = getattr(grid, name)(1_281_167)
        monkeypatch.setattr(second_order, name, lambda _, bits=bits: bits)
    features, labels = classes_of(3000, 24, 1000)
    design = design_of(features, labels, 1000, intercept=0.2)
    head = torch.randn(1000, 25, generator=torch.Generator().manual_seed(0))
    head[:, -1] = bias
    actual = sum_gradients(design, Loss(sigmoid=sigmoid, clip=clip), head).values
    rows = tilted(design)
    logits = rows[:, :-1] @ head[:, :-1].double().T + head[:, -1].double()
    chances = torch.sigmoid(logits) if sigmoid else torch.softmax(logits, 1)
    residuals = chances - torch.nn.functional.one_hot(labels, 1000)
    norms = residuals.norm(dim=1) * rows.norm(dim=1)
    exact = (residuals * (clip / norms).clamp(max=1)[:, None]).T @ rows
    assert float((actual - exact).norm() / exact.norm()) < 0.02


def sums_of(
    features: torch.Tensor, labels: torch.Tensor, centre: torch.Tensor, units: Units | None = None
) -> list[GridSum]:
    """Returns every sum over rows that a second-order head releases."""
    design = centred(features, labels, centre, units, intercept=0.3)
    head = torch.randn(3, features.shape[1] + 1, generator=torch.Generator().manual_seed(0))
    loss = Loss(sigmoid=False, clip=0.5)

    def curvature(_: Piece, block: torch.Tensor) -> torch.Tensor:
        p = loss.compute_probabilities(design.compute_logits(block, design.make_factors(3 * head)))
        return 1 - p.square().sum(1)

    return [
        second_moment(design),
        second_moment(design, curvature),
        cross_moment(design, lambda p: design.rows.make_targets(p.start, p.stop), 3, 1.0),
        sum_gradients(design, loss, 3 * head),
        sum_gradients(design, Loss(sigmoid=True, clip=0.01), head),
    ]


@pytest.mark.parametrize("of_units", [False, True])
def test_sums_are_the_same_bits_in_any_order_block_and_thread(
    of_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows are so small that float32 would lose them, and some are next to the centre."""
    features, labels = with_unusable(*classes_of(700, 33, 3))
    features[:200] *= 1e-6
    centre = torch.nn.functional.normalize(features[300:400]).nan_to_num().mean(0)
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(1))
    units: list[Units | None] = [None, None]
    if of_units:
        places = (torch.arange(len(features)), order)
        units = [Units.number_units([f"{i * i % 61}" for i in each.tolist()]) for each in places]
    expected = sums_of(features, labels, centre, units[0])
    monkeypatch.setattr("dpprobe.heads.training_set.CPU_BLOCK_BYTES", 8_000)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        actual = sums_of(features[order], labels[order], centre, units[1])
    finally:
        torch.set_num_threads(threads)
    if not of_units:
        source = TrainingSet(Source(features.numpy(), 37), labels, 3)
        rows = Rows(source, Transform(Centred(), {CENTRE: centre}))
        streamed = second_moment(Design(Options(intercept=0.3), rows, private=True))
        assert torch.equal(streamed.units, expected[0].units)
    for one, other in zip(expected, actual, strict=True):
        assert one.step == other.step
        assert torch.equal(one.units, other.units)
        assert torch.equal(one.units, one.units.trunc())
        assert float(one.units.abs().max()) > 1e3, "too coarse a grid to say anything"


def release(matrix: torch.Tensor, noise: float, seeds: tuple[int, ...]) -> torch.Tensor:
    releases = Releases(made_plan([gaussians(noise)], 9), seeds, torch.device("cpu"))
    step = 2.0**-20
    units = (matrix.double() / step).round_().expand(len(seeds), *matrix.shape)
    return releases.release_symmetric("g", GridSum(units, step))


def test_spectrum_estimates_the_matrix_better_than_clamping() -> None:
    d = 200
    basis = torch.linalg.qr(
        torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )[0]
    truth = (basis * (3000 / torch.arange(1, d + 1) ** 1.2)) @ basis.T
    released = release(truth, 10.0, (5,))[0]
    actual = estimate_spectrum(released, 10.0)
    actual = Spectrum(actual.values, actual.vectors.double())
    assert (actual.values >= 0).all()
    clamped = estimate_spectrum(released, 0.0)
    errors = [
        float(torch.linalg.norm((estimate.vectors * estimate.values) @ estimate.vectors.T - truth))
        for estimate in (actual, clamped)
    ]
    best = (clamped.vectors.T @ truth @ clamped.vectors).diagonal()
    oracle = float(torch.linalg.norm((clamped.vectors * best) @ clamped.vectors.T - truth))
    assert errors[0] < 0.75 * errors[1]
    assert errors[0] < 1.15 * oracle


@pytest.mark.parametrize("part", [0.5, 1.0, 1.2, 2.0, 4.0])
def test_no_damped_step_overshoots_far(part: float) -> None:
    """The matrix has one direction, with an eigenvalue of `part` times the noise's."""
    d, step, deviation = 400, 0.6, 10.0
    hidden = deviation * math.sqrt(d / 2)
    truth = torch.zeros(d, d, dtype=torch.float64)
    truth[0, 0] = part * hidden
    found = estimate_spectrum(release(truth, deviation, (5,))[0], deviation)
    ridge = 0.1 * hidden
    regularised = truth + ridge * torch.eye(d, dtype=torch.float64)

    def longest_step(added: float) -> float:
        """Returns the largest share of a direction's error that a step removes; 1 removes all."""
        root = found.vectors.double() / (found.values + added).sqrt()
        return step * float(torch.linalg.eigvalsh(root.T @ regularised @ root)[-1])

    assert longest_step(damp_ridge(ridge, step, deviation, d)) < 1.15
    if part == 1:
        assert longest_step(ridge) > 2  # steps would diverge
    assert damp_ridge(ridge, step, 0.0, d) == ridge


def test_the_spectrum_of_pure_noise_is_nearly_zero() -> None:
    actual = estimate_spectrum(release(torch.zeros(300, 300), 1.0, (4,))[0], 1.0)
    radius = math.sqrt(2 * 300)
    assert float(actual.values.max()) < 0.3 * radius


def test_solve_and_noise_gain_are_numpys() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(9, 6, dtype=torch.float64, generator=generator)
    matrix, right = root.T @ root, torch.randn(2, 6, dtype=torch.float64, generator=generator)
    actual = estimate_spectrum(matrix, 0.0)
    inverse = torch.linalg.inv(matrix + 0.3 * torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(actual.solve_ridge(right, 0.3), right @ inverse)
    assert actual.noise_gain(0.3) == pytest.approx(float(torch.trace(matrix @ inverse @ inverse)))


def test_lambda_is_the_noises_or_the_floor() -> None:
    """With noise, lambda follows from public quantities; without noise, from the rows' lengths."""
    features, labels = classes_of(60, 8, 3)
    private, plain = (design_of(features, labels, private=each) for each in (True, False))
    floor = floor_ridge(9, 1.04)
    assert floor == pytest.approx(0.03 * 3 * 1.04)
    for noise, expected in ((0.01, floor), (1.0, 3 * (0.07 * 1.04 + 0.02 * 3))):
        for matrix in (torch.eye(9), 5 * torch.eye(9)):
            released = estimate_spectrum(matrix.double(), 0.0)
            ridge = ridge_of(private, None, math.sqrt(1.04), noise, noise, released)
            assert ridge == pytest.approx(expected)
            assert ridge_of(private, 0.5, 1.0, noise, noise, released) == 0.5
    exact = estimate_spectrum(second_moment(plain).values, 0.0)
    mean_square = float(features.double().square().sum(1).mean()) + 0.04
    ridge = ridge_of(plain, None, math.sqrt(1.04), 1.0, 1.0, exact)
    assert ridge == pytest.approx(floor_ridge(9, mean_square))
    assert 0 < ridge_of(plain, 0.0, 1.0, 1.0, 1.0, exact) < 1e-6


@pytest.mark.parametrize("head", ["least_squares", "feature_covariance", "newton"])
def test_without_noise_as_many_features_as_rows_do_no_harm(head: str) -> None:
    """With lambda = 0, the head would fit the labels' chance."""
    features, labels = classes_of(4090, 90, 3, noise=6.0)
    accuracies = []
    for values in ({}, {"ridge": 0}):
        method = method_options({"head": head, "normalize": "l2", **values})
        fitted = fit(method, features[:90], labels[:90], 3, seeds=(1,))
        accuracies.append(accuracy(fitted, features[90:], labels[90:]))
    assert accuracies[0] > accuracies[1] + 0.1


def test_step_rate_holds_the_noise_of_logits() -> None:
    """The rows are random, and their second moment is released without error."""
    rows = torch.randn(500, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actual: Spectrum = estimate_spectrum(rows.T @ rows, 0.0)
    rate = step_rate(10.0, 300.0, actual.noise_gain(5.0), 500)
    assert rate < 10
    noise = 300 * torch.randn(
        4000, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    logits = rate * actual.solve_ridge(noise, 5.0) @ rows.T
    assert float(logits.std()) == pytest.approx(0.6, rel=0.05)
    assert step_rate(10.0, 0.0, 1.0, 500) == 10.0


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("bits", [3, 5, 9])
def test_no_grid_is_too_coarse_for_the_clip(
    bits: int, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests row by row, on the CPU and as on a GPU: factors are rounded towards zero."""
    monkeypatch.setattr(second_order, "factor_bits", lambda _: bits)
    monkeypatch.setattr(devices, "has_kernels", lambda _: kernels)
    features, labels = classes_of(60, 9, 4)
    head = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    loss, longest = Loss(sigmoid=True, clip=0.4), 0.0
    for row in range(60):
        design = design_of(features[[row]], labels[[row]], 4, intercept=0.3)
        longest = max(longest, float(sum_gradients(design, loss, head).values.norm()))
    assert 0.2 < longest <= 0.4


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("sigmoid", [True, False])
def test_gradients_on_a_gpu_are_those_on_the_cpu(
    sigmoid: bool, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients differ only by rounding of probabilities, at most one step of a factor."""
    monkeypatch.setattr("dpprobe.heads.training_set.CPU_BLOCK_BYTES", 4_000)
    features, labels = classes_of(300, 9, 4)
    design = design_of(features, labels, 4, private=private, intercept=0.3)
    head = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    loss = Loss(sigmoid=sigmoid, clip=0.4 if private else math.inf)
    expected = sum_gradients(design, loss, head)
    monkeypatch.setattr(devices, "has_kernels", lambda _: False)
    actual = sum_gradients(design, loss, head)
    step = second_order.Steps.make_steps(design, loss, 4).factor
    torch.testing.assert_close(actual.values, expected.values, rtol=1e-9, atol=300 * step * private)
    assert float(expected.values.norm()) > 1


def whole_numbers(values: torch.Tensor) -> Any:
    assert torch.equal(values, values.trunc())
    return np.array([int(value) for value in values.flatten()], object).reshape(values.shape)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(2, 5)),
    sigmoid=st.booleans(),
    bad=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=4),
    agreed=st.sampled_from([70, 2**12, 2**30]),
    block=st.sampled_from([100, 2_000, 2**22]),
)
def test_sums_equal_those_of_python_s_whole_numbers(
    seed: int, shape: tuple[int, int, int], sigmoid: bool, bad: Any, agreed: int, block: int
) -> None:
    """Sums rounded rows and factors one at a time; some rows are zero, NaN or infinite.

    No row adds more than the sensitivities.
    """
    generator, (n, d, classes) = torch.Generator().manual_seed(seed), shape
    features = 3 * torch.randn(n, d, generator=generator)
    features[: len(bad), 0], features[len(bad) :: 6] = torch.tensor(bad[:n]), 0.0
    labels = torch.randint(0, classes, (n,), generator=generator)
    data = TrainingSet(features, labels, classes, public_n=agreed)
    design = Design(
        Options(normalize="none", intercept=0.3),
        Rows(data, Transform(NoNormalisation())),
        private=True,
    )
    head, loss = torch.randn(classes, d + 1, generator=generator), Loss(sigmoid=sigmoid, clip=0.4)
    steps, factors = second_order.Steps.make_steps(design, loss, classes), design.make_factors(head)
    squares, sums = (np.zeros((size, d + 1), object) for size in (d + 1, classes))
    for piece in design.read_pieces(10**9):  # each piece is one row
        (row,) = whole_numbers(design.fill_block(piece, design.make_block(1), design.step))
        squares = squares + np.outer(row, row)
        unit = design.fill_block(design.unit_rows(piece), design.make_block(1), steps.entry)
        product = whole_numbers(unit)[0] @ whole_numbers(factors.padded)
        lengths = design.row_lengths(piece)
        logits = product.astype(float) * (factors.step * steps.unit * float(lengths))
        logits = torch.from_numpy(logits[None]).add(factors.biases)
        residual = loss.clip_residuals(
            logits,
            design.rows.make_targets(piece.start, piece.stop),
            lengths,
            lengths,
            torch.ones(1).double(),
            steps.factor,
        )
        outer = np.outer(whole_numbers(residual)[0], whole_numbers(unit)[0])
        sums = sums + outer
        # checks the sensitivities in exact arithmetic
        assert sum(row**2) * Fraction(design.step) ** 2 <= Fraction(design.longest) ** 2
        step = Fraction(steps.entry) * Fraction(steps.factor)
        assert (outer**2).sum() * step**2 <= Fraction(loss.clip) ** 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpprobe.heads.training_set.CPU_BLOCK_BYTES", block)
        actual = second_moment(design).units, sum_gradients(design, loss, head).units
    for one, wanted in zip(actual, (squares, sums), strict=True):
        np.testing.assert_array_equal(whole_numbers(one), wanted)


@pytest.mark.parametrize("name", ["entry_bits", "factor_bits"])
def test_a_grid_too_fine_for_exact_sums_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels = classes_of(60, 9, 3)
    monkeypatch.setattr(second_order, name, lambda _: 40)
    design = design_of(features, labels)
    with pytest.raises(PrivacyError, match="n = 60: sums of products up to .* exceed 2.53"):
        sum_gradients(design, Loss(sigmoid=False, clip=0.5), torch.zeros(3, 10))
    with pytest.raises(PrivacyError, match="n = 60: sums of products up to .* exceed 2.53"):
        cross_moment(design, partial(clipped_labels, design.rows, longest=1.0), 3, 1.0)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_clipped_residuals_stay_below_the_clip_and_their_bound_is_reached(sigmoid: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(2000, 6, generator=generator, dtype=torch.float64)
    labels = torch.nn.functional.one_hot(torch.arange(2000) % 6, 6).double()
    norms = 1 + torch.rand(2000, generator=generator, dtype=torch.float64)
    loss = Loss(sigmoid=sigmoid, clip=0.7)
    ones = torch.ones_like(norms)
    clipped = loss.clip_residuals(logits, labels.float(), norms, ones, ones).norm(dim=1) * norms
    assert float(clipped.max()) < 0.7
    wrong = torch.where(labels == 1, -50.0, 50.0) if sigmoid else 50 * labels.roll(1, 1)
    free = Loss(sigmoid=sigmoid, clip=math.inf)
    longest = free.clip_residuals(wrong.double(), labels.float(), norms, ones, ones)
    assert float(longest.norm(dim=1).max()) == pytest.approx(loss.longest_residual(6))


@pytest.mark.parametrize(
    ("average", "expected"),
    [("last", [1, 2, 3]), ("mean", [1, 1.5, 2]), ("linear", [1, 5 / 3, 14 / 6])],
)
def test_descend_averages_as_it_says(average: str, expected: list[float]) -> None:
    snapshots: list[torch.Tensor] = []
    result = average_descent(
        torch.zeros(1, 1, dtype=torch.float64),
        3,
        lambda _s, w: (-torch.ones_like(w), 1.0),
        average,
        snapshots,
    )
    assert [float(each) for each in [*snapshots, result]] == pytest.approx(
        [*expected, expected[-1]]
    )


@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_factors_of_long_rows_need_no_more_bits_than_the_grid_has(clip: float) -> None:
    features, labels = classes_of(60, 9, 4)
    design = design_of(9 * features, labels, 4, max_row_norm=5.0)
    loss, longest = Loss(sigmoid=True, clip=clip), float(design.norms.max())
    steps = second_order.Steps.make_steps(design, loss, 4)
    factor = min(clip, loss.longest_residual(4) * longest)
    assert longest > 4
    assert factor <= steps.factor * 2.0 ** grid.factor_bits(60)
