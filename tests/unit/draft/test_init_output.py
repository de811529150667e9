"""`init` predicts the same accuracy as `dpprobe plan`."""

from __future__ import annotations

import re
import shlex

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.unit.draft.conftest import Desk, slowly

SPAN = re.compile(r"-?\d+% \(-?\d+ to -?\d+\)")


@settings(slowly, phases=[Phase.explicit, Phase.generate])
@example(large=88, small=26, people=25)  # the share of class a, 0.76997, rounds to a ceiling
@given(
    large=st.one_of(st.integers(40, 50), st.integers(60, 250)),
    small=st.integers(25, 30),
    people=st.sampled_from([0, 25, 40]),
)
def test_the_accuracies_equal_those_of_the_command_that_is_named(
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
    few = [re.findall(r"Too few .*", text) for text in (said, table)]
    assert few[0] == few[1]
