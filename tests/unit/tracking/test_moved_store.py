"""A store whose results were moved is remade if only dpprobe wrote it, and otherwise refused."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpprobe.errors import TrackingError
from dpprobe.files.json_files import write_record
from dpprobe.tracking.moved_store import set_moved_aside
from dpprobe.tracking.receipt import find_store_fault
from tests.support.tracked_study import Study


@pytest.fixture
def moved(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Returns a tracked study that is not in the folder named by its store."""
    study.ingest()
    folder = tmp_path_factory.mktemp("elsewhere") / "results"
    shutil.copytree(study.root, folder)
    shutil.rmtree(study.root)
    return Study(folder)


def execute(study: Study, *statements: str) -> None:
    with closing(sqlite3.connect(study.root / "mlflow.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def list_runs(database: Path) -> dict[str, str]:
    """Maps each run to the URI of its artifacts."""
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("select run_uuid, artifact_uri from runs").fetchall())


def list_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.name.startswith("mlflow.db")}


def test_a_moved_store_is_made_again(moved: Study, caplog: pytest.LogCaptureFixture) -> None:
    database, before = moved.root / "mlflow.db", list_runs(moved.root / "mlflow.db")
    kept = moved.root / "mlartifacts.moved"
    kept.mkdir()
    (kept / "of an earlier move").touch()
    with caplog.at_level(logging.WARNING, logger="dpprobe"):
        receipt = moved.ingest()
    assert (receipt["created"], receipt["kept"]) == (13, 0)
    (line,) = [line for line in caplog.messages if str(database) in line]
    assert f"{database}.moved" in line
    assert "\n" not in line
    assert "snakemake" not in line, "there is no model of a release"

    # the old store and its artifacts
    assert list_runs(Path(f"{database}.moved")) == before
    assert not (kept / "of an earlier move").exists()
    assert {path.name for path in (kept / "digits/cells").iterdir()} <= before.keys()
    # the new store
    now = list_runs(database)
    assert len(now) == 13
    assert not now.keys() & before.keys()
    here = (moved.root / "mlartifacts").as_uri()
    assert all(address.startswith(f"{here}/") for address in now.values())
    for run in moved.all_runs():
        assert Path(run.info.artifact_uri.removeprefix("file://"), "privacy.json").is_file()
    assert moved.ingest()["kept"] == 13, "once"


RUN = (
    "insert into runs (run_uuid, name, experiment_id, status, lifecycle_stage)"
    " values ('abc', 'my_own', {}, 'FINISHED', '{}')"
)
MODEL = (
    "insert into registered_models (name, workspace) values ('clinic', 'default')",
    "insert into model_versions (name, version, current_stage, workspace)"
    " values ('clinic', 2, 'None', 'default')",
)
TAG = (
    "insert into model_version_tags (name, version, key, value, workspace)"
    " values ('clinic', 2, '{}', 'x', 'default')"
)
RELEASE = (*MODEL, TAG.format("bundle_digest"))
OTHERS = {
    "a run": ((RUN.format(0, "active"),), "my_own"),
    "a run in the trash": ((RUN.format(1, "deleted"),), "my_own"),
    "a model": (MODEL, "clinic 2"),
    "a rollback": ((*RELEASE, TAG.format("rolled_back")), "clinic 2"),
}


@pytest.mark.parametrize(("statements", "name"), OTHERS.values(), ids=OTHERS)
def test_a_moved_store_with_more_is_refused(
    moved: Study, statements: tuple[str, ...], name: str
) -> None:
    execute(moved, *statements)
    database = moved.root / "mlflow.db"
    before = database.read_bytes(), list_runs(database)
    with pytest.raises(TrackingError) as refused:
        set_moved_aside(database, moved.root / "mlartifacts")
    words = str(refused.value)
    assert name in words
    assert str(database) in words
    assert "\n" not in words
    assert (database.read_bytes(), list_runs(database)) == before
    assert (moved.root / "mlartifacts/digits").is_dir()


def delete(study: Study) -> None:
    (study.root / "mlflow.db").unlink()


def leave_a_table_out(study: Study) -> None:
    execute(study, "drop table experiments")


def put_an_experiment_here(study: Study) -> None:
    here = (study.root / "mlartifacts/signs/cells").as_uri()
    execute(
        study,
        "insert into experiments (name, artifact_location, lifecycle_stage, workspace)"
        f" values ('signs', '{here}', 'active', 'default')",
    )


def use_the_store_of_others(study: Study) -> None:
    """Simulates results in another folder, which still exists and has this store's artifacts."""
    (study.root / "mlartifacts").rename(study.root / "of_others")
    others = (study.root / "of_others").as_uri()
    execute(
        study,
        f"update experiments set artifact_location = '{others}/digits' where experiment_id > 0",
    )


def keep_artifacts_on_a_server(study: Study) -> None:
    execute(study, "update experiments set artifact_location = 's3://bucket/mlartifacts/digits'")


@pytest.mark.parametrize(
    "change",
    [
        delete,
        leave_a_table_out,
        put_an_experiment_here,
        use_the_store_of_others,
        keep_artifacts_on_a_server,
    ],
)
def test_a_store_that_was_not_moved_stays(moved: Study, change: Callable[[Study], None]) -> None:
    change(moved)
    names = {path.name for path in moved.root.iterdir()}
    assert set_moved_aside(moved.root / "mlflow.db", moved.root / "mlartifacts") is None
    assert {path.name for path in moved.root.iterdir()} == names


def test_ingesting_a_copied_study_does_not_change_the_original_store(
    study: Study, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The original store and its artifacts do not change."""
    study.ingest()
    before = list_runs(study.root / "mlflow.db"), list_files(study.root)
    copied = tmp_path_factory.mktemp("copied") / "results"
    shutil.copytree(study.root, copied)
    assert Study(copied).ingest()["created"] == 13
    assert (list_runs(study.root / "mlflow.db"), list_files(study.root)) == before
    kept = study.ingest()
    assert kept["kept"] == 13, kept


def test_a_move_alone_is_seen_by_the_next_run(
    study: Study, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renaming a parent folder changes no file's modification time."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(study.root, folder / "one")
    record = Study(folder / "one").ingest()
    monkeypatch.chdir(folder / "one")
    receipt = Path("receipt.json")  # a study's run uses relative paths
    write_record(receipt, record | {"uri": "sqlite:///mlflow.db", "artifact_root": "mlartifacts"})
    assert find_store_fault(receipt, note=True) is None
    (folder / "one").rename(folder / "two")
    monkeypatch.chdir(folder / "two")
    fault = find_store_fault(receipt)
    assert fault is not None
    assert (folder / "one").as_uri() in fault.words
    (folder / "two").rename(folder / "one")
    monkeypatch.chdir(folder / "one")
    assert find_store_fault(receipt) is None
