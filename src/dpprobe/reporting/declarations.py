"""The exhibits over a study's cells, its analyses and embeddings, and the papers' tables.

Every start of Snakemake reads this module: it imports nothing heavy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from dpprobe.analyses.audit.audit_record import AUDITS, RECORD_SUFFIX, audit_path
from dpprobe.analyses.audit.audited_cells import audit_cells
from dpprobe.analyses.fairness.compared_cells import fairness_cells
from dpprobe.analyses.fairness.fairness_record import FAIRNESS, FAIRNESS_SUFFIXES, fairness_path
from dpprobe.analyses.imbalance.imbalance_record import IMBALANCE, imbalance_path
from dpprobe.analyses.representation_law.law_record import (
    ACCURACY_FIGURE,
    LAW_TABLES,
    LAYERS,
    MEASURE_FIGURES,
    law_path,
)
from dpprobe.analyses.representation_law.measured_networks import (
    law_backbones,
    law_datasets,
    law_networks,
)
from dpprobe.exhibits.exhibit import Exhibit, Files, Place, many, one, waits
from dpprobe.exhibits.published import PAPER_TABLES, published_datasets, published_digest
from dpprobe.privacy.limits import INFINITE
from dpprobe.results.cell_record import CEILING_HEAD, METRICS_FILE, PREDICTIONS_FILE
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.ablations import VARIED, find_varied
from dpprobe.study.comparisons import (
    DATASET_COMPARISONS,
    compared_datasets,
    dataset_comparisons,
    delta_groups,
    study_comparisons,
)
from dpprobe.study.study import Cell, Study
from dpprobe.versions import VERSIONS

FIGURE_FORMATS = ("svg", "png")
TABLE_FORMATS = ("csv", "md")


def has_privacy(study: Study) -> bool:
    """Returns True if a study has an epsilon that promises something."""
    return set(study.job_epsilons()) != {INFINITE}


def has_ceiling(study: Study) -> bool:
    """Returns True if a study has private methods and a non-private one to compare them with."""
    methods = study.methods.values()
    promised = any(m.private and m.private_choices is None for m in methods)
    return has_privacy(study) and promised and any(m.head == "nonprivate" for m in methods)


def list_varied_options(study: Study) -> list[str]:
    """Lists the options in which some methods of a study differ alone."""
    options = {name: method.model_dump(mode="json") for name, method in study.methods.items()}
    return [option for option in VARIED if find_varied(options, option)]


def describe_backbones(study: Study) -> dict[str, Any]:
    """Returns the options of each backbone."""
    return {name: backbone.extraction_params() for name, backbone in study.backbones.items()}


def _each_dataset(study: Study) -> list[Place]:
    return [{"dataset": dataset} for dataset in study.datasets]


def _option_places(study: Study) -> list[Place]:
    options = list_varied_options(study)
    return [{"dataset": d, "option": option} for d in study.datasets for option in options]


def _comparison_places(study: Study) -> list[Place]:
    return [
        {"dataset": dataset, "figure": figure}
        for dataset in study.datasets
        for figure in dataset_comparisons(study, dataset)
    ]


def _overlap_places(study: Study) -> list[Place]:
    """Lists the checks of all datasets, and those of all rows that showed what to remove."""
    if not study.overlap:
        return []
    removed = [
        {"dataset": rows, "backbone": study.overlap.remove}
        for rows in dict.fromkeys(study.before_removal().values())
        if study.overlap.remove
    ]
    checked = [{"dataset": d, "backbone": b} for d in study.datasets for b in study.backbones]
    return [*checked, *removed]


def _paper_places(study: Study) -> list[Place]:
    return [{}] if study.paper_names() & published_datasets() else []


def _compared_cells(files: StudyFiles, place: Place) -> list[Cell]:
    """Lists the cells of the datasets that a figure of all datasets shows."""
    study = files.study
    if place["figure"] == "deltas":
        return files.list_study_cells(*itertools.chain.from_iterable(delta_groups(study)))
    return files.list_study_cells(*compared_datasets(study))


def _dataset_records(files: StudyFiles, place: Place) -> list[str]:
    return files.list_cells(files.list_study_cells(place["dataset"]), [METRICS_FILE])


def _dataset_marks(files: StudyFiles, place: Place) -> list[str]:
    return files.list_marks(files.list_study_cells(place["dataset"]))


def _comparison_manifests(files: StudyFiles, place: Place) -> list[str]:
    """Lists the manifests that tell at which size images entered, where a figure shows that."""
    backbones: Sequence[str] = (
        list(files.study.backbones) if place["figure"] == "by_resolution" else []
    )
    return [files.locate_manifest(place["dataset"], name, "train") for name in backbones]


def _overlap_tables(files: StudyFiles, place: Place) -> list[str]:
    splits = files.list_overlap_splits(place["dataset"])
    return [files.locate_table(dataset, split) for dataset, split in splits]


SUMMARY = one(lambda files, place: files.locate_summary(place["dataset"]))

ACCURACY = Exhibit(
    name="plot_accuracy",
    kind="figure",
    files={"": "figures/{dataset}/accuracy"},
    formats=FIGURE_FORMATS,
    per=("dataset",),
    needs={"summary": SUMMARY},
    make="dpprobe.reporting.figures.curves:epsilon_accuracy",
    words="accuracy against epsilon, {dataset}",
    category="Accuracy against epsilon",
    caption="accuracy.rst",
    labels={"dataset": "{dataset}"},
    params={
        "name": lambda study, place: study.published_names()[place["dataset"]],
        "published": lambda _study, _place: published_digest(),
        "version": VERSIONS["figures"],
    },
)

METHODS = Exhibit(
    name="plot_methods",
    kind="figure",
    files={"": "figures/{dataset}/methods"},
    formats=FIGURE_FORMATS,
    per=("dataset",),
    needs={"summary": SUMMARY},
    make="dpprobe.reporting.figures.curves:method_comparison",
    words="methods over epsilon, {dataset}",
    category="Methods",
    caption="methods.rst",
    labels={"dataset": "{dataset}"},
    params={"figure": "method_comparison", "version": VERSIONS["figures"]},
    places=lambda study: _each_dataset(study) if has_privacy(study) else [],
)

GAP = Exhibit(
    name="plot_gap",
    kind="figure",
    files={"": "figures/{dataset}/gap"},
    formats=FIGURE_FORMATS,
    per=("dataset",),
    needs={"summary": SUMMARY},
    make="dpprobe.reporting.figures.curves:ceiling_gap",
    words="gap to the non-private ceiling, {dataset}",
    category="Gap to the non-private ceiling",
    caption="gap.rst",
    labels={"dataset": "{dataset}"},
    params={"figure": "ceiling_gap", "version": VERSIONS["figures"]},
    places=lambda study: _each_dataset(study) if has_ceiling(study) else [],
)

OPTION = Exhibit(
    name="plot_option",
    kind="figure",
    files={"": "figures/{dataset}/by_{option}"},
    formats=FIGURE_FORMATS,
    per=("dataset", "option"),
    needs={
        "marks": waits(_dataset_marks),
    },
    make="dpprobe.reporting.figures.options:plot_option",
    words="results of {dataset} by {option}",
    category="Options",
    subcategory="{option}",
    caption="option.rst",
    labels={"dataset": "{dataset}"},
    params={"version": VERSIONS["figures"]},
    only={"option": list_varied_options},
    places=_option_places,
)

COMPARISON = Exhibit(
    name="plot_comparison",
    kind="figure",
    files={"": "figures/{dataset}/{figure}"},
    formats=FIGURE_FORMATS,
    per=("dataset", "figure"),
    needs={
        "marks": waits(_dataset_marks),
        "manifests": many(_comparison_manifests),
    },
    make="dpprobe.reporting.figures.datasets:plot_comparison",
    words="{figure} of {dataset}",
    category="Backbones and labels",
    subcategory="{figure}",
    caption="comparison.rst",
    labels={"dataset": "{dataset}"},
    params={
        "name": lambda study, place: study.published_names()[place["dataset"]],
        "published": lambda _study, _place: published_digest(),
        "backbones": lambda study, _place: describe_backbones(study),
        "base": lambda study, _place: study.papers.base,
        "version": VERSIONS["figures"],
    },
    only={"figure": lambda _study: DATASET_COMPARISONS},
    places=_comparison_places,
)

DATASETS = Exhibit(
    name="plot_datasets",
    kind="figure",
    files={"": "figures/{figure}"},
    formats=FIGURE_FORMATS,
    per=("figure",),
    needs={
        "metrics": many(
            lambda files, place: files.list_cells(_compared_cells(files, place), [METRICS_FILE])
        ),
        "marks": waits(lambda files, place: files.list_marks(_compared_cells(files, place))),
    },
    make="dpprobe.reporting.figures.datasets:plot_datasets",
    words="figure of all datasets: {figure}",
    category="Datasets",
    caption="datasets.rst",
    labels={"figure": "{figure}"},
    params={
        "groups": lambda study, _place: delta_groups(study),
        "version": VERSIONS["figures"],
    },
    only={"figure": study_comparisons},
    places=lambda study: [{"figure": figure} for figure in study_comparisons(study)],
)

# Private photographs: not in Snakemake's report, which people send around.
OVERLAP = Exhibit(
    name="plot_overlap",
    kind="figure",
    files={"": "figures/{dataset}/overlap_{backbone}"},
    formats=FIGURE_FORMATS,
    per=("dataset", "backbone"),
    needs={
        "matches": one(
            lambda files, place: (
                f"{files.results}/overlap/{place['dataset']}/{place['backbone']}.parquet"
            )
        ),
        "tables": many(_overlap_tables),
    },
    make="dpprobe.reporting.figures.near_duplicates:plot_overlap",
    words="nearest public images of {dataset}, {backbone}",
    category=None,
    params={"version": VERSIONS["figures"]},
    places=_overlap_places,
    memory_mb=1500,
)

DATASET_TABLE = Exhibit(
    name="write_dataset_table",
    kind="table",
    files={"": "tables/{dataset}_accuracy"},
    formats=TABLE_FORMATS,
    per=("dataset",),
    needs={"summaries": many(lambda files, place: [files.locate_summary(place["dataset"])])},
    make="dpprobe.reporting.accuracy_table:write_accuracy_table",
    words="table of {dataset}",
    category="Tables",
    caption="table.rst",
    labels={"dataset": "{dataset}"},
    params={"version": VERSIONS["tables"]},
)

ACCURACY_TABLE = Exhibit(
    name="write_tables",
    kind="table",
    files={"": "tables/accuracy"},
    formats=TABLE_FORMATS,
    needs={"summaries": many(lambda files, _place: files.list_summaries())},
    make="dpprobe.reporting.accuracy_table:write_accuracy_table",
    words="table of accuracies",
    category="Tables",
    caption="table.rst",
    labels={"dataset": "all"},
    params={"version": VERSIONS["tables"]},
)

PAPERS = Exhibit(
    name="write_paper_tables",
    kind="table",
    files={
        "csv": tuple(f"tables/papers/{name}.csv" for name in PAPER_TABLES),
        "texts": tuple(
            f"tables/papers/{name}.{ending}" for name in PAPER_TABLES for ending in ("md", "tex")
        ),
        "references": "tables/papers/references.bib",
    },
    formats=(),
    needs={
        "metrics": many(
            lambda files, _place: files.list_cells(files.list_study_cells(), [METRICS_FILE])
        ),
        "marks": waits(lambda files, _place: files.list_marks(files.list_study_cells())),
        "zero_shot": many(
            lambda files, _place: [
                f"{files.results}/zero_shot/{dataset}/{backbone}/metrics.json"
                for dataset in files.study.datasets
                for backbone in files.study.text_backbones()
            ]
        ),
        "few_shot": many(
            lambda files, _place: [
                f"{files.results}/few_shot/{dataset}/{backbone}.json"
                for dataset in files.study.datasets
                for backbone in files.study.few_shot_backbones()
            ]
        ),
    },
    make="dpprobe.reporting.paper_tables.write:write_study_tables",
    words="the papers' tables",
    category="Papers' tables",
    caption="papers.rst",
    params={
        "study": lambda study, _place: study.study,
        "names": lambda study, _place: study.published_names(),
        "backbones": lambda study, _place: describe_backbones(study),
        "papers": lambda study, _place: study.papers.model_dump(mode="json"),
        "published": lambda _study, _place: published_digest(),
        "version": VERSIONS["papers"],
    },
    places=_paper_places,
)

# Private, as the images are: made only where the study asks for them.
COSTLY_IMAGES = Exhibit(
    name="write_costly_images",
    kind="data",
    files={"record": "costly_images/{dataset}.json"},
    formats=(),
    per=("dataset",),
    needs={
        "metrics": many(_dataset_records),
        "predictions": waits(
            lambda files, place: files.list_cells(
                files.list_study_cells(place["dataset"]), [PREDICTIONS_FILE]
            )
        ),
        "marks": waits(_dataset_marks),
        "images": one(lambda files, place: files.locate_table(place["dataset"], "test")),
    },
    make="dpprobe.reporting.costly_images:write_costly_images",
    words="test images of {dataset} that privacy costs most",
    category=None,
    params={
        "shown": lambda study, _place: study.report.costly_images,
        "version": VERSIONS["costly_images"],
    },
    places=lambda study: _each_dataset(study) if study.report.costly_images > 0 else [],
    memory_mb=2000,
    minutes_per_gb=10,
)


def list_audit_records(files: StudyFiles, dataset: str) -> list[str]:
    """Lists the records of the audits of a dataset."""
    return [
        str(audit_path(f"{files.results}/{AUDITS}", cell, RECORD_SUFFIX))
        for cell in audit_cells(files.study)
        if cell.dataset == dataset
    ]


def list_audit_marks(files: StudyFiles, dataset: str) -> list[str]:
    """Lists the marks of the jobs that audit a dataset."""
    jobs = {cell[1::2] for cell in audit_cells(files.study) if cell.dataset == dataset}
    return [
        f"{files.results}/{AUDITS}/{dataset}/{backbone}/.eps-{epsilon}.done"
        for backbone, epsilon in sorted(jobs)
    ]


def _promised_audits(study: Study) -> list[Cell]:
    return [cell for cell in audit_cells(study) if cell.epsilon != INFINITE]


def _membership_places(study: Study) -> list[Place]:
    attacked = study.block("audit") and study.block("audit").membership
    return [cell._asdict() for cell in _promised_audits(study)] if attacked else []


def _ceiling_audit(files: StudyFiles, place: Place) -> str | None:
    """Returns the audit of the non-private ceiling on the same features, if the study has one."""
    records = [
        str(audit_path(f"{files.results}/{AUDITS}", cell, RECORD_SUFFIX))
        for cell in audit_cells(files.study)
        if cell[:2] == (place["dataset"], place["backbone"])
        and files.study.methods[cell.method].head == CEILING_HEAD
    ]
    return records[0] if records else None


AUDIT = Exhibit(
    name="plot_audit",
    kind="figure",
    files={"": "figures/{dataset}/audit"},
    formats=FIGURE_FORMATS,
    per=("dataset",),
    needs={
        "audits": many(lambda files, place: list_audit_records(files, place["dataset"])),
        "marks": waits(lambda files, place: list_audit_marks(files, place["dataset"])),
    },
    make="dpprobe.reporting.figures.audit:plot_audit",
    words="claims and bounds of audits, {dataset}",
    category="Audits",
    caption="audit.rst",
    labels={"dataset": "{dataset}"},
    params={"version": VERSIONS["figures"]},
    places=lambda study: [
        {"dataset": dataset}
        for dataset in dict.fromkeys(cell.dataset for cell in _promised_audits(study))
    ],
)

# Private, as test results are: the attacks score real training rows.
MEMBERSHIP = Exhibit(
    name="plot_membership",
    kind="figure",
    files={"": "figures/{dataset}/membership_{backbone}-{method}-eps-{epsilon}"},
    formats=FIGURE_FORMATS,
    per=("dataset", "backbone", "method", "epsilon"),
    needs={
        "audit": one(
            lambda files, place: str(
                audit_path(
                    f"{files.results}/{AUDITS}",
                    (place["dataset"], place["backbone"], place["method"], place["epsilon"]),
                    RECORD_SUFFIX,
                )
            )
        ),
        "ceiling": one(_ceiling_audit),
    },
    make="dpprobe.reporting.figures.membership_roc:plot_membership",
    words="membership attacks on {dataset}, {backbone}, {method}, epsilon {epsilon}",
    category="Membership attacks",
    subcategory="{dataset}",
    caption="membership.rst",
    labels={"backbone": "{backbone}", "method": "{method}", "epsilon": "{epsilon}"},
    params={"version": VERSIONS["figures"]},
    places=_membership_places,
)


def list_fairness_files(
    files: StudyFiles, dataset: str, suffixes: Sequence[str] = FAIRNESS_SUFFIXES
) -> list[str]:
    """Lists what is written of the groups of a dataset, if the study compares groups."""
    cells = [cell for cell in fairness_cells(files.study) if cell.dataset == dataset]
    return [
        str(fairness_path(f"{files.results}/{FAIRNESS}", dataset, backbone, suffix))
        for backbone in dict.fromkeys(cell.backbone for cell in cells)
        for suffix in suffixes
    ]


def _fairness_places(study: Study) -> list[Place]:
    compared = {cell.dataset for cell in fairness_cells(study)}
    return [{"dataset": dataset} for dataset in study.datasets if dataset in compared]


FAIRNESS_FIGURES = Exhibit(
    name="plot_fairness",
    kind="figure",
    files={"gap": "figures/{dataset}/fairness_gap", "auc": "figures/{dataset}/fairness_auc"},
    formats=FIGURE_FORMATS,
    per=("dataset",),
    needs={
        "records": many(
            lambda files, place: list_fairness_files(files, place["dataset"], [RECORD_SUFFIX])
        )
    },
    make="dpprobe.reporting.figures.fairness:plot_fairness",
    words="gaps between the subgroups of {dataset}",
    category="Subgroups",
    caption={"gap": "fairness_gap.rst", "auc": "fairness_auc.rst"},
    labels={"dataset": "{dataset}"},
    group_labels={"gap": {"against": "epsilon"}, "auc": {"against": "quality"}},
    params={"version": VERSIONS["figures"]},
    places=_fairness_places,
)

FAIRNESS_TABLE = Exhibit(
    name="write_fairness_table",
    kind="table",
    files={"": "tables/{dataset}_fairness"},
    formats=TABLE_FORMATS,
    per=("dataset",),
    needs={
        "records": many(
            lambda files, place: list_fairness_files(files, place["dataset"], [RECORD_SUFFIX])
        ),
        "tables": waits(lambda files, place: list_fairness_files(files, place["dataset"])),
    },
    make="dpprobe.reporting.fairness_table:write_fairness_table",
    words="table of the subgroups of {dataset}",
    category="Subgroups",
    caption="fairness.rst",
    labels={"dataset": "{dataset}"},
    params={"version": VERSIONS["tables"]},
    places=_fairness_places,
    memory_factor=8.0,
)


def list_imbalanced(study: Study) -> list[str]:
    """Lists the datasets of which a class is made rare."""
    return list(study.imbalance.datasets) if study.imbalance else []


IMBALANCE_FIGURES = Exhibit(
    name="plot_imbalance",
    kind="figure",
    files={
        "": "figures/{dataset}/imbalance_{backbone}",
        "law": "figures/{dataset}/imbalance_law_{backbone}",
    },
    formats=FIGURE_FORMATS,
    per=("dataset", "backbone"),
    needs={
        "record": one(
            lambda files, place: str(
                imbalance_path(
                    f"{files.results}/{IMBALANCE}", place["dataset"], place["backbone"], ".json"
                )
            )
        )
    },
    make="dpprobe.reporting.figures.imbalance:plot_imbalance",
    words="figures of rare classes of {dataset}, {backbone}",
    category="Rare classes",
    subcategory="{dataset}",
    caption={"": "imbalance.rst", "law": "imbalance_law.rst"},
    labels={"backbone": "{backbone}"},
    group_labels={"": {"figure": "recall"}, "law": {"figure": "law"}},
    params={"version": VERSIONS["figures"]},
    only={"dataset": list_imbalanced},
    places=lambda study: [
        {"dataset": dataset, "backbone": backbone}
        for dataset in list_imbalanced(study)
        for backbone in study.backbones
    ],
)

IMBALANCE_TABLES = Exhibit(
    name="write_imbalance_tables",
    kind="table",
    files={"": "tables/{dataset}_imbalance"},
    formats=TABLE_FORMATS,
    per=("dataset",),
    needs={
        "records": many(
            lambda files, place: [
                str(
                    imbalance_path(
                        f"{files.results}/{IMBALANCE}", place["dataset"], backbone, ".json"
                    )
                )
                for backbone in files.study.backbones
            ]
        )
    },
    make="dpprobe.reporting.imbalance_table:write_imbalance_tables",
    words="tables of rare classes of {dataset}",
    category="Rare classes",
    subcategory="{dataset}",
    caption="imbalance.rst",
    labels={"backbone": "all", "figure": "table"},
    params={"version": VERSIONS["tables"]},
    only={"dataset": list_imbalanced},
    places=lambda study: [{"dataset": dataset} for dataset in list_imbalanced(study)],
)


def list_law_records(files: StudyFiles, dataset: str) -> list[str]:
    """Lists the records of the laws of a dataset, if the study measures them."""
    backbones = law_backbones(files.study) if dataset in law_datasets(files.study) else []
    return [
        str(law_path(f"{files.results}/{LAYERS}", dataset, backbone, ".json"))
        for backbone in backbones
    ]


def list_law_marks(files: StudyFiles, dataset: str) -> list[str]:
    """Lists the marks of the jobs that measure the laws of a dataset."""
    records = list_law_records(files, dataset)
    return [f"{record.rpartition('/')[0]}/.law.done" for record in records]


def _law_figure_files(study: Study) -> Files:
    names = [*MEASURE_FIGURES, *([ACCURACY_FIGURE] if law_networks(study) else [])]
    return {"": tuple(f"figures/{{dataset}}/{name}_{{backbone}}" for name in names)}


LAW_FIGURES = Exhibit(
    name="plot_law",
    kind="figure",
    files=_law_figure_files,
    formats=FIGURE_FORMATS,
    per=("dataset", "backbone"),
    needs={
        "record": one(
            lambda files, place: str(
                law_path(f"{files.results}/{LAYERS}", place["dataset"], place["backbone"], ".json")
            )
        ),
        "mark": waits(
            lambda files, place: [
                f"{files.results}/{LAYERS}/{place['dataset']}/{place['backbone']}/.law.done"
            ]
        ),
        "summary": SUMMARY,
    },
    make="dpprobe.reporting.figures.representation_law:plot_law",
    words="representation laws of {dataset}, {backbone}",
    category="Representation laws",
    caption="law.rst",
    labels={"dataset": "{dataset}", "backbone": "{backbone}"},
    params={
        "name": lambda study, place: study.part_names()[place["dataset"]],
        "published": lambda _study, _place: published_digest(),
        "version": VERSIONS["figures"],
    },
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
    formats=TABLE_FORMATS,
    per=("dataset",),
    needs={
        "records": many(lambda files, place: list_law_records(files, place["dataset"])),
        "marks": waits(lambda files, place: list_law_marks(files, place["dataset"])),
        "summary": SUMMARY,
    },
    make="dpprobe.reporting.law_tables:write_dataset_laws",
    words="tables of representation laws, {dataset}",
    category="Representation laws",
    caption="law.rst",
    labels={"dataset": "{dataset}"},
    params={
        "name": lambda study, place: study.part_names()[place["dataset"]],
        "published": lambda _study, _place: published_digest(),
        "version": VERSIONS["tables"],
    },
    places=lambda study: [
        {"dataset": dataset} for dataset in (law_datasets(study) if law_backbones(study) else [])
    ],
)

EMBEDDING = one(lambda files, place: files.locate_embedding(place["dataset"], place["backbone"]))

TSNE_GRID = Exhibit(
    name="plot_tsne_grid",
    kind="figure",
    files={"": "figures/tsne"},
    formats=FIGURE_FORMATS,
    needs={
        "embeddings": many(
            lambda files, _place: [
                path for name in files.study.datasets for path in files.list_embeddings(name)
            ]
        )
    },
    make="dpprobe.reporting.figures.tsne:plot_tsne_grid",
    words="t-SNE of every dataset and backbone",
    category="t-SNE",
    caption="tsne.rst",
    labels={"backbone": "all"},
    params={"split": lambda study, _place: study.tsne.split, "version": VERSIONS["figures"]},
    places=lambda study: [{}] if len(study.datasets) * len(study.backbones) > 1 else [],
    memory_mb=1500,
    minutes=20,
)

TSNE = Exhibit(
    name="plot_tsne",
    kind="figure",
    files={"": "figures/{dataset}/tsne_{backbone}"},
    formats=FIGURE_FORMATS,
    per=("dataset", "backbone"),
    needs={"embedding": EMBEDDING},
    make="dpprobe.reporting.figures.tsne:plot_tsne",
    words="t-SNE plot of {dataset}, {backbone}",
    category="t-SNE",
    subcategory="{dataset}",
    caption="tsne.rst",
    labels={"backbone": "{backbone}"},
    params={"split": lambda study, _place: study.tsne.split, "version": VERSIONS["figures"]},
)

# It shows images only where the study allows it: they are private.
TSNE_PAGE = Exhibit(
    name="write_tsne_page",
    kind="page",
    files={"page": "figures/{dataset}/tsne_{backbone}.html"},
    formats=(),
    per=("dataset", "backbone"),
    needs={
        "embedding": EMBEDDING,
        "images": one(
            lambda files, place: (
                files.locate_table(place["dataset"], files.study.tsne.split)
                if files.study.tsne.thumbnails
                else None
            )
        ),
    },
    make="dpprobe.reporting.tsne_page:write_backbone_page",
    words="t-SNE page of {dataset}, {backbone}",
    category="t-SNE, interactive",
    subcategory="{dataset}",
    caption="tsne.rst",
    labels={"backbone": "{backbone}"},
    params={
        "split": lambda study, _place: study.tsne.split,
        "thumbnails": lambda study, _place: study.tsne.thumbnails,
        "version": VERSIONS["tsne_page"],
    },
    memory_mb=1500,
    minutes=30,
)
