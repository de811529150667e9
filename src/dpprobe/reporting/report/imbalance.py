"""The report's section on rare classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dpprobe.analyses.imbalance.imbalance_record import ImbalanceRecord, RareCell
from dpprobe.analyses.imbalance.imbalance_table import (
    best_table,
    break_down_words,
    law_words,
    laws_of,
)
from dpprobe.exhibits import tables
from dpprobe.privacy.limits import epsilon_value


def read_imbalances(paths: Iterable[Path], *, order: Sequence[str]) -> list[dict[str, Any]]:
    """Reads records, a part a dataset; none for a dataset without.

    Args:
      order: of the datasets.
    """
    records = [ImbalanceRecord.read(path) for path in paths]
    return [
        _make_part(dataset, mine)
        for dataset in order
        if (mine := [record for record in records if record.dataset == dataset])
    ]


def _make_part(dataset: str, records: Sequence[ImbalanceRecord]) -> dict[str, Any]:
    """Writes the tables of one dataset."""
    caption = f"Recall of rare classes of {dataset}, the best private method, in percent"
    return {
        "dataset": dataset,
        "best": tables.write_html(best_table(records), caption=caption),
        "break_downs": [
            {
                "backbone": record.backbone,
                "class": point.class_name,
                "method": point.method,
                "words": break_down_words(point),
            }
            for record in records
            for point in record.break_downs
        ],
        "laws": [
            {"backbone": record.backbone, "method": law.method, "words": law_words(law)}
            for record in records
            for law in record.laws
        ]
        + [
            {"backbone": "all", "method": law.method, "words": law_words(law)}
            for law in laws_of(records)
        ],
        "clipping": [
            _clipping_row(record, cell)
            for record in records
            for cell in _cells_with_gradients(record)
        ],
        "rows": max(record.gradient_rows for record in records),
    }


def _cells_with_gradients(record: ImbalanceRecord) -> list[RareCell]:
    """Returns the cells whose gradients were looked at, in the order of the table."""
    return sorted(
        (cell for cell in record.cells if cell.clipping is not None and cell.private),
        key=lambda cell: (
            cell.class_name,
            cell.method,
            -cell.fraction,
            epsilon_value(cell.epsilon),
        ),
    )


def _clipping_row(record: ImbalanceRecord, cell: RareCell) -> dict[str, Any]:
    """Writes the row of one cell's gradients: the rare class beside the others."""
    assert cell.clipping is not None
    clipping = cell.clipping

    def format_pair(
        values: tuple[float | None, float | None], scale: float, digits: int
    ) -> list[str]:
        return ["" if v is None else f"{scale * v:.{digits}f}" for v in values]

    return {
        "backbone": record.backbone,
        "class": cell.class_name,
        "images": cell.class_rows,
        "method": cell.method,
        "epsilon": cell.epsilon,
        "numbers": [
            *format_pair(clipping.clipped, 100, 1),
            *format_pair(clipping.norm, 1, 2),
            *format_pair(clipping.cosine, 1, 3),
            *format_pair(clipping.kept, 100, 0),
        ],
    }
