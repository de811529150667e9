"""Ready-made views: the columns that are there, in the dataset's metric, for all studies."""

from __future__ import annotations

from dpprobe.results.summary import summarise_cells
from tests.support.cell_files import write_study
from tests.support.tracked_study import Study


def test_the_ready_made_view_names_logged_columns(study: Study) -> None:
    study.ingest()
    for name in ("digits", "digits/summary"):
        view = study.view(name)
        runs = study.runs(name).values()
        present = {f"metrics.`{key}`" for run in runs for key in run.data.metrics}
        present |= {f"params.`{key}`" for run in runs for key in run.data.params}
        assert set(view["selectedColumns"]) <= present
        assert view["orderByKey"] in present
        assert view["orderByAsc"] is False, "the best result stands first"
        view = study.view(name, "dpprobe-all" if name == "digits" else "dpprobe")
        assert view["searchFilter"] == 'tags.current = "true"'
        filtered = study.all_runs(name, filter_string=view["searchFilter"])
        assert len(filtered) == len(study.runs(name))


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


def test_every_line_of_a_chart_has_a_colour_of_its_own(study: Study) -> None:
    study.ingest()
    runs = [run for run in study.runs("digits/summary").values() if "method" in run.data.params]
    colours = [run.data.tags["mlflow.runColor"] for run in runs]
    assert len(set(colours)) == len(colours) > 2


def test_cells_of_two_studies_share_a_view(study: Study) -> None:
    study.ingest()
    columns = study.view("digits")["selectedColumns"]
    assert "metrics.`privacy/noise_multiplier`" in columns
    other = write_study(study.root / "other", methods=["nonprivate"], epsilons=["inf"])
    study.ingest(study="second", metrics_files=other, receipt=study.root / "second.json")
    assert study.view("digits")["selectedColumns"] == columns
    other = write_study(study.root / "third", methods=["sgd"], epsilons=("8",))
    study.ingest(study="third", metrics_files=other, receipt=study.root / "third.json")
    columns = study.view("digits/summary")["selectedColumns"]
    assert [name for name in columns if "/eps_" in name] == [
        f"metrics.`accuracy/eps_{epsilon}`" for epsilon in ("0.5", "2", "8", "inf")
    ]
