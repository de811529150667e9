"""Projections of features: public, the same everywhere, and nearly without loss."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.backbones.projection import draw_signs
from tests.support.backbones import load, noise, run

SMALL: dict[str, Any] = {"family": "scattering", "size": 8}


def test_signs_are_written_in_stone() -> None:
    """Features that were stored long ago must be those of today, bit by bit."""
    matrix = draw_signs(24, 5)
    assert matrix.shape == (24, 5)
    assert matrix.dtype == torch.float32
    assert matrix.abs().unique().tolist() == [np.float32(5**-0.5)]
    bits = np.packbits(matrix.numpy().reshape(-1) > 0)
    stone = hashlib.shake_256(b"dpprobe projection 24 to 5").hexdigest(15)
    assert bits.tobytes().hex() == stone == "c9d53c5922463d08433aba35f2096e"


def test_inner_products_survive() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(50, 15_552, generator=generator))
    rows[1] = (rows[0] + rows[2]) / 2**0.5
    short = rows @ draw_signs(15_552, 512)
    error = (short @ short.T - rows @ rows.T).abs()
    assert error.max() < 5 / 512**0.5
    assert error.mean() < 1 / 512**0.5


@pytest.mark.parametrize("values", [SMALL, {"family": "pixels", "size": 8, "color": "rgb"}])
def test_features_are_the_projected_ones(values: dict[str, Any]) -> None:
    pictures = [noise(seed=seed) for seed in range(4)]
    whole, short = load(**values), load(**values, project=20)
    assert (short.dimension, whole.fingerprint == short.fingerprint) == (20, False)
    expected = run(whole, *pictures) @ draw_signs(int(whole.dimension or 0), 20)
    features = run(short, *pictures)
    assert not features.requires_grad
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)
