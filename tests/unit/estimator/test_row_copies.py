"""Rows that are copies: the holder of the data is warned, and nothing published counts them."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from typing import Any

import numpy as np
import pytest

from dpprobe.estimator import row_copies
from dpprobe.estimator.array_inputs import MappedRows
from tests.support.classifiers import make_benchmark, make_private, make_rows

X, Y = make_rows()
# one person 20 times, with a zero of either sign, and one person twice
ROWS = np.concatenate([X, X[[0] * 20 + [5]]])
LABELS = np.concatenate([Y, Y[[0] * 20 + [5]]])
ROWS[[0, 240], 1] = 0.0, -0.0
ROWS[241:260, 1] = 0.0


def fit_warnings(classifier: Any, *rows: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier.fit(*rows, **options)
    return [str(each.message) for each in caught if "repeat" in str(each.message)]


def test_one_person_many_times_is_counted_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_copies, "SCORED_BYTES", 600)  # blocks of few rows
    for rows in (ROWS, MappedRows(ROWS)):
        head = make_private()
        (told,) = fit_warnings(head, rows, LABELS)
        assert "21 rows repeat another row, and one row occurs 21 times" in told
        assert "unit='group'" in told
        assert "Keep this message private" in told
        assert b"repeat" not in pickle.dumps(head)
        assert "copies" not in json.dumps(head.privacy_["promise"])


@pytest.mark.parametrize(("group", "expected"), [
    (lambda row: f"person {row}", "21 rows repeat a row of another group.* in 21 groups"),
    (lambda row: f"person {0 if row in range(240, 260) else row}", "1 rows.* in 2 groups"),
    (lambda row: f"person {0 if row >= 240 or row == 5 else row}", None),
])  # fmt: skip
def test_copies_within_a_group_do_no_harm(group: Any, expected: str | None) -> None:
    groups = [group(row) for row in range(len(ROWS))]
    told = fit_warnings(make_private(unit="group"), ROWS, LABELS, groups=groups)
    assert len(told) == (expected is not None)
    if expected is not None:
        assert re.search(expected, told[0])


def test_no_copy_and_no_privacy_need_no_warning() -> None:
    assert fit_warnings(make_private(), X, Y) == []
    assert fit_warnings(make_benchmark(), ROWS, LABELS) == []
