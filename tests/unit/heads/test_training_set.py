"""Training rows: checked, and harmless when they are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from dpprobe.errors import DataError
from dpprobe.heads.training_set import TrainingSet

pytestmark = pytest.mark.usefixtures("several_blocks")

LABELS = torch.tensor([0, 1, 2, 1])
SEVERAL = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.uint8)


def features() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 5, generator=generator)


def test_lengths_are_the_rows_in_float64() -> None:
    data = TrainingSet(features(), LABELS, 3)
    wanted = features().double().square().sum(1).sqrt()
    torch.testing.assert_close(data.lengths, wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30, 1e-25])
def test_a_row_that_is_not_finite_is_zero_and_infinitely_long(
    bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    dirty = features()
    if abs(bad) < 1:
        dirty[2] = 0
    dirty[2, 3] = bad
    data = TrainingSet(dirty, LABELS, 3)
    actual = torch.cat([block for _, block in data.read_blocks()])
    assert data.lengths[2] == math.inf
    assert not actual[2].any()
    assert torch.equal(actual[[0, 1, 3]], features()[[0, 1, 3]])
    assert (
        "training rows with NaN, infinity, huge or tiny values count as rows of zeros"
        in caplog.text
    )


def test_labels_are_one_a_row_or_several() -> None:
    assert not TrainingSet(features(), LABELS, 3).multi_label
    assert TrainingSet(features(), SEVERAL, 3).multi_label


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (torch.zeros(4, 5, dtype=torch.float64), LABELS, "float64"),
        (torch.zeros(4), LABELS, "training features"),
        (torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), "training features"),
        (torch.zeros(3, 5), LABELS, "training labels"),
        (torch.zeros(4, 5), LABELS.float(), "training labels"),
        (torch.zeros(4, 5), LABELS + 1, "one is not a number from 0 to 2"),
        (torch.zeros(4, 5), LABELS - 1, "one is not a number from 0 to 2"),
        (torch.zeros(4, 5), SEVERAL[:, :2], "training labels"),
        (torch.zeros(4, 5), SEVERAL.long(), "training labels"),
        (torch.zeros(4, 5), SEVERAL + 1, "one is not a number from 0 to 1"),
    ],
)
def test_wrong_input_is_refused(rows: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TrainingSet(rows, labels, 3)
