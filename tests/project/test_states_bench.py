"""bench/states.py: names the states that a second program reaches and the first does not."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import states

SOURCE = """
def share(part, whole, names=()):
    if whole == 0:
        return None
    return part / whole
"""


def reached(folder: Path, *calls: tuple[object, ...]) -> dict[str, set[str]]:
    (folder / "counted.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("counted", folder / "counted.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recorder = states.Recorder(str(folder) + os.sep)
    sys.setprofile(recorder)
    try:
        for call in calls:
            module.share(*call)
    finally:
        sys.setprofile(None)
    recorder.add_to(folder / "states.json")
    return states.read_states(folder / "states.json")


def test_only_states_of_another_kind_are_new(tmp_path: Path) -> None:
    folders = [tmp_path / "tests", tmp_path / "drawn"]
    for folder in folders:
        folder.mkdir()
    tested = reached(folders[0], (2, 3), (5, 7, ["a"]))
    drawn = reached(folders[1], (3, 4), (0, 0), (-2, 3))
    assert states.new_states(drawn, tested) == [
        ("counted.py share", "part=->1, whole=>1, names=tuple0[] -> -<1"),
        ("counted.py share", "part=0, whole=0, names=tuple0[] -> None"),
    ]
    again = reached(folders[0], (0, 0), (-2, 3))
    assert again["counted.py share"] > tested["counted.py share"], "a second run adds to the file"
    assert states.new_states(drawn, again) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, False),
        (0, 1),
        (0.5, 2.5),
        (-1.0, 1.0),
        (math.nan, math.inf),
        ("", "a"),
        ([], [0]),
        ([0], [1]),
        ([1], [1, 1]),
        ({"a": None}, {"a": 2}),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros(3), np.array([0, math.nan, 0])),
        (np.zeros(3), np.zeros(3, int)),
    ],
)
def test_values_that_a_condition_tells_apart_are_of_different_kinds(
    one: object, other: object
) -> None:
    assert states.kind_of(one) != states.kind_of(other)


def test_large_values_of_one_kind_are_not_told_apart() -> None:
    assert states.kind_of([2, 3]) == states.kind_of([17, 1, 0])
    assert states.kind_of(np.arange(9)) == states.kind_of(np.arange(7))
