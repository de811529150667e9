"""Makes and writes the tables of the papers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dpprobe.artifacts import write_text
from dpprobe.exhibits.published import Published, write_bibliography
from dpprobe.exhibits.tables import Table, write_files
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
from dpprobe.reporting.paper_tables.registry import list_paper_tables
from dpprobe.study.study import Study

_MAKERS: dict[str, Callable[[Run, Published], Table]] = {
    "foundation_features_table2": foundation_features.private_results,
    "foundation_features_table3": foundation_features.few_shot_results,
    "foundation_features_theorem": feature_sizes.training_rows,
    "large_scale_transfer_table1": partial(batch_sizes.batch_sizes, table="1"),
    "large_scale_transfer_table2": partial(batch_sizes.batch_sizes, table="2"),
    "large_scale_transfer_table3": batch_sizes.model_sizes,
    "large_scale_transfer_table4": large_scale_transfer.ablation_table,
    "large_scale_transfer_table8": large_scale_transfer.throughput_table,
    "large_scale_transfer_table9": partial(batch_sizes.batch_sizes, table="9"),
    "large_scale_transfer_figure1b": single_step.passes_table,
    "large_scale_transfer_figure4": single_step.real_labels,
    "features_second_order_headline": features_second_order.second_order_heads,
    "medical_fine_tuning_auc": medical_fine_tuning.radiographs_table,
}


def write_study_tables(
    *,
    study: Study,
    results: Path,
    published: Published,
    folder: Path,
) -> None:
    """Writes the papers' tables of a study, published numbers beside measured ones.

    Each is Markdown, CSV and LaTeX; beside them stands the bibliography that LaTeX cites.
    """
    run = Run.of_study(study, results)
    for name in list_paper_tables(study):
        write_files(make_paper_table(name, run, published), folder)
    write_text(folder / "references.bib", write_bibliography(published))


def make_paper_table(name: str, run: Run, published: Published) -> Table:
    """Makes a table by its name in `PAPER_TABLES`."""
    return _MAKERS[name](run, published)
