"""Fixtures for tests of heads."""

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
    """Splits rows into several blocks, as in real datasets; test data would fit into one block."""
    split_rows(monkeypatch, 100)  # fewer bytes than a row may need
    monkeypatch.setattr("dpprobe.heads.exact_sums.PIECE_BYTES", 200)


@pytest.fixture
def larger_blocks(several_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits hundreds of rows into blocks of several rows each, which makes fits faster."""
    del several_blocks  # only needed to run first
    split_rows(monkeypatch, 2000)


def split_rows(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Sets the size of a block in bytes."""
    for name in ("training_set.CPU_BLOCK_BYTES", "scoring.CHUNK_BYTES", "row_norms.PIECE_BYTES"):
        monkeypatch.setattr(f"dpprobe.heads.{name}", size)
