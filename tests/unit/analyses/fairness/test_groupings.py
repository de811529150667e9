"""Groups of test rows, and the rule that leaves out groups and labels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpprobe.analyses.fairness import groupings
from dpprobe.analyses.fairness.fairness_record import Minimum
from tests.support.fairness_rows import FEW, made_rows


def test_a_label_with_exactly_as_many_patients_as_needed_is_compared() -> None:
    rows = made_rows(np.array([[1, 1, 0, 0, 0, 1, 0]]).T, units=np.array([0, 1, 2, 3, 4, 1, 4]))
    for positives, negatives, words in (
        (2, 3, ""),
        (3, 3, "2 patients with a, 3 needed"),
        (2, 4, "3 patients without a, 4 needed"),
    ):
        least = Minimum(units=1, positives=positives, negatives=negatives)
        (classes,) = groupings.make_groupings(rows, groups=("class",), pairs=(), minimum=least)
        assert classes.left_out == ({"a": words} if words else {})


def drawn_rows(seed: int) -> tuple[groupings.TestRows, pd.DataFrame]:
    """Draws rows with classes (even seeds) or labels, of patients who are in several groups."""
    generator = np.random.default_rng(seed)
    count, classes = int(generator.integers(20, 60)), int(generator.integers(2, 6))
    labels: np.ndarray = generator.integers(classes, size=count)
    if seed % 2:
        labels = (generator.random((count, classes)) < generator.random(classes) / 2) * 1
    names = generator.choice([">=80", "18-79", "<18", "b10", "b9", " ", "-5"], size=count).tolist()
    units = np.unique(generator.integers(count, size=count), return_inverse=True)[1]
    rows = made_rows(labels, {"site": names}, classes=classes, units=units)
    has = {name: rows.rows_with(name) for name in rows.class_names}
    return rows, pd.DataFrame({"unit": units, "group": names, **has})


@pytest.mark.parametrize("seed", range(8))
def test_groups_have_the_rows_and_patients_that_pandas_counts(seed: int) -> None:
    rows, table = drawn_rows(seed)
    least = 1 + seed % 5
    (site,) = groupings.make_groupings(
        rows, groups=None, pairs=(), minimum=Minimum(units=least, positives=1, negatives=1)
    )
    table["group"] = table["group"].replace(" ", "(blank)")
    of_group = table.groupby("group")["unit"]
    assert dict(zip(site.names, site.rows.tolist(), strict=True)) == of_group.size().to_dict()
    units = of_group.nunique().to_dict()
    assert dict(zip(site.names, site.units.tolist(), strict=True)) == units
    assert site.names[-1] == "(blank)"
    assert site.left_out == {
        name: "no group is named"
        if name == "(blank)"
        else f"{count} patient{'s' * (count != 1)}, {least} needed"
        for name, count in units.items()
        if name == "(blank)" or count < least
    }
    labels = rows.recalled_labels
    counts = groupings.label_counts(rows, site, labels)
    for place, group in enumerate(site.names[:-1]):
        mine = table[table["group"] == group]
        for column, label in enumerate(labels):
            for numbers, part in (
                (counts.positives, mine[mine[label]]),
                (counts.negatives, mine[~mine[label]]),
            ):
                assert numbers[place, column] == part["unit"].nunique(), (group, label)


@pytest.mark.parametrize("seed", range(1, 16, 2))
@pytest.mark.parametrize("negatives", [False, True])
def test_labels_and_groups_that_lack_most_are_left_out_one_by_one(
    seed: int, negatives: bool
) -> None:
    """A plain loop applies the rule and gives the reason for each group that is left out."""
    rows, _ = drawn_rows(seed)
    least = Minimum(units=1, positives=1 + seed % 3, negatives=1 + seed % 4)
    (site,) = groupings.make_groupings(rows, groups=None, pairs=(), minimum=least)
    labels = rows.recalled_labels
    counts = groupings.label_counts(rows, site, labels)
    found = groupings.choose_compared(rows, site, labels, counts, least, negatives=negatives)

    def few(group: int, label: int) -> bool:
        lacks = bool(counts.positives[group, label] < least.positives)
        return lacks or (negatives and bool(counts.negatives[group, label] < least.negatives))

    groups = [place for place, name in enumerate(site.names) if name not in site.left_out]
    used, kept = list(range(len(labels))), list(groups)
    while used and kept and any(few(g, k) for g in kept for k in used):
        by_label = [sum(few(g, k) for g in kept) / len(kept) for k in used]
        by_group = [sum(few(g, k) for k in used) / len(used) for g in kept]
        if max(by_label) >= max(by_group):
            used.pop(by_label.index(max(by_label)))
        else:
            kept.pop(by_group.index(max(by_group)))
    assert found.labels == tuple(labels[k] for k in used)
    assert found.left_out.keys() == {
        site.names[g] for g in groups if not used or any(few(g, k) for k in used)
    }
    for name, reason in found.left_out.items():
        if not used:
            assert reason == "no label is in enough units of enough groups"
            continue
        group = site.names.index(name)
        k = next(k for k in used if few(group, k))
        with_it = int(counts.positives[group, k])
        if with_it < least.positives:
            wanted = f"{with_it} patient{'s' * (with_it != 1)} with {labels[k]}, "
            wanted += f"{least.positives} needed"
        else:
            without = int(counts.negatives[group, k])
            wanted = f"{without} patient{'s' * (without != 1)} without {labels[k]}, "
            wanted += f"{least.negatives} needed"
        assert reason == wanted


def test_labels_as_groups_count_the_patients_with_and_without_each() -> None:
    rows, table = drawn_rows(3)
    (classes,) = groupings.make_groupings(rows, groups=("class",), pairs=(), minimum=FEW)
    counts = groupings.label_counts(rows, classes, rows.class_names)
    assert counts.positives.shape == counts.negatives.shape == (len(rows.class_names), 1)
    for place, label in enumerate(rows.class_names):
        has = table[label]
        assert counts.positives[place, 0] == table[has]["unit"].nunique()
        assert counts.negatives[place, 0] == table[~has]["unit"].nunique()
    assert classes.rows.tolist() == [len(table)] * len(rows.class_names)
    assert classes.units.tolist() == [table["unit"].nunique()] * len(rows.class_names)
