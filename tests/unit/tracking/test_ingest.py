"""MLflow runs from finished cells and studies."""

from __future__ import annotations

import pytest

from dpprobe.artifacts import write_text
from dpprobe.errors import DataError, TrackingError
from tests.support.mlflow_server import serve
from tests.support.tracked_study import Study


def test_a_cell_without_history_or_record_is_refused(study: Study) -> None:
    study.cells[0].with_name("history.parquet").unlink()
    with pytest.raises(TrackingError, match="history.parquet"):
        study.ingest()
    study.cells[0].unlink()
    with pytest.raises(DataError, match="missing"):
        study.ingest()


@pytest.mark.slow
def test_runs_are_written_through_a_server(study: Study) -> None:
    store = study.root / "store"
    store.mkdir()
    (study.root / "mlflow.db").rename(store / "mlflow.db")
    with serve(store) as study.uri:
        assert study.ingest()["created"] == 13
        assert study.ingest()["kept"] == 13
        run = study.runs()["study/digits/pixels/sgd/eps-2"]
        listed = [item.path for item in study.client.list_artifacts(run.info.run_id)]
    assert listed == ["confusion", "metrics.json", "privacy.json"]
    assert (store / "server_artifacts").is_dir()
    assert not (study.root / "mlartifacts").exists()


def test_a_dataset_that_left_the_study_is_no_longer_current(study: Study) -> None:
    first = study.root / "digits.json"  # as the workflow calls it
    study.ingest()
    study.ingest(study="second", receipt=study.root / "second.json")
    for path in (first, study.root / "letters.json"):
        write_text(path, "{}")
    study.ingest_whole(dataset_infos={"letters": study.info})
    assert not first.exists(), "so that the workflow tracks it again when it comes back"
    assert (study.root / "letters.json").exists()
    for name in ("digits", "digits/summary"):
        tags = [run.data.tags for run in study.all_runs(name)]
        states = {(each["study"], each["current"]) for each in tags}
        assert states == {("study", "false"), ("second", "true")}
    assert study.runs("all studies")["study"].data.tags["current"] == "true"
    study.ingest()
    study.ingest_whole()
    assert {run.data.tags["current"] for run in study.all_runs("digits")} == {"true"}
