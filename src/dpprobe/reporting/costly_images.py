"""The record of the test images that privacy costs most, with their thumbnails.

Private: it holds ids and images of test examples. It is made, and shown, only where the study says
`report.costly_images`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dpprobe.artifacts import read_record, write_record
from dpprobe.data.table import SplitTable
from dpprobe.exhibits.thumbnails import data_uri, make_thumbnails
from dpprobe.results.cell_record import CellRecord, read_cell
from dpprobe.results.costly_rows import (
    CostlyRow,
    RowProbabilities,
    compared_cells,
    costly_rows,
    row_probabilities,
)

COSTLY_FORMAT: Final = "dpprobe-costly-images"
COSTLY_FORMAT_VERSION: Final = 1
SIDE = 72  # pixels of a thumbnail
NO_REFERENCE = (
    "no head without privacy on the same backbone to compare with; add the method nonprivate, or "
    "epsilon inf"
)


def write_costly_images(*, metrics: Sequence[Path], images: Path, record: Path, shown: int) -> None:
    """Writes the images of one dataset that its best private cell of each epsilon costs most.

    Args:
      metrics: metrics.json of each cell, predictions.parquet beside it.
      shown: the number of images per epsilon.

    Raises:
      DataError: when a file cannot be read, or cells were tested on different rows.
    """
    cells = [(path, read_cell(path)) for path in sorted(metrics)]
    references: dict[Path, RowProbabilities] = {}
    parts: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    for (path, cell), other in compared_cells(cells):
        if other is None:
            left_out.append({"epsilon": cell.cell.epsilon, "reason": NO_REFERENCE})
            continue
        if other[0] not in references:
            references[other[0]] = row_probabilities(*other)
        costly = costly_rows(references[other[0]], row_probabilities(path, cell), count=shown)
        parts.append(
            {
                "epsilon": cell.cell.epsilon,
                "backbone": cell.cell.backbone,
                "method": cell.cell.method,
                "reference": f"{other[1].cell.method}, epsilon {other[1].cell.epsilon}",
                "seeds": costly.seeds,
                "average": costly.average,
                "unseen": costly.unseen,
                "images": [_describe_row(row, cell) for row in costly.rows],
            }
        )
    ids = list(dict.fromkeys(image["id"] for part in parts for image in part["images"]))
    write_record(
        record,
        {
            "format": COSTLY_FORMAT,
            "format_version": COSTLY_FORMAT_VERSION,
            "multi_label": cells[0][1].multi_label if cells else False,
            "test_rows": cells[0][1].rows.test if cells else 0,
            "parts": parts,
            "left_out": left_out,
            "thumbnails": {
                ids[place]: data_uri(image)
                for place, image in make_thumbnails(SplitTable(images), ids, side=SIDE)
            },
        },
    )


def read_costly_images(path: Path) -> dict[str, Any]:
    """Reads a record of costly images.

    Raises:
      DataError: when it is missing, or is none of today's version.
    """
    return read_record(path, kind=COSTLY_FORMAT, version=COSTLY_FORMAT_VERSION)


def _describe_row(row: CostlyRow, cell: CellRecord) -> dict[str, Any]:
    """Returns a row of the record, its classes by name."""
    names = cell.class_names
    return {
        "id": row.id,
        "classes": [names[index] for index in row.classes],
        "judged": names[row.judged],
        "present": row.judged in row.classes,
        "reference": row.reference,
        "private": row.private,
        "drop": row.drop,
        "error": row.error,
        "reference_right": row.reference_right,
        "private_right": row.private_right,
        "taken_for": None if row.taken_for is None else names[row.taken_for],
    }
