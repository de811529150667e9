"""Numbers and weights of the units of test rows."""

from __future__ import annotations

import numpy as np

from dpprobe.results.unit_counts import class_counts, count_units, row_weights, unit_codes


def test_patients_are_numbered_by_first_appearance_whatever_they_are_called() -> None:
    codes = unit_codes(["zoe", "al", "zoe", "10", "9", "al"])
    assert codes is not None
    assert codes.dtype == np.int64
    assert codes.tolist() == [0, 1, 0, 2, 3, 1]
    renamed = unit_codes(["a", "b", "a", "c", "d", "b"])
    assert renamed is not None
    assert renamed.tolist() == codes.tolist(), "names and their order leave no trace"
    assert count_units(codes) == 4


def test_each_patient_weighs_one() -> None:
    weights = row_weights(np.array([0, 2, 2, 0, 0]))
    assert weights is not None
    assert weights.tolist() == [1 / 3, 1 / 2, 1 / 2, 1 / 3, 1 / 3]
    assert row_weights(np.array([2, 0, 1])) is None


def test_unit_functions_return_none_without_unit_names() -> None:
    assert unit_codes(None) is None
    assert count_units(None) is None
    assert row_weights(None) is None


def test_rows_of_classes_and_of_labels_are_counted() -> None:
    assert class_counts(np.array([2, 0, 2]), 4) == [1, 0, 2, 0]
    assert class_counts(np.array([[1, 1, 0], [0, 1, 0]]), 3) == [1, 2, 0]
