"""What the documents of a bundle share: numbers rounded up, texts that show as they are."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpprobe.artifacts import read_json
from dpprobe.release import documents
from dpprobe.release.bundle import STATEMENT_FILE
from dpprobe.release.parts.evaluation.show import is_telling, round_result, state_measured
from tests.support.bundles import write_example


@given(st.floats(0, 1))
def test_percentages_are_rounded_up(rate: float) -> None:
    shown = float(documents.percent_up(rate).removesuffix("%"))
    assert 100 * rate - 1e-6 <= shown <= 100 * rate + 0.1


def test_each_rate_that_a_card_states_is_that_of_the_best_attack(tmp_path: Path) -> None:
    statement = read_json(write_example(tmp_path / "bundle") / STATEMENT_FILE)
    statement["evaluation"] = {"mechanisms": statement["mechanisms"][:1]}
    trained, tested = (
        math.sqrt(sum(one["count"] / one["noise_multiplier"] ** 2 for one in block["mechanisms"]))
        for block in (statement, statement["evaluation"])
    )
    table = documents.bound_best_attacks(statement, documents.RATES)
    for attack in table:
        best = [norm.cdf(norm.ppf(attack.false) + mu) for mu in (trained, tested)]
        assert [attack.trained, attack.tested] == pytest.approx(best, rel=1e-3)
    stated = re.findall(r"[\d.]+%", documents.in_plain_words(statement, table)[1])
    rates = (norm.cdf(norm.ppf(0.01) + trained), norm.cdf(trained / 2))
    flags, guesses = map(documents.percent_up, rates)
    assert stated == ["1%", flags, "1%", guesses, "50%"]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain words, 3.5 % (of 12)", "plain words, 3.5 % (of 12)"),
        ("a|b*c_d`e", "a\\|b\\*c\\_d\\`e"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("---", "\\---"),
        ("12. twelve", "12\\. twelve"),
        ("two\n\n lines", "two lines"),
        ("\u202eturned", "\ufffdturned"),
    ],
)
def test_markdown_shows_a_text_as_it_is(text: str, escaped: str) -> None:
    assert documents.in_markdown(text) == escaped


def test_a_wide_interval_stands_before_the_noisy_value() -> None:
    wide = {"metric": "accuracy", "value": 0.973, "interval": [0.798, 1.0]}
    assert state_measured(wide) == (
        "Accuracy between 79.8 and 100.0% (95% CI; measured with noise: 97.3%)"
    )
    assert round_result(wide) == 0.97
    assert round_result({"value": 0.81249, "interval": [0.8, 0.82]}) == 0.812


@pytest.mark.parametrize(("high", "named"), [(0.6, True), (0.9, False)])
def test_no_class_is_called_worst_by_noise(high: float, named: bool) -> None:
    worst = {"name": "nevus", "recall": 0.5, "interval": [0.4, high]}
    result = {"metric": "macro_accuracy", "value": 0.8, "interval": [0.77, 0.83]}
    text = state_measured({**result, "worst_class": worst})
    assert ("class nevus" in text) == named
    assert ("too few test units to tell which class is worst" in text) != named


@pytest.mark.parametrize(("interval", "tells"), [([0.1, 0.9], True), ([0.0, 0.95], False)])
def test_a_result_that_says_nothing_is_not_stated(interval: list[float], tells: bool) -> None:
    evaluation = {"metric": "auc", "value": 0.5, "interval": interval}
    assert is_telling(evaluation) == tells
    assert ("not measurable" in state_measured(evaluation)) != tells
