"""The stored learning curves, and the law fitted to them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dpprobe.errors import DataError
from dpprobe.planner import learning_curves
from dpprobe.planner.learning_curves import FILE, Curves, read_curves
from dpprobe.planner.predicted_accuracy import Setting, predict


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    read_curves.cache_clear()


def test_the_file_is_small_and_of_several_sources() -> None:
    assert FILE.stat().st_size < 200_000
    stored = read_curves()
    assert len(stored.sources) >= 4
    assert set(stored.law.coverage) == set(stored.sources)
    assert not any("cifar" in str(curve["set"]).lower() for curve in stored.curves), "held out"


def test_the_law_rises() -> None:
    law = read_curves().law
    for values in (law.signals, law.low, law.expected, law.high):
        assert all(left <= right for left, right in pairwise(values))
    triples = list(zip(law.low, law.expected, law.high, strict=True))
    assert all(low <= expected <= high for low, expected, high in triples)
    assert law.expected[0] < 0.15
    assert law.expected[-1] > 0.85


def test_shares_between_knots_are_between_theirs() -> None:
    law = read_curves().law
    middle = (law.signals[3] + law.signals[4]) / 2
    low, expected, high = law.shares_at(middle)
    assert expected == pytest.approx((law.expected[3] + law.expected[4]) / 2)
    assert low <= expected <= high
    assert law.shares_at(-100.0) == (law.low[0], law.expected[0], law.high[0])
    assert law.shares_at(100.0) == (law.low[-1], law.expected[-1], law.high[-1])


def test_a_signal_has_the_share_that_it_was_asked_for() -> None:
    law = read_curves().law
    signal = law.signal_of(law.expected, 0.5)
    assert signal is not None
    assert law.shares_at(signal)[1] == pytest.approx(0.5)
    assert law.signal_of(law.expected, 2.0) is None
    assert law.signal_of(law.expected, -2.0) == law.signals[0]


def test_most_fits_of_the_stored_curves_lie_within_the_range() -> None:
    stored = read_curves()
    parts = [_within(stored, source) for source in stored.sources]
    assert 0.75 < sum(parts) / len(parts) < 0.99
    left_out = stored.law.coverage.values()
    assert sum(left_out) / len(left_out) == pytest.approx(0.8, abs=0.05)


def _within(stored: Curves, source: str) -> float:
    """Returns the share of a source's fits within the range of the law."""
    shares = []
    for curve in (each for each in stored.curves if each["source"] == source):
        held = []
        chance, facts = curve["chance"], {name: curve[name] for name in ("classes", "dimension")}
        for point in (each for each in curve["points"] if each["ceiling"] - chance >= 0.1):
            lead = point["ceiling"] - chance
            for epsilon, accuracies in point["accuracy"].items():
                kept = predict(Setting(n=point["n"], epsilon=float(epsilon), **facts))
                ends = kept.low - 1e-3, kept.high + 1e-3
                held += [ends[0] <= (each - chance) / lead <= ends[1] for each in accuracies]
        shares += [sum(held) / len(held)] if held else []
    return sum(shares) / len(shares)


def test_ceilings_with_all_rows_are_of_the_nearest_number_of_classes_by_ratio() -> None:
    ends = [(2, 0.8), (2, 0.6), (2, 0.7), (26, 0.3)]
    curves = [{"classes": of, "points": [{"ceiling": 0.1}, {"ceiling": end}]} for of, end in ends]
    stored = replace(read_curves(), curves=tuple(curves))
    assert stored.choose_ceilings(7) == (0.6, 0.7, 0.8)
    assert stored.choose_ceilings(8) == (0.3, 0.3, 0.3)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "No such file"),
        ("{", "line 1 column 2"),
        ('{"format": "another"}', "format_version"),
        ('{"format": "dpprobe learning curves", "format_version": 2}', "curves 2"),
    ],
)
def test_a_damaged_file_is_named(
    text: str | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "learning_curves.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(learning_curves, "FILE", file)
    with pytest.raises(DataError, match=rf"learning_curves.json: unreadable .*{fault}.*restore it"):
        read_curves()
