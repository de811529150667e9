"""Usual column names are found in any case and with any separators."""

from __future__ import annotations

import pytest

from dpprobe.data import usual_columns
from dpprobe.data.usual_columns import find_usual


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (["PatientID"], ["PatientID"]),
        (["patient id", "x", "Patient-Id"], ["patient id", "Patient-Id"]),
        (["patients", "patient_ids", "id"], []),
        # sorted by the order of the usual names, then of the columns
        (["MRN", "subject", "Patient"], ["Patient", "subject", "MRN"]),
        ([], []),
    ],
)
def test_columns_of_patients_are_found(columns: list[str], found: list[str]) -> None:
    assert [*find_usual(columns, usual_columns.PATIENTS)] == found


def test_no_name_means_two_contents() -> None:
    lists = [
        usual_columns.IMAGE_COLUMNS + usual_columns.IMAGE_NAMES,
        usual_columns.LABELS,
        usual_columns.PATIENTS,
        usual_columns.CASES,
        usual_columns.SPLITS,
        usual_columns.GROUPS,
    ]
    plain = [{name.replace("_", "") for name in names} for names in lists]
    assert len(set().union(*plain)) == sum(map(len, plain))
