"""Makes and writes all tables of the papers."""

from __future__ import annotations

from pathlib import Path

from dpprobe.artifacts import write_text
from dpprobe.reporting.paper_tables import (
    features_second_order,
    foundation_features,
    large_scale_transfer,
)
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.reporting.published import PAPER_TABLES, Published, bibliography
from dpprobe.reporting.tables import EXTENSIONS, Table, write_files

FILES = (
    *(f"{name}.{extension}" for name in PAPER_TABLES for extension in EXTENSIONS),
    "references.bib",
)


def write_paper_tables(run: Run, published: Published, folder: Path) -> None:
    """Writes every table as Markdown, CSV and LaTeX, and the bibliography that LaTeX cites."""
    for table in paper_tables(run, published):
        write_files(table, folder)
    write_text(folder / "references.bib", bibliography(published))


def paper_tables(run: Run, published: Published) -> list[Table]:
    """Makes all tables, in the order of `PAPER_TABLES`."""
    return [
        foundation_features.private_results(run, published),
        foundation_features.few_shot_results(run, published),
        large_scale_transfer.batch_sizes(run, published, "1"),
        large_scale_transfer.batch_sizes(run, published, "2"),
        large_scale_transfer.model_sizes(run, published),
        large_scale_transfer.ablation(run, published),
        large_scale_transfer.throughput(run, published),
        large_scale_transfer.batch_sizes(run, published, "9"),
        features_second_order.second_order_heads(run, published),
    ]
