"""Zero-shot classifiers and few-shot probes have runs, and so has the dataset as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.files.json_files import read_json, write_json
from dpprobe.tracking.baseline_runs import dataset_run, list_baseline_runs
from dpprobe.tracking.runs import RunContents
from tests.support.baseline_records import write_few_shot, write_zero_shot

SHARED = {"study": "s"}


@pytest.fixture
def runs(tmp_path: Path) -> list[RunContents]:
    """Returns runs of two zero-shot classifiers, the second with two metrics, and three probes."""
    zero = [write_zero_shot(tmp_path, accuracy=0.7), write_zero_shot(tmp_path, backbone="b", auc=1)]
    record = read_json(zero[1])
    both = read_json(zero[0])["summary"] | record["summary"]  # the second is the headline
    prompts = {"set": "own", "templates": ["{c}", "a {c}"]}
    write_json(zero[1], record | {"prompts": prompts, "summary": both})
    few = [write_few_shot(tmp_path, {1: 0.5, 16: 0.8, None: 0.9})]
    return list_baseline_runs(zero, few, study="s", shared_tags=SHARED, source=Mock())


def test_each_classifier_and_each_number_of_images_is_a_run(runs: list[RunContents]) -> None:
    zero, few = ("pixels", "b"), ("1", "16", "full")
    keys = [*(f"{name}/zero_shot" for name in zero), *(f"pixels/few_shot/{n}" for n in few)]
    assert [run.key for run in runs] == [f"s/digits/{key}" for key in keys]
    names = [*(f"zero-shot {name}" for name in zero), *(f"few-shot-{n} pixels" for n in few)]
    assert [run.name for run in runs] == names
    for run in runs:
        assert run.tags["private"] == "false"
        assert run.tags["guarantee"] == "not private"
        assert run.tags["release"] == "not for release"
        assert (run.tags["compared"], run.tags["study"]) == ("true", "s")
        for name in ("dataset", "backbone", "method", "epsilon"):
            assert run.tags[name] == run.params[name]
        assert run.params["epsilon"] == "none"
    assert len({run.tags["mlflow.runColor"] for run in runs}) == 5
    assert len({run.content_hash for run in runs}) == 5


def test_baseline_metrics_are_logged_as_test_metrics_and_under_their_baseline(
    runs: list[RunContents],
) -> None:
    parts = {
        "": 0.5,
        "_std": 0.01,
        "_low": 0.48,
        "_high": 0.52,
        "_rows_low": 0.47,
        "_rows_high": 0.53,
    }
    expected = {
        f"{prefix}/accuracy{part}": value
        for prefix in ("test", "few_shot/1")
        for part, value in parts.items()
    }
    assert {name: value for name, value, _ in runs[2].metrics} == pytest.approx(expected)
    both = {name for name, _, _ in runs[1].metrics}
    assert {"test/auc", "zero_shot/auc", "zero_shot/accuracy"} <= both


def test_the_run_of_a_dataset_has_the_metrics_of_all_baselines(
    runs: list[RunContents], tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_text("a")
    given: dict[str, Any] = {
        "dataset": "digits",
        "study": "s",
        "shared_tags": SHARED,
        "artifacts": [(tmp_path / "a.png", "figures")],
        "source": Mock(),
        "finished": 5.0,
    }
    run = dataset_run(runs, **given)
    assert (run.key, run.name, run.finished) == ("s/digits", "digits", 5.0)
    expected = [
        (f"{each.params['backbone']}/{name}", value, step)
        for each in runs
        for name, value, step in each.metrics
        if not name.startswith("test/")
    ]
    assert run.metrics == expected
    assert ("b/zero_shot/auc", 1.0, 0) in expected
    assert run.tags == {"study": "s", "dataset": "digits", "private": "mixed"}
    (tmp_path / "a.png").write_text("b")
    assert dataset_run(runs, **given).content_hash != run.content_hash
    assert dataset_run(runs[1:], **given).content_hash != run.content_hash
