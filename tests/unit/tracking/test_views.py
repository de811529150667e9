"""Ready-made views: the columns that are there, in the dataset's metric, for all studies."""

from __future__ import annotations

from mlflow import MlflowClient

from dpprobe.results.summary import summarise_cells
from dpprobe.tracking.runs import BEST
from dpprobe.tracking.views import STUDY_COLUMNS, best_columns
from tests.support.cell_files import write_study
from tests.support.tracked_study import Study


def test_the_ready_made_view_names_logged_columns(study: Study) -> None:
    study.ingest()
    client = MlflowClient(tracking_uri=study.uri)
    for name in ("digits", "digits/summary"):
        experiment = client.get_experiment_by_name(name)
        assert experiment is not None
        view = study.view(name)
        runs = study.runs(name).values()
        present = {f"metrics.`{key}`" for run in runs for key in run.data.metrics}
        present |= {f"params.`{key}`" for run in runs for key in run.data.params}
        assert set(view["selectedColumns"]) <= present
        assert view["orderByKey"] in present
        assert view["searchFilter"] == 'tags.current = "true"'
        filtered = client.search_runs([experiment.experiment_id], view["searchFilter"])
        assert len(filtered) == len(study.runs(name))


def test_the_views_show_the_metric_of_the_dataset(study: Study) -> None:
    study.ingest()
    view = study.view("digits")
    assert [name for name in view["selectedColumns"] if "test/" in name] == [
        "metrics.`test/accuracy`", "metrics.`test/accuracy_std`",
        "metrics.`test/accuracy_rows_low`", "metrics.`test/accuracy_rows_high`",
        "metrics.`test/macro_accuracy`", "metrics.`test/ece`",
    ]  # fmt: skip
    assert not [name for run in study.runs().values() for name in run.data.metrics if "auc" in name]


def test_private_cells_have_a_view_of_their_own(study: Study) -> None:
    receipt = study.ingest()
    view = study.view("digits", "dpprobe-private")
    assert view["searchFilter"] == 'tags.current = "true" and tags.private = "true"'
    assert receipt["pages"]["private"].endswith("viewStateShareKey=dpprobe-private")
    assert receipt["pages"]["charts"].endswith("compareRunsMode=CHART")


def test_the_view_of_all_studies_has_columns_for_each(study: Study) -> None:
    study.ingest_whole()
    other = write_study(study.root / "other", dataset="letters", epsilons=("1", "4"))
    summary = study.root / "letters.parquet"
    summarise_cells(other, summary, study="second")
    study.ingest_whole(
        name="second", summaries=[summary], dataset_infos={"letters": study.info},
        receipt=study.root / "second.json",
    )  # fmt: skip
    best = [name for name in study.view("all studies")["selectedColumns"] if "best" in name]
    assert best == [
        f"metrics.`{dataset}/best_private_eps_{epsilon}`"
        for dataset, epsilons in (("digits", ("0.5", "2")), ("letters", ("1", "4")))
        for epsilon in epsilons
    ]


def test_where_room_is_short_every_dataset_has_its_result_nearest_to_one() -> None:
    names = [f"d{d}{BEST}{e}" for d in range(7) for e in ("0.01", "0.5", "1", "8", "10")]
    chosen = best_columns([*names, "d0/gap_eps_1"])
    assert len(chosen) == STUDY_COLUMNS
    assert {f"d{d}{BEST}1" for d in range(7)} <= set(chosen)
    assert {name.partition(BEST)[2] for name in chosen} == {"0.5", "1"}
    assert chosen[:2] == [f"d0{BEST}0.5", f"d0{BEST}1"]


def test_of_two_epsilons_as_far_from_one_the_view_always_takes_the_same() -> None:
    names = {f"d{d}{BEST}{e}" for d in range(STUDY_COLUMNS + 1) for e in "25"}
    names |= {name.replace("_5", "_0.5") for name in names}
    chosen = best_columns(names)
    assert len(chosen) == STUDY_COLUMNS + 1
    assert {name.partition(BEST)[2] for name in chosen} == {"0.5"}


def test_cells_of_two_studies_share_a_view(study: Study) -> None:
    study.ingest()
    columns = study.view("digits")["selectedColumns"]
    assert "metrics.`privacy/noise_multiplier`" in columns
    other = write_study(study.root / "other", methods=["nonprivate"], epsilons=["inf"])
    study.ingest(study="second", metrics_files=other, receipt=study.root / "second.json")
    assert study.view("digits")["selectedColumns"] == columns


def test_summaries_of_two_studies_share_a_view(study: Study) -> None:
    study.ingest()
    other = write_study(study.root / "other", methods=["sgd"], epsilons=("8",))
    study.ingest(study="second", metrics_files=other, receipt=study.root / "second.json")
    columns = study.view("digits/summary")["selectedColumns"]
    assert [name for name in columns if "/eps_" in name] == [
        f"metrics.`accuracy/eps_{epsilon}`" for epsilon in ("0.5", "2", "8", "inf")
    ]
