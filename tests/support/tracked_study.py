"""A small study's files, and the MLflow store into which they are written."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, ViewType

from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import read_json
from dpprobe.results.summary import summarise_cells
from dpprobe.tracking.ingest import ingest_study, update_dataset
from dpprobe.tracking.store import create_tables
from dpprobe.tracking.writer import Destination
from tests.support.cell_files import write_dataset_info, write_study


class Study:
    """A small study's files, and the MLflow store into which they are written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = f"sqlite:///{root}/mlflow.db"
        self.info = root / "dataset.json"
        self.cells = sorted(root.glob("cells/*/*/*/*/metrics.json"))
        self.figures = [root / "accuracy.png"]
        self.planes = {"pixels": root / "tsne_pixels.png"}
        self.tables = [root / "accuracy.md"]

    def destination(self, receipt: str, changes: dict[str, Any], *, study: str) -> Destination:
        """Returns where runs are written; removes values of the destination from `changes`."""
        values: dict[str, Any] = {
            "uri": self.uri,
            "study": study,
            "artifact_root": self.root / "mlartifacts",
            "receipt": self.root / receipt,
            "lock": self.root / "lock",
        }
        own = {each.name for each in fields(Destination)} & changes.keys()
        return Destination(**values | {name: changes.pop(name) for name in own})

    def ingest(self, **changes: Any) -> dict[str, Any]:
        """Writes the cells to MLflow; returns the receipt."""
        arguments: dict[str, Any] = {
            "dataset": "digits",
            "metrics_files": self.cells,
            "dataset_info": self.info,
            "figures": self.figures,
            "planes": self.planes,
            "tables": self.tables,
        }
        to = self.destination("receipt.json", changes, study="study")
        update_dataset(to, **(arguments | changes))
        receipt: dict[str, Any] = read_json(self.root / "receipt.json")
        return receipt

    def ingest_whole(self, **changes: Any) -> dict[str, Any]:
        """Writes the runs of the study as a whole; returns the receipt."""
        summary = self.root / "summary.parquet"
        summarise_cells(self.cells, summary, study="study")
        report = self.root / "report.html"
        if not report.exists():
            write_text(report, "<html></html>")
        arguments: dict[str, Any] = {
            "report": report,
            "summaries": [summary],
            "dataset_infos": {"digits": self.info},
            "figures": [],
            "tables": sorted((self.root / "tables").rglob("*.md")),
        }
        to = self.destination("_study.json", changes, study="study")
        ingest_study(to, **(arguments | changes))
        receipt: dict[str, Any] = read_json(self.root / "_study.json")
        return receipt

    def runs(self, experiment: str = "digits", view: int = ViewType.ACTIVE_ONLY) -> dict[str, Run]:
        """Maps result keys to runs; fails if two runs have the same key."""
        runs = self.all_runs(experiment, view)
        keys = [run.data.tags["result_key"] for run in runs]
        assert len(keys) == len(set(keys)), f"a result has two runs: {sorted(keys)}"
        return dict(zip(keys, runs, strict=True))

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def find_experiment(self, name: str) -> Experiment:
        present = self.client.get_experiment_by_name(name)
        assert present is not None
        return present

    def all_runs(
        self, experiment: str = "digits", view: int = ViewType.ACTIVE_ONLY, **search: Any
    ) -> list[Run]:
        """Returns the runs of all studies, or those that a search finds."""
        ids = [self.find_experiment(experiment).experiment_id]
        return list(self.client.search_runs(ids, run_view_type=view, **search))

    def view(self, experiment: str, key: str = "dpprobe") -> dict[str, Any]:
        """Returns a stored view of an experiment."""
        tags = self.find_experiment(experiment).tags
        state = json.loads(tags[f"mlflow.sharedViewState.{key}"])["state"]
        packed = base64.b64decode(state.removeprefix("deflate;"))
        view: dict[str, Any] = json.loads(zlib.decompress(packed))
        return view

    def artifacts(self, run: Run) -> list[str]:
        """Returns the paths of a run's artifacts within the run."""
        folder = Path(run.info.artifact_uri.removeprefix("file://"))
        return sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )


def make_template(root: Path) -> Path:
    """Writes a study's files and a database without runs, for tests to copy; returns the folder."""
    create_tables(f"sqlite:///{root}/mlflow.db")
    write_dataset_info(root / "dataset.json")
    write_study(root, methods=("sgd", "nonprivate"), epsilons=("0.5", "2", "inf"))
    for name in ("accuracy.png", "tsne_pixels.png", "accuracy.md"):
        write_text(root / name, name)
    return root
