"""Zero-shot and few-shot baselines as runs beside the cells of their dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.baseline_records import write_few_shot, write_zero_shot
from tests.support.tracked_study import Study

ZERO = "study/digits/pixels/zero_shot"


def baselines(root: Path, **accuracies: float) -> dict[str, Any]:
    few = {1: accuracies.get("one", 0.5), 16: 0.8, None: 0.9}
    return {
        "zero_shot": [write_zero_shot(root, accuracy=accuracies.get("zero", 0.7))],
        "few_shot": [write_few_shot(root, few)],
    }


@pytest.fixture
def ingested(study: Study) -> Study:
    study.ingest(**baselines(study.root))
    return study


def test_one_view_has_the_baselines_and_the_cells_beside_them(ingested: Study) -> None:
    view = ingested.view("digits", "dpprobe-baselines")
    order = [f"{view['orderByKey']} DESC"]
    found = ingested.all_runs(filter_string=view["searchFilter"], order_by=order)
    assert {run.data.params["epsilon"] for run in found} == {"none", "0.5"}
    keys = {run.data.tags["result_key"] for run in found}
    assert len(found) == 5
    assert {key for key in keys if "/eps-" in key} == {"study/digits/pixels/sgd/eps-0.5"}
    values = [run.data.metrics["test/accuracy"] for run in found]
    assert values == sorted(values, reverse=True)
    first = ingested.view("digits")["searchFilter"]
    at = {run.data.params["epsilon"] for run in ingested.all_runs(filter_string=first)}
    assert at == {"0.5"}, "the first page compares cells at one epsilon"


def test_a_changed_baseline_renews_its_run_alone(study: Study) -> None:
    before = study.ingest(**baselines(study.root))["runs"]
    again = study.ingest(**baselines(study.root))
    assert (again["created"], again["replaced"]) == (0, 0)
    after = study.ingest(**baselines(study.root, zero=0.6))["runs"]
    assert {key for key, run in after.items() if before[key] != run} == {ZERO, "study/digits"}
    # the probe of one image and the other two are of one file
    last = study.ingest(**baselines(study.root, zero=0.6, one=0.4))["runs"]
    assert ZERO not in {key for key, run in last.items() if after[key] != run}


def test_a_baseline_that_the_study_no_longer_has_is_not_current(study: Study) -> None:
    study.ingest(**baselines(study.root))
    study.ingest()
    tags = {key: run.data.tags["current"] for key, run in study.runs().items()}
    assert {key for key, current in tags.items() if current == "false"} == {
        ZERO, *(f"study/digits/pixels/few_shot/{shots}" for shots in ("1", "16", "full")),
    }  # fmt: skip


def test_another_dataset_changes_no_run(study: Study) -> None:
    before = study.ingest(**baselines(study.root))["runs"]
    other = study.root / "other"
    study.ingest(
        dataset="letters", metrics_files=[], receipt=other / "receipt.json", figures=[],
        embeddings={}, tables=[],
        zero_shot=[write_zero_shot(other, accuracy=0.4, dataset="letters")],
    )  # fmt: skip
    assert study.ingest(**baselines(study.root))["runs"] == before
