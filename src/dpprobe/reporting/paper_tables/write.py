"""Makes and writes all tables of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpprobe.artifacts import write_text
from dpprobe.exhibits.published import PAPER_TABLES, Published, write_bibliography
from dpprobe.exhibits.tables import EXTENSIONS, Table, write_files
from dpprobe.reporting.paper_tables import (
    batch_sizes,
    feature_sizes,
    features_second_order,
    foundation_features,
    large_scale_transfer,
    medical_fine_tuning,
    single_step,
)
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.study.study import Study

FILES = (
    *(f"{name}.{extension}" for name in PAPER_TABLES for extension in EXTENSIONS),
    "references.bib",
)


def write_study_tables(
    *,
    study: Study,
    metrics: Sequence[Path],
    zero_shot: Sequence[Path],
    few_shot: Sequence[Path],
    published: Published,
    folder: Path,
) -> None:
    """Writes the papers' tables of a study, published numbers beside measured ones."""
    run = Run.of_study(study, metrics=metrics, zero_shot=zero_shot, few_shot=few_shot)
    write_paper_tables(run, published, folder)


def write_paper_tables(run: Run, published: Published, folder: Path) -> None:
    """Writes every table as Markdown, CSV and LaTeX, and the bibliography that LaTeX cites."""
    for table in paper_tables(run, published):
        write_files(table, folder)
    write_text(folder / "references.bib", write_bibliography(published))


def paper_tables(run: Run, published: Published) -> list[Table]:
    """Makes all tables, in the order of `PAPER_TABLES`."""
    return [
        feature_sizes.dimensions_table(run, published),
        foundation_features.private_results(run, published),
        foundation_features.few_shot_results(run, published),
        feature_sizes.training_rows(run, published),
        batch_sizes.batch_sizes(run, published, "1"),
        batch_sizes.batch_sizes(run, published, "2"),
        batch_sizes.model_sizes(run, published),
        large_scale_transfer.ablation_table(run, published),
        large_scale_transfer.throughput_table(run, published),
        batch_sizes.batch_sizes(run, published, "9"),
        single_step.passes_table(run, published),
        single_step.real_labels(run, published),
        features_second_order.second_order_heads(run, published),
        medical_fine_tuning.radiographs_table(run, published),
    ]
