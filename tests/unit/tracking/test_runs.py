"""Runs have the right params, metrics, tags, notes and artifacts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.errors import TrackingError
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import read_json, write_json
from dpprobe.files.table_files import write_table
from dpprobe.privacy.statement_words import explain_statement
from dpprobe.results.cell_files import HISTORY_FILE
from dpprobe.results.cell_record import read_cell
from dpprobe.results.summary import read_grid, summarise_cells
from dpprobe.tracking import release_registry, runs
from dpprobe.tracking.receipt import find_store_fault, hash_rows
from dpprobe.tracking.runs import cell_run, curve_metrics
from tests.conftest import REPOSITORY
from tests.support.audit_records import MEMBERSHIP, WHITE_BOX, write_audit
from tests.support.cell_files import write_cell, write_study
from tests.support.fairness_records import write_fairness
from tests.support.tracked_study import Study

FIRST = "study/digits/pixels/sgd/eps-0.5"


def test_each_cell_is_one_complete_run(study: Study) -> None:
    receipt = study.ingest()
    runs = study.runs()
    assert len(runs) == len(study.cells) == 8
    run = runs["study/digits/scattering/sgd/eps-0.5"]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "sgd ε0.5 scattering"
    assert (run.data.params["delta"], run.data.params["train_rows"]) == ("1e-05", "1000")
    assert run.data.metrics["allows/balanced_accuracy"] == 0.5663  # 0.566223, rounded up
    assert run.inputs is not None
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    assert study.artifacts(run) == [
        "confusion/counts.csv",
        "confusion/matrix.html",
        "metrics.json",
        "privacy.json",
    ]
    assert run.info.end_time - run.info.start_time == 1500
    assert receipt["runs"]["study/digits/scattering/sgd/eps-0.5"] == run.info.run_id
    assert (receipt["created"], receipt["replaced"], receipt["kept"]) == (13, 0, 0)


def test_an_audit_renews_the_run_only_of_its_cell(study: Study) -> None:
    before = study.ingest()["runs"]
    path = write_audit(study.root, epsilon="0.5")
    receipt = study.ingest(audits=[path])
    assert (receipt["replaced"], receipt["created"]) == (1, 0)
    assert {key for key, run in receipt["runs"].items() if before[key] != run} == {FIRST}
    assert study.ingest(audits=[path])["replaced"] == 0
    write_json(path, read_json(path) | {"white_box": {**WHITE_BOX, "epsilon_lower": 0.1}})
    assert study.ingest(audits=[path])["replaced"] == 1
    run = study.runs()[FIRST]
    assert run.data.metrics["audit/epsilon_lower"] == 0.1
    assert "audit/eps-0.5.json" in study.artifacts(run)
    assert "audit/epsilon_lower" in str(study.view("digits"))


def write_gaps(root: Path, **gap: float) -> Path:
    return write_fairness(root, names={"ink": "sex / age", "bold": "f", "thin": "m"}, gap=gap)


def test_a_gap_that_changes_renews_the_runs_that_show_it(study: Study) -> None:
    before = study.ingest(fairness=[write_gaps(study.root)])["runs"]
    assert study.ingest(fairness=[write_gaps(study.root)])["replaced"] == 0
    after = study.ingest(fairness=[write_gaps(study.root, gap=0.5)])["runs"]
    changed = {key for key, run in after.items() if before[key] != run}
    assert FIRST in changed
    assert "study/digits/pixels/sgd/eps-1" not in changed


def test_a_seed_that_diverged_ends_the_curve_of_the_mean(tmp_path: Path) -> None:
    rows = [
        {
            "step": step,
            "train_loss": {20: math.nan, 30: math.inf}.get(step * seed, 1.0),
            "test_accuracy": 0.5,
            "test_auc": None,
        }
        for seed in (0, 1)
        for step in (10, 20, 30)
    ]
    write_table(tmp_path / "history.parquet", pa.Table.from_pylist(rows))
    points = curve_metrics(tmp_path / "history.parquet")
    assert [(name, step) for name, _, step in points] == [
        ("curve/train_loss", 10),
        ("curve/test_accuracy", 10),
        ("curve/test_accuracy", 20),
        ("curve/test_accuracy", 30),
    ]


def test_damaged_predictions_are_named(study: Study) -> None:
    folder = study.root / "cells/digits/pixels/sgd/eps-2"
    record = read_cell(folder / "metrics.json")
    run = cell_run(folder / "metrics.json", record, "s", {}, Mock())
    draw, read = run.drawn["confusion/counts.csv"], partial(curve_metrics, folder / HISTORY_FILE)
    for name, call in (("predictions.parquet", draw), (HISTORY_FILE, read)):
        for damage in (lambda path: path.write_bytes(b"not parquet"), Path.unlink):
            damage(folder / name)
            with pytest.raises(TrackingError, match=f"eps-2/{name}: unreadable"):
                call()


def test_a_study_is_one_run_with_its_report_and_tables(study: Study) -> None:
    for name in ("tables/accuracy.md", "tables/papers/table_2.md"):
        write_text(study.root / name, name)
    receipt = study.ingest_whole()
    run = study.runs("all studies")["study"]
    assert run.info.run_name == "study"
    assert study.artifacts(run) == ["report.html", "tables/accuracy.md", "tables/papers/table_2.md"]
    assert {"digits/gap_eps_0.5", "digits/gap_eps_2"} <= set(run.data.metrics)
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


# Runs of cells, summaries and studies contain the numbers and words of their records.


ROWS = REPOSITORY / "tests/stored/mlflow_rows.json"
SOURCE: Any = Mock()
ENDS = [f"{kind}{end}" for kind in ("", "rows_", "both_") for end in ("low", "high")]


def _run(path: Path, *more: Any, change: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Returns the run of a cell, after `change` has edited its record."""
    if change is not None:
        record = read_json(path)
        change(record)
        write_json(path, record)
    return runs.cell_run(path, read_cell(path), "s", {"study": "s"}, SOURCE, *more)


def _metrics(run: Any) -> dict[str, float]:
    assert len({name for name, _, _ in run.metrics}) == len(run.metrics)
    return {name: value for name, value, _ in run.metrics}


def test_rows_of_mlflow_have_the_names_that_others_read(tmp_path: Path) -> None:
    """Users' queries and dashboards read these names, so the stored file is only edited by hand."""
    paths = [write_cell(tmp_path, epsilon=epsilon) for epsilon in ("1", "8", "inf")]
    write_text(tmp_path / "report.html", "report")
    summarise_cells(paths, tmp_path / "s.parquet", study="s")
    made = {
        "cell": _run(paths[0]),
        "summary": runs.summary_run([(p, read_cell(p)) for p in paths], "s", {}, SOURCE),
        "study": runs.study_run(
            "s", read_grid([tmp_path / "s.parquet"]), {}, [(tmp_path / "report.html", "")]
        ),
    }
    found = {
        name: {
            "key": run.key,
            "name": run.name,
            "params": run.params,
            "tags": sorted(run.tags),
            "metrics": [f"{metric} at {step}" for metric, _, step in run.metrics],
            "files": [f"{folder}/{path.name}" for path, folder in run.artifacts],
            "drawn": sorted(run.drawn),
        }
        for name, run in made.items()
    }
    assert found == json.loads(ROWS.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"epsilon": "inf", "method": "nonprivate"},
        {"multi_label": True, "class_names": ("round", "e/ven", "absent")},
        {"class_names": ("no", "no"), "headline": "auc"},
        {"class_names": [f"c{k}" for k in range(100)]},
        {"class_names": [f"c{k}" for k in range(101)]},
    ],
    ids=["plain", "ceiling", "labels", "two alike", "hundred classes", "more classes"],
)
def test_metrics_are_the_record_s_with_four_digits(tmp_path: Path, kind: dict[str, Any]) -> None:
    path = write_cell(tmp_path, **kind)
    record, found = read_cell(path), _metrics(_run(path))
    titles = {"expected_calibration_error": "ece"}
    for name, entry in record.summary.items():
        title = f"test/{titles.get(name, name)}"
        for part in ("mean", "std", *ENDS):
            value = getattr(entry, part)
            key = title if part == "mean" else f"{title}_{part}"
            if value is None or name.startswith("per_"):
                assert key not in found
            else:
                assert found[key] == pytest.approx(value, rel=5e-4), key
                assert float(f"{found[key]:.4g}") == found[key]
    assert found["test/constant_accuracy"] == pytest.approx(record.constant_accuracy, rel=5e-4)
    shown = "per_label_auc" if record.multi_label else "per_class_recall"
    every = np.array([seed[shown] for seed in record.seeds], dtype=float).mean(axis=0)
    least = found["test/least_label_auc" if record.multi_label else "test/least_recall"]
    assert least == pytest.approx(np.nanmin(every), rel=5e-4)
    listed = [value for name, value in found.items() if name.startswith(f"{shown}/")]
    known = every[~np.isnan(every)]
    assert listed == ([] if len(every) > 100 else pytest.approx(known, rel=5e-4))
    assert ("privacy/epsilon_target" in found) == record.private
    assert found["time/train_seconds"] == 1.5
    if record.private:
        assert record.realised_epsilon is not None
        assert found["privacy/epsilon_realised"] >= record.realised_epsilon, "rounded up"
        assert found["privacy/noise_multiplier"] == 1.235
    else:
        assert not any(name.startswith("privacy/") for name in found)


def test_params_are_the_cell_s_and_the_method_s_options(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["options"] |= {"init_scale": None, "flag": True, "size": [1, 2], "delta": "auto"}

    run = _run(write_cell(tmp_path, patients=40, seeds=1, epsilon="0.25"), change=change)
    assert run.params == {
        "dataset": "digits",
        "backbone": "pixels",
        "method": "sgd",
        "epsilon": "0.25",
        "head": "sgd",
        "seeds": "1",
        "train_rows": "1000",
        "dimension": "64",
        "train_patients": "200",
        "test_patients": "40",
        "delta": "1e-05",
        "normalize": "none",
        "batch_size": "32",
        "learning_rate": "0.1",
        "flag": "true",
        "size": "[1, 2]",
        "option_delta": "auto",
    }
    assert "delta" not in _run(write_cell(tmp_path, epsilon="inf")).params


def _risk(record: dict[str, Any]) -> None:
    record["cell"]["epsilon"] = "tpr-0.01-at-0.001"


@pytest.mark.parametrize(
    ("kind", "change", "guarantee", "private"),
    [
        ({}, None, "(1, 1e-05)-DP", "true"),
        ({"epsilon": "inf"}, None, "not private", "false"),
        ({}, lambda r: r.update(n=200_000), "(1, 1e-05)-DP, delta above 1/n", "true"),
        ({}, _risk, "(0.996, 1e-05)-DP, TPR 0.01 at FPR 0.001", "true"),
    ],
    ids=["plain", "infinite", "delta above", "risk"],
)
def test_the_tags_and_note_of_a_run_state_its_privacy_guarantee(
    tmp_path: Path, kind: dict[str, Any], change: Any, guarantee: str, private: str
) -> None:
    run = _run(write_cell(tmp_path, **kind), change=change)
    assert (run.tags["guarantee"], run.tags["private"]) == (guarantee, private)
    assert f"sgd on pixels features of digits, {guarantee}: accuracy" in run.note
    above = "above" in guarantee
    assert (run.tags.get("delta_above_one_over_n") == "true") == above
    assert run.tags["release"] == "not for release"


def test_a_run_note_states_the_guarantee_its_attack_limits_and_its_exclusions(
    tmp_path: Path,
) -> None:
    path = write_cell(tmp_path)
    statement = read_json(path.with_name("privacy.json"))
    run = _run(path)
    mean, words = 100 * read_cell(path).mean, explain_statement(statement)
    expected = [
        f"sgd on pixels features of digits, (1, 1e-05)-DP: accuracy {mean:.1f}%, mean of 3 seeds.",
        words.promise,
        words.attacks,
        words.mode,
        runs.OUTSIDE,
    ]
    assert run.note.split("\n\n") == expected
    write_json(path.with_name("privacy.json"), statement | {"mode": "release"})
    assert _run(path).tags["release"] == "release"
    found = _metrics(run)
    allows = statement["allows"]
    assert found["allows/balanced_accuracy"] >= allows["balanced_accuracy"]
    for rate, value in allows["true_positives"].items():
        assert value <= found[f"allows/tpr_at_fpr_{rate}"] < value * 1.001


def test_never_predicted_classes_are_tagged_and_noted_for_the_best_head(
    tmp_path: Path,
) -> None:
    def change(record: dict[str, Any]) -> None:
        for number, seed in enumerate(record["seeds"]):
            seed["never_predicted"] = [2, 1][: number + 1]

    path = write_cell(tmp_path, seeds=2)
    assert "never_predicted" not in _run(path).tags
    assert _run(path, change=change).tags["never_predicted"] == "one, two"
    write_text(tmp_path / "report.html", "report")
    summarise_cells([path], tmp_path / "s.parquet", study="s")
    grid = read_grid([tmp_path / "s.parquet"])
    run = runs.study_run("s", grid, {}, [(tmp_path / "report.html", "")])
    assert "Never predicted: two in all 2 seeds, and one in 1 of 2 seeds." in run.note


def test_an_audit_adds_its_numbers_words_and_file(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    plain = _run(path)
    boxes = {
        "both": write_audit(tmp_path / "both", membership=MEMBERSHIP),
        "attacks": write_audit(tmp_path / "attacks", white_box=None, membership=MEMBERSHIP),
        "games": write_audit(tmp_path / "games"),
    }
    for name, file in boxes.items():
        audit = AuditRecord.read(file)
        run = _run(path, (file, audit))
        added = {k: v for k, v in _metrics(run).items() if k not in _metrics(plain)}
        expected: dict[str, Any] = {}
        if audit.white_box is not None:
            box = audit.white_box
            expected = {
                "audit/epsilon_lower": box.epsilon_lower,
                "audit/confidence": box.confidence,
                "audit/caught_factor": box.caught_factor,
            }
            assert audit.in_words in run.note
        else:
            assert run.note == plain.note
        if audit.membership is not None:
            attack = audit.membership.find_attack()
            assert attack is not None
            expected |= {"attack/auc": attack.auc}
            expected |= {"attack/tpr_at_fpr_0.001": attack.tpr_at_fpr["0.001"]}
        assert added == pytest.approx(expected, rel=5e-4), name
        assert run.artifacts == [*plain.artifacts, (file, "audit")]
        assert run.content_hash != plain.content_hash
    rare = [row | {"tpr_at_fpr": {"0.01": 0.2}} for row in MEMBERSHIP["rows"]]
    file = write_audit(tmp_path / "rare", membership=MEMBERSHIP | {"rows": rare})
    assert "attack/tpr_at_fpr_0.001" not in _metrics(_run(path, (file, AuditRecord.read(file))))


def test_a_summary_has_each_metric_at_each_epsilon_in_order(tmp_path: Path) -> None:
    epsilons = ("10", "0.5", "inf", "8", "0.503")
    paths = write_study(tmp_path, backbones=["b"], methods=["sgd"], epsilons=epsilons)
    records = {path: read_cell(path) for path in paths}
    run = runs.summary_run([*records.items()], "s", {"study": "s"}, SOURCE)
    ordered = sorted(records.values(), key=lambda each: float(each.cell.epsilon))
    expected = []
    for record, step in zip(ordered, (50, 51, 800, 1000, None), strict=True):
        for name in ("accuracy", "macro_accuracy"):
            value = float(f"{record.summary[name].mean:.4g}")
            expected.append((f"{name}/eps_{record.cell.epsilon}", value, 0))
            if step is not None:
                expected.append((f"{name}/by_100_eps", value, step))
    assert list(run.metrics) == expected
    assert (run.key, run.name) == ("s/digits/b/sgd", "sgd b")
    assert run.params["epsilons"] == "0.5, 0.503, 8, 10, inf"
    assert run.tags["private"] == "mixed"
    assert "epsilon" not in run.tags
    assert run.seconds == 5 * 1.5
    assert run.finished == max(path.stat().st_mtime for path in paths)
    labels = write_cell(tmp_path / "l", multi_label=True, class_names=("a", "b"))
    several = runs.summary_run([(labels, read_cell(labels))], "s", {}, SOURCE)
    assert {name.split("/")[0] for name, _, _ in several.metrics} == {
        "auc",
        "mean_average_precision",
        "accuracy",
    }
    assert several.tags["private"] == "true"


# Names and numbers.


@given(st.lists(st.text("ab/:_ 12", max_size=3), min_size=1, max_size=5))
def test_no_two_classes_share_a_metric(names: list[str]) -> None:
    seeds = [{"r": [0.5] * len(names)}]
    assert len(runs.class_metrics(names, seeds, "r")) == len(names)


def test_a_curve_is_the_mean_over_seeds(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    frame = pq.read_table(history := path.with_name("history.parquet")).to_pandas()
    found: Any = runs.curve_metrics(history)
    for name in ("train_loss", "test_accuracy"):
        for step in frame["step"].unique():
            mean = frame[frame["step"] == step][name].mean()
            assert (f"curve/{name}", pytest.approx(mean, rel=5e-4), step) in found
    assert not any(name == "curve/test_auc" for name, _, _ in found)


EVALUATED = {
    "metric": "accuracy",
    "value": 0.8,
    "interval": [0.75, 0.9],
    "n": 40,
    "units": 40,
    "composition": "",
}


@pytest.mark.parametrize(
    ("evaluation", "shown"),
    [
        (None, []),
        (EVALUATED, [("accuracy", 0.8), ("accuracy_low", 0.75), ("accuracy_high", 0.9)]),
        (EVALUATED | {"metric": "auc", "value": 0.1, "interval": [0.0, 1.0]}, []),
    ],
    ids=["none", "telling", "an interval of everything"],
)
def test_a_release_shows_a_result_that_tells_something(
    evaluation: Any, shown: list[tuple[str, float]]
) -> None:
    released = {
        "epsilon_target": 1.0,
        "epsilon_realised": 0.98761234,
        "allows": {"balanced_accuracy": 0.5, "true_positives": {"0.01": 0.02}},
        "evaluation": evaluation,
    }
    assert release_registry.list_metrics(released) == [
        ("privacy/epsilon_target", 1.0, 0),
        ("privacy/epsilon_realised", 0.9877, 0),
        *((f"evaluation/{name}", value, 0) for name, value in shown),
        ("allows/balanced_accuracy", 0.5, 0),
        ("allows/tpr_at_fpr_0.01", 0.02, 0),
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([0.25, 0.5, 1.0]), st.integers(0, 2)),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_rows_hash_alike_in_any_order_and_with_repeats(rows: list[Any], random: Any) -> None:
    """MLflow stores equal rows only once, and returns rows in arbitrary order."""
    params = {"p": "1"}
    wanted = hash_rows(rows, params)
    mixed = [*rows, rows[0]]
    random.shuffle(mixed)
    assert hash_rows(mixed, params) == wanted
    assert hash_rows([*rows, ("c", 1.0, 0)], params) != wanted
    assert hash_rows(rows, {"p": "2"}) != wanted
    name, value, step = rows[0]
    changed = [each for each in rows if each != rows[0]]
    assert hash_rows([*changed, (name, value, step + 7)], params) != wanted
