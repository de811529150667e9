"""Public rows: their mean, the centre shrunk towards their mean, and their second moment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.features.public_features import open_rows
from dpprobe.heads import whitening
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import CENTRE
from dpprobe.heads.public_inputs import PublicInputs, hash_file
from dpprobe.heads.public_rows import effective_dimension, read_public_rows
from dpprobe.heads.registry import method_options
from dpprobe.heads.second_order import Spectrum
from dpprobe.heads.training_set import TrainingSet
from tests.support.linear_heads import plan_for
from tests.support.observers import Watching
from tests.support.refusals import refuses

pytestmark = pytest.mark.usefixtures("several_blocks")

ROWS, DIMENSION, CLASSES = 90, 24, 3
Rows = npt.NDArray[np.float32]


def draw_rows(count: int, seed: int, *, directions: int = DIMENSION) -> Rows:
    """Draws rows that vary in `directions` dimensions around a mean that all seeds share."""
    shared = np.random.default_rng(5)
    mean = shared.standard_normal(DIMENSION)
    basis = np.linalg.qr(shared.standard_normal((DIMENSION, DIMENSION)))[0][:directions]
    drawn = np.random.default_rng(seed).standard_normal((count, directions))
    return (mean + drawn @ basis).astype(np.float32)


def unit(rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    wide = rows.astype(np.float64)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True))


def fit_with(path: Path, noise: float, **normalize: Any) -> tuple[Heads, Watching]:
    """Fits a head on 90 private rows; `normalize` may name the file as public rows."""
    method = method_options({"head": "momentum", "steps": 3, "normalize": normalize})
    labels = torch.arange(ROWS) % CLASSES
    public = PublicInputs(hashes={str(path): str(hash_file(str(path)))}, open_rows=open_rows)
    data = TrainingSet(torch.from_numpy(draw_rows(ROWS, 0)), labels, CLASSES, public=public)
    watching = Watching(through=True)
    return fit_heads(method, data, plan_for(method, ROWS, noise), [1], observer=watching), watching


@pytest.mark.parametrize("noise", [0.3, 3.0, 300.0])
@pytest.mark.parametrize("kind", ["centred", "whitened"])
def test_the_centre_is_shrunk_towards_the_public_mean(
    tmp_path: Path, kind: str, noise: float
) -> None:
    rows = draw_rows(40, 1)
    np.save(path := tmp_path / "public.npy", rows)
    heads, watching = fit_with(path, noise, kind=kind, public=str(path))
    (noisy,) = (output.double().numpy() / ROWS for output in watching.outputs[CENTRE])
    mean = unit(rows).mean(0)
    deviation = plan_for(
        method_options({"head": "momentum", "steps": 3, "normalize": kind}), ROWS, noise
    ).find_mechanism(CENTRE)
    distance = noisy - mean
    expected = DIMENSION * (deviation.noise_scale / ROWS) ** 2
    kept = max(0.0, 1 - expected / float(distance @ distance))
    centre = heads.transforms[0].arrays[CENTRE].double().numpy()
    np.testing.assert_allclose(centre, mean + kept * distance, atol=1e-6)


def test_public_rows_do_not_change_a_head_without_noise(tmp_path: Path) -> None:
    np.save(path := tmp_path / "public.npy", -50 * draw_rows(40, 1))
    heads, _ = fit_with(path, 0.0, kind="centred", public=str(path))
    alone, _ = fit_with(path, 0.0, kind="centred")
    np.testing.assert_array_equal(heads.weights, alone.weights)


def test_a_public_mean_brings_the_centre_nearer(tmp_path: Path) -> None:
    """With much noise, the mean of similar public rows is nearer to the truth than 0."""
    np.save(similar := tmp_path / "similar.npy", draw_rows(400, 1))
    truth = unit(draw_rows(ROWS, 0)).mean(0)

    def distance(path: Path, **more: Any) -> float:
        heads, _ = fit_with(path, 20.0, kind="centred", **more)
        centre = heads.transforms[0].arrays[CENTRE].double().numpy()
        return float(np.linalg.norm(centre - truth))

    assert distance(similar, public=str(similar)) < 0.3 * distance(similar)


def test_rows_without_a_direction_do_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = draw_rows(5, 1)
    bad = np.zeros((3, DIMENSION), np.float32)
    bad[1], bad[2, 0] = np.nan, np.inf
    np.save(path := tmp_path / "public.npy", np.concatenate([bad, rows]))
    zeros, labels = torch.zeros(2, DIMENSION), torch.zeros(2, dtype=torch.int64)
    private = TrainingSet(zeros, labels, 2, public=PublicInputs(open_rows=open_rows))
    public = read_public_rows("public", str(path), private)
    np.testing.assert_allclose(public.mean.numpy(), unit(rows).mean(0), atol=1e-6)
    assert caplog.text == "", "a warning would say that training rows are unusable"
    np.save(path, bad)
    with refuses(DataError, "public", "public.npy"):
        read_public_rows("public", str(path), private)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_the_effective_dimension_equals_that_of_an_isotropic_matrix(values: list[float]) -> None:
    given_values = torch.tensor(values, dtype=torch.float64)
    found = effective_dimension(Spectrum(given_values, torch.eye(len(values))))
    assert 1 - 1e-9 <= found <= len(values) * (1 + 1e-9)
    mean, square = given_values.mean(), given_values.square().mean()
    assert found == pytest.approx(len(values) * float(mean**2 / square))


@pytest.mark.parametrize(("directions", "whitens"), [(1, True), (DIMENSION, False)])
def test_rows_are_whitened_where_public_rows_have_few_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directions: int, whitens: bool
) -> None:
    monkeypatch.setattr(whitening, "MOST_DIRECTIONS", 0.2)
    rows = draw_rows(300, 1, directions=directions)
    np.save(path := tmp_path / "public.npy", rows)
    spec = {"kind": "whitened", "public": str(path), "moment": "public", "share": 0.04}
    heads, watching = fit_with(path, 1.0, **spec)
    plain, centred = fit_with(path, 1.0, kind="centred", public=str(path))
    assert set(watching.sums) == set(centred.sums), "no second moment is released"
    assert (not np.array_equal(heads.weights, plain.weights)) == whitens
    if not whitens:
        return
    around = unit(rows) - unit(rows).mean(0)
    around = unit(around[np.linalg.norm(around, axis=1) > 1e-6])
    values, vectors = np.linalg.eigh(around.T @ around)
    factors = (values.clip(0) + 3 * values.mean()) ** -0.25
    matrix = (vectors * factors) @ vectors.T
    matrix *= math.sqrt(len(around) / np.square(around @ matrix).sum())
    first = watching.sums["gradients"][0].double().numpy()  # at weights 0, of whitened rows
    centre = heads.transforms[0].arrays[CENTRE].double().numpy()
    whole = unit((unit(unit(draw_rows(ROWS, 0)) - centre)) @ matrix)
    hot = np.eye(CLASSES)[np.arange(ROWS) % CLASSES]
    residuals = 1 / CLASSES - hot
    lengths = np.linalg.norm(residuals, axis=1) * math.hypot(1, 0.2)
    expected = (residuals * np.minimum(1, 0.7 / lengths)[:, None]).T @ whole
    np.testing.assert_allclose(first[:, :-1], expected, atol=2e-3)


def test_a_file_that_was_not_compared_is_refused(tmp_path: Path) -> None:
    np.save(path := tmp_path / "public.npy", draw_rows(5, 1))
    method = method_options(
        {"head": "momentum", "normalize": {"kind": "centred", "public": str(path)}}
    )
    data = TrainingSet(torch.zeros(9, DIMENSION), torch.arange(9) % CLASSES, CLASSES)
    with refuses(PrivacyError, "normalize.public", "public.npy", "compared"):
        fit_heads(method, data, plan_for(method, 9, 1.0), [1])


def test_a_public_moment_needs_public_rows() -> None:
    with refuses(ConfigError, "moment", "public"):
        method_options({"head": "momentum", "normalize": {"kind": "whitened", "moment": "public"}})
