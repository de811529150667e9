"""Shapes, labels, groups and blocks of rows, as callers give them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import PrivacyError
from dpprobe.estimator import array_inputs
from dpprobe.estimator.given_values import ArrayError
from dpprobe.heads.training_set import LONGEST_ROW

ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        (np.ones((4, 2)), (4, 2)),
        ([[1.0, 2.0]] * 3, (3, 2)),
        (torch.ones(4, 2), (4, 2)),
        (pd.DataFrame(np.ones((2, 5))), (2, 5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_shape_is_rows_and_dimension(values: Any, shape: tuple[int, int]) -> None:
    assert array_inputs.read_shape(values) == shape


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (np.ones(4), r"got 1D array instead: X has shape \(4,\)"),
        (np.ones((2, 2, 2)), r"got 3D array instead: X has shape \(2, 2, 2\)"),
        (np.ones(()), "got 0D array instead"),
        ([], "got 1D array instead"),
        (np.ones((0, 2)), r"0 sample\(s\) \(shape=\(0, 2\)\)"),
        (np.ones((2, 0)), r"0 feature\(s\) \(shape=\(2, 0\)\)"),
        ([[]], r"0 feature\(s\) \(shape=\(1, 0\)\)"),
    ],
)
def test_other_shapes_are_named_as_scikit_learn_does(values: Any, fault: str) -> None:
    with pytest.raises(ArrayError, match=fault):
        array_inputs.read_shape(values)


@pytest.mark.parametrize(
    ("labels", "classes", "fault"),
    [
        ([0, 1], None, None),
        ([0, 1], [0, 1], None),
        (["a", "b"], ["a", "b"], None),
        (np.array(["b", "a"]), None, None),
        ([True, False], ["a", "b"], None),  # refused by scikit-learn's own checks
        ([], ["a", "b"], None),
        ([0, 1], ["a", "b"], "labels are numbers, but classes are texts"),
        (["a", "b"], [0, 1], "labels are texts, but classes are numbers"),
        (pd.Series([0, pd.NA], dtype=object), None, "a label is missing"),
        (pd.Series([True, 1], dtype=object), None, "labels are numbers and truth values"),
        (np.ma.masked_array([0, 1]), None, "y: masked"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_labels_have_one_kind_which_is_the_classes(
    labels: Any, classes: Any, fault: str | None
) -> None:
    if fault is None:
        array_inputs.check_labels(labels, classes)
        return
    with pytest.raises(ArrayError, match=f"^y: .*{fault}|^{fault}"):
        array_inputs.check_labels(labels, classes)


@given(classes=st.lists(st.integers(0, 50), min_size=1, unique=True), draws=st.data())
def test_a_label_is_numbered_by_its_place_among_the_classes(classes: list[int], draws: Any) -> None:
    labels = draws.draw(st.lists(st.sampled_from(classes)))
    numbers = array_inputs.number_labels(np.array(labels, dtype=np.int64), classes)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [classes.index(label) for label in labels]


def test_a_label_of_no_class_is_not_quoted() -> None:
    with pytest.raises(ArrayError, match=r"a label is not in classes \['a', 'b'\]") as caught:
        array_inputs.number_labels(np.array(["a", "secret"]), ["a", "b"])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "units"),
    [(["a", "b", "a"], [0, 1, 0]), ([2, 10, 2], [1, 0, 1]), (["b", "b", "a"], [1, 1, 0])],
)
def test_rows_of_one_name_are_one_unit(groups: list[Any], units: list[int]) -> None:
    """Units are numbered in the order of their names as texts."""
    assert array_inputs.number_groups(groups, 3).unit_of_rows().tolist() == units


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        (["a", None, "b"], "row 1 has no name"),
        (["", "a", "b"], "row 0 has no name"),
        ([float("nan"), "a", "b"], "row 0 has no name"),
        (["a", "b"], r"has shape \(2,\), but X has 3 rows"),
        ([["a"], ["b"], ["c"]], r"has shape \(3, 1\), but X has 3 rows"),
        ([1.0, 2.5, 1], "'1.0' is '1' in other rows"),
        (["1", 1, "01"], "'01' is '1' in other rows"),
    ],
    ids=repr,
)
def test_names_that_may_be_several_people_are_refused(groups: list[Any], fault: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(PrivacyError, match=fault):
            array_inputs.number_groups(groups, 3)


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_blocks_follow_each_other_and_are_the_rows(size: int) -> None:
    source = array_inputs.MappedRows(ROWS)
    starts, blocks = zip(*source.read_blocks(size), strict=True)
    assert list(starts) == list(range(0, 8, size))
    np.testing.assert_array_equal(np.concatenate(blocks), ROWS)
    np.testing.assert_array_equal(array_inputs.read_source(source), ROWS)
    np.testing.assert_array_equal(source.read_rows(np.array([1, 5])), ROWS[[1, 5]])


def test_rows_without_a_usable_length_are_scored_as_zeros() -> None:
    longest = np.float32(LONGEST_ROW)
    above = np.nextafter(longest, np.float32(np.inf))
    lengths = [longest, above, -longest, np.nan, np.inf, 0.0]
    rows = np.array([[length, 0] for length in lengths], dtype=np.float32)
    kept = rows.copy()
    with pytest.warns(UserWarning, match="^X: 3 rows contain NaN, infinity or huge values"):
        cleared = array_inputs.clear_unusable(rows)
    unusable = [[False], [True], [False], [True], [True], [False]]
    np.testing.assert_array_equal(cleared, np.where(unusable, 0, kept))
    np.testing.assert_array_equal(rows, kept, err_msg="the caller's rows stay")
    assert array_inputs.clear_unusable(ROWS) is ROWS


def test_blocks_of_an_iterator_are_joined() -> None:
    for blocks in ([ROWS[:3], ROWS[3:]], [ROWS[:0], ROWS], [ROWS.tolist()]):
        np.testing.assert_array_equal(array_inputs.join_blocks(iter(blocks)), ROWS)
    for wrong, fault in (
        ([], "this iterator has no blocks, or was already read"),
        ([ROWS, ROWS[:, 1:]], r"blocks of shapes \(8, 3\), \(8, 2\)"),
        ([ROWS[0]], r"blocks of shapes \(3,\)"),
    ):
        with pytest.raises(ArrayError, match=fault):
            array_inputs.join_blocks(iter(wrong))
