"""A record in the wrong folder is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.doctor.recorded_files import read_recorded
from dpprobe.files.json_files import write_record

CELL = {"dataset": "digits", "backbone": "pixels", "method": "sgd", "epsilon": "1"}


@pytest.mark.parametrize(
    ("place", "values", "fault"),
    [
        ("cells/digits/pixels/sgd/eps-1/metrics.json", {"cell": CELL}, None),
        ("cells/digits/pixels/sgd/eps-2/metrics.json", {"cell": CELL}, "belongs to eps-1"),
        ("cells/letters/clip/sgd/eps-1/metrics.json", {"cell": CELL}, "belongs to digits, pixels"),
        ("few_shot/digits/pixels.json", CELL | {"method": "digits", "epsilon": None}, None),
        (
            "few_shot/digits/clip.json",
            {"dataset": "digits", "backbone": "pixels"},
            "belongs to pixels",
        ),
        (
            "few_shot/letters/pixels.json",
            {"dataset": "digits", "backbone": "pixels"},
            "belongs to digits",
        ),
        ("few_shot/digits/clip.json", {"dataset": "digits"}, None),
        ("few_shot/letters/clip.json", {"cell": "digits", "dataset": "a", "backbone": "b"}, None),
    ],
)
def test_a_record_belongs_to_its_folders_and_not_to_those_above(
    tmp_path: Path, place: str, values: dict[str, Any], fault: str | None
) -> None:
    path = tmp_path / "digits/pixels/sgd/eps-1/of/a/person/results" / place
    path.parent.mkdir(parents=True)
    write_record(path, {"format": "dpprobe-few-shot", **values})
    found = read_recorded(path)
    assert found is not None
    assert found.checked.fault == fault
