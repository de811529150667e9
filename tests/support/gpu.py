"""Marks tests that need a GPU, which are skipped on machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


Test = TypeVar("Test", bound=Callable[..., None])


def needs_gpu(test: Test) -> Test:
    """Marks a test function."""
    for mark in GPU:
        test = mark(test)
    return test
