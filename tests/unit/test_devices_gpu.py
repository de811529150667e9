"""Heads without native kernels, on the CPU and on a GPU, and the spare memory of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe import devices
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.target import Target
from tests.support.gpu import needs_gpu

# heads on a device without native kernels

HEADS: dict[str, dict[str, Any]] = {
    "momentum": {"steps": 20, "batch_size": 30},
    "adam": {"steps": 20, "batch_size": "full"},
    "sgd": {"steps": 20, "batch_size": 30},
    "feature_covariance": {},
    "newton": {},
    "least_squares": {},
    "prototypes": {},
}


def training_set(device: str = "cpu") -> TrainingSet:
    # No class has exactly a third of the rows: otherwise the first gradient of its bias is only
    # rounding error, which Adam turns into a full step.
    features = torch.randn(290, 8, generator=torch.Generator().manual_seed(3))
    labels = features[:, :3].argmax(1)
    return TrainingSet(features.to(device), labels.to(device), 3)


def fitted(head: str, data: TrainingSet, epsilon: float, cache: Path) -> np.ndarray:
    options = method_options({"head": head} | HEADS[head])
    plan = calibrate(
        options.list_mechanisms(data.rows),
        Target(n=data.rows, epsilon=epsilon, delta=1e-3, accountant="rdp"),
        cache=cache,
        selection=options.priced_selection(data.rows),
    )
    return fit_heads(options, data, plan, [1, 2]).weights


def check_heads(plain: np.ndarray, wanted: np.ndarray, noisy: np.ndarray) -> None:
    np.testing.assert_allclose(plain, wanted, rtol=1e-3, atol=1e-4)
    assert np.isfinite(noisy).all()
    assert (np.abs(noisy - plain) > 0).mean() > 0.5
    assert (noisy[0] != noisy[1]).any()


@pytest.mark.parametrize("head", HEADS)
def test_heads_give_the_same_sums_by_products_alone(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First without noise; then with noise, which must change every weight."""
    data = training_set()
    wanted = fitted(head, data, float("inf"), tmp_path)
    monkeypatch.setattr(devices, "has_kernels", lambda _: False)
    plain, noisy = (fitted(head, data, epsilon, tmp_path) for epsilon in (float("inf"), 1.0))
    check_heads(plain, wanted, noisy)


@needs_gpu
@pytest.mark.parametrize("head", HEADS)
def test_heads_give_the_same_sums_on_a_gpu(head: str, tmp_path: Path) -> None:
    wanted = fitted(head, training_set(), float("inf"), tmp_path)
    data = training_set("cuda")
    plain, noisy = (fitted(head, data, epsilon, tmp_path) for epsilon in (float("inf"), 1.0))
    check_heads(plain, wanted, noisy)


def test_spare_memory_includes_what_torch_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("mem_get_info", (300, 1000)),
        ("memory_reserved", 500),
        ("memory_allocated", 200),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert devices.spare_bytes(torch.device("cuda")) == 300
    assert devices.spare_bytes(torch.device("cpu")) == 32 * 1024**2
