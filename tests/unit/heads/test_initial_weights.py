"""The weights that heads start from: random, or from a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpprobe.errors import ConfigError
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.sgd import Options
from dpprobe.privacy.randomness import cell_seed
from tests.support.linear_heads import rows_of, training_set

SEEDS = [cell_seed("test", index) for index in range(3)]


def start_of(seeds: list[int] | None = None, **values: Any) -> np.ndarray:
    rows = rows_of(training_set(4, 400, 50))
    return initial_weights(Options(**values), rows, seeds or SEEDS).numpy()


def test_torchs_default_initialisation() -> None:
    weights = start_of()
    assert np.abs(weights).max() <= 1 / 20
    assert weights.std() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    assert np.abs(np.corrcoef(weights.reshape(3, -1)) - np.eye(3)).max() < 0.05
    linear = torch.nn.Linear(400, 50)
    assert linear.weight.std().item() == pytest.approx(weights[..., :-1].std(), rel=0.05)
    assert linear.bias.abs().max().item() <= 1 / 20


def test_other_initialisations() -> None:
    assert not start_of(init="zero").any()
    scaled = start_of(init="scaled", init_scale=0.3)
    assert scaled[..., :-1].std() == pytest.approx(0.3, rel=0.02)
    assert abs(scaled[..., :-1].mean()) < 5 * 0.3 / scaled.size**0.5
    assert not scaled[..., -1].any()
    assert start_of(init="scaled").std() == pytest.approx(0.01, rel=0.02)
    lecun = start_of(init="lecun_normal")
    assert lecun[..., :-1].std() == pytest.approx(1 / 20, rel=0.02)
    assert np.abs(lecun).max() == pytest.approx(2 / 20 / 0.87962566, rel=0.01)
    assert not lecun[..., -1].any()
    for values in (scaled, lecun):
        assert np.abs(np.corrcoef(values.reshape(3, -1)) - np.eye(3)).max() < 0.05
    for init in ("zero", "torch", "scaled", "lecun_normal"):
        biased = start_of(init=init, init_bias=-10.0)
        assert (biased[..., -1] == -10).all()
        np.testing.assert_array_equal(biased[..., :-1], start_of(init=init)[..., :-1])


@pytest.mark.parametrize("columns", [400, 401])
def test_public_weights_from_a_file(columns: int, tmp_path: Path) -> None:
    weights = np.random.default_rng(1).normal(size=(50, columns)).astype(np.float32)
    path = str(tmp_path / "text.safetensors")
    save_file({"weights": weights}, path)
    actual = start_of(init="file", init_file=path, init_scale=3.0)
    for head in actual:
        np.testing.assert_allclose(head[:, :columns], 3 * weights, rtol=1e-6)
        assert not head[:, columns:].any()
    assert (start_of(init="file", init_file=path, init_bias=1.5)[..., -1] == 1.5).all()


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.safetensors"

    def refused(message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            start_of(init="file", init_file=str(path))
        assert "\n" not in str(caught.value)

    refused("cannot be read")
    path.write_bytes(b"nothing of the kind")
    refused("cannot be read")
    save_file({"other": np.zeros(3)}, path)
    refused(re.escape("it contains ['other']; add a tensor \"weights\""))
    save_file({"weights": np.zeros((50, 399))}, path)
    refused(re.escape("weights have shape [50, 399]; write [50, 400]"))
    save_file({"weights": np.full((50, 400), np.nan)}, path)
    refused("not finite")
