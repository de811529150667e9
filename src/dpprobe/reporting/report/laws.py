"""The report's section on representation laws: a part a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.analyses.representation_law.law_record import read_laws
from dpprobe.analyses.representation_law.law_tables import law_tables, published_laws
from dpprobe.exhibits import published
from dpprobe.exhibits.tables import write_html
from dpprobe.results.summary import Grid


def law_parts(paths: Sequence[Path], grid: Grid, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Reads records, and makes each dataset's tables, in the order of the datasets.

    Args:
      names: of datasets in the published numbers.
    """
    records = read_laws(paths)
    measured = {record.dataset for record in records}
    return [
        {
            "dataset": dataset,
            "tables": [
                write_html(table, caption=table.title)
                for table in law_tables(
                    records,
                    grid,
                    dataset=dataset,
                    published=published_laws(
                        published.read_published(),
                        names.get(dataset, dataset),
                        [record for record in records if record.dataset == dataset],
                    ),
                ).values()
            ],
        }
        for dataset in grid.measures
        if dataset in measured
    ]
