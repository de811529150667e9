"""Months: noise of each way, and what the table and the JSON say."""

from __future__ import annotations

import math

import pytest

from dpprobe.planner.month_plan import WAYS, plan_months
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
