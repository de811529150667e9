"""MLflow runs from finished cells: complete, once each, replaced when they change."""

from __future__ import annotations

import base64
import fcntl
import json
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import _validate_metric_name

from dpprobe.artifacts import read_json, write_table, write_text
from dpprobe.errors import DataError, TrackingError
from dpprobe.results.summary import rounded_up, summarise_cells
from dpprobe.tracking import ingest as tracking
from dpprobe.tracking.ingest import (
    curve_steps,
    ingest_study,
    initialise,
    metric_name,
    public_uri,
    run_name,
)
from dpprobe.tracking.receipt import RECEIPT_FORMAT, store_missing
from tests.support.cell_files import write_cell, write_dataset_info, write_study
from tests.support.mlflow_server import serve
from tests.support.tracked_study import Study, make_template

LOCALHOST = IPv4Address("127.0.0.1")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def study(tmp_path: Path, template: Path) -> Study:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Study(tmp_path)


def test_each_cell_is_one_complete_run(study: Study) -> None:
    receipt = study.ingest(tags={"commit": "abc"})
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
    assert set(metrics) >= {"test/macro_accuracy", "test/ece", "per_class_recall/zero"}
    assert run.data.tags["guarantee"] == "(0.5, 1e-05)-DP"
    assert run.data.tags["commit"] == "abc"
    assert run.inputs is not None
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    assert study.artifacts(run) == [
        "confusion/counts.csv", "confusion/matrix.svg", "metrics.json", "privacy.json",
    ]  # fmt: skip
    assert run.info.end_time - run.info.start_time == 1500
    assert receipt["runs"]["study/digits/scattering/sgd/eps-0.5"] == run.info.run_id
    assert (receipt["created"], receipt["replaced"], receipt["kept"]) == (12, 0, 0)


def test_a_cell_without_privacy_says_so(study: Study) -> None:
    study.ingest()
    for key in ("study/digits/pixels/nonprivate/eps-inf", "study/digits/pixels/sgd/eps-inf"):
        run = study.runs()[key]
        assert run.data.tags["guarantee"] == "not private"
        assert not [name for name in run.data.metrics if name.startswith("privacy/")]
        assert "delta" not in run.data.params


def test_the_learning_curve_is_the_mean_over_seeds(study: Study) -> None:
    study.ingest()
    client = MlflowClient(tracking_uri=study.uri)
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    history = client.get_metric_history(run.info.run_id, "curve/test_accuracy")
    assert [point.step for point in history] == [10, 20, 30, 40]
    assert history[-1].value == pytest.approx(run.data.metrics["test/accuracy"], rel=1e-3)


def test_a_summary_run_has_accuracy_at_each_epsilon(study: Study) -> None:
    study.ingest()
    runs = study.runs("digits/summary")
    assert sorted(runs) == [
        f"study/digits/{backbone}/{method}"
        for backbone in ("pixels", "scattering")
        for method in ("nonprivate", "sgd")
    ]
    run = runs["study/digits/pixels/sgd"]
    cells = study.runs()
    for epsilon in ("0.5", "2", "inf"):
        cell = cells[f"study/digits/pixels/sgd/eps-{epsilon}"]
        accuracy = cell.data.metrics["test/accuracy"]
        assert run.data.metrics[f"accuracy/eps_{epsilon}"] == accuracy
    client = MlflowClient(tracking_uri=study.uri)
    curve = client.get_metric_history(run.info.run_id, "accuracy/curve")
    assert [point.step for point in curve] == [50, 200]
    assert study.artifacts(run) == [
        "figures/accuracy.png", "figures/tsne_pixels.png", "tables/accuracy.md",
    ]  # fmt: skip
    other = runs["study/digits/scattering/sgd"]
    assert "figures/tsne_pixels.png" not in study.artifacts(other)


def test_a_second_ingest_adds_nothing(study: Study) -> None:
    first = study.ingest()
    second = study.ingest()
    assert (second["created"], second["replaced"], second["kept"]) == (0, 0, 12)
    assert second["runs"] == first["runs"]
    study.runs(view=ViewType.ALL)


def test_a_changed_cell_gets_a_new_run_and_the_others_stay(study: Study) -> None:
    first = study.ingest()
    write_cell(study.root, epsilon="2", quality=9.0, note="retrained")
    second = study.ingest()
    changed = "study/digits/pixels/sgd/eps-2", "study/digits/pixels/sgd"
    assert (second["created"], second["replaced"], second["kept"]) == (0, 2, 10)
    for key, run_id in first["runs"].items():
        assert (second["runs"][key] == run_id) == (key not in changed)
    run = study.runs()[changed[0]]
    record = read_json(study.root / "cells/digits/pixels/sgd/eps-2/metrics.json")
    mean = record["summary"]["accuracy"]["mean"]
    assert run.data.metrics["test/accuracy"] == pytest.approx(mean, rel=1e-3)
    old = MlflowClient(tracking_uri=study.uri).get_run(first["runs"][changed[0]])
    assert old.info.lifecycle_stage == "deleted"


def test_a_changed_figure_replaces_only_summaries(study: Study) -> None:
    study.ingest()
    write_text(study.figures[0], "drawn again")
    receipt = study.ingest()
    assert (receipt["created"], receipt["replaced"], receipt["kept"]) == (0, 4, 8)


def test_a_changed_dataset_replaces_all(study: Study) -> None:
    study.ingest()
    write_dataset_info(study.info, note="other rows")
    assert study.ingest()["replaced"] == 12


@pytest.mark.parametrize("where", ["log_batch", "set_terminated", "delete_run"])
def test_a_crash_leaves_one_complete_run_a_result_after_the_next_ingest(
    study: Study, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    study.ingest()
    write_cell(study.root, epsilon="2", note="retrained")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, where, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            study.ingest()
    key = "study/digits/pixels/sgd/eps-2"
    client = MlflowClient(tracking_uri=study.uri)
    runs = client.search_runs(["1"], filter_string=f"tags.result_key = '{key}'")
    assert len(runs) == 2, "the crash was to leave the old run beside the new one"
    receipt = study.ingest()
    found = study.runs()
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    assert found[key].info.run_id == receipt["runs"][key]
    assert len(found) == 8


def test_a_crash_in_the_first_ingest_loses_no_finished_run(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = MlflowClient.set_terminated

    def third_crashes(self: MlflowClient, *arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", third_crashes)
        with pytest.raises(KeyboardInterrupt):
            study.ingest()
    assert not (study.root / "receipt.json").exists()
    receipt = study.ingest()
    assert (receipt["created"], receipt["kept"]) == (10, 2)
    assert len(study.runs()) == 8


def test_a_run_whose_artifacts_vanished_is_made_again(study: Study) -> None:
    study.ingest()
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    (Path(run.info.artifact_uri.removeprefix("file://")) / "privacy.json").unlink()
    assert study.ingest()["replaced"] == 1


def test_cells_that_left_the_study_and_other_studies_stay(study: Study) -> None:
    study.ingest()
    study.ingest(study="another", metrics_files=study.cells[:1])
    study.ingest(metrics_files=study.cells[1:])
    keys = set(study.runs())
    assert len(keys) == 9
    assert "another/digits/pixels/nonprivate/eps-inf" in keys


def test_cells_that_left_the_study_are_tagged_and_come_back(study: Study) -> None:
    def current(experiment: str) -> dict[str, str]:
        runs = study.runs(experiment)
        return {key: run.data.tags["current"] for key, run in runs.items()}

    first = study.ingest()
    study.ingest(study="another", metrics_files=study.cells[:1])
    left = [path for path in study.cells if "nonprivate" in path.parts]
    study.ingest(metrics_files=[path for path in study.cells if path not in left])
    for name in ("digits", "digits/summary"):
        for key, value in current(name).items():
            gone = key.startswith("study/") and "/nonprivate" in key
            assert value == ("false" if gone else "true"), key
    receipt = study.ingest()
    assert receipt["runs"] == first["runs"], "runs that came back are the same runs"
    assert set(current("digits").values()) | set(current("digits/summary").values()) == {"true"}


def test_the_tag_is_written_only_where_it_changes(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.ingest()
    tagger = Mock()
    monkeypatch.setattr(MlflowClient, "set_tag", tagger)
    study.ingest()
    tagger.assert_not_called()


def test_a_receipt_says_when_its_store_is_gone(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study.root)
    receipt = study.root / "receipt.json"
    assert not store_missing(receipt), "no receipt: Snakemake makes it anyway"
    relative = {"uri": "sqlite:///mlflow.db", "artifact_root": Path("mlartifacts")}
    study.ingest(**relative)
    assert not store_missing(receipt)
    for name in ("mlartifacts/digits", "mlartifacts", "mlflow.db"):
        moved = study.root / "away"
        (study.root / name).rename(moved)
        assert store_missing(receipt), name
        moved.rename(study.root / name)
    assert not store_missing(receipt)
    (study.root / "mlflow.db").unlink()
    # By its other URI, as a new process would: mlflow keeps the deleted file open under the first.
    assert study.ingest()["created"] == 12
    assert not store_missing(receipt)


def test_only_a_local_store_can_be_missing(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    record = {"format": "dpprobe-tracking", "format_version": 1, "dataset": "digits"}
    write_text(receipt, json.dumps(record | {"uri": "http://server:5000", "artifact_root": None}))
    assert not store_missing(receipt)
    # as written before artifact_root was in receipts
    write_text(receipt, json.dumps(record | {"uri": f"sqlite:///{tmp_path}/mlflow.db"}))
    assert store_missing(receipt)
    write_text(tmp_path / "mlflow.db", "")
    assert not store_missing(receipt)
    for text in ("{", "[]", "{}"):
        write_text(receipt, text)
        assert store_missing(receipt), f"a receipt that cannot be read: {text}"


def test_receipts_are_read_without_mlflow() -> None:
    program = (
        "import sys, dpprobe.tracking.receipt\n"
        "heavy = {'mlflow', 'numpy', 'pandas', 'pyarrow', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_deleted_experiment_comes_back(study: Study) -> None:
    study.ingest()
    client = MlflowClient(tracking_uri=study.uri)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    study.ingest()
    assert len(study.runs()) == 8


def test_results_that_moved_are_refused(study: Study) -> None:
    study.ingest()
    with pytest.raises(TrackingError, match="its artifacts are at file://"):
        study.ingest(artifact_root=study.root / "elsewhere")


def test_the_ready_made_view_names_logged_columns(study: Study) -> None:
    study.ingest()
    client = MlflowClient(tracking_uri=study.uri)
    for name in ("digits", "digits/summary"):
        experiment = client.get_experiment_by_name(name)
        assert experiment is not None
        state = json.loads(experiment.tags["mlflow.sharedViewState.dpprobe"])["state"]
        view = json.loads(zlib.decompress(base64.b64decode(state.removeprefix("deflate;"))))
        runs = study.runs(name).values()
        present = {f"metrics.`{key}`" for run in runs for key in run.data.metrics}
        present |= {f"params.`{key}`" for run in runs for key in run.data.params}
        assert set(view["selectedColumns"]) <= present
        assert view["orderByKey"] in present
        assert view["searchFilter"] == 'tags.current = "true"'
        filtered = client.search_runs([experiment.experiment_id], view["searchFilter"])
        assert len(filtered) == len(study.runs(name))


def test_epsilons_that_round_to_one_step_keep_a_step_each(study: Study) -> None:
    epsilons = ("0.01", "0.011", "0.014", "0.02", "0.5", "inf")
    cells = [write_cell(study.root / "close", epsilon=epsilon) for epsilon in epsilons]
    study.ingest(metrics_files=cells)
    run = study.runs("digits/summary")["study/digits/pixels/sgd"]
    client = MlflowClient(tracking_uri=study.uri)
    curve = client.get_metric_history(run.info.run_id, "accuracy/curve")
    expected = [run.data.metrics[f"accuracy/eps_{epsilon}"] for epsilon in epsilons[:-1]]
    assert [point.step for point in curve] == [1, 2, 3, 4, 50]
    assert [point.value for point in curve] == expected


@given(st.sets(st.floats(0.001, 100), max_size=30))
def test_curve_steps_rise_with_epsilon(epsilons: set[float]) -> None:
    steps = curve_steps([*epsilons, float("inf")])
    assert steps.keys() == epsilons
    found = [steps[epsilon] for epsilon in sorted(epsilons)]
    assert all(one < other for one, other in pairwise(found))
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
    client = MlflowClient(tracking_uri=study.uri)
    assert len(client.get_metric_history(run.info.run_id, "curve/test_accuracy")) == 1200
    assert "curve/train_loss" not in run.data.metrics


@pytest.mark.slow
def test_two_ingesters_of_a_new_store_wait_for_each_other(study: Study) -> None:
    root = study.root
    (root / "mlflow.db").unlink()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from tests.support.tracked_study import Study\n"
        "study = Study(Path(sys.argv[2]))\n"
        "study.ingest(receipt=study.root / sys.argv[3])\n"
    )
    repository = Path(__file__).resolve().parents[3]
    write_text(root / "receipt.json", "{}")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(repository), str(root), f"receipt-{index}.json"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    receipts = [read_json(root / f"receipt-{index}.json") for index in range(2)]
    assert sorted(receipt["created"] for receipt in receipts) == [0, 12]
    assert receipts[0]["runs"] == receipts[1]["runs"]
    assert len(study.runs()) == 8


def test_a_held_lock_is_named(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "LOCK_SECONDS", 0.2)
    with (study.root / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(TrackingError, match="held by another process"):
            study.ingest()
    study.ingest()


def test_a_server_that_does_not_answer_is_named_at_once_and_without_its_password(
    study: Study,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(TrackingError, match="no answer") as caught:
        study.ingest(uri=f"http://user:secret@{address}")
    assert address in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("uri", ["results/mlruns", "sqlite:///", "ftp://server", "databricks"])
def test_another_kind_of_store_is_refused(uri: str) -> None:
    with pytest.raises(TrackingError, match="write sqlite:///relative/path"):
        initialise(uri)


def test_a_file_that_is_no_database_is_named(study: Study) -> None:
    write_text(study.root / "mlflow.db", "not a database, though long enough to be read as one")
    with pytest.raises(TrackingError, match="MLflow refused") as caught:
        study.ingest(uri=f"sqlite:///{study.root}/./mlflow.db")
    assert "\n" not in str(caught.value)
    assert not (study.root / "receipt.json").exists()


def test_a_cell_of_another_dataset_or_without_history_is_refused(study: Study) -> None:
    other = write_cell(study.root, dataset="another")
    with pytest.raises(TrackingError, match="a cell of another"):
        study.ingest(metrics_files=[*study.cells, other])
    study.cells[0].with_name("history.parquet").unlink()
    with pytest.raises(TrackingError, match=r"history\.parquet: unreadable"):
        study.ingest()
    study.cells[0].unlink()
    with pytest.raises(DataError, match="missing"):
        study.ingest()


def test_the_receipt_holds_no_password() -> None:
    assert public_uri("https://me:word@host:5000/x") == "https://host:5000/x"
    assert public_uri("sqlite:///results/mlflow.db") == "sqlite:///results/mlflow.db"


@given(st.lists(st.from_regex(r"[a-z0-9][a-z0-9_]{0,40}", fullmatch=True), min_size=1, max_size=3))
def test_run_names_fit_and_keep_both_ends_of_each_word(words: Sequence[str]) -> None:
    name = run_name(*words)
    assert len(name) <= 22
    parts = name.split(" ")
    assert len(parts) == len(words)
    for part, word in zip(parts, words, strict=True):
        assert part == word or (part[0] == word[0] and part[-1] in (word[-1], "…"))


@given(st.text(max_size=200))
def test_any_class_name_becomes_a_legal_metric(text: str) -> None:
    name = f"per_class_recall/{metric_name(text)}"
    _validate_metric_name(name)
    assert name.count("/") == 1
    assert len(name) <= 250


@pytest.mark.slow
def test_runs_are_written_through_a_server(study: Study) -> None:
    store = study.root / "store"
    store.mkdir()
    (study.root / "mlflow.db").rename(store / "mlflow.db")
    with serve(store) as study.uri:
        assert study.ingest()["created"] == 12
        assert study.ingest()["kept"] == 12
        run = study.runs()["study/digits/pixels/sgd/eps-2"]
        client = MlflowClient(tracking_uri=study.uri)
        listed = [item.path for item in client.list_artifacts(run.info.run_id)]
        models = study.ingest(register=["digits/pixels/sgd/eps-2"])["models"]
        registered = [item.path for item in client.list_artifacts(run.info.run_id, "model")]
    assert listed == ["confusion", "metrics.json", "privacy.json"]
    assert models == {"study.digits.pixels.sgd.eps-2": "1"}
    assert "model/MLmodel" in registered
    assert (store / "server_artifacts").is_dir()
    assert not (study.root / "mlartifacts").exists()


@pytest.mark.parametrize(
    "record", [{"artifact_root": "x"}, {"uri": 3}, {"uri": "sqlite:///a", "artifact_root": 1}, []]
)
def test_a_receipt_that_says_too_little_counts_as_missing(tmp_path: Path, record: Any) -> None:
    receipt = tmp_path / "receipt.json"
    whole = {"format": RECEIPT_FORMAT, **record} if isinstance(record, dict) else record
    receipt.write_text(json.dumps(whole))
    assert store_missing(receipt)


def _view(study: Study, experiment: str) -> dict[str, Any]:
    found = MlflowClient(tracking_uri=study.uri).get_experiment_by_name(experiment)
    assert found is not None
    state = json.loads(found.tags["mlflow.sharedViewState.dpprobe"])["state"]
    view: dict[str, Any] = json.loads(
        zlib.decompress(base64.b64decode(state.removeprefix("deflate;")))
    )
    return view


def test_the_views_show_the_metric_of_the_dataset(study: Study) -> None:
    study.ingest()
    view = _view(study, "digits")
    assert [name for name in view["selectedColumns"] if "test/" in name] == [
        "metrics.`test/accuracy`", "metrics.`test/accuracy_std`",
        "metrics.`test/macro_accuracy`", "metrics.`test/ece`",
    ]  # fmt: skip
    assert not [name for run in study.runs().values() for name in run.data.metrics if "auc" in name]


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
        f"mean AUC over 2 of 3 labels {100 * auc['mean']:.1f} %"
        in run.data.tags["mlflow.note.content"]
    )
    client = MlflowClient(tracking_uri=study.uri)
    curve = client.get_metric_history(run.info.run_id, "curve/test_auc")
    assert curve[-1].value == pytest.approx(auc["mean"], rel=1e-3)
    view = _view(study, "digits")
    assert "metrics.`test/auc`" in view["selectedColumns"]
    assert "metrics.`test/macro_accuracy`" not in view["selectedColumns"]
    assert view["orderByKey"] == "metrics.`test/auc`"
    whole = study.runs("digits/summary")["study/digits/pixels/sgd"]
    for epsilon in ("0.5", "2", "inf"):
        assert f"auc/eps_{epsilon}" in whole.data.metrics
        assert f"mean_average_precision/eps_{epsilon}" in whole.data.metrics
    points = client.get_metric_history(whole.info.run_id, "auc/curve")
    assert [point.step for point in points] == [50, 200]
    summary = _view(study, "digits/summary")
    assert [name for name in summary["selectedColumns"] if name.startswith("metrics")] == [
        f"metrics.`auc/eps_{epsilon}`" for epsilon in ("0.5", "2", "inf")
    ]


def test_two_classes_log_their_auc_beside_the_accuracy(study: Study) -> None:
    cell = write_cell(study.root / "two", class_names=("no", "yes"))
    study.ingest(metrics_files=[cell])
    run = study.runs()["study/digits/pixels/sgd/eps-1"]
    assert {"test/accuracy", "test/auc", "curve/test_auc"} <= set(run.data.metrics)
    assert "metrics.`test/auc`" not in _view(study, "digits")["selectedColumns"]
    shown = write_cell(study.root / "chosen", class_names=("no", "yes"), headline="auc", note="x")
    study.ingest(metrics_files=[shown])
    assert _view(study, "digits")["orderByKey"] == "metrics.`test/auc`"


def test_tags_tell_the_runs_apart(study: Study) -> None:
    study.ingest(commit="0123abc")
    client = MlflowClient(tracking_uri=study.uri)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None

    def count(filter_string: str) -> int:
        return len(client.search_runs([experiment.experiment_id], filter_string))

    assert count('tags.dataset = "digits"') == 8
    assert count('tags.private = "true"') == 4
    assert count('tags.private = "false" and tags.method = "nonprivate"') == 2
    assert count('tags.backbone = "pixels" and tags.epsilon = "0.5"') == 1
    assert count('tags.mlflow.source.git.commit = "0123abc"') == 8
    summary = study.runs("digits/summary")["study/digits/pixels/sgd"]
    assert summary.data.tags["private"] == "mixed"
    assert summary.data.tags["backbone"] == "pixels"


def test_another_commit_makes_no_run_anew(study: Study) -> None:
    study.ingest(commit="one")
    assert study.ingest(commit="two")["kept"] == 12


def test_a_note_begins_with_one_line_and_holds_the_promise(study: Study) -> None:
    study.ingest()
    notes = {
        key: run.data.tags["mlflow.note.content"].splitlines() for key, run in study.runs().items()
    }
    first, blank, promise, _, release, _, outside = notes["study/digits/pixels/sgd/eps-2"]
    assert first.startswith("sgd on pixels features of digits, (2, 1e-05)-DP: accuracy ")
    assert blank == ""
    assert "(2, 1e-05)-differentially private" in promise
    assert release.startswith("Not for release")
    assert outside == tracking.OUTSIDE


def test_the_confusion_matrix_is_that_of_the_predictions(study: Study) -> None:
    study.ingest()
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    folder = Path(run.info.artifact_uri.removeprefix("file://"), "confusion")
    rows = [line.split(",") for line in (folder / "counts.csv").read_text().splitlines()]
    counts = [[int(value) for value in row[1:]] for row in rows[1:]]
    right = sum(counts[k][k] for k in range(4)) / sum(map(sum, counts))
    assert run.data.metrics["test/accuracy"] == pytest.approx(right, rel=1e-3)
    assert "ε = 2" in (folder / "matrix.svg").read_text()


def test_a_lost_confusion_matrix_is_written_again(study: Study) -> None:
    study.ingest()
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    Path(run.info.artifact_uri.removeprefix("file://"), "confusion/matrix.svg").unlink()
    assert study.ingest()["kept"] == 11


def test_labels_have_counts_and_many_classes_have_none(study: Study) -> None:
    labels = write_cell(study.root / "a", multi_label=True, class_names=("x", "y", "z"))
    study.ingest(metrics_files=[labels])
    run = study.runs()["study/digits/pixels/sgd/eps-1"]
    assert study.artifacts(run)[0] == "confusion/counts.csv"
    assert "confusion/matrix.svg" not in study.artifacts(run)
    many = write_cell(study.root / "b", class_names=[f"c{k}" for k in range(101)], note="many")
    study.ingest(metrics_files=[many])
    run = study.runs()["study/digits/pixels/sgd/eps-1"]
    assert study.artifacts(run) == ["metrics.json", "privacy.json"]


def test_damaged_predictions_are_named(study: Study) -> None:
    path = study.root / "cells/digits/pixels/sgd/eps-2/predictions.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(TrackingError, match="eps-2/predictions.parquet: unreadable"):
        study.ingest()


def test_private_cells_have_a_view_of_their_own(study: Study) -> None:
    receipt = study.ingest()
    found = MlflowClient(tracking_uri=study.uri).get_experiment_by_name("digits")
    assert found is not None
    state = json.loads(found.tags["mlflow.sharedViewState.dpprobe-private"])["state"]
    packed = base64.b64decode(state.removeprefix("deflate;"))
    view = json.loads(zlib.decompress(packed))
    assert view["searchFilter"] == 'tags.current = "true" and tags.private = "true"'
    assert receipt["pages"]["private"].endswith("viewStateShareKey=dpprobe-private")
    assert receipt["pages"]["charts"].endswith("compareRunsMode=CHART")


def test_an_experiment_made_by_another_writer_meanwhile_is_used(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(tracking_uri=study.uri)
    client.create_experiment("digits", (study.root / "mlartifacts/digits/cells").as_uri())
    own = MlflowClient.get_experiment_by_name
    asked: list[str] = []

    def late(self: MlflowClient, name: str) -> Any:
        asked.append(name)
        return None if asked.count(name) == 1 else own(self, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", late)
    assert study.ingest()["created"] == 12
    assert asked.count("digits") == 2


def ingest_whole(study: Study, *, name: str = "study", **changes: Any) -> dict[str, Any]:
    summary = study.root / "summary.parquet"
    summarise_cells(study.cells, summary, study=name)
    report = study.root / "report.html"
    if not report.exists():
        write_text(report, "<html></html>")
    arguments: dict[str, Any] = {
        "uri": study.uri, "study": name, "report": report, "summaries": [summary],
        "dataset_infos": {"digits": study.info}, "figures": [],
        "tables": sorted((study.root / "tables").rglob("*.md")),
        "artifact_root": study.root / "mlartifacts", "receipt": study.root / "_study.json",
        "lock": study.root / "lock",
    }  # fmt: skip
    ingest_study(**(arguments | changes))
    receipt: dict[str, Any] = read_json(study.root / "_study.json")
    return receipt


def test_a_study_is_one_run_with_its_report_and_tables(study: Study) -> None:
    for name in ("tables/accuracy.md", "tables/papers/table_2.md"):
        write_text(study.root / name, name)
    receipt = ingest_whole(study)
    run = study.runs("all studies")["study"]
    assert run.info.run_name == "study"
    assert study.artifacts(run) == [
        "report.html", "tables/accuracy.md", "tables/papers/table_2.md",
    ]  # fmt: skip
    means = [
        read_json(study.root / f"cells/digits/{b}/sgd/eps-0.5/metrics.json")["summary"]
        for b in ("pixels", "scattering")
    ]
    best = max(own["accuracy"]["mean"] for own in means)
    assert run.data.metrics["digits/best_private_eps_0.5"] == pytest.approx(best, rel=1e-3)
    assert {"digits/gap_eps_0.5", "digits/gap_eps_2"} <= set(run.data.metrics)
    assert run.data.params["cells"] == "8"
    assert "8 cells on digits" in run.data.tags["mlflow.note.content"].splitlines()[0]
    assert run.inputs is not None
    assert [item.dataset.name for item in run.inputs.dataset_inputs] == ["digits"]
    assert "viewStateShareKey" in receipt["pages"]["studies"]
    chosen = 'params.datasets LIKE "%digits%"'
    client = MlflowClient(tracking_uri=study.uri)
    assert len(client.search_runs([run.info.experiment_id], chosen)) == 1
    assert not store_missing(study.root / "_study.json")
    assert ingest_whole(study)["kept"] == 1
    write_text(study.root / "report.html", "<html>changed</html>")
    assert ingest_whole(study)["replaced"] == 1


def view_of(study: Study, name: str) -> dict[str, Any]:
    experiment = MlflowClient(tracking_uri=study.uri).get_experiment_by_name(name)
    assert experiment is not None
    state = json.loads(experiment.tags["mlflow.sharedViewState.dpprobe"])["state"]
    packed = base64.b64decode(state.removeprefix("deflate;"))
    view: dict[str, Any] = json.loads(zlib.decompress(packed))
    return view


def test_the_view_of_all_studies_has_columns_for_each(study: Study) -> None:
    ingest_whole(study)
    other = write_study(study.root / "other", dataset="letters", epsilons=("1", "4"))
    summary = study.root / "letters.parquet"
    summarise_cells(other, summary, study="second")
    ingest_whole(
        study, name="second", summaries=[summary], dataset_infos={"letters": study.info},
        receipt=study.root / "second.json",
    )  # fmt: skip
    best = [name for name in view_of(study, "all studies")["selectedColumns"] if "best" in name]
    assert best == [
        f"metrics.`{dataset}/best_private_eps_{epsilon}`"
        for dataset, epsilons in (("digits", ("0.5", "2")), ("letters", ("1", "4")))
        for epsilon in epsilons
    ]


def test_where_room_is_short_every_dataset_has_its_result_nearest_to_one() -> None:
    names = [f"d{d}{tracking.BEST}{e}" for d in range(7) for e in ("0.01", "0.5", "1", "8", "10")]
    chosen = tracking._best_columns([*names, "d0/gap_eps_1"])
    assert len(chosen) == tracking.STUDY_COLUMNS
    assert {f"d{d}{tracking.BEST}1" for d in range(7)} <= set(chosen)
    assert {name.partition(tracking.BEST)[2] for name in chosen} == {"0.5", "1"}
    assert chosen[:2] == [f"d0{tracking.BEST}0.5", f"d0{tracking.BEST}1"]


def test_cells_of_two_studies_share_a_view(study: Study) -> None:
    study.ingest()
    columns = view_of(study, "digits")["selectedColumns"]
    assert "metrics.`privacy/noise_multiplier`" in columns
    other = write_study(study.root / "other", methods=["nonprivate"], epsilons=["inf"])
    study.ingest(study="second", metrics_files=other, receipt=study.root / "second.json")
    assert view_of(study, "digits")["selectedColumns"] == columns


def test_of_two_epsilons_as_far_from_one_the_view_always_takes_the_same() -> None:
    names = {f"d{d}{tracking.BEST}{e}" for d in range(tracking.STUDY_COLUMNS + 1) for e in "25"}
    names |= {name.replace("_5", "_0.5") for name in names}
    chosen = tracking._best_columns(names)
    assert len(chosen) == tracking.STUDY_COLUMNS + 1
    assert {name.partition(tracking.BEST)[2] for name in chosen} == {"0.5"}


def test_summaries_of_two_studies_share_a_view(study: Study) -> None:
    study.ingest()
    other = write_study(study.root / "other", methods=["sgd"], epsilons=("8",))
    study.ingest(study="second", metrics_files=other, receipt=study.root / "second.json")
    columns = view_of(study, "digits/summary")["selectedColumns"]
    assert [name for name in columns if "/eps_" in name] == [
        f"metrics.`accuracy/eps_{epsilon}`" for epsilon in ("0.5", "2", "8", "inf")
    ]


def test_a_dataset_that_left_the_study_is_no_longer_current(study: Study) -> None:
    first = study.root / "digits.json"  # as the workflow calls it
    study.ingest()
    study.ingest(study="second", receipt=study.root / "second.json")
    for path in (first, study.root / "letters.json"):
        write_text(path, "{}")
    ingest_whole(study, dataset_infos={"letters": study.info})
    assert not first.exists(), "so that the workflow tracks it again when it comes back"
    assert (study.root / "letters.json").exists()
    for name in ("digits", "digits/summary"):
        states = {
            (run.data.tags["study"], run.data.tags["current"]) for run in study.all_runs(name)
        }
        assert states == {("study", "false"), ("second", "true")}
    assert study.runs("all studies")["study"].data.tags["current"] == "true"
    study.ingest()
    ingest_whole(study)
    assert {run.data.tags["current"] for run in study.all_runs("digits")} == {"true"}


def test_a_run_of_several_cells_says_whether_all_are_private(study: Study) -> None:
    study.ingest()
    ingest_whole(study)
    tags = {key: run.data.tags for key, run in study.runs("digits/summary").items()}
    assert tags["study/digits/pixels/sgd"]["private"] == "mixed", "it has epsilon inf too"
    assert tags["study/digits/pixels/nonprivate"]["private"] == "false"
    whole = study.runs("all studies")["study"].data.tags
    assert whole["private"] == "mixed"
    notes = [own["mlflow.note.content"] for own in (*tags.values(), whole)]
    notes += [run.data.tags["mlflow.note.content"] for run in study.runs().values()]
    assert all(tracking.OUTSIDE in note for note in notes)
    private = [path for path in study.cells if path.parts[-3:-1] == ("sgd", "eps-2")]
    study.ingest(metrics_files=private)
    assert study.runs("digits/summary")["study/digits/pixels/sgd"].data.tags["private"] == "true"


@pytest.mark.parametrize("lines", [1, 3000])
def test_a_long_note_is_cut_and_says_so(lines: int) -> None:
    note = "\n".join(f"- line {index} of many" for index in range(lines))
    cut = tracking._cut(note)
    assert len(cut) < 8000
    assert (cut == note) == (lines == 1)
    if lines > 1:
        *whole, _, word = cut.split("\n")
        assert whole == note.split("\n")[: len(whole)]
        assert "Too long" in word


def test_a_privacy_loss_is_never_shown_smaller() -> None:
    assert rounded_up(0.12344999) == 0.1235
    assert rounded_up(0.5) == 0.5
    assert rounded_up(9.99999) == 10.0


@given(st.floats(1e-6, 1e6))
def test_a_rounded_privacy_loss_is_near(loss: float) -> None:
    assert loss <= rounded_up(loss) <= 1.0011 * loss


def test_names_that_become_one_keep_a_metric_each() -> None:
    names = ["a/", "a?", "a_ 0", "b"]
    seeds = [{"recall": [0.1, 0.2, 0.3, 0.4]}]
    found = tracking._class_metrics(names, seeds, "recall")
    assert sorted(found.values(), key=str) == [0.1, 0.2, 0.3, 0.4]


def test_a_seed_that_diverged_ends_the_curve_of_the_mean(tmp_path: Path) -> None:
    rows = [
        {"step": step, "train_loss": float("nan") if (seed, step) == (1, 20) else 1.0,
         "test_accuracy": 0.5, "test_auc": None}
        for seed in (0, 1) for step in (10, 20)
    ]  # fmt: skip
    write_table(tmp_path / "history.parquet", pa.Table.from_pylist(rows))
    found = tracking._curve_metrics(tmp_path / "history.parquet")
    assert [(name, step) for name, _, step in found] == [
        ("curve/train_loss", 10), ("curve/test_accuracy", 10), ("curve/test_accuracy", 20),
    ]  # fmt: skip


def test_writers_of_a_server_do_not_wait_for_each_other(tmp_path: Path) -> None:
    lock, receipt = tmp_path / "mlflow.lock", tmp_path / "tracking/digits.json"
    assert tracking._lock_file("http://server:5000", lock, receipt) != lock
    assert tracking._lock_file("http://server:5000", lock, receipt) != tracking._lock_file(
        "http://server:5000", lock, receipt.with_name("letters.json")
    )
    assert tracking._lock_file("sqlite:///mlflow.db", lock, receipt) == lock


def test_an_experiment_that_another_writer_restores_is_no_error() -> None:
    client = Mock()
    client.restore_experiment.side_effect = MlflowException("No deleted experiment")
    experiment = Mock(experiment_id="1")
    client.get_experiment.return_value.lifecycle_stage = "active"
    tracking._restore(client, experiment)
    client.get_experiment.return_value.lifecycle_stage = "deleted"
    with pytest.raises(MlflowException):
        tracking._restore(client, experiment)


@pytest.fixture
def own_authority(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server that wants a login, and its certificate, which no browser knows."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mlflow.hospital")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - timedelta(1)).not_valid_after(today + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(LOCALHOST)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    path = tmp_path / "authority.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    private = tmp_path / "key.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, private)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_address[1]}", path
    server.shutdown()


def test_a_certificate_that_is_not_trusted_is_named_at_once(
    own_authority: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, path = own_authority
    with pytest.raises(TrackingError, match="set MLFLOW_TRACKING_SERVER_CERT_PATH"):
        tracking._reach(address)
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(path))
        tracking._reach(address)
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    tracking._reach(address)


def test_the_databases_file_alone_is_whole(study: Study) -> None:
    receipt = study.ingest()
    copy = study.root / "copy.db"
    shutil.copyfile(study.root / "mlflow.db", copy)
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = database.execute("select count(*) from runs where status = 'FINISHED'").fetchone()
    assert found == (len(receipt["runs"]),)
