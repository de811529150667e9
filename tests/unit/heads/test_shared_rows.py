"""Rows of the training set are known among public ones, by their values as float16."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpprobe.errors import PrivacyError
from dpprobe.heads.shared_rows import check_other_rows
from dpprobe.heads.training_set import TrainingSet
from tests.support.second_order_data import Stream

ROWS, DIMENSION = 400, 5


def rows_of(seed: int, rows: int = ROWS) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, DIMENSION))).float()


def check(public: torch.Tensor, private: torch.Tensor, *, streamed: bool = False) -> None:
    labels = torch.zeros(len(private), dtype=torch.int64)
    source = Stream(private) if streamed else private.clone()
    data = TrainingSet(source, labels, num_classes=1)
    check_other_rows(Stream(public), data, written="m.json")


@pytest.mark.parametrize("streamed", [False, True])
def test_one_row_in_a_hundred_may_be_shared(streamed: bool) -> None:
    private, others = rows_of(0), rows_of(1, 5 * ROWS)
    check(torch.cat([private[:4], others]), private, streamed=streamed)
    with pytest.raises(PrivacyError) as caught:
        check(torch.cat([private[:5], others]), private, streamed=streamed)
    assert str(caught.value) == (
        "public_covariance m.json: 5 of its 2005 different rows are rows of the private training "
        "set; name features of other, public images"
    )


def test_a_few_private_rows_alone_and_all_of_them_in_a_crowd_are_known() -> None:
    private = rows_of(0)
    for public in (private[7:8], torch.cat([rows_of(1, 100 * ROWS), private.flip(0)])):
        with pytest.raises(PrivacyError):
            check(public, private)


def test_storage_in_half_precision_hides_no_row() -> None:
    private = rows_of(0)
    with pytest.raises(PrivacyError):
        check(private.half().float(), private)


def test_copies_of_one_row_count_once_and_zeros_never() -> None:
    private = torch.cat([rows_of(0), torch.zeros(3, DIMENSION)])
    zeros = torch.zeros(50, DIMENSION)
    zeros[::2] *= -1.0
    check(torch.cat([zeros, rows_of(1, 20)]), private)
    check(zeros, private)
    check(torch.cat([private[:1].expand(50, -1), rows_of(1)]), private)
