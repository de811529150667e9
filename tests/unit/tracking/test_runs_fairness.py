"""Gaps between subgroups in the runs of their cells."""

from __future__ import annotations

from pathlib import Path

from tests.support.fairness_records import APART, write_fairness
from tests.support.tracked_study import Study

KEY = "study/digits/pixels/sgd/eps-0.5"


def record(root: Path, **gap: float) -> Path:
    names = {"ink": "sex / age", "bold": "f", "thin": "m"}
    return write_fairness(root, names=names, gap=APART | {"worst": 0.79} | gap)


def test_gaps_are_metrics_of_the_cell_s_run(study: Study) -> None:
    study.ingest(fairness=[record(study.root)])
    metrics = study.runs()[KEY].data.metrics
    shown = {name: value for name, value in metrics.items() if name.startswith("fairness/sex")}
    assert shown == {
        "fairness/sex _ age_auc_gap": 0.06,
        "fairness/sex _ age_auc_low": 0.025,
        "fairness/sex _ age_auc_high": 0.09,
        "fairness/sex _ age_auc_chance_gap": 0.03,
        "fairness/sex _ age_auc_worst": 0.79,
        "fairness/sex _ age_auc_difference": 0.03,
        "fairness/sex _ age_auc_difference_low": 0.01,
        "fairness/sex _ age_auc_difference_high": 0.05,
    }
    assert metrics["fairness/side_auc_gap"] == 0.06
    summary = study.runs("digits/summary")["study/digits/pixels/sgd"]
    assert "fairness/pixels.json" in study.artifacts(summary)


def test_a_gap_that_changes_renews_the_runs_that_show_it(study: Study) -> None:
    before = study.ingest(fairness=[record(study.root)])["runs"]
    assert study.ingest(fairness=[record(study.root)])["replaced"] == 0
    after = study.ingest(fairness=[record(study.root, gap=0.5)])["runs"]
    changed = {key for key, run in after.items() if before[key] != run}
    assert KEY in changed
    assert "study/digits/pixels/sgd/eps-1" not in changed
