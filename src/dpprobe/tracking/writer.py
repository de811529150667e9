"""Writes, reuses, replaces and retires experiments and runs in MLflow.

Runs are never updated, because MLflow's params are immutable, and a corrected metric may show its
old value. A changed result gets a new run; the old run is deleted once the new run is complete.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Param, Run, ViewType
from mlflow.exceptions import MlflowException

from dpprobe.errors import TrackingError
from dpprobe.files.json_files import write_record
from dpprobe.files.written_files import add_file
from dpprobe.progress import Progress
from dpprobe.results.cell_record import check_file
from dpprobe.study.local_copies import leave_copies
from dpprobe.study.options import sqlite_file
from dpprobe.tracking.moved_store import set_moved_aside
from dpprobe.tracking.receipt import (
    RECEIPT_FORMAT,
    RECEIPT_FORMAT_VERSION,
    ROWS_HASH,
    hash_rows,
    read_runs,
)
from dpprobe.tracking.runs import RunContents, curve_metrics
from dpprobe.tracking.store import (
    checkpoint_log,
    create_tables,
    hold_store,
    is_server,
    public_uri,
    search_all,
)
from dpprobe.tracking.views import (
    CURRENT,
    RELEASES,
    STUDIES,
    VIEW_KEY,
    ExperimentContents,
    changed_view,
    view_tag,
)

logger = logging.getLogger("dpprobe")

RESULT_KEY = "result_key"  # tag: name of the result that a run shows
CONTENT_HASH = "content_hash"  # tag: hash of the result when the run was written
METRICS_A_CALL = 900  # MLflow accepts 1000 entities per call, including params and tags
PARAMS_A_CALL = 90  # MLflow accepts 100 params per call
NOTE = "mlflow.note.content"  # the tag with the description of a run or an experiment
TAG_LENGTH = 7900  # PostgreSQL refuses tags of more than 8000 characters


class Writer:
    """Brings a study's experiments up to date, and counts the runs that are written or reused.

    Attributes:
      location: the folder of the experiments' artifacts; None if a server chooses the folder.
      created, replaced, kept: numbers of created, replaced and reused runs.
      runs: the id of each result's run, by the result's key.
      links: URLs of pages by link text, for the descriptions of runs and experiments.

    Args:
      changed: the ids of runs to rewrite, because somebody changed their params or metrics.
    """

    def __init__(
        self,
        client: MlflowClient,
        *,
        study: str,
        commit: str | None = None,
        location: Path | None = None,
        changed: Collection[str] = (),
    ) -> None:
        self.client = client
        self.study = study
        self.commit = {} if commit is None else {"mlflow.source.git.commit": commit}
        self.location = location
        self._changed = changed
        self.created = self.replaced = self.kept = 0
        self.runs: dict[str, str] = {}
        self.links: dict[str, str] = {}

    def write(
        self,
        wanted: ExperimentContents,
        contents: Sequence[RunContents],
        *,
        outdates: Callable[[str], bool] = lambda _: True,
        describe: bool = True,
    ) -> str:
        """Brings one experiment up to date; returns the URL of its page on the MLflow server.

        `outdates(key)` is True if a result missing in `contents` is out of date; by default always.
        `describe` is False while a later call adds runs and links.
        """
        experiment = _find_experiment(self.client, wanted)
        present: dict[str, list[Run]] = {}  # runs in MLflow, finished or not, by result key
        for run in self._search_runs([experiment.experiment_id], f"tags.study = '{self.study}'"):
            present.setdefault(run.data.tags.get(RESULT_KEY, ""), []).append(run)
        with Progress(len(contents), label=f"MLflow {wanted.name}", unit="runs") as progress:
            for item in contents:
                self._write_run(experiment, item, present.pop(item.key, []))
                progress.advance_by(1)
        for key, left in present.items():
            for run in left if outdates(key) else ():
                self._mark_run(run, current=False)
        # Views are written after runs: if two studies write in parallel, the later sees all runs.
        now = self.client.get_experiment(experiment.experiment_id)
        for key, view in wanted.views(self._other_metrics(now)).items():
            tag = view_tag(key)
            if (value := changed_view(view, now.tags.get(tag))) is not None:
                _set_tag(self.client, now, tag, value)
        # one paragraph, because MLflow's experiment page shows only the first
        note = " ".join(filter(None, [wanted.note, self._list_links()]))
        if describe and now.tags.get(NOTE) != note:
            _set_tag(self.client, now, NOTE, note)
        return _page_of(experiment)

    def find_page(self, wanted: ExperimentContents) -> str:
        """Returns the address of an experiment's page; creates or restores the experiment."""
        return _page_of(_find_experiment(self.client, wanted))

    def link_artifacts(self, wanted: ExperimentContents, key: str, path: str = "") -> str:
        """Returns the address of a written run's artifacts, or of its artifact at `path`."""
        experiment = _find_experiment(self.client, wanted)
        return f"#/experiments/{experiment.experiment_id}/runs/{self.runs[key]}/artifacts{path}"

    def _link(self, note: str) -> str:
        """Inserts the links after the first paragraph of a description."""
        first, *rest = note.split("\n\n")
        return "\n\n".join(filter(None, [first, self._list_links(), *rest]))

    def _list_links(self) -> str:
        return " · ".join(f"[{words}]({place})" for words, place in self.links.items())

    def _search_runs(self, experiments: Sequence[str], condition: str) -> Iterator[Run]:
        search = partial(
            self.client.search_runs,
            list(experiments),
            filter_string=condition,
            run_view_type=ViewType.ACTIVE_ONLY,
        )
        return search_all(search)

    def _other_metrics(self, experiment: Experiment) -> set[str]:
        """Returns metrics of other studies' current runs, because studies share views."""
        condition = f"tags.study != '{self.study}' and tags.{CURRENT} = 'true'"
        runs = self._search_runs([experiment.experiment_id], condition)
        return {metric for run in runs for metric in run.data.metrics}

    def retire_datasets(self, datasets: Iterable[str]) -> set[str]:
        """Marks runs of datasets that the study no longer has; returns the datasets' names."""
        kept = {STUDIES, RELEASES}
        for dataset in datasets:
            kept |= {dataset, f"{dataset}/summary"}
        others = {
            experiment.experiment_id: experiment.name.removesuffix("/summary")
            for experiment in search_all(self.client.search_experiments)
            if experiment.name not in kept
        }
        if not others:
            return set()
        condition = f"tags.study = '{self.study}' and tags.{CURRENT} = 'true'"
        left = list(self._search_runs([*others], condition))
        for run in left:
            self._mark_run(run, current=False)
        return {others[run.info.experiment_id] for run in left}

    def _write_run(self, experiment: Experiment, item: RunContents, present: list[Run]) -> None:
        current = next((run for run in present if self._is_current(run, item)), None)
        if current is not None:
            self.kept += 1
            self._mark_run(current, current=True)
            if current.data.tags.get(NOTE) != (note := fit_to_tag(self._link(item.note))):
                # the pages now have other URLs
                self.client.set_tag(current.info.run_id, NOTE, note)
        else:
            current = self._create_run(experiment, item)
            if any(run.info.status == "FINISHED" for run in present):
                self.replaced += 1
            else:
                self.created += 1
        self.runs[item.key] = run_id = current.info.run_id
        for path in _list_copies(current, item):
            add_file(path)
        # Old runs are deleted after the new run is complete, so a crash never loses a result.
        for run in present:
            if run.info.run_id != run_id:
                self.client.delete_run(run.info.run_id)

    def _is_current(self, run: Run, item: RunContents) -> bool:
        """Returns True if a run is finished, up to date, unchanged, and still has its artifacts."""
        if run.info.status != "FINISHED" or run.info.run_id in self._changed:
            return False
        same = run.data.tags.get(CONTENT_HASH) == item.content_hash
        return same and all(path.is_file() for path in _list_copies(run, item))

    def _mark_run(self, run: Run, *, current: bool) -> None:
        value = "true" if current else "false"
        if run.data.tags.get(CURRENT) != value:
            self.client.set_tag(run.info.run_id, CURRENT, value)

    def _create_run(self, experiment: Experiment, item: RunContents) -> Run:
        end = int(1000 * item.finished)
        curve = curve_metrics(check_file(item.history)) if item.history else []
        logged = [*item.metrics, *curve]
        run = self.client.create_run(
            experiment.experiment_id,
            start_time=end - int(1000 * item.seconds),
            run_name=item.name,
            tags={
                **item.tags,
                RESULT_KEY: item.key,
                CONTENT_HASH: item.content_hash,
                ROWS_HASH: hash_rows(logged, item.params),
                CURRENT: "true",
                NOTE: fit_to_tag(self._link(item.note)),
                "mlflow.source.name": "dpprobe",
                "mlflow.source.type": "PROJECT",
                **self.commit,
            },
        )
        run_id = run.info.run_id
        metrics = [Metric(name, value, end, step) for name, value, step in logged]
        params = [Param(name, value) for name, value in item.params.items()]
        self.client.log_batch(run_id, metrics[:METRICS_A_CALL], params[:PARAMS_A_CALL])
        for start in range(PARAMS_A_CALL, len(params), PARAMS_A_CALL):
            self.client.log_batch(run_id, params=params[start : start + PARAMS_A_CALL])
        for start in range(METRICS_A_CALL, len(metrics), METRICS_A_CALL):
            self.client.log_batch(run_id, metrics[start : start + METRICS_A_CALL])
        repeat_call(lambda: self.client.log_inputs(run_id, list(item.inputs)))
        for path, folder in item.artifacts:
            self._log_artifact(run, folder, path.name, path)
        for name, draw in item.drawn.items():
            self._log_artifact(run, "", name, draw())
        self.client.set_terminated(run_id, "FINISHED", end_time=end)
        return run

    def _log_artifact(self, run: Run, folder: str, name: str, content: Path | str) -> None:
        local = _local_folder(run)
        if local is not None:
            # A plain copy equals the file that MLflow would write, at a tenth of the cost.
            target = local / folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, target)
            else:
                target.write_text(content, encoding="utf-8")
        elif isinstance(content, Path):
            self.client.log_artifact(run.info.run_id, str(content), folder or None)
        else:
            self.client.log_text(run.info.run_id, content, name)


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The store of a study's runs, and its accompanying files.

    Attributes:
      artifact_root: folder of artifacts, unless a server chooses the folder.
      receipt: file written last, with the run of each result and the pages to open.
      lock: the lock file of a SQLite store, so that one process writes at a time. A server accepts
        many writers at once, so only writers of one receipt wait for each other.
      commit: the workflow's commit, recorded in new runs; a changed commit replaces no run.
    """

    uri: str
    study: str
    artifact_root: Path
    receipt: Path
    lock: Path
    commit: str | None = None

    @classmethod
    def of_results(cls, results: Path, *, uri: str | None, **more: Any) -> Destination:
        """Returns the store at `uri`, by default the database in `results`.

        With a storage provider, tracking runs on Snakemake's own machine, which has the database.
        """
        results = leave_copies(results)
        return cls(
            uri=uri or f"sqlite:///{results / 'mlflow.db'}",
            artifact_root=results / "mlartifacts",
            lock=results / "mlflow.lock",
            **more,
        )


@contextmanager
def open_writer(to: Destination, folder: str) -> Iterator[Writer]:
    """Locks a store, and yields a writer whose artifacts go to `folder` below `artifact_root`.

    Raises TrackingError if the store cannot be reached, opened or written.
    """
    with hold_store(to.uri, lock=to.lock, receipt=to.receipt):
        database = sqlite_file(to.uri)
        if database and (told := set_moved_aside(database, to.artifact_root)):
            logger.warning("%s", told)
        create_tables(to.uri)
        location = None if is_server(to.uri) else to.artifact_root / folder
        client = MlflowClient(tracking_uri=to.uri)
        _, changed = read_runs(database) if database else (set(), set[str]())
        yield Writer(client, study=to.study, commit=to.commit, location=location, changed=changed)
        checkpoint_log(to.uri)


def leave_receipt(
    to: Destination,
    writer: Writer,
    *,
    dataset: str,
    pages: Mapping[str, str],
    named: Mapping[str, str] | None = None,
    models: Mapping[str, str] | None = None,
) -> None:
    """Logs the number of runs that were written, and writes the receipt.

    `dataset` is the name of the artifacts' folder; `models` has the versions of registered models.
    """
    counts = {"created": writer.created, "replaced": writer.replaced, "kept": writer.kept}
    logger.info("MLflow: %s", ", ".join(f"{count} {name}" for name, count in counts.items()))
    record: dict[str, Any] = {
        "format": RECEIPT_FORMAT,
        "format_version": RECEIPT_FORMAT_VERSION,
        "uri": public_uri(to.uri),
        "artifact_root": None if writer.location is None else str(writer.location.parent),
        "study": writer.study,
        "dataset": dataset,
        **(named or {}),
        "pages": dict(pages),
        **counts,
        "runs": writer.runs,
    }
    write_record(to.receipt, record if models is None else {**record, "models": dict(models)})


def fit_to_tag(note: str, *, length: int = TAG_LENGTH) -> str:
    """Shortens a note to whole lines that fit into a tag, and says where the full text is."""
    if len(note) <= length:
        return note
    whole, _, _ = note[:length].rpartition("\n")
    return f"{whole or note[:length]}\n\nToo long for MLflow: the rest is in the artifacts."


def _page_of(experiment: Experiment) -> str:
    return (
        f"#/experiments/{experiment.experiment_id}/runs"
        f"?workflowType=machine_learning&viewStateShareKey={VIEW_KEY}"
    )


def _list_copies(run: Run, item: RunContents) -> list[Path]:
    """Lists the artifacts of a run; returns an empty list if a server has them."""
    local = _local_folder(run)
    names = [*item.drawn, *(f"{folder}/{path.name}" for path, folder in item.artifacts)]
    return [] if local is None else [local / name.lstrip("/") for name in names]


def _local_folder(run: Run) -> Path | None:
    parts = urlsplit(run.info.artifact_uri)
    return Path(url2pathname(parts.path)) if parts.scheme in ("", "file") else None


def _find_experiment(client: MlflowClient, wanted: ExperimentContents) -> Experiment:
    """Returns the experiment; creates or restores it if needed."""
    location = None if wanted.location is None else wanted.location.resolve().as_uri()
    experiment = client.get_experiment_by_name(wanted.name) or create_experiment(
        client, wanted.name, location
    )
    if experiment.lifecycle_stage == "deleted":
        restore_experiment(client, experiment)
    if location is not None and experiment.artifact_location != location:
        raise TrackingError(
            f"experiment {wanted.name}: its artifacts are at {experiment.artifact_location}, but "
            f"the results are now at {location}; move the results back, or delete the MLflow "
            "database and run the study again, which recreates every run"
        )
    if experiment.tags.get("mlflow.experimentKind") is None:
        _set_tag(client, experiment, "mlflow.experimentKind", "custom_model_development")
    return experiment


def create_experiment(client: MlflowClient, name: str, location: str | None) -> Experiment:
    """Creates an experiment, or returns the experiment that another writer has just created."""
    try:
        return client.get_experiment(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        other = client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or other is None:
            raise
        return other


def restore_experiment(client: MlflowClient, experiment: Experiment) -> None:
    """Restores an experiment from the trash, unless another writer has just restored it."""
    try:
        client.restore_experiment(experiment.experiment_id)
    except MlflowException:
        if client.get_experiment(experiment.experiment_id).lifecycle_stage == "deleted":
            raise


def _set_tag(client: MlflowClient, experiment: Experiment, key: str, value: str) -> None:
    repeat_call(lambda: client.set_experiment_tag(experiment.experiment_id, key, value))


def repeat_call(call: Callable[[], None]) -> None:
    """Makes a database call, and retries it once if the database refuses it.

    MLflow looks for a database row before it inserts the row. If another writer inserts an equal
    row in between, the database refuses the second row. The retry finds the first row.
    """
    try:
        call()
    except MlflowException as error:
        if error.error_code != "BAD_REQUEST":  # MLflow's code for a violated constraint
            raise
        call()
