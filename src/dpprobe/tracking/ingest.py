"""MLflow: one writer that mirrors finished cells into runs. The only user of mlflow.

Jobs write files; `ingest` reads them. A run is never updated: MLflow's params are immutable and
a corrected metric may keep showing its old value, so a changed cell gets a new run and the old
one is deleted once the new one is complete. `docs/tracking.md` describes what a person sees.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import math
import os
import re
import shutil
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import numpy as np
import pyarrow.parquet as pq
import requests
from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    Experiment,
    Metric,
    Param,
    Run,
    ViewType,
)
from mlflow.environment_variables import (
    MLFLOW_TRACKING_INSECURE_TLS,
    MLFLOW_TRACKING_SERVER_CERT_PATH,
)
from mlflow.exceptions import MlflowException
from sqlalchemy import Engine, event
from sqlalchemy.exc import SQLAlchemyError

from dpprobe.artifacts import fingerprint, read_json, sha256_file
from dpprobe.data.table import DatasetInfo, read_info
from dpprobe.errors import TrackingError
from dpprobe.heads.registry import method_options
from dpprobe.privacy.limits import INFINITE, epsilon_value
from dpprobe.progress import Progress
from dpprobe.results import confusion
from dpprobe.results.best_private import best_private, from_one
from dpprobe.results.metrics import THRESHOLDS
from dpprobe.results.record import (
    ACCURACY,
    HISTORY_FILE,
    PREDICTIONS_FILE,
    STATEMENT_FILE,
    CellRecord,
    Measure,
    measures,
    read_cell,
)
from dpprobe.results.summary import Grid, read_grid, rounded_up
from dpprobe.study.blocks import sqlite_file
from dpprobe.tracking.receipt import write_receipt
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")

RESULT_KEY = "result_key"  # tag: which result a run shows
CONTENT_HASH = "content_hash"  # tag: what it showed when it was written
OUTSIDE = (
    "Not private: test results, learning curves, confusion counts and pictures are computed "
    "without noise. No promise covers them, nor a choice that was made by looking at them."
)
RELEASE = "What each head promises, and whether it may be released, stands in the run of its cell."
CURRENT = "current"  # tag: "true" while the study names the result, else "false"
VIEW_KEY = "dpprobe"  # of the ready-made view of an experiment
PRIVATE_VIEW = "dpprobe-private"  # of the same with private cells alone
STUDIES = "all studies"  # the experiment of studies; a space keeps it apart from datasets
STUDY_FOLDER = "_study"  # of its artifacts and its receipt, for the same reason
NAME_LENGTH = 22  # longer run names are cut in MLflow's table
CLASSES_LOGGED = 100  # more classes than this have their recall in metrics.json alone
_TUNED: set[Path] = set()  # databases whose connections are set up by `_sync_at_checkpoints`
METRICS_A_CALL = 900  # MLflow takes 1000 entities, params and tags counted
TAG_LENGTH = 7900  # of a run's tags; PostgreSQL refuses more than 8000 characters, SQLite does not
BEST = "/best_private_eps_"  # of a study's metric, between dataset and epsilon
STUDY_COLUMNS = 12  # of the view of all studies
LOCK_SECONDS = 3600.0
LOCK_NOTE_SECONDS = 60.0
HTTP_SECONDS = 10.0

SCALARS = {
    "accuracy": "test/accuracy",
    "macro_accuracy": "test/macro_accuracy",
    "expected_calibration_error": "test/ece",
    "top5_accuracy": "test/top5_accuracy",
    "real_accuracy": "test/real_accuracy",
    "exact_match_accuracy": "test/exact_match_accuracy",
    "auc": "test/auc",
    "mean_average_precision": "test/mean_average_precision",
}
# What a summary run shows at each epsilon, by the headline of its cells: those that they have.
CURVES = {
    "accuracy": ("accuracy", "macro_accuracy"),
    "auc": ("auc", "mean_average_precision", "accuracy"),
}
PER_CLASS = ("per_class_recall", "per_label_auc")  # one number a class each


@dataclass(frozen=True, kw_only=True)
class RunContents:
    """All of one run, ready to be written."""

    key: str
    content_hash: str
    name: str
    note: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Sequence[tuple[str, float, int]]  # name, value, step
    artifacts: Sequence[tuple[Path, str]]  # file, folder within the run's artifacts
    history: Path | None = None  # the learning curve, read only when the run is written
    # Files that are made when the run is written, by path within the artifacts: their text.
    drawn: Callable[[], Mapping[str, str]] | None = None
    drawn_names: Sequence[str] = ()
    inputs: Sequence[DatasetInput] = ()
    seconds: float = 0.0  # that the run's Duration column shows
    finished: float = field(default_factory=time.time)


def ingest(
    *,
    uri: str,
    study: str,
    dataset: str,
    metrics_files: Sequence[Path],
    dataset_info: Path,
    figures: Sequence[Path],
    embeddings: Mapping[str, Sequence[Path]],
    tables: Sequence[Path],
    artifact_root: Path,
    receipt: Path,
    lock: Path,
    tags: Mapping[str, str] | None = None,
    commit: str | None = None,
    register: bool | Sequence[str] = False,
) -> None:
    """Brings MLflow up to date with the cells of one dataset.

    A run whose result_key and content_hash are current is kept, one whose cell has changed is
    replaced, one that a crash left unfinished is deleted. Runs of cells that the study no longer
    names are kept, but tagged `current` = "false", which the ready-made views leave out. Runs of
    other studies are left alone.

    Args:
      uri: `sqlite:///relative/path` or `http(s)://server`.
      metrics_files: metrics.json of each cell; privacy.json, history.parquet, predictions.parquet
        and heads.safetensors lie beside it.
      dataset_info: dataset.json.
      figures: of the dataset, shown with each (backbone, method).
      embeddings: backbone -> its t-SNE figures.
      tables: shown with each (backbone, method).
      artifact_root: where artifacts go, unless a server decides that.
      receipt: written last: the run of each result, and the pages to open.
      lock: a file beside a SQLite store; two ingesters wait for each other. A server takes many
        writers at once: there only those of the same receipt wait.
      tags: more tags of every run. Another value makes every run anew.
      commit: of the workflow, for runs that are written; it makes no run anew.
      register: heads for the model registry: True for the best private one of each epsilon, or
        patterns such as "digits/*/sgd/eps-1".

    Raises:
      TrackingError: when the store cannot be reached, opened or written.
      DataError: when a cell's record cannot be read.
    """
    info = read_info(dataset_info)
    records = _read_records(metrics_files, dataset)
    shared = {**(tags or {}), "study": study, "dataset_fingerprint": info.fingerprint}
    if info.untested:
        shared["untested_classes"] = f"{len(info.untested)} of {info.num_classes}"
    measured = measures(records).get(dataset, ACCURACY)
    source = _dataset_input(dataset, info)
    cells = [_cell_run(path, record, study, shared, source) for path, record in records]
    attached = [(path, "figures") for path in figures] + [(path, "tables") for path in tables]
    summaries = []
    for (backbone, _), group in _by_curve(records).items():
        own = [(path, "figures") for path in embeddings.get(backbone, ())]
        summaries.append(_summary_run(group, study, shared, [*attached, *own], source))
    with _locked(_lock_file(uri, lock, receipt)), _readable_errors(uri):
        initialise(uri)
        where = None if _is_server(uri) else artifact_root / dataset
        client = MlflowClient(tracking_uri=uri)
        writer = _Writer(client, study=study, commit=commit)
        page = writer.write(_cells_experiment(dataset, where, cells, measured), cells)
        pages = {"cells": page, "private": page.replace(VIEW_KEY, PRIVATE_VIEW)}
        page = writer.write(_summary_experiment(dataset, where, summaries, measured), summaries)
        pages |= {"summary": page, "charts": f"{page}&compareRunsMode=CHART"}
        models = {}
        if register:
            from dpprobe.tracking.model_registry import register_heads

            models = register_heads(client, records, writer.runs, study=study, which=register)
        _retire_heads(client, study, dataset, writer.runs.values())
        _checkpoint(uri)
    _finish(
        receipt, writer, pages, uri=uri, study=study, dataset=dataset,
        artifact_root=None if where is None else artifact_root, models=models,
    )  # fmt: skip


def ingest_study(
    *,
    uri: str,
    study: str,
    report: Path,
    summaries: Sequence[Path],
    dataset_infos: Mapping[str, Path],
    figures: Sequence[Path],
    tables: Sequence[Path],
    artifact_root: Path,
    receipt: Path,
    lock: Path,
    commit: str | None = None,
) -> None:
    """Brings MLflow up to date with the study as a whole: one run, with its report and tables.

    Args:
      report: the study's report.
      summaries: of its datasets.
      dataset_infos: dataset.json by dataset.
      figures: those that are of no one dataset.
      tables: all; those in a folder below `tables` keep it.
      uri, artifact_root, receipt, lock, commit: as for `ingest`.

    Raises:
      TrackingError: when the store cannot be reached, opened or written.
    """
    files = [(report, "")]
    for path in tables:
        own = path.parent.name
        files.append((path, "tables" if own == "tables" else f"tables/{own}"))
    files += [(path, "figures") for path in figures]
    run = _study_run(study, read_grid(summaries), dataset_infos, files)
    with _locked(_lock_file(uri, lock, receipt)), _readable_errors(uri):
        initialise(uri)
        where = None if _is_server(uri) else artifact_root / STUDY_FOLDER
        writer = _Writer(MlflowClient(tracking_uri=uri), study=study, commit=commit)
        pages = {"studies": writer.write(_studies_experiment(where, run), [run])}
        for name in writer.retire(dataset_infos):
            # its runs are current again when it is tracked again
            (receipt.parent / f"{name}.json").unlink(missing_ok=True)
        _checkpoint(uri)
    _finish(
        receipt, writer, pages, uri=uri, study=study, dataset=STUDY_FOLDER,
        artifact_root=None if where is None else artifact_root,
    )  # fmt: skip


def _finish(
    receipt: Path,
    writer: _Writer,
    pages: Mapping[str, str],
    *,
    uri: str,
    study: str,
    dataset: str,
    artifact_root: Path | None,
    models: Mapping[str, str] | None = None,
) -> None:
    """Says how many runs were written, in the log and in the receipt."""
    counts = {
        "created": writer.created, "replaced": writer.replaced, "kept": writer.kept,
    }  # fmt: skip
    logger.info("MLflow: %s", ", ".join(f"{count} {name}" for name, count in counts.items()))
    write_receipt(
        receipt,
        {
            "uri": public_uri(uri),
            "artifact_root": None if artifact_root is None else str(artifact_root),
            "study": study,
            "dataset": dataset,
            "pages": dict(pages),
            **counts,
            "runs": writer.runs,
            "models": dict(models or {}),
        },
    )


def initialise(uri: str) -> None:
    """Creates the store's tables where there are none. Not safe beside another first call.

    Raises:
      TrackingError: when the URI is of another kind or no server answers.
    """
    if _is_server(uri):
        _reach(uri)
        return
    database = sqlite_file(uri)
    if database is None:
        raise TrackingError(
            f"tracking.uri: {public_uri(uri)!r} is not known; write sqlite:///relative/path, "
            "http://server or https://server"
        )
    database.parent.mkdir(parents=True, exist_ok=True)
    _sync_at_checkpoints(database)
    # The migration of a new database logs each of its many steps.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    _checkpoint(uri)


def _checkpoint(uri: str) -> None:
    """Moves what is in the write-ahead log into the database, so that its file alone is whole."""
    database = sqlite_file(uri)
    if database is not None:
        with closing(sqlite3.connect(database, timeout=20.0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _sync_at_checkpoints(database: Path) -> None:
    """Spares a database of our own the disk's sync at each of the eight commits a run takes.

    With a write-ahead log a power cut may cost the last runs, which the next ingest writes again,
    but it does not damage the file.
    """
    if database in _TUNED:
        return
    _TUNED.add(database)

    def tune(connection: Any, record: Any) -> None:  # noqa: ARG001
        if not isinstance(connection, sqlite3.Connection):
            return
        opened = connection.execute("PRAGMA database_list").fetchone()[2]
        if opened and Path(opened) == database.resolve():
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

    event.listen(Engine, "connect", tune)


def public_uri(uri: str) -> str:
    """The URI without a user name or password."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _cut(note: str) -> str:
    """A note that fits a tag: whole lines, and word of the rest."""
    if len(note) <= TAG_LENGTH:
        return note
    whole, _, _ = note[:TAG_LENGTH].rpartition("\n")
    return f"{whole or note[:TAG_LENGTH]}\n\nToo long for MLflow: the rest is in the artifacts."


def run_name(*words: str) -> str:
    """Words in one run name of at most 22 characters; the longest are shortened in the middle."""
    texts = list(words)
    while len(" ".join(texts)) > NAME_LENGTH:
        longest = max(range(len(texts)), key=lambda index: len(texts[index]))
        text = texts[longest].replace("…", "")
        middle = len(text) // 2
        texts[longest] = f"{text[:middle]}…{text[middle + 1 :]}"
    return " ".join(texts)


def metric_name(text: str) -> str:
    """A class name as part of a metric's name, in the characters MLflow takes.

    A slash would open a section of charts, a dot alone would be a folder; both become "_".
    """
    cleaned = re.sub(r"[^\w.\- :]", "_", text)[:100].strip()
    return cleaned if cleaned.strip(".") else "_"


def curve_steps(epsilons: Sequence[float]) -> dict[float, int]:
    """The step of each finite epsilon on a summary's curve: 100 x epsilon, a whole number.

    An epsilon whose step is taken by a smaller one gets the next free step: MLflow would show one
    of the two points alone.
    """
    steps: dict[float, int] = {}
    last = -1
    for epsilon in sorted(filter(math.isfinite, epsilons)):
        last = max(last + 1, round(100 * epsilon))
        steps[epsilon] = last
    return steps


def pages(search: Callable[..., Any]) -> Iterator[Any]:
    """All that one of MLflow's searches finds."""
    token = None
    while True:
        page = search(max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def models_of(study: str, dataset: str) -> str:
    """MLflow's filter for a study's models of a dataset, and perhaps a few more."""
    return f"name LIKE '{study}.{dataset}.%'"


def _retire_heads(client: MlflowClient, study: str, dataset: str, runs: Collection[str]) -> None:
    """Takes the alias `current` from registered heads whose run is none of these."""
    if client.search_registered_models(models_of(study, dataset), max_results=1):
        from dpprobe.tracking.model_registry import retire_heads

        retire_heads(client, study=study, dataset=dataset, runs=set(runs))


class _Writer:
    """Writes runs that are not there yet, and counts."""

    def __init__(self, client: MlflowClient, *, study: str, commit: str | None = None) -> None:
        self.client = client
        self.study = study
        self.commit = {} if commit is None else {"mlflow.source.git.commit": commit}
        self.created = self.replaced = self.kept = 0
        self.runs: dict[str, str] = {}

    def write(self, wanted: _Experiment, contents: Sequence[RunContents]) -> str:
        """Brings one experiment up to date.

        Returns:
          The address of its page, below the address of the MLflow server.
        """
        experiment = _experiment(self.client, wanted)
        present = self._present(experiment)
        with Progress(len(contents), label=f"MLflow {wanted.name}", unit="runs") as progress:
            for item in contents:
                self._write_run(experiment, item, present.pop(item.key, []))
                progress.advance(1)
        for left in present.values():
            for run in left:
                self._mark(run, current=False)
        # After the runs: of two studies that are written at once, the last one sees both.
        now = self.client.get_experiment(experiment.experiment_id)
        for key, view in wanted.views(self._metrics_beside(now)).items():
            _set_view(self.client, now, key, view)
        return (
            f"#/experiments/{experiment.experiment_id}/runs"
            f"?workflowType=machine_learning&viewStateShareKey={VIEW_KEY}"
        )

    def _present(self, experiment: Experiment) -> dict[str, list[Run]]:
        """The study's runs by result key, finished or not, read once."""
        found: dict[str, list[Run]] = {}
        for run in self._search([experiment.experiment_id], f"tags.study = '{self.study}'"):
            found.setdefault(run.data.tags.get(RESULT_KEY, ""), []).append(run)
        return found

    def _search(self, experiments: Sequence[str], chosen: str) -> Iterator[Run]:
        search = partial(
            self.client.search_runs,
            list(experiments),
            filter_string=chosen,
            run_view_type=ViewType.ACTIVE_ONLY,
        )
        return pages(search)

    def _metrics_beside(self, experiment: Experiment) -> set[str]:
        """The metrics of other studies' current runs: an experiment's views are for all."""
        chosen = f"tags.study != '{self.study}' and tags.{CURRENT} = 'true'"
        runs = self._search([experiment.experiment_id], chosen)
        return {metric for run in runs for metric in run.data.metrics}

    def retire(self, datasets: Iterable[str]) -> set[str]:
        """Marks the runs of datasets that the study no longer has; the names of these datasets."""
        kept = {STUDIES, *(name for own in datasets for name in (own, f"{own}/summary"))}
        others = {
            experiment.experiment_id: experiment.name.removesuffix("/summary")
            for experiment in pages(self.client.search_experiments)
            if experiment.name not in kept
        }
        if not others:
            return set()
        chosen = f"tags.study = '{self.study}' and tags.{CURRENT} = 'true'"
        left = list(self._search([*others], chosen))
        names = {others[run.info.experiment_id] for run in left}
        # Aliases first: after a crash the runs are found again.
        for name in names:
            _retire_heads(self.client, self.study, name, ())
        for run in left:
            self._mark(run, current=False)
        return names

    def _write_run(self, experiment: Experiment, item: RunContents, present: list[Run]) -> None:
        current = next((run for run in present if _is_current(run, item)), None)
        if current is not None:
            self.kept += 1
            run_id = current.info.run_id
            self._mark(current, current=True)
        else:
            run_id = self._create(experiment, item)
            if any(run.info.status == "FINISHED" for run in present):
                self.replaced += 1
            else:
                self.created += 1
        self.runs[item.key] = run_id
        # After the new run is complete: a crash leaves one too many, never one too few.
        for run in present:
            if run.info.run_id != run_id:
                self.client.delete_run(run.info.run_id)

    def _mark(self, run: Run, *, current: bool) -> None:
        """Tags a run that is there already; a tag, unlike a param or a metric, can be changed."""
        value = "true" if current else "false"
        if run.data.tags.get(CURRENT) != value:
            self.client.set_tag(run.info.run_id, CURRENT, value)

    def _create(self, experiment: Experiment, item: RunContents) -> str:
        end = int(1000 * item.finished)
        curve = _curve_metrics(item.history) if item.history else []
        run = self.client.create_run(
            experiment.experiment_id,
            start_time=end - int(1000 * item.seconds),
            run_name=item.name,
            tags={
                **item.tags,
                RESULT_KEY: item.key,
                CONTENT_HASH: item.content_hash,
                CURRENT: "true",
                "mlflow.note.content": _cut(item.note),
                "mlflow.source.name": "dpprobe",
                "mlflow.source.type": "PROJECT",
                **self.commit,
            },
        )
        run_id: str = run.info.run_id
        metrics = [Metric(name, value, end, step) for name, value, step in (*item.metrics, *curve)]
        params = [Param(name, value) for name, value in item.params.items()]
        self.client.log_batch(run_id, metrics[:METRICS_A_CALL], params[:90])
        for start in range(90, len(params), 90):
            self.client.log_batch(run_id, params=params[start : start + 90])
        for start in range(METRICS_A_CALL, len(metrics), METRICS_A_CALL):
            self.client.log_batch(run_id, metrics[start : start + METRICS_A_CALL])
        _upsert(lambda: self.client.log_inputs(run_id, list(item.inputs)))
        for path, folder in item.artifacts:
            self._log_artifact(run, path, folder)
        for name, text in (item.drawn() if item.drawn else {}).items():
            self._log_text(run, name, text)
        self.client.set_terminated(run_id, "FINISHED", end_time=end)
        return run_id

    def _log_artifact(self, run: Run, path: Path, folder: str) -> None:
        local = _local_folder(run)
        if local is None:
            self.client.log_artifact(run.info.run_id, str(path), folder or None)
            return
        # A copy into the artifact folder is what log_artifact does there, at a tenth of its cost.
        target = local / folder / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)

    def _log_text(self, run: Run, name: str, text: str) -> None:
        local = _local_folder(run)
        if local is None:
            self.client.log_text(run.info.run_id, text, name)
            return
        target = local / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class _Experiment:
    """An experiment as it should be."""

    name: str
    location: Path | None
    note: str
    # Of the metrics of other studies' runs, which it shows too: its views by key.
    views: Callable[[Set[str]], Mapping[str, Mapping[str, Any]]]


def _experiment(client: MlflowClient, wanted: _Experiment) -> Experiment:
    location = None if wanted.location is None else wanted.location.resolve().as_uri()
    experiment = client.get_experiment_by_name(wanted.name) or _new_experiment(
        client, wanted.name, location
    )
    if experiment.lifecycle_stage == "deleted":
        _restore(client, experiment)
    if location is not None and experiment.artifact_location != location:
        raise TrackingError(
            f"experiment {wanted.name}: its artifacts are at {experiment.artifact_location}, but "
            f"the results are now at {location}; move them back, or delete the MLflow database "
            "and run the study again, which makes every run anew"
        )
    present = experiment.tags
    if present.get("mlflow.note.content") != wanted.note:
        _set_tag(client, experiment, "mlflow.note.content", wanted.note)
    if present.get("mlflow.experimentKind") is None:
        _set_tag(client, experiment, "mlflow.experimentKind", "custom_model_development")
    return experiment


def _new_experiment(client: MlflowClient, name: str, location: str | None) -> Experiment:
    """Creates an experiment, or returns the one that another writer of a server just created."""
    try:
        return client.get_experiment(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        found = client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
            raise
        return found


def _restore(client: MlflowClient, experiment: Experiment) -> None:
    """Takes an experiment out of the trash, unless another writer just did."""
    try:
        client.restore_experiment(experiment.experiment_id)
    except MlflowException:
        if client.get_experiment(experiment.experiment_id).lifecycle_stage == "deleted":
            raise


def _set_tag(client: MlflowClient, experiment: Experiment, key: str, value: str) -> None:
    _upsert(lambda: client.set_experiment_tag(experiment.experiment_id, key, value))


def _upsert(call: Callable[[], None]) -> None:
    """Calls again when refused: MLflow looks for a row, then inserts it.

    Between the two another writer of the server may insert the same, and the database refuses the
    second one; called again, MLflow finds the row.
    """
    try:
        call()
    except MlflowException as error:
        if error.error_code != "BAD_REQUEST":  # what MLflow makes of a broken constraint
            raise
        call()


def _set_view(
    client: MlflowClient, experiment: Experiment, key: str, view: Mapping[str, Any]
) -> None:
    """Writes a ready-made view as MLflow 3.17's page does; without one, no metric is shown."""
    tag = f"mlflow.sharedViewState.{key}"
    packed = zlib.compress(json.dumps(view, sort_keys=True).encode(), 9)
    state = "deflate;" + base64.b64encode(packed).decode()
    try:
        present = json.loads(experiment.tags[tag])["state"]
    except (KeyError, ValueError, TypeError):
        present = None
    if present != state:
        now = int(1000 * time.time())
        value = {"name": key, "createdAt": now, "updatedAt": now, "state": state}
        _set_tag(client, experiment, tag, json.dumps(value))


def _view(
    params: Sequence[str],
    metrics: Sequence[str],
    order: str,
    *,
    runs: Sequence[RunContents],
    also: str = "",
) -> dict[str, Any]:
    columns = [f"params.`{name}`" for name in params] + [f"metrics.`{name}`" for name in metrics]
    return {
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {
            **{f"params.`{name}`": _width(name, runs) for name in params},
            **{f"metrics.`{name}`": max(100, 8 * len(name) + 30) for name in metrics},
        },
        "orderByKey": f"metrics.`{order}`",
        "orderByAsc": False,
        "searchFilter": f'tags.{CURRENT} = "true"{also}',
        "runsHiddenMode": "FIRST_20_RUNS",
        "hideEmptyCharts": True,
    }


def _width(param: str, runs: Sequence[RunContents]) -> int:
    """Pixels that a column of params needs, within reason."""
    longest = max((len(run.params.get(param, "")) for run in runs), default=0)
    return min(260, max(80, 8 * max(longest, len(param)) + 30))


def _cells_experiment(
    dataset: str, where: Path | None, cells: Sequence[RunContents], measured: Measure
) -> _Experiment:
    own = f"test/{measured.headline}"
    beside = [f"test/{name}" for name in CURVES[measured.headline][1:]]
    columns = [own, f"{own}_std", *beside, "test/ece", "privacy/epsilon_realised",
               "privacy/noise_multiplier"]  # fmt: skip
    params = ["backbone", "method", "epsilon", "seeds"]

    def views(others: Set[str]) -> dict[str, dict[str, Any]]:
        logged = _logged(cells) | others
        shown = [name for name in columns if name in logged]
        return {
            key: _view(params, shown, own, runs=cells, also=also)
            for key, also in ((VIEW_KEY, ""), (PRIVATE_VIEW, ' and tags.private = "true"'))
        }

    return _Experiment(
        name=dataset,
        location=where / "cells" if where else None,
        note=f"Cells of {dataset}: one run a backbone, method and epsilon, all seeds together.",
        views=views,
    )


def _logged(runs: Iterable[RunContents]) -> set[str]:
    return {name for item in runs for name, _, _ in item.metrics}


def _summary_experiment(
    dataset: str, where: Path | None, summaries: Sequence[RunContents], measured: Measure
) -> _Experiment:
    prefix = f"{measured.headline}/eps_"

    def views(others: Set[str]) -> dict[str, dict[str, Any]]:
        columns = sorted(
            (name for name in _logged(summaries) | others if name.startswith(prefix)),
            key=lambda name: epsilon_value(name.removeprefix(prefix)),
        )
        order = columns[-1] if columns else ""
        return {VIEW_KEY: _view(["backbone", "method"], columns, order, runs=summaries)}

    return _Experiment(
        name=f"{dataset}/summary",
        location=where / "summary" if where else None,
        note=(
            f"Summary of {dataset}: one run a backbone and method, {measured.title} at each "
            "epsilon; steps of curves are 100 x epsilon."
        ),
        views=views,
    )


def _studies_experiment(where: Path | None, run: RunContents) -> _Experiment:
    def views(others: Set[str]) -> dict[str, dict[str, Any]]:
        columns = _best_columns(_logged([run]) | others)
        order = columns[0] if columns else ""
        return {VIEW_KEY: _view(["study", "datasets", "cells"], columns, order, runs=[run])}

    return _Experiment(
        name=STUDIES,
        location=where,
        note="One run a study: its report and tables, the best private result at each epsilon.",
        views=views,
    )


def _best_columns(metrics: Iterable[str]) -> list[str]:
    """The best private results that a view has room for.

    Where there are many, each dataset's at the epsilon nearest to 1, then at the next nearest.
    """
    found: dict[str, list[str]] = {}  # epsilons by dataset
    for name in metrics:
        dataset, best, epsilon = name.partition(BEST)
        if best:
            found.setdefault(dataset, []).append(epsilon)
    ranked = [
        (rank, dataset, epsilon_value(epsilon), f"{dataset}{BEST}{epsilon}")
        for dataset, own in found.items()
        for rank, epsilon in enumerate(sorted(sorted(own), key=from_one))
    ]
    chosen = sorted(ranked)[: max(STUDY_COLUMNS, len(found))]
    return [name for *_, name in sorted(chosen, key=lambda each: each[1:])]


def _read_records(metrics_files: Sequence[Path], dataset: str) -> list[tuple[Path, CellRecord]]:
    records = [(path, read_cell(path)) for path in sorted(metrics_files)]
    for path, record in records:
        found = record.cell.dataset
        if found != dataset:
            raise TrackingError(f"{path}: a cell of {found}, not of {dataset}; correct the list")
    return records


def _cell_run(
    path: Path,
    record: CellRecord,
    study: str,
    shared: Mapping[str, str],
    source: DatasetInput,
) -> RunContents:
    cell = record.cell
    guarantee = "not private"
    if record.guaranteed:
        guarantee = f"({cell.epsilon}, {record.delta:g})-DP"
    epsilon = cell.epsilon.replace(INFINITE, "∞")
    percent = 100 * record.summary[record.headline].mean
    params = {
        **cell.model_dump(),
        "head": record.head,
        "seeds": str(len(record.seeds)),
        "train_rows": str(record.rows.train),
        "dimension": str(record.dimension),
    }
    if record.delta is not None:
        params["delta"] = f"{record.delta:g}"
    for name, value in record.options.items():
        if name != "head" and value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            params[f"option_{name}" if name in params else name] = text
    statement = read_json(path.with_name(STATEMENT_FILE))
    drawn = _drawn_names(record)
    return RunContents(
        key="/".join((study, *record.cell.key[:3], f"eps-{cell.epsilon}")),
        content_hash=fingerprint([VERSIONS["tracking"], record.content_hash, dict(shared)]),
        name=run_name(cell.method, "ε" + epsilon, cell.backbone),
        note=(
            f"{cell.method} on {cell.backbone} features of {cell.dataset}, {guarantee}: "
            f"{record.measure.title} {percent:.1f} %, mean of {len(record.seeds)} seeds."
            f"\n\n{statement['promise']}\n\n{statement['release']}\n\n{OUTSIDE}"
        ),
        params=params,
        tags={
            **shared,
            **cell.model_dump(),
            "head": record.head,
            "private": str(record.guaranteed).lower(),
            "guarantee": guarantee,
            "cell_fingerprint": record.fingerprint,
            "release": "not for release" if statement["mode"] == "benchmark" else statement["mode"],
        },
        metrics=_cell_metrics(record),
        history=path.with_name(HISTORY_FILE),
        artifacts=[(path, ""), (path.with_name(STATEMENT_FILE), "")],
        drawn=(lambda: _confusion(path, record)) if drawn else None,
        drawn_names=drawn,
        inputs=[source],
        seconds=record.seconds or 0.0,
        finished=path.stat().st_mtime,
    )


def _drawn_names(record: CellRecord) -> tuple[str, ...]:
    if len(record.class_names) > confusion.LARGEST:
        return ()
    picture = () if record.multi_label else ("confusion/matrix.svg",)
    return ("confusion/counts.csv", *picture)


def _confusion(path: Path, record: CellRecord) -> dict[str, str]:
    """Which classes are taken for which, over all seeds; or each label's right and wrong rows."""
    names = [str(name) for name in record.class_names]
    predictions, cell = path.with_name(PREDICTIONS_FILE), record.cell
    try:
        if record.multi_label:
            link = method_options(record.options).link_on(True)
            counts = confusion.label_confusion(
                predictions, len(names), threshold=THRESHOLDS.get(link, 0.0)
            )
            return {"confusion/counts.csv": confusion.label_confusion_csv(counts, names)}
        counts = confusion.confusion(predictions, len(names))
    except (OSError, ValueError) as error:
        raise TrackingError(
            f"{predictions}: unreadable ({_line(error)}); delete the cell's folder and run it again"
        ) from None
    title = f"{cell.dataset}, {cell.method} on {cell.backbone}, ε = {cell.epsilon}"
    return {
        "confusion/counts.csv": confusion.confusion_csv(counts, names),
        "confusion/matrix.svg": confusion.confusion_svg(counts, names, title=title),
    }


def _cell_metrics(record: CellRecord) -> list[tuple[str, float, int]]:
    values: dict[str, float | None] = {}
    for name, title in SCALARS.items():
        entry = record.summary.get(name)
        if entry is not None:
            values[title] = entry.mean
            values |= {f"{title}_{part}": getattr(entry, part) for part in ("std", "low", "high")}
    values["privacy/epsilon_target"] = record.cell.epsilon_value
    realised = record.realised_epsilon
    values["privacy/epsilon_realised"] = None if realised is None else rounded_up(realised)
    values["privacy/noise_multiplier"] = record.noise_multiplier
    values["time/train_seconds"] = record.seconds
    if len(record.class_names) <= CLASSES_LOGGED:
        for name in PER_CLASS:
            if name in record.seeds[0]:
                values |= _class_metrics(record.class_names, record.seeds, name)
    return [
        (name, _rounded(value), 0)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    ]


def _class_metrics(
    class_names: Sequence[str], seeds: Sequence[Mapping[str, Any]], metric: str
) -> dict[str, float | None]:
    """A metric of each class, the mean over seeds; equal cleaned names are told apart by index."""
    found = [seed[metric] for seed in seeds]
    names = [metric_name(str(name)) for name in class_names]
    numbered = [f"{name} {index}" for index, name in enumerate(names)]
    titles = [n if names.count(n) == 1 else m for n, m in zip(names, numbered, strict=True)]
    if len(set(titles)) < len(titles):  # a class is called what another became
        titles = numbered
    result: dict[str, float | None] = {}
    for index, title in enumerate(titles):
        values = [own[index] for own in found]
        known = None not in values
        result[f"{metric}/{title}"] = float(np.mean(values)) if known else None
    return result


def _curve_metrics(path: Path) -> list[tuple[str, float, int]]:
    """The learning curve: means over seeds at each recorded step."""
    try:
        table = pq.read_table(path).to_pandas()
    except (OSError, ValueError) as error:
        raise TrackingError(
            f"{path}: unreadable ({_line(error)}); delete the cell's folder and run it again"
        ) from None
    result = []
    for column in ("train_loss", "test_accuracy", "test_auc"):
        # without the seeds that diverged it would be a mean of the others
        means = table.groupby("step")[column].mean(skipna=False).dropna()
        result += [(f"curve/{column}", _rounded(value), int(step)) for step, value in means.items()]
    return [item for item in result if math.isfinite(item[1])]


def _summary_run(
    group: Sequence[tuple[Path, CellRecord]],
    study: str,
    shared: Mapping[str, str],
    artifacts: Sequence[tuple[Path, str]],
    source: DatasetInput,
) -> RunContents:
    ordered = sorted((record for _, record in group), key=_epsilon)
    cell = ordered[0].cell
    steps = curve_steps([_epsilon(record) for record in ordered])
    metrics: list[tuple[str, float, int]] = []
    for record in ordered:
        for name in CURVES[record.headline]:
            if name not in record.summary:
                continue
            value = _rounded(record.summary[name].mean)
            metrics.append((f"{name}/eps_{record.cell.epsilon}", value, 0))
            if (step := steps.get(_epsilon(record))) is not None:
                metrics.append((f"{name}/curve", value, step))
    hashes = [[record.cell.epsilon, record.content_hash] for record in ordered]
    files = [[folder, path.name, sha256_file(path)] for path, folder in artifacts]
    return RunContents(
        key="/".join((study, *ordered[0].cell.key[:3])),
        content_hash=fingerprint([VERSIONS["tracking"], hashes, files, dict(shared)]),
        name=run_name(cell.method, cell.backbone),
        note=(
            f"{cell.method} on {cell.backbone} features of {cell.dataset} at epsilon "
            f"{', '.join(record.cell.epsilon for record in ordered)}."
            f"\n\n{RELEASE}\n\n{OUTSIDE}"
        ),
        params={
            **cell.model_dump(exclude={"epsilon"}),
            "head": ordered[0].head,
            "epsilons": ", ".join(record.cell.epsilon for record in ordered),
            "seeds": str(len(ordered[0].seeds)),
        },
        tags={
            **shared,
            **cell.model_dump(exclude={"epsilon"}),
            "head": ordered[0].head,
            "private": _private_tag(record.guaranteed for record in ordered),
        },
        metrics=metrics,
        artifacts=artifacts,
        inputs=[source],
        seconds=sum(record.seconds or 0.0 for record in ordered),
        finished=max(path.stat().st_mtime for path, _ in group),
    )


def _study_run(
    study: str,
    grid: Grid,
    dataset_infos: Mapping[str, Path],
    artifacts: Sequence[tuple[Path, str]],
) -> RunContents:
    """A study in one run: the best private result of each dataset and epsilon."""
    infos = {name: read_info(path) for name, path in dataset_infos.items()}
    metrics, sentences = [], []
    for best in best_private(grid, {}):
        name = f"{best.dataset}{BEST}{best.epsilon}"
        metrics.append((name, _rounded(best.entry.mean / 100), 0))
        if best.gap is not None:
            metrics.append((f"{best.dataset}/gap_eps_{best.epsilon}", _rounded(best.gap / 100), 0))
        sentences.append(
            f"- {best.dataset}, epsilon {best.epsilon}: {best.measure.title} "
            f"{best.entry.mean:.1f} % by {best.method} on {best.backbone}"
        )
    datasets = ", ".join(infos)
    files = [[folder, path.name, sha256_file(path)] for path, folder in artifacts]
    return RunContents(
        key=study,
        content_hash=fingerprint([VERSIONS["tracking"], files, metrics]),
        name=run_name(study),
        note="\n".join(
            [f"Study {study}: {len(grid.entries)} cells on {datasets}. report.html has all of it.",
             "", RELEASE, "", OUTSIDE, "", "Best private results:", "", *sentences]
        ),
        params={"study": study, "datasets": datasets[:5000], "cells": str(len(grid.entries))},
        tags={
            "study": study,
            "private": _private_tag(entry.private for entry in grid.entries.values()),
        },
        metrics=metrics,
        artifacts=artifacts,
        inputs=[_dataset_input(name, info) for name, info in infos.items()],
        finished=artifacts[0][0].stat().st_mtime,
    )  # fmt: skip


def _private_tag(cells: Iterable[bool]) -> str:
    """What the tag `private` says of a run that stands for several cells."""
    found = set(cells)
    return "mixed" if len(found) > 1 else str(found == {True}).lower()


def _by_curve(
    records: Sequence[tuple[Path, CellRecord]],
) -> dict[tuple[str, str], list[tuple[Path, CellRecord]]]:
    """The cells of each (backbone, method)."""
    groups: dict[tuple[str, str], list[tuple[Path, CellRecord]]] = {}
    for path, record in records:
        groups.setdefault(record.cell.key[1:3], []).append((path, record))
    return groups


def _epsilon(record: CellRecord) -> float:
    return record.cell.epsilon_value


def _rounded(value: float) -> float:
    """Four significant digits, as much as the table shows; metrics.json has all of them."""
    return float(f"{value:.4g}")


def _is_current(run: Run, item: RunContents) -> bool:
    local = _local_folder(run)
    return (
        run.info.status == "FINISHED"
        and run.data.tags.get(CONTENT_HASH) == item.content_hash
        and (
            local is None
            or all(
                (local / name).is_file()
                for name in (
                    *(f"{folder}/{path.name}".lstrip("/") for path, folder in item.artifacts),
                    *item.drawn_names,
                )
            )
        )
    )


def _local_folder(run: Run) -> Path | None:
    """The folder of a run's artifacts, None where a server keeps them."""
    parts = urlsplit(run.info.artifact_uri)
    return Path(url2pathname(parts.path)) if parts.scheme in ("", "file") else None


def _dataset_input(dataset: str, info: DatasetInfo) -> DatasetInput:
    """The dataset as MLflow shows it. The digest is ours: MLflow's samples rows of large sets."""
    rows = {f"{name}_rows": split.rows for name, split in info.splits.items()}
    return DatasetInput(
        Dataset(
            name=dataset,
            digest=info.fingerprint[:36],
            source_type="dpprobe",
            source=json.dumps(dict(info.source)),
            profile=json.dumps(rows),
        )
    )


def _lock_file(uri: str, lock: Path, receipt: Path) -> Path:
    return receipt.with_suffix(".lock") if _is_server(uri) else lock


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file; the system frees it when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        started = noted = time.monotonic()
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - started
                if waited > LOCK_SECONDS:
                    raise TrackingError(
                        f"{path}: held by another process for {LOCK_SECONDS:.0f} s; "
                        "wait for it or end it"
                    ) from None
                if time.monotonic() - noted > LOCK_NOTE_SECONDS:
                    noted = time.monotonic()
                    logger.info("%s: held by another process for %.0f s; waiting", path, waited)
                time.sleep(0.1)
        yield


@contextmanager
def _readable_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
        remedy = (
            "mend that at the server, then run the study again; what was written stays"
            if _is_server(uri)
            else "repair the store, or delete it and run the study again: its runs are made "
            "anew from the cells' files"
        )
        raise TrackingError(
            f"{public_uri(uri)}: MLflow refused: {_line(error)}; {remedy}"
        ) from error


def _line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _is_server(uri: str) -> bool:
    return urlsplit(uri).scheme in ("http", "https")


def _reach(uri: str) -> None:
    """Fails at once where no server answers: MLflow's own retries take minutes.

    Any answer will do, if only a request to log in. Certificates are checked as MLflow does.
    """
    try:
        requests.get(
            public_uri(uri),
            timeout=HTTP_SECONDS,
            stream=True,
            allow_redirects=False,
            verify=not MLFLOW_TRACKING_INSECURE_TLS.get()
            and (MLFLOW_TRACKING_SERVER_CERT_PATH.get() or True),
        ).close()
    except requests.exceptions.SSLError as error:
        raise TrackingError(
            f"tracking.uri: {public_uri(uri)}: its certificate is not trusted ({_line(error)}); "
            f"set {MLFLOW_TRACKING_SERVER_CERT_PATH.name} to the file of its authority"
        ) from None
    except (OSError, requests.RequestException) as error:
        raise TrackingError(
            f"tracking.uri: {public_uri(uri)}: no answer ({_line(error)}); start the MLflow server "
            "or write another URI"
        ) from None
