"""Near-duplicates between private and public images.

The privacy of a head assumes that no private image, or another picture of the same thing, was
among the public ones that the backbone was trained on; Mehta et al. 2022 (appendix, Deduplication)
remove them by a model, after Kolesnikov et al. 2020. Here the private rows are held against public
datasets of the study: by the SHA-256 of the encoded image, and by the cosine of two images'
features.

The result is a function of the private images without noise: it is not private.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dpprobe import artifacts
from dpprobe.data.table import SplitTable
from dpprobe.devices import resolve_device
from dpprobe.errors import DataError
from dpprobe.features.store import FeatureStore
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-overlap"
FORMAT_VERSION = 1
# Rows of either side that are compared at a time.
PRIVATE_ROWS = 4096
PUBLIC_ROWS = 4096
# The nearest rows are listed, so that a person can look at them, also where none is near enough.
LISTED = 12
NOTE = (
    "Found on the private images without noise, so these numbers are not differentially private: "
    "leave them out of what you publish."
)


@dataclass(frozen=True, kw_only=True)
class DatasetSplit:
    """One split of one dataset: its features, and the table they were extracted from."""

    dataset: str
    features: FeatureStore
    table: SplitTable

    def __post_init__(self) -> None:
        if self.features.ids != self.table.ids():
            raise DataError(
                f"{self.features.path}: not the features of {self.table.path}; delete them and "
                "run again"
            )


MATCHES = pa.schema(
    [
        ("near", pa.bool_()),
        ("row", pa.int64()),
        ("id", pa.string()),
        ("public_dataset", pa.string()),
        ("public_split", pa.string()),
        ("public_row", pa.int64()),
        ("public_id", pa.string()),
        ("cosine", pa.float32()),
        ("exact", pa.bool_()),
    ]
)


def find_near_duplicates(
    private: DatasetSplit, public: list[DatasetSplit], *, threshold: float, device: str
) -> tuple[dict[str, Any], pa.Table]:
    """Compares every private row with every public one.

    Args:
      private: the rows that heads are trained on.
      public: splits of public datasets, through the same backbone.
      threshold: rows whose cosine is above it are near-duplicates.
      device: where the products are computed.

    Returns:
      The summary for the privacy statement, and a table of matches. The summary holds the number
      of private rows that have a public row of the same bytes (`exact`) or of a larger cosine than
      the threshold (`near`, the exact ones included), the largest cosine, and quantiles of each
      private row's largest cosine. The table (`MATCHES`) holds the near rows and at least the
      `LISTED` nearest ones, each with its nearest public row, the most similar first.

    Raises:
      DataError: for rows whose features are another backbone's.
    """
    for rows in public:
        if rows.features.backbone_fingerprint != private.features.backbone_fingerprint:
            raise DataError(
                f"{rows.features.path}: features of another backbone than "
                f"{private.features.path}; delete both and run again"
            )
    n = private.features.rows
    best = np.full(n, -np.inf, dtype=np.float32)
    where = np.zeros((n, 2), dtype=np.int64)  # the public split's number, and its row
    work = n * sum(rows.features.rows for rows in public)
    with Progress(work // 10**6, label=f"overlap {private.dataset}", unit="M pairs") as progress:
        done = 0
        for start, block in _unit_blocks(private.features, PRIVATE_ROWS, device):
            for number, rows in enumerate(public):
                for first, other in _unit_blocks(rows.features, PUBLIC_ROWS, device):
                    _keep_nearest(best, where, start, block, number, first, other)
                    pairs = len(block) * len(other)
                    progress.advance((done + pairs) // 10**6 - done // 10**6)
                    done += pairs
    exact = _exact_matches(private, public)
    return _report(private, public, threshold, best, where, exact)


def _unit_blocks(store: FeatureStore, rows: int, device: str) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields rows of unit norm, float32 [m, d]; a row of zeros stays one, at cosine 0 of all."""
    for start, block in store.blocks(rows):
        values = torch.from_numpy(block).to(device)
        yield start, values / values.norm(dim=1, keepdim=True).clamp_min(1e-30)


def _keep_nearest(
    best: npt.NDArray[np.float32],
    where: npt.NDArray[np.int64],
    start: int,
    block: torch.Tensor,
    number: int,
    first: int,
    other: torch.Tensor,
) -> None:
    """Updates the nearest public row of each private one by a block of public rows."""
    values, places = (block @ other.T).max(dim=1)
    cosines, rows = values.cpu().numpy(), places.cpu().numpy()
    part = slice(start, start + len(block))
    nearer = cosines > best[part]
    best[part][nearer] = cosines[nearer]
    where[part][nearer] = np.stack([np.full(len(rows), number), first + rows], axis=1)[nearer]


def _exact_matches(private: DatasetSplit, public: list[DatasetSplit]) -> dict[int, tuple[int, int]]:
    """Finds private images among the public ones, byte for byte: row -> (split, row)."""
    hashes: dict[bytes, list[int]] = {}
    for row, digest in enumerate(private.table.image_hashes()):
        hashes.setdefault(digest, []).append(row)
    matches: dict[int, tuple[int, int]] = {}
    for number, rows in enumerate(public):
        for place, digest in enumerate(rows.table.image_hashes()):
            for row in hashes.get(digest, ()):
                matches.setdefault(row, (number, place))
    return matches


def _report(
    private: DatasetSplit,
    public: list[DatasetSplit],
    threshold: float,
    best: npt.NDArray[np.float32],
    where: npt.NDArray[np.int64],
    exact: Mapping[int, tuple[int, int]],
) -> tuple[dict[str, Any], pa.Table]:
    ids = [rows.table.ids() for rows in public]
    private_ids = private.table.ids()
    order = sorted(range(len(best)), key=lambda row: (row not in exact, -best[row], row))
    near = {row for row in order if row in exact or best[row] > threshold}
    records = []
    for row in order[: max(len(near), LISTED)]:
        number, place = exact.get(row, tuple(where[row].tolist()))
        records.append(
            {
                "near": row in near,
                "row": row,
                "id": private_ids[row],
                "public_dataset": public[number].dataset,
                "public_split": public[number].features.split,
                "public_row": place,
                "public_id": ids[number][place],
                "cosine": float(best[row]),
                "exact": row in exact,
            }
        )
    quantiles = {str(q): round(float(np.quantile(best, q)), 6) for q in (0.5, 0.9, 0.99)}
    summary = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "dataset": private.dataset,
        "backbone": private.features.backbone,
        "threshold": threshold,
        "private_rows": private.features.rows,
        "private_features": private.features.fingerprint,
        "public": {
            f"{rows.dataset}/{rows.features.split}": {
                "rows": rows.features.rows,
                "dataset_fingerprint": rows.features.dataset_fingerprint,
            }
            for rows in public
        },
        "exact": len(exact),
        "near": len(near),
        "largest_cosine": round(float(best.max()), 6),
        "cosine_quantiles": quantiles,
        "note": NOTE,
    }
    return summary, pa.Table.from_pylist(records, schema=MATCHES)


def write_near_duplicates(
    private: DatasetSplit,
    public: list[DatasetSplit],
    *,
    threshold: float,
    device: str,
    counts: Path,
    matches: Path,
) -> None:
    """Writes the result of `find_near_duplicates`, and says in the log what to do about it."""
    summary, table = find_near_duplicates(
        private, public, threshold=threshold, device=resolve_device(device)
    )
    if summary["near"]:
        logger.warning(
            "%s: %d of %d private rows have a near-duplicate among the public ones (%d byte for "
            "byte): the guarantee is weaker for them. Look at %s; remove them, or use a backbone "
            "that has not seen them",
            private.dataset, summary["near"], summary["private_rows"], summary["exact"], matches,
        )  # fmt: skip
    artifacts.write_table(matches, table)
    artifacts.write_json(counts, summary)


def read_near_duplicates(path: Path, train: FeatureStore) -> dict[str, Any]:
    """Reads the part of a finished check that the privacy statement holds.

    Raises:
      DataError: when the file is not one of `write_near_duplicates`, or is of other features.
    """
    summary = artifacts.read_record(path, kind=FORMAT, version=FORMAT_VERSION)
    if summary.get("private_features") != train.fingerprint:
        raise DataError(
            f"{path}: found on other features than those of {train.path}; delete it and run again"
        )
    return {name: fact for name, fact in summary.items() if not name.startswith("format")}
