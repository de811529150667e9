"""Laws of separability over the blocks of networks; not private."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import Analysis, Section, of_datasets
from dpprobe.analyses.representation_law.law_record import (
    LAW_TABLES,
    LAYERS,
    MEASURE_FIGURES,
    law_path,
)
from dpprobe.analyses.representation_law.measured_networks import (
    law_backbones,
    law_datasets,
    law_faults,
)
from dpprobe.analyses.representation_law.options import RepresentationLawOptions
from dpprobe.exhibits.exhibit import SUMMARY, Exhibit, many, one, waits
from dpprobe.exhibits.published import published_digest

if TYPE_CHECKING:
    from dpprobe.results.study_files import StudyFiles

PACKAGE = "dpprobe.analyses.representation_law"


def list_law_records(files: StudyFiles, dataset: str) -> list[str]:
    """Lists the records of the laws of a dataset, if the study measures them."""
    backbones = law_backbones(files.study) if dataset in law_datasets(files.study) else []
    return [str(law_path(f"{files.results}/{LAYERS}", dataset, backbone)) for backbone in backbones]


def list_law_marks(files: StudyFiles, dataset: str) -> list[str]:
    """Lists the marks of the jobs that measure the laws of a dataset."""
    records = list_law_records(files, dataset)
    return [f"{record.rpartition('/')[0]}/.law.done" for record in records]


LAW_FIGURES = Exhibit(
    name="plot_law",
    kind="figure",
    files={"": tuple(f"figures/{{dataset}}/{name}_{{backbone}}" for name in MEASURE_FIGURES)},
    needs={
        "record": one(
            lambda files, place: str(
                law_path(f"{files.results}/{LAYERS}", place["dataset"], place["backbone"])
            )
        ),
        "mark": waits(
            lambda files, place: [
                f"{files.results}/{LAYERS}/{place['dataset']}/{place['backbone']}/.law.done"
            ]
        ),
    },
    make=f"{PACKAGE}.show:plot_law",
    words="representation laws of {dataset}, {backbone}",
    category="Representation laws",
    labels={"dataset": "{dataset}", "backbone": "{backbone}"},
    places=lambda study: [
        {"dataset": dataset, "backbone": backbone}
        for dataset in law_datasets(study)
        for backbone in law_backbones(study)
    ],
)

LAW_TABLE_FILES = Exhibit(
    name="write_law_tables",
    kind="table",
    files={"": tuple(f"tables/{{dataset}}_{name}" for name in LAW_TABLES)},
    needs={
        "records": many(lambda files, place: list_law_records(files, place["dataset"])),
        "marks": waits(lambda files, place: list_law_marks(files, place["dataset"])),
        "summary": SUMMARY,
    },
    make=f"{PACKAGE}.law_tables:make_law_tables",
    words="tables of representation laws, {dataset}",
    category="Representation laws",
    caption="law.rst",
    params={
        "name": lambda study, place: study.part_names()[place["dataset"]],
        "published": lambda _study, _place: published_digest(),
    },
    places=lambda study: [
        {"dataset": dataset} for dataset in (law_datasets(study) if law_backbones(study) else [])
    ],
)

ANALYSIS = Analysis(
    name="representation_law",
    describe=(
        "Laws of separability over the blocks of frozen and tuned networks, not private; "
        "skipped if absent."
    ),
    reads=(
        "Representation laws",
        "scatter and regressions of training and test rows, without noise; also of "
        "networks that were tuned with privacy.",
    ),
    unpriced="representation law",
    options=RepresentationLawOptions,
    faults=law_faults,
    datasets=law_datasets,
    backbones=law_backbones,
    exhibits=(LAW_FIGURES, LAW_TABLE_FILES),
    section=Section(
        anchor="laws",
        title="Representation laws",
        template="representation_law.html.j2",
        make=f"{PACKAGE}.show:make_section",
        needs={
            "laws": many(of_datasets(list_law_records)),
            "law_marks": waits(of_datasets(list_law_marks)),
        },
        place=2,
        figures={
            "law_fuzziness_": "Fuzziness by block, {}",
            "law_separability_": "Separability by block, as printed, {}",
            "law_residual_": "Prediction residual by block, {}",
            "law_residual_one_hot_": "One-hot prediction residual by block, {}",
        },
        tables=tuple(f"_{name}" for name in LAW_TABLES),
    ),
)
