"""The contents of runs: params, metrics, tags, notes and artifacts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from dpprobe.artifacts import read_json, write_json, write_table, write_text
from dpprobe.data.table import read_info
from dpprobe.errors import TrackingError
from dpprobe.reporting.headline import verdict
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_record import read_cell
from dpprobe.results.summary import read_grid, rounded_up, summarise_cells
from dpprobe.tracking.receipt import find_store_fault
from dpprobe.tracking.runs import (
    OUTSIDE,
    cell_run,
    class_metrics,
    curve_metrics,
    curve_steps,
    dataset_input,
    metric_name,
    run_name,
)
from tests.support.cell_files import write_cell, write_dataset_info, write_study
from tests.support.tracked_study import Study


def test_each_cell_is_one_complete_run(study: Study) -> None:
    receipt = study.ingest()
    runs = study.runs()
    assert len(runs) == len(study.cells) == 8
    run = runs["study/digits/scattering/sgd/eps-0.5"]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "sgd ε0.5 scattering"
    assert run.data.params == {
        "dataset": "digits", "backbone": "scattering", "method": "sgd", "head": "sgd",
        "epsilon": "0.5", "delta": "1e-05", "seeds": "3", "train_rows": "1000", "dimension": "64",
        "batch_size": "32", "learning_rate": "0.1", "normalize": "none",
    }  # fmt: skip
    record = read_json(study.root / "cells/digits/scattering/sgd/eps-0.5/metrics.json")
    metrics = run.data.metrics
    assert metrics["test/accuracy"] == pytest.approx(
        record["summary"]["accuracy"]["mean"], rel=1e-3
    )
    assert metrics["test/accuracy_low"] < metrics["test/accuracy"] < metrics["test/accuracy_high"]
    assert metrics["privacy/noise_multiplier"] == 1.235
    assert metrics["privacy/epsilon_target"] == 0.5
    assert metrics["privacy/epsilon_realised"] == 0.498
    assert metrics["allows/balanced_accuracy"] == 0.5663  # of 0.566223, up
    assert metrics["allows/tpr_at_fpr_0.001"] == 0.004034
    assert metrics["allows/tpr_at_fpr_0.01"] == 0.02751
    assert set(metrics) >= {"test/macro_accuracy", "test/ece", "per_class_recall/zero"}
    assert run.data.tags["guarantee"] == "(0.5, 1e-05)-DP"
    assert run.inputs is not None
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    assert study.artifacts(run) == [
        "confusion/counts.csv", "confusion/matrix.html", "metrics.json", "privacy.json",
    ]  # fmt: skip
    assert run.info.end_time - run.info.start_time == 1500
    assert receipt["runs"]["study/digits/scattering/sgd/eps-0.5"] == run.info.run_id
    assert (receipt["created"], receipt["replaced"], receipt["kept"]) == (13, 0, 0)


def test_a_cell_without_privacy_says_so(study: Study) -> None:
    study.ingest()
    for key in ("study/digits/pixels/nonprivate/eps-inf", "study/digits/pixels/sgd/eps-inf"):
        run = study.runs()[key]
        assert run.data.tags["guarantee"] == "not private"
        assert not [name for name in run.data.metrics if name.startswith("privacy/")]
        allows = {k: v for k, v in run.data.metrics.items() if k.startswith("allows/")}
        assert set(allows.values()) == {1}
        assert len(allows) == 3
        assert "Nothing limits an attacker" in run.data.tags["mlflow.note.content"]
        assert "delta" not in run.data.params


def test_a_seed_that_diverged_ends_the_curve_of_the_mean(tmp_path: Path) -> None:
    rows = [
        {"step": step, "train_loss": float("nan") if (seed, step) == (1, 20) else 1.0,
         "test_accuracy": 0.5, "test_auc": None}
        for seed in (0, 1) for step in (10, 20)
    ]  # fmt: skip
    write_table(tmp_path / "history.parquet", pa.Table.from_pylist(rows))
    points = curve_metrics(tmp_path / "history.parquet")
    assert [(name, step) for name, _, step in points] == [
        ("curve/train_loss", 10), ("curve/test_accuracy", 10), ("curve/test_accuracy", 20),
    ]  # fmt: skip


def test_a_summary_run_has_accuracy_at_each_epsilon(study: Study) -> None:
    study.ingest()
    runs = study.runs("digits/summary")
    assert sorted(runs) == [
        "study/digits",  # the dataset as a whole
        *(
            f"study/digits/{backbone}/{method}"
            for backbone in ("pixels", "scattering")
            for method in ("nonprivate", "sgd")
        ),
    ]
    run = runs["study/digits/pixels/sgd"]
    cells = study.runs()
    for epsilon in ("0.5", "2", "inf"):
        cell = cells[f"study/digits/pixels/sgd/eps-{epsilon}"]
        accuracy = cell.data.metrics["test/accuracy"]
        assert run.data.metrics[f"accuracy/eps_{epsilon}"] == accuracy
    curve = study.client.get_metric_history(run.info.run_id, "accuracy/by_100_eps")
    assert [point.step for point in curve] == [50, 200]
    assert study.artifacts(run) == [
        "figures/accuracy.png", "figures/tsne_pixels.png", "tables/accuracy.md",
    ]  # fmt: skip
    other = runs["study/digits/scattering/sgd"]
    assert "figures/tsne_pixels.png" not in study.artifacts(other)


def test_epsilons_that_round_to_one_step_keep_a_step_each(study: Study) -> None:
    epsilons = ("0.01", "0.011", "0.014", "0.02", "0.5", "inf")
    cells = [write_cell(study.root / "close", epsilon=epsilon) for epsilon in epsilons]
    study.ingest(metrics_files=cells)
    run = study.runs("digits/summary")["study/digits/pixels/sgd"]
    curve = study.client.get_metric_history(run.info.run_id, "accuracy/by_100_eps")
    expected = [run.data.metrics[f"accuracy/eps_{epsilon}"] for epsilon in epsilons[:-1]]
    assert [point.step for point in curve] == [1, 2, 3, 4, 50]
    assert [point.value for point in curve] == expected


@given(st.sets(st.floats(0.001, 100), max_size=30))
def test_curve_steps_rise_with_epsilon(epsilons: set[float]) -> None:
    steps = curve_steps([*epsilons, float("inf")])
    assert steps.keys() == epsilons
    in_order = [steps[epsilon] for epsilon in sorted(epsilons)]
    assert all(one < other for one, other in pairwise(in_order))
    rounded = {epsilon: round(100 * epsilon) for epsilon in epsilons}
    if len(set(rounded.values())) == len(rounded):
        assert steps == rounded


def test_long_curves_and_odd_class_names_are_logged(study: Study) -> None:
    names = ("a/b", "a?b", ".", "ice cream")
    cell = write_cell(study.root, method="odd", class_names=names)
    steps = range(1200)
    table = pa.table(
        {
            "seed_index": [0] * 1200,
            "step": list(steps),
            "epoch": [0.0] * 1200,
            "train_loss": pa.array([None] * 1200, pa.float64()),
            "test_accuracy": [step / 2000 for step in steps],
            "test_auc": pa.array([None] * 1200, pa.float64()),
        }
    )
    write_table(cell.with_name("history.parquet"), table)
    study.ingest(metrics_files=[cell])
    run = study.runs()["study/digits/pixels/odd/eps-1"]
    recall = {name for name in run.data.metrics if name.startswith("per_class_recall/")}
    assert recall == {f"per_class_recall/{name}" for name in ("a_b 0", "a_b 1", "_", "ice cream")}
    assert len(study.client.get_metric_history(run.info.run_id, "curve/test_accuracy")) == 1200
    assert "curve/train_loss" not in run.data.metrics


def test_names_that_become_one_keep_a_metric_each() -> None:
    names = ["a/", "a?", "a_ 0", "b"]
    seeds = [{"recall": [0.1, 0.2, 0.3, 0.4]}]
    metrics = class_metrics(names, seeds, "recall")
    assert sorted(metrics.values(), key=str) == [0.1, 0.2, 0.3, 0.4]


@given(st.text(max_size=200))
def test_any_class_name_becomes_a_legal_metric(text: str) -> None:
    name = f"per_class_recall/{metric_name(text)}"
    _validate_metric_name(name)
    assert name.count("/") == 1
    assert len(name) <= 250


@given(st.lists(st.from_regex(r"[a-z0-9][a-z0-9_]{0,40}", fullmatch=True), min_size=1, max_size=3))
def test_run_names_fit_and_keep_both_ends_of_each_word(words: Sequence[str]) -> None:
    name = run_name(*words)
    assert len(name) <= 22
    parts = name.split(" ")
    assert len(parts) == len(words)
    for part, word in zip(parts, words, strict=True):
        assert part == word or (part[0] == word[0] and part[-1] in (word[-1], "…"))


def test_a_multi_label_dataset_is_tracked_by_its_auc(study: Study) -> None:
    names = ("round", "even", "absent")
    cells = write_study(
        study.root / "labels", backbones=["pixels"], methods=["sgd"], epsilons=("0.5", "2", "inf"),
        multi_label=True, class_names=names,
    )  # fmt: skip
    study.ingest(metrics_files=cells)
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    record = read_json(study.root / "labels/cells/digits/pixels/sgd/eps-2/metrics.json")
    auc = record["summary"]["auc"]
    assert run.data.metrics["test/auc"] == pytest.approx(auc["mean"], rel=1e-3)
    assert run.data.metrics["test/auc_low"] == pytest.approx(auc["low"], rel=1e-3)
    for name in ("mean_average_precision", "exact_match_accuracy", "accuracy", "ece"):
        assert f"test/{name}" in run.data.metrics
    labels = {name for name in run.data.metrics if name.startswith("per_label_auc/")}
    assert labels == {"per_label_auc/round", "per_label_auc/even"}
    assert (
        f"mean AUC over 2 of 3 labels {100 * auc['mean']:.1f}%"
        in run.data.tags["mlflow.note.content"]
    )
    curve = study.client.get_metric_history(run.info.run_id, "curve/test_auc")
    assert curve[-1].value == pytest.approx(auc["mean"], rel=1e-3)
    view = study.view("digits")
    assert "metrics.`test/auc`" in view["selectedColumns"]
    assert "metrics.`test/macro_accuracy`" not in view["selectedColumns"]
    assert view["orderByKey"] == "metrics.`test/auc`"
    whole = study.runs("digits/summary")["study/digits/pixels/sgd"]
    for epsilon in ("0.5", "2", "inf"):
        assert f"auc/eps_{epsilon}" in whole.data.metrics
        assert f"mean_average_precision/eps_{epsilon}" in whole.data.metrics
    points = study.client.get_metric_history(whole.info.run_id, "auc/by_100_eps")
    assert [point.step for point in points] == [50, 200]
    summary = study.view("digits/summary")
    assert [name for name in summary["selectedColumns"] if name.startswith("metrics")] == [
        f"metrics.`auc/eps_{epsilon}`" for epsilon in ("0.5", "2", "inf")
    ]


def test_two_classes_log_their_auc_beside_the_accuracy(study: Study) -> None:
    cell = write_cell(study.root / "two", class_names=("no", "yes"))
    study.ingest(metrics_files=[cell])
    run = study.runs()["study/digits/pixels/sgd/eps-1"]
    assert {"test/accuracy", "test/auc", "curve/test_auc"} <= set(run.data.metrics)
    assert "metrics.`test/auc`" in study.view("digits")["selectedColumns"]
    shown = write_cell(study.root / "chosen", class_names=("no", "yes"), headline="auc", note="x")
    study.ingest(metrics_files=[shown])
    assert study.view("digits")["orderByKey"] == "metrics.`test/auc`"


def test_tags_tell_the_runs_apart(study: Study) -> None:
    study.ingest(commit="0123abc")

    def count(filter_string: str) -> int:
        return len(study.all_runs(filter_string=filter_string))

    assert count('tags.dataset = "digits"') == 8
    assert count('tags.private = "true"') == 4
    assert count('tags.private = "false" and tags.method = "nonprivate"') == 2
    assert count('tags.backbone = "pixels" and tags.epsilon = "0.5"') == 1
    assert count('tags.mlflow.source.git.commit = "0123abc"') == 8
    summary = study.runs("digits/summary")["study/digits/pixels/sgd"]
    assert summary.data.tags["private"] == "mixed"
    assert summary.data.tags["backbone"] == "pixels"


def test_a_run_with_a_delta_above_one_over_n_is_tagged(study: Study) -> None:
    path = study.root / "cells/digits/pixels/sgd/eps-0.5/metrics.json"
    write_json(path, read_json(path) | {"n": 200_000})
    study.ingest()
    tagged = {key for key, run in study.runs().items() if "delta_above_one_over_n" in run.data.tags}
    assert tagged == {"study/digits/pixels/sgd/eps-0.5"}
    run = study.runs()["study/digits/pixels/sgd/eps-0.5"]
    assert run.data.tags["delta_above_one_over_n"] == "true"
    assert run.data.tags["guarantee"] == "(0.5, 1e-05)-DP, delta above 1/n"


def test_a_note_begins_with_one_line_and_holds_the_guarantee(study: Study) -> None:
    study.ingest()
    notes = {
        key: run.data.tags["mlflow.note.content"].splitlines() for key, run in study.runs().items()
    }
    note = notes["study/digits/pixels/sgd/eps-2"]
    first, blank, promise, _, allows, _, release, _, outside = note
    assert first.startswith("sgd on pixels features of digits, (2, 1e-05)-DP: accuracy ")
    assert blank == ""
    assert "(2, 1e-05)-differentially private" in promise
    assert "guesses right at most 56.7% of the time" in allows
    assert release.startswith("Not for release")
    assert outside == OUTSIDE


def test_the_confusion_matrix_is_that_of_the_predictions(study: Study) -> None:
    study.ingest()
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    folder = Path(run.info.artifact_uri.removeprefix("file://"), "confusion")
    rows = [line.split(",") for line in (folder / "counts.csv").read_text().splitlines()]
    counts = [[int(value) for value in row[1:]] for row in rows[1:]]
    right = sum(counts[k][k] for k in range(4)) / sum(map(sum, counts))
    assert run.data.metrics["test/accuracy"] == pytest.approx(right, rel=1e-3)
    assert "ε = 2" in (folder / "matrix.html").read_text()


def test_labels_have_counts_and_many_classes_have_none(study: Study) -> None:
    labels = write_cell(study.root / "a", multi_label=True, class_names=("x", "y", "z"))
    study.ingest(metrics_files=[labels])
    run = study.runs()["study/digits/pixels/sgd/eps-1"]
    assert study.artifacts(run)[0] == "confusion/counts.csv"
    assert "confusion/matrix.html" not in study.artifacts(run)
    many = write_cell(study.root / "b", class_names=[f"c{k}" for k in range(101)], note="many")
    study.ingest(metrics_files=[many])
    run = study.runs()["study/digits/pixels/sgd/eps-1"]
    assert study.artifacts(run) == ["metrics.json", "privacy.json"]


def test_damaged_predictions_are_named(study: Study) -> None:
    path = study.root / "cells/digits/pixels/sgd/eps-2/predictions.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(TrackingError, match="eps-2/predictions.parquet: unreadable"):
        study.ingest()


def test_a_study_is_one_run_with_its_report_and_tables(study: Study) -> None:
    for name in ("tables/accuracy.md", "tables/papers/table_2.md"):
        write_text(study.root / name, name)
    receipt = study.ingest_whole()
    run = study.runs("all studies")["study"]
    assert run.info.run_name == "study"
    assert study.artifacts(run) == [
        "report.html", "tables/accuracy.md", "tables/papers/table_2.md",
    ]  # fmt: skip
    cells = sorted((study.root / "cells").rglob("metrics.json"))
    summarise_cells(cells, study.root / "again.parquet", study="study")
    best = best_private(read_grid([study.root / "again.parquet"]), {})[0]
    assert run.data.metrics["digits/best_private_eps_0.5"] == pytest.approx(
        best.entry.mean / 100, rel=1e-3
    )
    assert {"digits/gap_eps_0.5", "digits/gap_eps_2"} <= set(run.data.metrics)
    price = run.data.metrics["digits/choice_epsilon_eps_0.5"]
    assert price > 0.5
    note = run.data.tags["mlflow.note.content"]
    assert f"- digits: {verdict(best)}" in note
    assert "Selected from 2 private heads by test results, so" in note
    assert f"Publishing this selection costs at most ε = {rounded_up(price):g}." in note
    assert run.data.params["cells"] == "8"
    assert "8 cells on digits" in run.data.tags["mlflow.note.content"].splitlines()[0]
    assert run.inputs is not None
    (dataset,) = (item.dataset for item in run.inputs.dataset_inputs)
    assert dataset.name == "digits"
    assert json.loads(dataset.profile or "") == {"train_rows": 1000, "test_rows": 200}
    assert "viewStateShareKey" in receipt["pages"]["studies"]
    chosen = 'params.datasets LIKE "%digits%"'
    assert len(study.client.search_runs([run.info.experiment_id], chosen)) == 1
    assert not find_store_fault(study.root / "_study.json")
    assert study.ingest_whole()["kept"] == 1
    write_text(study.root / "report.html", "<html>changed</html>")
    assert study.ingest_whole()["replaced"] == 1
    path = write_cell(study.root, epsilon="0.5", quality=9.0)
    assert path in study.cells
    assert study.ingest_whole()["replaced"] == 1, "another result, in the same report and tables"


def test_a_run_of_several_cells_says_whether_all_are_private(study: Study) -> None:
    study.ingest()
    study.ingest_whole()
    tags = {key: run.data.tags for key, run in study.runs("digits/summary").items()}
    assert tags["study/digits/pixels/sgd"]["private"] == "mixed", "it has epsilon inf too"
    assert tags["study/digits/pixels/nonprivate"]["private"] == "false"
    whole = study.runs("all studies")["study"].data.tags
    assert whole["private"] == "mixed"
    notes = [each["mlflow.note.content"] for each in (*tags.values(), whole)]
    notes += [run.data.tags["mlflow.note.content"] for run in study.runs().values()]
    assert all(OUTSIDE in note for note in notes)
    private = [path for path in study.cells if path.parts[-3:-1] == ("sgd", "eps-2")]
    study.ingest(metrics_files=private)
    assert study.runs("digits/summary")["study/digits/pixels/sgd"].data.tags["private"] == "true"


def test_a_dataset_with_other_rows_has_another_digest(tmp_path: Path) -> None:
    for note in ("", "changed"):
        info = read_info(write_dataset_info(tmp_path / "dataset.json", note=note))
        assert dataset_input("digits", info).dataset.digest == info.fingerprint[:36]


def test_a_run_counts_the_patients_that_a_dataset_names(tmp_path: Path) -> None:
    source = dataset_input("digits", read_info(write_dataset_info(tmp_path / "dataset.json")))
    params = []
    for patients in (40, None):
        path = write_cell(tmp_path / str(patients), patients=patients)
        params.append(cell_run(path, read_cell(path), "study", {}, source).params)
    assert (params[0]["train_patients"], params[0]["test_patients"]) == ("200", "40")
    assert "test_patients" not in params[1]
