"""Exact sums by a device's float64 products have the CPU's bits, however the device rounds.

Here the device is the CPU; its exponentials, quotients and norms may be disturbed.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe import devices
from dpprobe.errors import DeviceError
from dpprobe.heads import device_sums, least_squares
from dpprobe.heads.device_sums import DeviceSums
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Affine, Rows
from dpprobe.heads.second_order import Design, clipped_labels, cross_moment, second_moment
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.grid import entry_bits, factor_bits
from dpprobe.privacy.randomness import cell_seed
from tests.support.gpu import DEVICES, GPU
from tests.support.gradient_sums import LOSSES
from tests.support.linear_heads import (
    Source,
    features_of,
    normalised,
    plan_for,
    rows_of,
    training_set,
)
from tests.support.plain_heads import Adam, Momentum

SEEDS = [cell_seed("test", index) for index in range(3)]
KINDS = ["none", "l2", "layer_norm", "centred"]


def both_sums(
    rows: Rows, weights: torch.Tensor, clip: float, *, device: str = "cpu", **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the sums of all rows and of batches, by the kernels and by products on a device."""
    generator = np.random.default_rng(len(rows))
    batches = [generator.integers(0, len(rows), 4 * (2 - seed)) for seed in range(len(weights))]
    found = []
    for make in (ExactSums, partial(DeviceSums, device=torch.device(device))):
        sums = make(rows, clip, pool=None, **options)
        each = sums.sum_all(weights), sums.sum_batches(weights, batches)
        assert {one.step for one in each} == {each[0].step}
        found.append(torch.stack([one.units for one in each]))
    return found[0], found[1]


def disturb(monkeypatch: pytest.MonkeyPatch, classes: int, direction: float | None = None) -> None:
    """Adds the largest rounding errors that the proof allows, at random or in one direction."""
    generator = torch.Generator().manual_seed(1)
    norm, exp, divide = torch.linalg.vector_norm, torch.Tensor.exp_, torch.Tensor.div_

    def moved(values: torch.Tensor, by: float) -> torch.Tensor:
        noise = torch.rand(values.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return values * (1 + by * (noise if direction is None else direction))

    def norms(values: torch.Tensor, **options: Any) -> torch.Tensor:
        found = norm(values, **options)
        return found if "dtype" in options else moved(found, whole / 8)

    whole = (classes + 32) * 2.0**-50
    monkeypatch.setattr(torch.linalg, "vector_norm", norms)
    monkeypatch.setattr(torch.Tensor, "exp_", lambda x: x.copy_(moved(exp(x), whole / 9)))
    monkeypatch.setattr(
        torch.Tensor, "div_", lambda x, by: x.copy_(moved(divide(x, by), whole / 4.2))
    )


floats = st.floats(allow_nan=True, allow_infinity=True, width=32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("disturbed", [False, True])
@given(
    seed=st.integers(0, 2**20),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 9)),
    bad=st.lists(floats, max_size=4),
    spread=st.sampled_from([0.0, 1.0, 6.0]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e9, 1e300, math.nan]),
    clip=st.sampled_from([1e-9, 0.1, 1.0, 77.0, 1e9]),
    constant=st.sampled_from([1.0, 0.25]),
    loss=st.sampled_from(LOSSES),
    kind=st.sampled_from(KINDS),
    units=st.booleans(),
    agreed=st.sampled_from([None, 2**12, 2**30]),
    spare=st.sampled_from([0.0, math.inf]),
)
@settings(max_examples=120)
def test_sums_have_the_bits_of_the_kernels(
    device: str,
    disturbed: bool,
    seed: int,
    shape: tuple[int, int, int],
    bad: list[float],
    spread: float,
    scale: float,
    clip: float,
    constant: float,
    loss: tuple[str, bool],
    kind: str,
    units: bool,
    agreed: int | None,
    spare: float,
) -> None:
    generator, (n, d, classes) = torch.Generator().manual_seed(seed), shape
    lengths = 10 ** (spread * torch.randn(n, 1, generator=generator))
    features = torch.randn(n, d, generator=generator) * lengths
    features[: len(bad), 0] = torch.tensor(bad[:n])
    features[len(bad) :: 5] = 0.0
    labels = torch.randint(0, classes, (n,), generator=generator)
    if loss[1]:
        labels = torch.randint(0, 2, (n, classes), generator=generator, dtype=torch.uint8)
    groups = Units.number_units([f"{row % 7}" for row in range(n)]) if units else None
    data = TrainingSet(features, labels, classes, units=groups, public_n=agreed)
    weights = torch.randn(2, classes, d + 1, generator=generator, dtype=torch.float64) * scale
    weights[0] = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "spare_bytes", lambda _: spare)
        if disturbed and device == "cpu":
            disturb(patch, classes)
        kernels, products = both_sums(
            normalised(data, kind),
            weights,
            clip,
            sigmoid=loss[0] == "sigmoid",
            constant=constant,
            device=device,
        )
    assert torch.equal(products, kernels)


@pytest.mark.parametrize("direction", [-1.0, 1.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_factor_at_a_whole_number_is_the_kernels(
    monkeypatch: pytest.MonkeyPatch, direction: float, loss: tuple[str, bool]
) -> None:
    """A zero head has probabilities 1/4 or 1/2, so the factors of rows [0, 1] are whole numbers."""
    rows = 9
    labels = torch.arange(rows) % 4
    if loss[1]:
        labels = (torch.arange(rows)[:, None] >> torch.arange(4) & 1).to(torch.uint8)
    data = TrainingSet(torch.zeros(rows, 3), labels, 4)
    disturb(monkeypatch, 4, direction)
    weights = torch.zeros(1, 4, 4, dtype=torch.float64)
    kernels, products = both_sums(rows_of(data), weights, 8.0, sigmoid=loss[0] == "sigmoid")
    assert kernels.any()
    assert torch.equal(products, kernels)


@pytest.mark.parametrize("length", [1.0, 1e4, 1e8, 1e11, 1e14])
def test_rows_that_are_nearly_right_have_the_kernels_bits(
    monkeypatch: pytest.MonkeyPatch, length: float
) -> None:
    """Nearly right rows have residuals of mostly rounding; gradients of long rows are clipped."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 3, (2000,), generator=generator)
    gaps = 5 + 33 * torch.rand(2000, 1, generator=generator)
    features = torch.nn.functional.one_hot(labels, 3) * gaps + torch.rand(2000, 3)
    weights = torch.cat([torch.eye(3, dtype=torch.float64) / length, torch.zeros(3, 1)], 1)[None]
    disturb(monkeypatch, 3)
    rows = rows_of(TrainingSet(features * length, labels, 3))
    for clip in (1e-3, 1e-2):
        kernels, products = both_sums(rows, weights, clip, sigmoid=False)
        assert torch.equal(products, kernels)


@pytest.mark.parametrize("direction", [-1.0, None, 1.0])
def test_gradients_near_the_clipping_norm_have_the_kernels_factors(
    monkeypatch: pytest.MonkeyPatch, direction: float | None
) -> None:
    """A device may clip a gradient that the CPU does not clip, because its residuals are small."""
    count = 20_000
    generator = torch.Generator().manual_seed(5)
    data = TrainingSet(torch.zeros(count, 1), torch.zeros(count).long(), 3)
    sums = DeviceSums(rows_of(data), 1.0, sigmoid=False, pool=None, device=torch.device("cpu"))
    gaps = 17 + 3 * torch.rand(count, 2, generator=generator, dtype=torch.float64)
    logits = torch.cat([torch.zeros(count, 1), -gaps], 1)
    others = gaps.neg().exp()
    others /= 1 + others.sum(1, keepdim=True)
    lengths = (others.square().sum(1) + others.sum(1).square()).sqrt()
    nearly = 1 + 1e-6 * (2 * torch.rand(count, generator=generator, dtype=torch.float64) - 1)
    block = device_sums._Block(slice(None), torch.zeros(0), nearly / lengths)
    wanted = sums._compute_on_cpu(logits.clone(), block, torch.arange(count))
    disturb(monkeypatch, 3, direction)
    assert torch.equal(sums._make_factors(logits, block), wanted)


def test_a_row_of_rounding_error_has_the_kernels_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this row of small weight, all but one class are right on the CPU, nearly on the device."""
    classes = 3000
    labels = torch.ones(1, classes, dtype=torch.uint8)
    labels[:, 0] = 0
    weights = torch.zeros(1, classes, 2, dtype=torch.float64)
    weights[..., 1] = 60.0
    weights[:, 0, 1] = math.log(0.3 * (classes + 32) * 2.0**-50)
    rows = rows_of(TrainingSet(torch.full((1, 1), 1e3), labels, classes, public_n=2**30))
    disturb(monkeypatch, classes, -1.0)
    whole = 0
    for part in np.arange(400, 2000, 50):  # parts of a clipped factor in whole numbers
        rows.weights = torch.full((1,), 1 / part)
        kernels, products = both_sums(rows, weights, 2.0**-34, sigmoid=True)
        assert torch.equal(products, kernels)
        whole += bool(kernels.any())
    assert whole


@pytest.mark.parametrize("bits", [0, 14, 30])
def test_products_at_their_bound_are_exact(bits: int) -> None:
    """Rows are equal and parallel to the head, so products and sums are as large as possible."""
    data = TrainingSet(
        torch.full((300, 40), -1e3), torch.zeros(300).long(), 2, public_n=max(300, 2**bits)
    )
    weights = torch.full((1, 2, 41), 1e-3, dtype=torch.float64)
    weights[0, 0] = 1e6  # the prediction is as wrong as possible
    kernels, products = both_sums(rows_of(data), weights, 1.0, sigmoid=True)
    assert torch.equal(products, kernels)
    largest = 300 * 2.0 ** (entry_bits(data.n) + factor_bits(data.n))
    assert largest / 8 < float(products.abs().max()) <= largest <= 2.0**52


@pytest.mark.parametrize("kind", ["none", "l2", "centred"])
def test_blocks_and_places_change_no_bit(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    data = training_set(300, 7, 5)
    weights = torch.randn(2, 5, 8, dtype=torch.float64)
    rows = normalised(data, kind)
    wanted, _ = both_sums(rows, weights, 0.7, sigmoid=False)
    for work in (1, 9_000, 2**30):
        monkeypatch.setattr(device_sums, "WORK_BYTES", work)
        for spare in (0.0, math.inf):
            monkeypatch.setattr(devices, "spare_bytes", lambda _, spare=spare: spare)
            assert torch.equal(both_sums(rows, weights, 0.7, sigmoid=False)[1], wanted)
            if kind == "none":  # streams of other kinds round rows differently
                source = Source(features_of(data).numpy().copy(), 7)
                stream = rows_of(TrainingSet(source, data.labels, 5), kind)
                sums = DeviceSums(stream, 0.7, sigmoid=False, pool=None, device=torch.device("cpu"))
                assert torch.equal(sums.sum_all(weights).units, wanted[0])


@pytest.mark.parametrize("head", [Options, Adam, Momentum])
@pytest.mark.parametrize("batch_size", [40, "full"])
@pytest.mark.parametrize("device", [None, pytest.param("cuda", marks=GPU)])
def test_heads_have_the_bits_of_a_fit_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, head: Any, batch_size: Any, device: str | None
) -> None:
    data = training_set(700, 9, 4)
    options = head(batch_size=batch_size, steps=12, normalize="l2", average="ema", engine="exact")
    plan = plan_for(options, data.n)
    wanted = fit_heads(options, data, plan, SEEDS).weights
    data.exact_device = device or "cpu:0"
    monkeypatch.setattr(devices, "has_kernels", lambda each: str(each) == "cpu")
    np.testing.assert_array_equal(fit_heads(options, data, plan, SEEDS).weights, wanted)


@pytest.mark.parametrize("bits", [24, 48, 51])
def test_a_device_with_other_products_is_refused(
    monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    """The device keeps fewer bits of a product than float64 has."""
    multiply = torch.Tensor.__matmul__

    def multiply_roughly(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        found = multiply(one, other)
        if found.dtype != torch.float64:
            return found
        mantissa, exponent = torch.frexp(found)
        return torch.ldexp((mantissa * 2.0**bits).round(), exponent - bits)

    rows = rows_of(training_set(9, 4, 3))
    monkeypatch.setattr(torch.Tensor, "__matmul__", multiply_roughly)
    with pytest.raises(DeviceError, match="products of whole numbers are not exact"):
        DeviceSums(rows, 1.0, sigmoid=False, pool=None, device=torch.device("cpu"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["none", "l2", "centred"])
def test_second_moments_have_the_bits_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch, device: str, kind: str
) -> None:
    """Lengths are passed bit by bit, because a device may round others differently."""
    data = training_set(700, 33, 4)
    lengths = data.lengths

    def moments(there: str) -> list[torch.Tensor]:
        moved = TrainingSet(features_of(data).to(there), data.labels, 4)
        moved.__dict__["lengths"] = lengths.to(there)
        rows = normalised(moved, kind)
        rows.lengths = cpu_rows.lengths.to(there)
        if cpu_rows.affine is not None:
            rows.affine = Affine(*(part.to(there) for part in cpu_rows.affine))
        design = Design(least_squares.Options(max_row_norm=0.7), rows, private=True)
        longest = design.longest
        return [
            second_moment(design).units.cpu(),
            cross_moment(
                design, lambda piece: clipped_labels(rows, piece, longest), 4, longest
            ).units.cpu(),
        ]

    cpu_rows = normalised(data, kind)
    wanted = moments("cpu")
    monkeypatch.setattr(devices, "has_kernels", lambda _: False)
    for actual, expected in zip(moments(device), wanted, strict=True):
        assert torch.equal(actual, expected)
