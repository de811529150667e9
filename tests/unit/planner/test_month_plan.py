"""Plans for several months have the noise of each way to release, as a table and as JSON."""

from __future__ import annotations

import json
import math
import re

import pytest

from dpprobe.errors import ConfigError
from dpprobe.planner.accuracy_plan import make_scale
from dpprobe.planner.month_plan import WAYS, months_as_json, months_in_words, plan_months
from dpprobe.planner.plan_text import format_span
from dpprobe.planner.predicted_accuracy import Setting, predict

SETTING = Setting(n=500, classes=2, epsilon=1.0, dimension=1280)


def test_each_way_has_its_noise_and_all_units_so_far() -> None:
    months = plan_months(SETTING, 12)
    assert [month.n for month in months] == [500 * (index + 1) for index in range(12)]
    again, added, horizon = zip(*(month.noise for month in months), strict=True)
    assert set(again) == {math.sqrt(12)}
    assert added == pytest.approx([math.sqrt(index + 1) for index in range(12)])
    assert horizon[0] == pytest.approx(1.36, abs=0.01)
    assert horizon[-1] == pytest.approx(1.85, abs=0.01)


@pytest.mark.parametrize("months", [1, 0, 121])
def test_a_horizon_of_months_that_cannot_be_is_refused(months: int) -> None:
    with pytest.raises(ConfigError, match=f"months {months}: must be a number from 2 to 120"):
        plan_months(SETTING, months)


def test_the_longest_horizon_is_planned_month_by_month() -> None:
    rows = plan_months(SETTING, 120)
    assert [row.month for row in rows] == list(range(1, 121))
    for row in (rows[0], rows[59], rows[-1]):
        assert row.kept == tuple(
            predict(SETTING.with_n(500 * row.month), noise=each) for each in row.noise
        )


@pytest.mark.parametrize("unit", ["image", "patient"])
def test_the_table_has_a_row_per_month_and_a_column_per_way(unit: str) -> None:
    scale = make_scale(2, ceiling=0.9, majority=0.5)
    rows = plan_months(SETTING, 3)
    lines = months_in_words(rows, scale, epsilon=1.0, unit=unit).splitlines()
    assert (
        lines[0]
        == f"3 months with 500 new {unit}s each, and a total epsilon of 1 for every {unit}."
    )
    assert lines[1].endswith("at a non-private 90%:")
    assert re.split(r"\s{2,}", lines[3].strip()) == ["month", f"{unit}s", *WAYS]
    for row, line in zip(rows, lines[4:7], strict=True):
        spans = [format_span(kept.predict_accuracy(chance=0.5, ceiling=0.9)) for kept in row.kept]
        assert re.split(r"\s{2,}", line.strip()) == [str(row.month), f"{row.n:,}", *spans]


def test_json_of_months_names_the_ways_of_its_columns() -> None:
    rows = plan_months(SETTING, 2)
    for row, values in zip(rows, json.loads(json.dumps(months_as_json(rows))), strict=True):
        assert (values["month"], values["n"], values["noise"]) == (
            row.month,
            row.n,
            list(row.noise),
        )
        assert values["ways"] == ["train again", "add sums", "horizon"]
        assert [each["expected"] for each in values["kept"]] == [k.expected for k in row.kept]
