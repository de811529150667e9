"""The exhibits (figures and tables) of the project; analyses declare their own.

Every start of Snakemake imports this module, so its imports are fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpprobe.analysis_registry import load_analyses
from dpprobe.exhibits.exhibit import LAST, SUMMARY, TABLES, Exhibit, Files, Place, many, waits
from dpprobe.exhibits.published import published_datasets, published_digest
from dpprobe.reporting.paper_tables.registry import list_paper_tables
from dpprobe.results.cell_files import METRICS_FILE
from dpprobe.results.cell_record import CEILING_HEAD
from dpprobe.results.study_files import StudyFiles
from dpprobe.stage_versions import VERSIONS
from dpprobe.study.ablations import VARIED, find_varied
from dpprobe.study.comparisons import (
    DATASET_COMPARISONS,
    compared_datasets,
    dataset_comparisons,
    delta_groups,
    describe_backbones,
    list_guaranteed,
    study_comparisons,
)
from dpprobe.study.published_names import paper_names, published_names
from dpprobe.study.study import Cell, Study


def list_varied_options(study: Study) -> list[str]:
    """Lists each option that is the only difference between some methods."""
    options = {name: method.model_dump(mode="json") for name, method in study.methods.items()}
    return [option for option in VARIED if find_varied(options, option)]


def _each_dataset(study: Study) -> list[Place]:
    return [{"dataset": dataset} for dataset in study.datasets]


def _has_losses(study: Study) -> bool:
    heads = {method.head for method in study.methods.values()}
    return CEILING_HEAD in heads and bool(list_guaranteed(study))


def _time_cost_places(study: Study) -> list[Place]:
    """Lists all datasets if two private heads have times that `plot_time_cost` can compare."""
    timed = [
        method
        for method in list_guaranteed(study).values()
        if not method.tunes_network and method.head != "tuned"
    ]
    return _each_dataset(study) if len(timed) * len(study.backbones) > 1 else []


def _name_paper_files(study: Study) -> Files:
    stems = [f"tables/papers/{name}" for name in list_paper_tables(study)]
    tables = {
        "csv": tuple(f"{stem}.csv" for stem in stems),
        "texts": tuple(f"{stem}.{ending}" for stem in stems for ending in ("md", "tex")),
    }
    return {**(tables if stems else {}), "references": "tables/papers/references.bib"}


def _compared_cells(files: StudyFiles, place: Place) -> list[Cell]:
    study = files.study
    if place["figure"] == "deltas":
        return files.list_study_cells(*itertools.chain.from_iterable(delta_groups(study)))
    return files.list_study_cells(*compared_datasets(study))


def _dataset_records(files: StudyFiles, place: Place) -> list[str]:
    return files.list_cells(files.list_study_cells(place["dataset"]), [METRICS_FILE])


def _comparison_manifests(files: StudyFiles, place: Place) -> list[str]:
    if place["figure"] != "by_resolution":
        return []
    return [
        files.locate_manifest(place["dataset"], backbone, "train")
        for backbone in files.study.backbones
        if not files.list_members(backbone)  # joined images have no single size
    ]


PUBLISHED_PARAMS: Mapping[str, Any] = {
    "name": lambda study, place: published_names(study)[place["dataset"]],
    "published": lambda _study, _place: published_digest(),
}

_ACCURACY_TABLE = Exhibit(
    name="write_tables",
    kind="table",
    files={"": "tables/accuracy"},
    needs={"summaries": many(lambda files, _place: files.list_summaries())},
    make="dpprobe.reporting.accuracy_table:make_accuracy_table",
    words="table of accuracies",
    category="Tables",
    caption="table.rst",
    labels={"dataset": "all"},
    order=LAST,
)

# All exhibits except the exhibits of analyses, in the order of reports.
STUDY_EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit(
        name="plot_datasets",
        kind="figure",
        files={"": "figures/{figure}"},
        make="dpprobe.reporting.figures.datasets:plot_datasets",
        needs={
            "metrics": many(
                lambda files, place: files.list_cells(_compared_cells(files, place), [METRICS_FILE])
            ),
        },
        words="figure of all datasets: {figure}",
        category="Datasets",
        labels={"figure": "{figure}"},
        params={"groups": lambda study, _place: delta_groups(study)},
        only={"figure": study_comparisons},
    ),
    Exhibit(
        name="plot_distribution_shift",
        kind="figure",
        files={"": "figures/distribution_shift"},
        make="dpprobe.reporting.figures.accuracy_loss:plot_distribution_shift",
        needs={
            "summaries": many(
                lambda files, _place: [
                    files.locate_summary(name) for name in compared_datasets(files.study)
                ]
            ),
            "zero_shot": many(
                lambda files, _place: files.list_zero_shot_records(*compared_datasets(files.study))
            ),
        },
        words="what privacy costs by distribution shift",
        category="Datasets",
        labels={"figure": "distribution_shift"},
        places=lambda study: (
            [{}] if _has_losses(study) and len(compared_datasets(study)) > 1 else []
        ),
    ),
    Exhibit(
        name="plot_accuracy",
        kind="figure",
        files={"": "figures/{dataset}/accuracy"},
        make="dpprobe.reporting.figures.curves:epsilon_accuracy",
        needs={"summary": SUMMARY},
        words="accuracy against epsilon, {dataset}",
        category="Accuracy against epsilon",
        params=PUBLISHED_PARAMS,
    ),
    Exhibit(
        name="plot_time_cost",
        kind="figure",
        files={"": "figures/{dataset}/time_cost"},
        make="dpprobe.reporting.figures.time_cost:plot_time_cost",
        needs={"records": waits(_dataset_records)},
        words="results of {dataset} by the seconds they take",
        category="Methods",
        places=_time_cost_places,
    ),
    Exhibit(
        name="plot_option",
        kind="figure",
        files={"": "figures/{dataset}/by_{option}"},
        make="dpprobe.reporting.figures.options:plot_option",
        needs={"records": waits(_dataset_records)},
        words="results of {dataset} by {option}",
        category="Options",
        subcategory="{option}",
        only={"option": list_varied_options},
    ),
    Exhibit(
        name="plot_comparison",
        kind="figure",
        files={"": "figures/{dataset}/{figure}"},
        make="dpprobe.reporting.figures.datasets:plot_comparison",
        needs={"records": waits(_dataset_records), "manifests": many(_comparison_manifests)},
        words="{figure} of {dataset}",
        category="Backbones and labels",
        subcategory="{figure}",
        params={
            **PUBLISHED_PARAMS,
            "backbones": lambda study, _place: describe_backbones(study),
            "base": lambda study, _place: study.papers.base,
        },
        only={"figure": lambda _study: DATASET_COMPARISONS},
        places=lambda study: [
            {"dataset": dataset, "figure": figure}
            for dataset in study.datasets
            for figure in dataset_comparisons(study, dataset)
        ],
    ),
    Exhibit(
        name="plot_loss_by_backbone",
        kind="figure",
        files={"": "figures/{dataset}/loss_by_backbone"},
        make="dpprobe.reporting.figures.accuracy_loss:plot_loss_by_backbone",
        needs={"summary": SUMMARY},
        words="what privacy costs on each backbone, {dataset}",
        category="Backbones and labels",
        subcategory="loss_by_backbone",
        places=lambda study: (
            _each_dataset(study) if _has_losses(study) and len(study.backbones) > 2 else []
        ),
    ),
    replace(
        _ACCURACY_TABLE,
        name="write_dataset_table",
        files={"": "tables/{dataset}_accuracy"},
        needs={"summaries": many(lambda files, place: [files.locate_summary(place["dataset"])])},
        words="table of {dataset}",
        labels=None,
        order=TABLES,
    ),
    _ACCURACY_TABLE,
    Exhibit(
        name="write_paper_tables",
        kind="table",
        files=_name_paper_files,
        needs={
            "metrics": waits(
                lambda files, _place: files.list_cells(files.list_study_cells(), [METRICS_FILE])
            ),
            "zero_shot": waits(lambda files, _place: files.list_zero_shot_records()),
            "few_shot": waits(lambda files, _place: files.list_few_shot_records()),
        },
        make="dpprobe.reporting.paper_tables.write:write_study_tables",
        words="the papers' tables",
        category="Papers' tables",
        caption="papers.rst",
        params={
            "study": lambda study, _place: study.study,
            "names": lambda study, _place: published_names(study),
            "backbones": lambda study, _place: describe_backbones(study),
            "papers": lambda study, _place: study.papers.model_dump(mode="json"),
            "published": lambda _study, _place: published_digest(),
            "version": VERSIONS["papers"],
        },
        places=lambda study: [{}] if paper_names(study) & published_datasets() else [],
        order=LAST,
    ),
)


# All exhibits, in the order of reports.
EXHIBITS: tuple[Exhibit, ...] = tuple(
    sorted(
        [*STUDY_EXHIBITS, *(each for analysis in load_analyses() for each in analysis.exhibits)],
        key=lambda exhibit: exhibit.order,
    )
)


def find_exhibit(name: str) -> Exhibit:
    """Returns the exhibit of a rule by its name; raises KeyError for an unknown name."""
    return {exhibit.name: exhibit for exhibit in EXHIBITS}[name]
