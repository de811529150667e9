"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real CIFAR-10 and real MobileNetV2 weights, kept beside the checkout on some machines."""
    path = REPOSITORY.parent / "shared" / "data"
    if not (path / "cifar10" / "train.parquet").is_file():
        pytest.skip(f"no real data at {path}")
    return path
