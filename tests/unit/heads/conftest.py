"""Fixtures of the heads' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Gives PyTorch one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits rows into several blocks, as in real datasets; small ones would fit into one block."""
    monkeypatch.setattr("dpprobe.heads.training_set.CPU_BLOCK_BYTES", 100)
    for place in ("training_set.CHUNK_BYTES", "training_set.PIECE_BYTES"):
        monkeypatch.setattr(f"dpprobe.heads.{place}", 100)  # less than a row may take
    monkeypatch.setattr("dpprobe.heads.exact_sums.PIECE_BYTES", 200)
