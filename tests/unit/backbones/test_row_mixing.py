"""Networks that mix the rows of a batch, or read numbers from it, are detected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpprobe.backbones import row_mixing
from dpprobe.backbones.row_mixing import find_mixed_row, make_public_rows, refuse_branches
from dpprobe.errors import ConfigError

Run = Callable[[torch.Tensor], torch.Tensor]
ROWS = make_public_rows((5,), torch.float32).double()
APART: dict[str, Run] = {
    "each row by itself": lambda rows: rows * 2,
    "not a number": lambda rows: rows / 0 * 0,
    "infinite": lambda rows: rows / 0,
    "fewer columns": lambda rows: rows[:, :1].sin(),
    "constant": lambda rows: rows * 0 + 3,
}
# A function that mixes rows, and whether the batch's first row (else its last) shows it.
MIXED: dict[str, tuple[Run, bool]] = {
    "mean": (lambda rows: rows - rows.mean(0), True),
    "largest": (lambda rows: rows / rows.amax(0), True),
    "smallest": (lambda rows: rows + rows.amin(0), True),
    "row before": (lambda rows: rows.cumsum(0), False),
    "first row": (lambda rows: rows + rows[:1], False),
    "last row": (lambda rows: rows + rows[-1:], True),
    "shape": (lambda rows: rows[:, : 2 if torch.equal(rows[-1], ROWS[2]) else 3], True),
    "not a number": (lambda rows: torch.where(rows[-1:] > 0.5, rows, rows * float("nan")), True),
}


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("precision", row_mixing.TOLERANCES)
@pytest.mark.parametrize("name", APART)
def test_rows_that_are_computed_apart_pass(name: str, count: int, precision: str) -> None:
    assert find_mixed_row(APART[name], ROWS, count, precision=precision) is None


@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize("precision", row_mixing.TOLERANCES)
@pytest.mark.parametrize("name", MIXED)
def test_mixed_rows_are_found_with_the_batches_that_show_it(
    name: str, count: int, precision: str
) -> None:
    run, first = MIXED[name]
    found = find_mixed_row(run, ROWS, count, precision=precision)
    assert found is not None
    place, batches = found
    assert place == (0 if first else count - 1)
    assert all(torch.equal(batch[place], ROWS[0]) for batch in batches), "the row itself is there"
    others = [torch.cat([batch[:place], batch[place + 1 :]]) for batch in batches]
    assert (others[0] != others[1]).any(1).all(), "no other row of the batches is the same"
    results = [run(batch)[place] for batch in batches]
    assert not torch.equal(*results)
    assert find_mixed_row(run, ROWS, 1, precision=precision) is None, "alone it mixes with nothing"


@pytest.mark.parametrize(
    ("share", "noticed"),
    [
        (1e-10, []),
        (1e-7, ["float64"]),
        (1e-4, ["float64", "float32"]),
        (0.005, ["float64", "float32", "float16"]),
        (0.1, ["float64", "float32", "float16", "bfloat16"]),
    ],
)
def test_a_share_is_noticed_that_a_precision_s_rounding_does_not_explain(
    share: float, noticed: list[str]
) -> None:
    found = [
        precision
        for precision in row_mixing.TOLERANCES
        if find_mixed_row(lambda rows: rows + share * rows.mean(0), ROWS, 9, precision=precision)
    ]
    assert sorted(found) == sorted(noticed)


def test_a_result_of_the_row_alone_is_compared_too() -> None:
    """Batches of equal size cannot show that the size has an effect; a batch of one row can."""

    def run(rows: torch.Tensor) -> torch.Tensor:
        return rows * len(rows)

    assert find_mixed_row(run, ROWS, 3, precision="float64") is None
    alone = run(ROWS[:1])[0]
    assert find_mixed_row(run, ROWS, 3, precision="float64", alone=alone) is not None
    same = 3 * ROWS[0]
    assert find_mixed_row(run, ROWS, 3, precision="float64", alone=same) is None


class Views(nn.Module):
    """Passes two views of each row to a layer that mixes all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.twice, self.mix = nn.Identity(), nn.Identity(), Mix()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        views = self.mix(self.twice(self.plain(rows).repeat_interleave(2, 0)))
        return views.unflatten(0, (len(rows), 2)).mean(1)


class Mix(nn.Module):
    def forward(self, views: torch.Tensor) -> torch.Tensor:
        return views - views.mean(0)


def test_a_layer_of_several_views_a_row_that_mixes_rows_is_named() -> None:
    rows = torch.arange(12.0).reshape(4, 3)
    batches = [rows, torch.cat([rows[:1], rows[1:] + 1])]
    assert row_mixing.find_layer(Views(), 0, batches) == "mix"
    batches = [rows, torch.cat([rows[:3] + 1, rows[3:]])]
    assert row_mixing.find_layer(Views(), 3, batches) == "mix"
    with pytest.raises(ConfigError, match="tune: layer mix of net mixes the rows of a batch"):
        row_mixing.check_rows_apart(Views(), rows[:3], name="net")


# Functions that read numbers of their argument, also through the shape of a result.
READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x[0, 0].item(),
    "list": lambda x: x.tolist(),
    "array": lambda x: x.numpy(),
    "mask": lambda x: x[x > 0],
    "some columns": lambda x: x[:, x[0] > 0],
    "nonzero": torch.nonzero,
    "whether": lambda x: bool((x > 0).all()),
    "places and mask": lambda x: x[torch.tensor([0, 0]), x[0] > -9],
}
ALLOWED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "places": lambda x: x[torch.tensor([1, 0])],
    "columns": lambda x: x[:, torch.tensor([0, 1])],
    "where": lambda x: torch.where(x > 0, x, 0 * x),
    "sum": lambda x: x.sum(dim=0, keepdim=True),
}
NUMBERS = torch.tensor([[1.0, -1.0], [2.0, 3.0]])


@pytest.mark.parametrize("name", READS)
def test_reading_numbers_of_a_batch_is_refused(name: str) -> None:
    with refuse_branches(), pytest.raises(ConfigError, match="reads a number from its batch"):
        READS[name](NUMBERS)
    READS[name](NUMBERS)  # allowed elsewhere


@pytest.mark.parametrize("name", ALLOWED)
def test_computing_with_numbers_of_a_batch_is_allowed(name: str) -> None:
    with refuse_branches():
        found = ALLOWED[name](NUMBERS)
    assert torch.equal(found, ALLOWED[name](NUMBERS))


def test_a_network_may_read_its_own_parameters() -> None:
    learned = nn.Parameter(NUMBERS.clone(), requires_grad=False)
    one, listed = nn.Parameter(torch.tensor(4.0), requires_grad=False), NUMBERS.tolist()
    with refuse_branches():
        assert learned.tolist() == listed
        assert learned.numpy().tolist() == listed
        assert len(torch.nonzero(learned)) == 4
        assert len(learned[learned > 0]) == 3
        assert one.item() == 4
