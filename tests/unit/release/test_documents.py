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
