"""Splits of units over simulated sites: all units, once each, with the sizes and labels asked."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.analyses.sites.measure import split_units

LABELS = np.repeat([0, 1, 2], [600, 300, 100])


@pytest.mark.parametrize("split", ["equal", "sizes", "labels"])
@pytest.mark.parametrize(("units", "sites"), [(1000, 10), (12, 10), (10, 10), (7, 2)])
def test_each_unit_is_at_one_site_and_each_site_has_a_unit(
    split: str, units: int, sites: int
) -> None:
    parts = split_units(LABELS[:: 1000 // units][:units], sites, split, 3)
    assert len(parts) == sites
    assert min(map(len, parts)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(units))


def test_sizes_are_equal_or_fall_as_one_over_the_rank() -> None:
    for split in ("equal", "labels"):
        assert {len(part) for part in split_units(LABELS, 8, split, 1)} == {125}
    sizes = [len(part) for part in split_units(LABELS, 4, "sizes", 1)]
    np.testing.assert_allclose(sizes, 1000 / np.arange(1, 5) / (25 / 12), atol=2)


def test_only_skewed_labels_change_the_frequencies_of_classes() -> None:
    def spread(split: str) -> float:
        parts = split_units(LABELS, 5, split, 2)
        shares = [np.bincount(LABELS[part], minlength=3) / len(part) for part in parts]
        return float(np.std(shares, axis=0).max())

    assert spread("equal") < 0.05 < 0.2 < spread("labels")


def test_a_site_takes_classes_in_the_ratio_of_dirichlet_weights_times_units() -> None:
    parts = [split_units(LABELS, 20, "labels", seed)[0] for seed in range(300)]
    shares = np.mean([np.bincount(LABELS[part], minlength=3) / len(part) for part in parts], axis=0)
    drawn = np.random.default_rng(0).dirichlet([0.5] * 3, 20_000) * np.bincount(LABELS)
    expected = (drawn / drawn.sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(shares, expected, atol=0.07)
