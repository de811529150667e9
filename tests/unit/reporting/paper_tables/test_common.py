"""Common parts of the papers' tables."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpprobe.exhibits.published import Number, read_published
from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting.paper_tables.common import (
    deltas_text,
    epsilon_cell,
    measured_cell,
    printed_cell,
    result_title,
)
from dpprobe.results.cell_record import Measure
from tests.support.made_grids import made_ceiling, made_result
from tests.support.paper_tables import paper_run

AUC = Measure(headline="auc")


def test_a_note_names_each_delta_and_marks_one_above_one_over_n() -> None:
    assert deltas_text([made_result(0.5), made_result(0.6)]) == ", δ 1e-05"
    assert deltas_text([made_result(0.5, n=200_000)]) == ", δ 1e-05 (above 1/n)"
    two = [made_result(0.5, delta=1.25e-6), made_result(0.5, delta=1.5e-6)]
    assert deltas_text(two) == ", δ 1.25e-06 or 1.5e-06"
    assert deltas_text([made_ceiling(0.5, delta=None)]) == ""
    risk = made_result(0.5, RiskEpsilon(1.2, "tpr-0.1-at-0.01", 1e-5))
    words = deltas_text([risk])
    assert words.startswith(", δ 1e-05; ")
    assert words.endswith("is ε 1.2")


def test_accuracies_are_percent_and_aucs_fractions() -> None:
    assert measured_cell(made_result(0.9)).text == "90.0 ± 2.0"
    assert measured_cell(made_result(0.9, measure=AUC)).text == "0.900 ± 0.020"
    assert measured_cell(made_result(0.9, low=None)).text == "90.0"
    assert measured_cell(None).text == ""
    assert result_title([made_result(0.9)]) == "±Accuracy"
    assert result_title([made_result(0.9), made_result(0.9, measure=AUC)]) == "±Accuracy or AUC"


@pytest.mark.parametrize(
    ("value", "text", "number"),
    [(0.5, "0.5", 0.5), (math.inf, "∞", None), ((0.5, 1.5), "[0.5, 1.5]", None), (8.0, "8", 8.0)],
)
def test_epsilons_are_numbers_ranges_or_infinite(
    value: Any, text: str, number: float | None
) -> None:
    cell = epsilon_cell(value)
    assert (cell.text, cell.value) == (text, number)


def test_a_printed_word_has_no_numeric_value() -> None:
    chance = read_published().select_numbers(printed="random chance")[0]
    cell = printed_cell(chance)
    assert (cell.text, cell.value) == ("random chance", None)
    other: Number = chance.model_copy(update={"value": 72.5, "printed": None})
    assert (printed_cell(other).text, printed_cell(other).value) == ("72.5", 72.5)
    assert printed_cell(None).text == ""


def test_a_dataset_has_the_papers_title_and_its_own_name_if_that_is_another() -> None:
    run = paper_run([], names={"mine": "cifar10", "cifar10": "cifar10", "x": "unheard"})
    titles = [run.dataset_title(name) for name in ("cifar10", "mine", "x", "digits")]
    assert titles == ["CIFAR-10", "CIFAR-10 (mine)", "unheard (x)", "digits"]
