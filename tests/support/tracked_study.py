"""A small study's files and the MLflow store they are ingested into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from dpprobe.artifacts import read_json, write_text
from dpprobe.tracking.ingest import ingest, initialise
from tests.support.cell_files import write_dataset_info, write_study


class Study:
    """A small study's files, and the store they are ingested into."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = f"sqlite:///{root}/mlflow.db"
        self.info = root / "dataset.json"
        self.cells = sorted(root.glob("cells/*/*/*/*/metrics.json"))
        self.figures = [root / "accuracy.png"]
        self.embeddings = {"pixels": [root / "tsne_pixels.png"]}
        self.tables = [root / "accuracy.md"]

    def ingest(self, **changes: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "uri": self.uri, "study": "study", "dataset": "digits", "metrics_files": self.cells,
            "dataset_info": self.info, "figures": self.figures, "embeddings": self.embeddings,
            "tables": self.tables, "artifact_root": self.root / "mlartifacts",
            "receipt": self.root / "receipt.json", "lock": self.root / "lock",
        }  # fmt: skip
        ingest(**(arguments | changes))
        receipt: dict[str, Any] = read_json(self.root / "receipt.json")
        return receipt

    def runs(self, experiment: str = "digits", view: int = ViewType.ACTIVE_ONLY) -> dict[str, Run]:
        """Runs by result key; fails where one key has two."""
        runs = self.all_runs(experiment, view)
        keys = [run.data.tags["result_key"] for run in runs]
        assert len(keys) == len(set(keys)), f"a result has two runs: {sorted(keys)}"
        return dict(zip(keys, runs, strict=True))

    def all_runs(self, experiment: str = "digits", view: int = ViewType.ACTIVE_ONLY) -> list[Run]:
        """The runs of all studies."""
        client = MlflowClient(tracking_uri=self.uri)
        found = client.get_experiment_by_name(experiment)
        assert found is not None
        return list(client.search_runs([found.experiment_id], run_view_type=view))

    def artifacts(self, run: Run) -> list[str]:
        folder = Path(run.info.artifact_uri.removeprefix("file://"))
        return sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )


def make_template(root: Path) -> Path:
    """A study's files beside a database with its tables and no run; tests take copies."""
    initialise(f"sqlite:///{root}/mlflow.db")
    write_dataset_info(root / "dataset.json")
    write_study(root, methods=("sgd", "nonprivate"), epsilons=("0.5", "2", "inf"))
    for name in ("accuracy.png", "tsne_pixels.png", "accuracy.md"):
        write_text(root / name, name)
    return root
