"""Months: noise of each way, and what the table and the JSON say."""

from __future__ import annotations

import math

import pytest

from dpprobe.errors import ConfigError
from dpprobe.planner.accuracy_plan import make_scale
from dpprobe.planner.month_plan import WAYS, months_as_json, months_in_words, plan_months
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


def test_a_first_month_of_added_sums_is_the_plan_alone() -> None:
    month = plan_months(SETTING, 2)[0]
    assert month.kept[WAYS.index("add sums")] == predict(SETTING)
    assert month.kept[WAYS.index("train again")].expected < predict(SETTING).expected


def test_less_noise_never_keeps_less() -> None:
    for month in plan_months(SETTING, 12):
        pairs = sorted(zip(month.noise, (kept.expected for kept in month.kept), strict=True))
        shares = [share for _, share in pairs]
        assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("months", [1, 121])
def test_a_number_out_of_range_is_refused(months: int) -> None:
    with pytest.raises(ConfigError, match=f"months {months}: write a number from 2 to 120"):
        plan_months(SETTING, months)


def test_the_table_and_the_values_have_every_month() -> None:
    months = plan_months(SETTING, 3)
    scale = make_scale(2, ceiling=0.9, majority=0.5)
    words = months_in_words(months, scale, epsilon=1.0, unit="patient")
    assert words.startswith("3 months with 500 new patients each, and a total epsilon of 1 for")
    assert [line.split()[:2] for line in words.splitlines()[4:7]] == [
        ["1", "500"], ["2", "1,000"], ["3", "1,500"],
    ]  # fmt: skip
    values = months_as_json(months)
    assert [value["month"] for value in values] == [1, 2, 3]
    assert all(len(value["kept"]) == len(value["ways"]) == 3 for value in values)
