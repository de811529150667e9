"""What `init` says of accuracy is what `dpprobe plan` says."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.draft.conftest import Desk, slowly

SPAN = re.compile(r"-?\d+% \(-?\d+ to -?\d+\)")


@slowly
@given(large=st.integers(30, 250), small=st.integers(10, 30), people=st.sampled_from([0, 25, 40]))
def test_the_accuracies_are_those_of_the_command_that_is_named(
    desk: Desk, large: int, small: int, people: int
) -> None:
    rows = [
        {"file": f"{n}.jpg", "y": "ab"[n >= large]}
        | ({"patient": n * 7 % people} if people else {})
        for n in range(large + small)
    ]
    desk.file("0.jpg")
    desk.table("t.csv", rows)
    said = desk.draft("t.csv").said
    (command,) = re.findall(r"For other settings: (.*)", said)
    asked = shlex.split(command)[1:]
    table = desk.run(*asked)
    spans = SPAN.findall(said)
    assert spans
    (first,) = [line for line in table.splitlines() if line.startswith("this ")]
    assert SPAN.findall(first)[1:] == spans, f"{command}\n{table}"
    trained, unit = re.findall(r"training: +([\d,]+) (\w+)s \(unit", said)[0]
    assert asked[: asked.index("--classes")] == ["plan", "--n", trained]
    assert asked[asked.index("--classes") : asked.index("--d")] == [
        *("--classes", "2", "--epsilon", "1", "--delta", "1e-05")
    ]
    assert ("--unit" in asked) == (unit == "patient") == (people > 0)
    assert ("--majority" in asked) == (large > 2 * small)
    beaten = [line for line in said.splitlines() if "no better than the majority" in line]
    assert len(beaten) <= len(spans)
    assert ("Too few" in said) == ("Too few" in table)


@pytest.mark.parametrize("count", [12, 13])
def test_of_many_classes_the_largest_and_the_smallest_are_shown(desk: Desk, count: int) -> None:
    desk.images(*(f"x/c{number:02}" for number in range(count)), count=20)
    desk.images("x/c03", count=1300)
    (desk.folder / "x/c01/0.jpg").unlink()
    said = desk.draft("x").said
    lines = [line for line in said.splitlines() if re.match(r"  (c\d|\.\.\.)", line)]
    assert lines[0].startswith("  c03      1,300 images:")
    assert lines[-1].startswith("  c01         19 images:")
    assert lines[-1].endswith("(the smallest)")
    assert len(lines) == 12
    assert ("  ... and 2 more" in lines) == (count == 13)
    assert f"{20 * count + 1279:,} images, {count} classes" in said


def test_equal_classes_have_no_smallest(desk: Desk) -> None:
    desk.images("x/a", "x/b", count=30)
    said = desk.draft("x").said
    assert "(the smallest)" not in said
    assert "imbalance:   1.0 to 1; metric: accuracy (classes are balanced)" in said
    assert "count as" not in said


def test_fewer_images_than_classes_have_no_expected_accuracy(desk: Desk) -> None:
    desk.images(*(f"x/train/c{number}" for number in range(12)), "x/test/c0", count=1)
    assert "Expected accuracy" in desk.draft("x").said
    desk.images(*(f"y/c{number}" for number in range(12)), count=1)
    assert "Expected accuracy" not in desk.draft("y").said
