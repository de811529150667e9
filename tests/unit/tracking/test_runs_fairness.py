"""Gaps between subgroups in the runs of their cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fairness_records import APART, RECORD, write_fairness
from tests.support.tracked_study import Study

KEY = "study/digits/pixels/sgd/eps-0.5"


def record(root: Path, **gap: float) -> Path:
    return write_fairness(root, names={"ink": "sex / age", "bold": "f", "thin": "m"}, gap=gap)


def test_gaps_are_metrics_of_the_runs_of_their_cells(study: Study) -> None:
    study.ingest(fairness=[record(study.root)])
    shown = {"ink": "sex _ age", "side": "side"}
    seen = 0
    for key, run in study.runs().items():
        *_, backbone, method, epsilon = key.split("/")
        cell = RECORD.find_cell(method, epsilon.removeprefix("eps-"))
        expected = {
            f"fairness/{shown[each.attribute]}_auc_{part}": value
            for each in (cell.attributes if cell and backbone == "pixels" else ())
            for part in (*APART, "worst")
            if (value := getattr(each.gaps["auc"], part)) is not None
        }
        told = {name: each for name, each in run.data.metrics.items() if name.startswith("fair")}
        assert told == pytest.approx(expected, rel=1e-3), key
        seen += bool(expected)
    assert seen == 3
    summary = study.runs("digits/summary")["study/digits/pixels/sgd"]
    assert "fairness/pixels.json" in study.artifacts(summary)


def test_a_gap_that_changes_renews_the_runs_that_show_it(study: Study) -> None:
    before = study.ingest(fairness=[record(study.root)])["runs"]
    assert study.ingest(fairness=[record(study.root)])["replaced"] == 0
    after = study.ingest(fairness=[record(study.root, gap=0.5)])["runs"]
    changed = {key for key, run in after.items() if before[key] != run}
    assert KEY in changed
    assert "study/digits/pixels/sgd/eps-1" not in changed
