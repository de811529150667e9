"""The fairness job on made-up cells: what it writes, also of ugly data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.fairness.fairness_record import FairnessRecord, Gap
from dpprobe.analyses.fairness.measure import compare_groups
from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.errors import DataError
from tests.support.fairness_cells import write_grouped_cell

NAMES = ("cat", "dog", "owl")
ROWS = 600
REFERENCES = [("sgd", "1", "nonprivate", "inf")]


def _write(root: Path, seeds: int = 2, **changes: Any) -> list[Path]:
    """Two cells; the private one is bad for the few rows of site "far"."""
    generator = np.random.default_rng(0)
    labels = (generator.random((ROWS, 3)) < 0.4).astype(np.int64)
    far = np.arange(ROWS) % 6 == 0
    noise = generator.normal(size=(seeds, ROWS, 3))
    private = 2.5 * (labels - 0.5) * np.where(far, 0.1, 1.0)[:, None] + noise
    given: dict[str, Any] = {
        "labels": labels,
        "groups": {"site": np.where(far, "far", "near").tolist()},
        "class_names": NAMES,
    } | changes
    scores = given.pop("scores", private)
    return [
        write_grouped_cell(root, method="sgd", epsilon="1", scores=scores, **given),
        write_grouped_cell(
            root, method="nonprivate", epsilon="inf",
            scores=2.5 * (given["labels"] - 0.5) + noise if scores is private else scores, **given,
        ),
    ]  # fmt: skip


def _run(root: Path, cells: list[Path], **options: Any) -> FairnessRecord:
    compare_groups(
        cells, options=FairnessOptions(resamples=200, **options), references=REFERENCES,
        table=root / "groups.parquet", record=root / "groups.json", seed=0, threads=1,
    )  # fmt: skip
    return FairnessRecord.read(root / "groups.json")


def _gap(record: FairnessRecord, attribute: str, metric: str, *, cell: int = 0) -> Gap:
    gap = record.cells[cell].find_gap(attribute, metric)
    assert gap is not None
    return gap


def test_a_planted_disparity_of_the_private_cell_is_seen(tmp_path: Path) -> None:
    record = _run(tmp_path, _write(tmp_path))
    assert [(cell.method, cell.epsilon) for cell in record.cells] == [
        ("sgd", "1"),
        ("nonprivate", "inf"),
    ]
    private, public = (_gap(record, "site", "auc", cell=place) for place in (0, 1))
    assert (private.worst_group, private.best_group) == ("far", "near")
    assert (private.is_apart, public.is_apart) == (True, False)
    assert private.gap > 3 * private.chance_gap  # type: ignore[operator]
    assert private.difference_low > 0  # type: ignore[operator]
    assert private.difference == pytest.approx(private.gap - public.gap)  # type: ignore[operator]
    assert (public.difference, record.cells[1].reference) == (None, None)
    assert private.std is not None
    assert (private.groups, private.resamples) == (2, 200)


def test_cells_of_other_rows_are_refused_by_name(tmp_path: Path) -> None:
    cells = _write(tmp_path)
    labels = np.ones((ROWS, 3), dtype=np.int64)
    cells[1] = write_grouped_cell(
        tmp_path, method="nonprivate", epsilon="inf", scores=np.zeros((1, ROWS, 3)), labels=labels,
        groups={}, class_names=NAMES,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"nonprivate.*the test rows differ"):
        _run(tmp_path, cells)
