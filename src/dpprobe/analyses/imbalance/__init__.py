"""Makes classes rare, and measures how well private heads learn them; results are not private."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import Analysis, Section, of_datasets, one_record
from dpprobe.analyses.imbalance.imbalance_record import IMBALANCE
from dpprobe.exhibits.exhibit import LAST_FIGURES, TABLES, Exhibit, many, waits
from dpprobe.files.records import locate_record

if TYPE_CHECKING:
    from dpprobe.results.study_files import StudyFiles
    from dpprobe.study.study import Study

PACKAGE = "dpprobe.analyses.imbalance"


def list_imbalanced(study: Study) -> list[str]:
    return list(study.imbalance.datasets) if study.imbalance else []


def list_imbalance_records(files: StudyFiles, dataset: str) -> list[str]:
    """Lists the records of a dataset's rare classes; empty if the study makes no class rare."""
    backbones = files.study.backbones if dataset in list_imbalanced(files.study) else []
    return [
        str(locate_record(f"{files.results}/{IMBALANCE}", dataset, backbone))
        for backbone in backbones
    ]


def _list_tables(files: StudyFiles, dataset: str) -> list[str]:
    places = [{"dataset": dataset}] if dataset in list_imbalanced(files.study) else []
    return IMBALANCE_TABLES.list_files(files.study, files.results, places)


IMBALANCE_FIGURES = Exhibit(
    name="plot_imbalance",
    kind="figure",
    order=LAST_FIGURES,
    files={"": "figures/{dataset}/imbalance_{backbone}"},
    needs={"record": one_record(IMBALANCE)},
    make=f"{PACKAGE}.show:plot_imbalance",
    words="figure of rare classes of {dataset}, {backbone}",
    category="Rare classes",
    subcategory="{dataset}",
    labels={"backbone": "{backbone}", "figure": "recall"},
    only={"dataset": list_imbalanced},
)

IMBALANCE_TABLES = Exhibit(
    name="write_imbalance_tables",
    kind="table",
    order=TABLES,
    files={"": "tables/{dataset}_imbalance"},
    needs={"records": many(lambda files, place: list_imbalance_records(files, place["dataset"]))},
    make=f"{PACKAGE}.imbalance_table:make_imbalance_tables",
    words="tables of rare classes of {dataset}",
    category="Rare classes",
    subcategory="{dataset}",
    caption="imbalance.rst",
    labels={"backbone": "all", "figure": "table"},
    only={"dataset": list_imbalanced},
)

ANALYSIS = Analysis(
    name="imbalance",
    describe=(
        "Makes each class rare in turn and compares how well private heads learn the class; "
        "skipped if absent."
    ),
    reads=(
        "Results of rare classes",
        "test labels, without noise. Training labels decide which images of a class are left out.",
    ),
    unpriced="rare classes",
    datasets=list_imbalanced,
    named_datasets=lambda study: list(study.datasets),
    exhibits=(IMBALANCE_FIGURES, IMBALANCE_TABLES),
    section=Section(
        anchor="imbalance",
        title="Rare classes",
        template="imbalance.html.j2",
        make=f"{PACKAGE}.show:make_section",
        needs={
            "imbalance": many(of_datasets(list_imbalance_records)),
            "imbalance_tables": waits(of_datasets(_list_tables)),
        },
        place=1,
        figures={"imbalance_": "Recall of rare classes, {} features"},
    ),
)
