"""Batches of whole pieces, and vectors of one length."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.sources.embedding_rows import pack_vectors
from dpprobe.data.table import EncodedImage
from dpprobe.errors import DataError
from dpprobe.features import extraction_pipeline
from dpprobe.features.decoding_workers import Fault, Piece
from dpprobe.features.extraction_pipeline import Decoder
from tests.support.stand_in_device import StandIn

BATCH = 8


def make_pieces(counts: list[tuple[int, int]]) -> list[Piece]:
    """Pieces of decoded rows and of rows left out; an image repeats its row's number."""
    pieces, first = [], 0
    for count, left_out in counts:
        rows = [(row, f"id{row}") for row in range(first, first + count + left_out)]
        images = torch.arange(first, first + count)[:, None].expand(-1, 3) if count else None
        faults = tuple(Fault(row, "x") for row in rows[count:])
        pieces.append(Piece(tuple(rows[:count]), images, faults))
        first += count + left_out
    return pieces


def batches_of(pieces: list[Piece]) -> list[Piece]:
    sizes = extraction_pipeline._Sizes("train")
    return list(extraction_pipeline._make_batches(pieces, StandIn(), BATCH, sizes))


@given(
    st.lists(st.tuples(st.integers(0, BATCH), st.integers(0, 2)), max_size=9).map(
        lambda counts: [each for each in counts if sum(each)]
    )
)
def test_batches_have_all_pieces_whole_and_in_order(counts: list[tuple[int, int]]) -> None:
    pieces = make_pieces(counts)
    batches = batches_of(pieces)
    assert [row for one in batches for row in one.rows] == [r for one in pieces for r in one.rows]
    assert [f for one in batches for f in one.faults] == [f for one in pieces for f in one.faults]
    for batch in batches:
        assert len(batch.rows) <= BATCH
        assert (batch.images is None) == (not batch.rows)
        if batch.images is not None:
            assert batch.images.tolist() == [[row] * 3 for row, _ in batch.rows]
    ends = np.cumsum([len(one.rows) for one in pieces])
    assert all(end in ends for end in np.cumsum([len(one.rows) for one in batches])), "whole pieces"
    for batch, after in pairwise(batches):
        sizes = [len(one.rows) for one in pieces if set(one.rows) & set(after.rows)]
        following = sizes[0] if sizes else 0  # a batch of faults alone
        assert len(batch.rows) == BATCH or len(batch.rows) + following > BATCH, "no room was left"


VECTORS = {"a": np.ones(2, np.float32), "b": np.arange(3, dtype=np.float32)}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("dimension", [None, 2, 3])
def test_a_row_s_vector_is_read_by_name_and_has_the_stated_length(
    name: str, dimension: int | None
) -> None:
    content = pack_vectors(VECTORS)
    row = EncodedImage(7, content, None, "seven", hashlib.sha256(content).digest())
    plain: Any = SimpleNamespace(transform=None, train_transform=None, dimension=dimension)
    decoder = Decoder(plain, "test", vectors=name)
    assert decoder.row_bytes() == (None if dimension is None else 4 * dimension)
    length = len(VECTORS[name])
    if dimension in (None, length):
        found = decoder.decode_one(row)
        assert (found.tolist(), found.dtype) == (VECTORS[name].tolist(), torch.float32)
    else:
        said = rf"test row 7 \(id seven\): vector '{name}' has {length} numbers, .* is {dimension};"
        with pytest.raises(DataError, match=said):
            decoder.decode_one(row)
