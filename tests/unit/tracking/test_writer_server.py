"""A shared MLflow server over PostgreSQL, under several writers at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType

from dpprobe.artifacts import read_json
from tests.support.cell_files import write_dataset_info, write_study
from tests.support.mlflow_server import serve
from tests.support.postgres import postgres

pytestmark = pytest.mark.slow

DATASETS = ("digits", "letters", "signs", "cells")
STUDIES = ("one", "two")  # that share each dataset's experiment
SMALLEST: dict[str, Any] = {"backbones": ["pixels"], "methods": ["sgd"], "seeds": 2}
CELLS, SUMMARIES = 2, 2
# A process for each, as a job on another machine is, with a lock file of its own; they are forked
# from one that has imported MLflow and asked it for nothing.
WRITERS = """
import json, os, sys
from pathlib import Path
from dpprobe.tracking.ingest import update_dataset

def write(a):
    root = Path(a["root"])
    update_dataset(uri=a["uri"], study=a["study"], dataset=a["dataset"],
           metrics_files=sorted(root.glob(f"cells/{a['dataset']}/*/*/*/metrics.json")),
           dataset_info=root / "dataset.json", figures=[], embeddings={}, tables=[],
           artifact_root=root / "unused", receipt=Path(a["folder"]) / "receipt.json",
           lock=Path(a["folder"]) / "lock")

writers = []
for arguments in json.loads(sys.argv[1]):
    writers.append(os.fork())
    if not writers[-1]:
        write(arguments)
        sys.exit()
sys.exit(any([os.waitpid(writer, 0)[1] for writer in writers]))
"""


def start_writers(*arguments: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITERS, json.dumps(arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    with postgres() as uri:
        yield uri


@pytest.fixture(scope="module")
def server(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("server"), backend) as address:
        yield address


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cells")
    for dataset in DATASETS:
        cells = write_study(root, dataset=dataset, **SMALLEST, epsilons=("2", "inf"))
        assert len(cells) == CELLS
    write_dataset_info(root / "dataset.json")
    return root


def write_all(server: str, files: Path, folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Starts a writer for each study and dataset, all at once; returns their receipts."""
    keys = [(study, dataset) for study in STUDIES for dataset in DATASETS]
    arguments = []
    for study, dataset in keys:
        place = folder / study / dataset
        place.mkdir(parents=True, exist_ok=True)
        arguments.append({"uri": server, "study": study, "dataset": dataset, "root": str(files),
                          "folder": str(place)})  # fmt: skip
    assert len(arguments) == 8
    writers = start_writers(*arguments)
    output, _ = writers.communicate(timeout=400)
    assert writers.returncode == 0, output[-6000:]
    return {(s, d): read_json(folder / s / d / "receipt.json") for s, d in keys}


def test_eight_writers_lose_nothing(server: str, files: Path, tmp_path: Path) -> None:
    each = CELLS + SUMMARIES
    first = write_all(server, files, tmp_path)
    assert {(r["created"], r["kept"]) for r in first.values()} == {(each, 0)}
    client = MlflowClient(tracking_uri=server)
    experiments = client.search_experiments(view_type=ViewType.ALL)
    names = Counter(experiment.name for experiment in experiments)
    assert max(names.values()) == 1
    keys: Counter[str] = Counter()
    for dataset in DATASETS:
        for name in (dataset, f"{dataset}/summary"):
            experiment = client.get_experiment_by_name(name)
            assert experiment is not None
            runs = client.search_runs([experiment.experiment_id], max_results=1000)
            assert {run.info.status for run in runs} == {"FINISHED"}
            keys.update(run.data.tags["result_key"] for run in runs)
    assert len(keys) == 8 * each
    assert max(keys.values()) == 1
    run_id = first["two", "signs"]["runs"]["two/signs/pixels/sgd/eps-2"]
    listed = [item.path for item in client.list_artifacts(run_id)]
    assert listed == ["confusion", "metrics.json", "privacy.json"]
    history = client.get_metric_history(run_id, "curve/test_accuracy")
    assert [point.step for point in history] == [10, 20, 30, 40]
    second = write_all(server, files, tmp_path)
    assert {(r["created"], r["kept"]) for r in second.values()} == {(0, each)}


@pytest.mark.parametrize(
    ("dataset", "insert"),
    [
        ("ward", "INSERT INTO experiment_tags (experiment_id, key, value)"
         " VALUES (%(experiment)s, 'mlflow.note.content', 'of another writer')"),
        ("clinic", "INSERT INTO datasets (experiment_id, name, digest, dataset_uuid,"
         " dataset_source_type, dataset_source)"
         " VALUES (%(experiment)s, 'clinic', %(digest)s, 'a', 'dpprobe', '{}')"),
    ],
    ids=["tag", "dataset"],
)  # fmt: skip
def test_a_row_that_another_writer_inserts_in_between(
    backend: str, server: str, tmp_path: Path, dataset: str, insert: str
) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    write_study(tmp_path, dataset=dataset, **SMALLEST, epsilons=["1"])
    info = write_dataset_info(tmp_path / "dataset.json")
    client = MlflowClient(tracking_uri=server)
    experiment = client.create_experiment(dataset)
    values = {"experiment": int(experiment), "digest": read_json(info)["fingerprint"][:36]}
    arguments = {"uri": server, "study": "one", "dataset": dataset, "root": str(tmp_path),
                 "folder": str(tmp_path)}  # fmt: skip
    with psycopg2.connect(backend) as other, psycopg2.connect(backend) as watch:
        watch.autocommit = True
        other.cursor().execute(insert, values)
        # Our writer does not see the row yet; its own insert waits until that one is decided.
        writer = start_writers(arguments)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        limit = time.monotonic() + 120
        with watch.cursor() as cursor:
            cursor.execute(waiting)
            while cursor.fetchone() == (0,):
                assert writer.poll() is None, writer.communicate()[0]
                assert time.monotonic() < limit
                time.sleep(0.05)
                cursor.execute(waiting)
        other.commit()
    output = writer.communicate(timeout=120)[0]
    assert writer.returncode == 0, output[-2000:]
    (run,) = client.search_runs([experiment])
    assert run.inputs is not None
    assert [item.dataset.name for item in run.inputs.dataset_inputs] == [dataset]
    note = client.get_experiment(experiment).tags["mlflow.note.content"]
    assert "of another writer" not in note
