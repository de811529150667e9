"""Each run is written once, replaced when it changes, and retired."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException

from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import read_json
from dpprobe.tracking import writer as writer_module
from dpprobe.tracking.runs import RunContents
from dpprobe.tracking.views import ExperimentContents
from dpprobe.tracking.writer import Writer, fit_to_tag, restore_experiment
from tests.support.cell_files import write_cell, write_dataset_info, write_study
from tests.support.mlflow_server import serve
from tests.support.postgres import postgres
from tests.support.tracked_study import Study


def test_a_second_ingest_creates_and_replaces_no_runs(study: Study) -> None:
    first = study.ingest(commit="one")
    second = study.ingest(commit="two")
    assert (second["created"], second["replaced"], second["kept"]) == (0, 0, 13)
    assert second["runs"] == first["runs"]
    study.runs(view=ViewType.ALL)


def test_a_changed_cell_gets_a_new_run_and_the_others_stay(study: Study) -> None:
    first = study.ingest()
    write_cell(study.root, epsilon="2", quality=9.0, note="retrained")
    second = study.ingest()
    changed = "study/digits/pixels/sgd/eps-2", "study/digits/pixels/sgd"
    assert (second["created"], second["replaced"], second["kept"]) == (0, 2, 11)
    for key, run_id in first["runs"].items():
        assert (second["runs"][key] == run_id) == (key not in changed)
    run = study.runs()[changed[0]]
    record = read_json(study.root / "cells/digits/pixels/sgd/eps-2/metrics.json")
    mean = record["summary"]["accuracy"]["mean"]
    assert run.data.metrics["test/accuracy"] == pytest.approx(mean, rel=1e-3)
    old = study.client.get_run(first["runs"][changed[0]])
    assert old.info.lifecycle_stage == "deleted"


def test_a_changed_figure_replaces_only_the_run_of_the_dataset(study: Study) -> None:
    before = study.ingest()["runs"]
    write_text(study.figures[0], "drawn again")
    receipt = study.ingest()
    assert (receipt["created"], receipt["replaced"], receipt["kept"]) == (0, 1, 12)
    changed = {key for key, run in receipt["runs"].items() if run != before[key]}
    assert changed == {"study/digits"}


def test_a_changed_dataset_replaces_all(study: Study) -> None:
    study.ingest()
    write_dataset_info(study.info, note="other rows")
    assert study.ingest()["replaced"] == 13


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
    runs = study.client.search_runs(["1"], filter_string=f"tags.result_key = '{key}'")
    assert len(runs) == 2, "the crash was to leave the old run beside the new one"
    receipt = study.ingest()
    runs_now = study.runs()
    assert {run.info.status for run in runs_now.values()} == {"FINISHED"}
    assert runs_now[key].info.run_id == receipt["runs"][key]
    assert len(runs_now) == 8


@pytest.mark.parametrize("name", ["privacy.json", "confusion/matrix.html"])
def test_a_run_whose_artifacts_vanished_is_made_again(study: Study, name: str) -> None:
    study.ingest()
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    (Path(run.info.artifact_uri.removeprefix("file://")) / name).unlink()
    assert study.ingest()["replaced"] == 1


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
    assert receipt["runs"].keys() == first["runs"].keys()
    for key, run in first["runs"].items():
        # a summary contains the gap to the ceiling, which had been removed
        if "/eps-" in key or "/nonprivate" in key:
            assert receipt["runs"][key] == run, "runs that came back are the same runs"
    assert set(current("digits").values()) | set(current("digits/summary").values()) == {"true"}


def test_a_deleted_experiment_comes_back(study: Study) -> None:
    study.ingest()
    study.client.delete_experiment(study.find_experiment("digits").experiment_id)
    study.ingest()
    assert len(study.runs()) == 8


def test_an_experiment_made_by_another_writer_meanwhile_is_used(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.client.create_experiment("digits", (study.root / "mlartifacts/digits/cells").as_uri())
    get_experiment = MlflowClient.get_experiment_by_name
    asked: list[str] = []

    def late(self: MlflowClient, name: str) -> Any:
        asked.append(name)
        return None if asked.count(name) == 1 else get_experiment(self, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", late)
    assert study.ingest()["created"] == 13
    assert asked[:2] == ["digits", "digits"], "asked again after the other writer"


def test_a_run_has_more_numbers_than_a_call_takes_and_its_experiment_the_last_note(
    study: Study,
) -> None:
    item = RunContents(
        key="k",
        content_hash="h",
        name="n",
        note=9000 * "a\n",
        artifacts=[],
        tags={"study": "s"},
        params={f"p{number}": f"{number}" for number in range(181)},
        metrics=[(f"m{number}", float(number), number) for number in range(1801)],
    )
    for note in ("one", "two"):
        writer = Writer(study.client, study="s", commit="c")
        wanted = ExperimentContents(name="a", location=study.root, note=note, views=lambda _: {})
        writer.write(wanted, [item])
        assert study.find_experiment("a").tags["mlflow.note.content"] == note
    assert (writer.created, writer.replaced, writer.kept) == (0, 0, 1)
    data = study.runs("a")["k"].data
    assert data.params == item.params
    assert data.metrics == {name: value for name, value, _ in item.metrics}
    assert data.tags["mlflow.source.git.commit"] == "c"
    assert 7000 < len(data.tags["mlflow.note.content"]) <= 8000, "PostgreSQL takes no more"


def test_runs_of_people_and_several_of_one_result_are_retired(study: Study) -> None:
    study.ingest()
    ids = [study.find_experiment(name).experiment_id for name in ("digits", "digits/summary")]
    tags = {"study": "study", "current": "true"}
    made = [study.client.create_run(each, tags=tags).info.run_id for each in (*ids, ids[0])]
    study.ingest(metrics_files=study.cells[:1])
    states = [study.client.get_run(run).data.tags["current"] for run in made]
    assert states == ["false"] * 3
    assert [run.data.tags["current"] for run in study.all_runs()].count("true") == 1
    writer = Writer(study.client, study="study")
    assert writer.retire_datasets(["digits"]) == set()
    assert writer.retire_datasets([]) == {"digits"}
    assert {run.data.tags["current"] for run in study.all_runs()} == {"false"}


def test_a_refused_call_is_repeated_where_another_writer_may_be_the_cause() -> None:
    for code, calls in (("BAD_REQUEST", 2), ("INTERNAL_ERROR", 1)):
        refused = MlflowException("x")
        refused.error_code = code
        call = Mock(side_effect=[refused, None])
        with nullcontext() if calls == 2 else pytest.raises(MlflowException):
            writer_module.repeat_call(call)
        assert call.call_count == calls
    for code, other in (
        ("RESOURCE_ALREADY_EXISTS", None),
        ("INTERNAL_ERROR", "theirs"),
        ("RESOURCE_ALREADY_EXISTS", "theirs"),
    ):
        refused.error_code, client = code, Mock()
        client.create_experiment.side_effect = refused
        client.get_experiment_by_name.return_value = other
        found = code != "INTERNAL_ERROR" and other is not None
        with nullcontext() if found else pytest.raises(MlflowException):
            assert str(writer_module.create_experiment(client, "a", None)) == "theirs"


def test_an_experiment_restored_by_another_writer_raises_no_error() -> None:
    client = Mock()
    client.restore_experiment.side_effect = MlflowException("No deleted experiment")
    experiment = Mock(experiment_id="1")
    client.get_experiment.return_value.lifecycle_stage = "active"
    restore_experiment(client, experiment)
    client.get_experiment.return_value.lifecycle_stage = "deleted"
    with pytest.raises(MlflowException):
        restore_experiment(client, experiment)


@pytest.mark.parametrize("lines", [1, 3000])
def test_a_long_note_is_truncated_with_a_notice(lines: int) -> None:
    note = "\n".join(f"- line {index} of many" for index in range(lines))
    cut = fit_to_tag(note)
    assert len(cut) < 8000
    assert (cut == note) == (lines == 1)
    assert [len(fit_to_tag("x" * 9, length=length)) for length in (10, 9, 8)] == [9, 9, 60]
    if lines > 1:
        *whole, _, word = cut.split("\n")
        assert whole == note.split("\n")[: len(whole)]
        assert "Too long" in word


DATASETS = ("signs", "cells")
STUDIES = ("one", "two")  # both share each dataset's experiment
SMALLEST: dict[str, Any] = {"backbones": ["pixels"], "methods": ["sgd"], "seeds": 2}
CELLS, SUMMARIES = 2, 2
# One process per writer, like jobs on several machines, each with its own lock file; forked from a
# process that has imported MLflow but not used it.
WRITERS = """
import json, os, sys
from pathlib import Path
from dpprobe.tracking.ingest import update_dataset
from dpprobe.tracking.writer import Destination

def write(a):
    root = Path(a["root"])
    to = Destination(uri=a["uri"], study=a["study"], artifact_root=root / "unused",
           receipt=Path(a["folder"]) / "receipt.json", lock=Path(a["folder"]) / "lock")
    update_dataset(to, dataset=a["dataset"],
           metrics_files=sorted(root.glob(f"cells/{a['dataset']}/*/*/*/metrics.json")),
           dataset_info=root / "dataset.json", figures=[], planes={}, tables=[])

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
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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
    """Starts a writer for each study and dataset at the same time; returns their receipts."""
    keys = [(study, dataset) for study in STUDIES for dataset in DATASETS]
    arguments = []
    for study, dataset in keys:
        place = folder / study / dataset
        place.mkdir(parents=True, exist_ok=True)
        arguments.append(
            {
                "uri": server,
                "study": study,
                "dataset": dataset,
                "root": str(files),
                "folder": str(place),
            }
        )
    assert len(arguments) == 4
    writers = start_writers(*arguments)
    output, _ = writers.communicate(timeout=400)
    assert writers.returncode == 0, output[-6000:]
    return {(s, d): read_json(folder / s / d / "receipt.json") for s, d in keys}


@pytest.mark.slow
def test_four_concurrent_writers_lose_no_runs_and_create_no_duplicates(
    server: str, files: Path, tmp_path: Path
) -> None:
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
    assert len(keys) == 4 * each
    assert max(keys.values()) == 1
    run_id = first["two", "signs"]["runs"]["two/signs/pixels/sgd/eps-2"]
    listed = [item.path for item in client.list_artifacts(run_id)]
    assert listed == ["confusion", "metrics.json", "privacy.json"]
    history = client.get_metric_history(run_id, "curve/test_accuracy")
    assert [point.step for point in history] == [10, 20, 30, 40]
    second = write_all(server, files, tmp_path)
    assert {(r["created"], r["kept"]) for r in second.values()} == {(0, each)}


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
    assert (receipt["created"], receipt["kept"]) == (11, 2)
    assert len(study.runs()) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "insert"),
    [
        (
            "ward",
            "INSERT INTO experiment_tags (experiment_id, key, value)"
            " VALUES (%(experiment)s, 'mlflow.note.content', 'of another writer')",
        ),
        (
            "clinic",
            "INSERT INTO datasets (experiment_id, name, digest, dataset_uuid,"
            " dataset_source_type, dataset_source)"
            " VALUES (%(experiment)s, 'clinic', %(digest)s, 'a', 'dpprobe', '{}')",
        ),
    ],
    ids=["tag", "dataset"],
)
def test_a_row_that_another_writer_inserts_in_between(
    backend: str, server: str, tmp_path: Path, dataset: str, insert: str
) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    write_study(tmp_path, dataset=dataset, **SMALLEST, epsilons=["1"])
    info = write_dataset_info(tmp_path / "dataset.json")
    client = MlflowClient(tracking_uri=server)
    experiment = client.create_experiment(dataset)
    values = {"experiment": int(experiment), "digest": read_json(info)["fingerprint"][:36]}
    arguments = {
        "uri": server,
        "study": "one",
        "dataset": dataset,
        "root": str(tmp_path),
        "folder": str(tmp_path),
    }
    with psycopg2.connect(backend) as other, closing(psycopg2.connect(backend)) as watch:
        # `with watch` would be one transaction, in which pg_stat_activity never changes.
        watch.autocommit = True
        other.cursor().execute(insert, values)
        # The writer does not see the row yet; its own insert waits until this transaction ends.
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
