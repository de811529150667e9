"""Finds near-duplicates between private and public images.

The privacy of a head assumes that the backbone's public training images contain no private image,
and no other picture of its subject. If the backbone was trained on a test image, test results are
too good. Mehta et al. 2022 (appendix, Deduplication), after Kolesnikov et al. 2020, use a model to
remove near-duplicates of every split from the public set. dpprobe compares the private examples of
both splits with public datasets of the study. Two images match by the SHA-256 of their files, or by
the cosine of their features.

A private row's result depends only on this row and the public examples. Block sizes and devices
change the last bits of float32, so cosines near the threshold are recomputed in float64.

The result is computed from private images without noise, so it is not private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dpprobe.data.table import SplitTable
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.progress import Progress

# Number of private and of public rows that are compared at a time.
PRIVATE_ROWS = 4096
PUBLIC_ROWS = 4096
# The fewest nearest rows per split that are listed, for people to inspect.
LISTED = 12


@dataclass(frozen=True, kw_only=True)
class DatasetSplit:
    """One split of one dataset: features, and the table that they were extracted from."""

    dataset: str
    features: FeatureStore
    table: SplitTable

    def __post_init__(self) -> None:
        if self.features.ids != self.table.read_ids():
            raise DataError(
                f"{self.features.path}: these are not the features of {self.table.path}; delete "
                "these features and run again"
            )


MATCHES = pa.schema(
    [
        ("split", pa.string()),
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
    private: Sequence[DatasetSplit],
    public: Sequence[DatasetSplit],
    *,
    threshold: float,
    device: str,
) -> tuple[dict[str, Any], pa.Table]:
    """Compares every private example with every public example.

    Raises DataError if the features come from different backbones.

    Args:
      private: the train and the test split of the private dataset.
      public: splits of public datasets, with features of the same backbone.
      threshold: two rows with a cosine above the threshold are near-duplicates.

    Returns:
      The record of the check, and a table of matches. For each split, the record counts the private
      examples that equal a public example (`exact`) or have a cosine above the threshold (`near`,
      including exact matches). It also has quantiles of the private examples' largest cosines. The
      table (`MATCHES`) has each split's near rows, and at least the split's `LISTED` nearest rows.
      Each row names its nearest public example; the most similar rows come first.
    """
    for rows in (*private[1:], *public):
        if rows.features.backbone_fingerprint != private[0].features.backbone_fingerprint:
            raise DataError(
                f"{rows.features.path}: these features come from another backbone than those in "
                f"{private[0].features.path}; delete both files and run again"
            )
    ids = [rows.table.read_ids() for rows in public]
    counts: dict[str, Any] = {}
    records: list[dict[str, Any]] = []
    for split in private:
        nearest = _find_nearest(split, public, threshold, device)
        counts[split.features.split] = nearest.describe_counts()
        records += nearest.list_matches(public, ids)
    first = private[0].features
    record = {
        "dataset": private[0].dataset,
        "dataset_fingerprint": first.dataset_fingerprint,
        "backbone": first.backbone,
        "threshold": threshold,
        "public": {
            f"{rows.dataset}/{rows.features.split}": {
                "rows": rows.features.rows,
                "dataset_fingerprint": rows.features.dataset_fingerprint,
            }
            for rows in public
        },
        **counts,
    }
    return record, pa.Table.from_pylist(records, schema=MATCHES)


@dataclass(frozen=True, kw_only=True)
class _Nearest:
    """The nearest public example of each row of a split."""

    split: DatasetSplit
    best: npt.NDArray[np.float32]
    where: npt.NDArray[np.int64]  # [n, 2], the number of the public split, and the row in it
    exact: Mapping[int, tuple[int, int]]  # row -> public split and row with equal bytes
    near: npt.NDArray[np.bool_]  # near-duplicates, including exact ones

    def describe_counts(self) -> dict[str, Any]:
        """Returns the counts and quantiles of the split for the record of the check."""
        return {
            "rows": self.split.features.rows,
            "features": self.split.features.fingerprint,
            "exact": len(self.exact),
            "near": int(self.near.sum()),
            "largest_cosine": round(float(self.best.max()), 6),
            "cosine_quantiles": {
                str(q): round(float(np.quantile(self.best, q)), 6) for q in (0.5, 0.9, 0.99)
            },
        }

    def list_matches(
        self, public: Sequence[DatasetSplit], ids: Sequence[Sequence[str]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the rows of the table of matches, the most similar rows first."""
        order = sorted(
            range(len(self.best)),
            key=lambda row: (row not in self.exact, not self.near[row], -self.best[row], row),
        )
        private_ids = self.split.table.read_ids()
        for row in order[: max(int(self.near.sum()), LISTED)]:
            number, place = self.exact.get(row, tuple(self.where[row].tolist()))
            yield {
                "split": self.split.features.split,
                "near": bool(self.near[row]),
                "row": row,
                "id": private_ids[row],
                "public_dataset": public[number].dataset,
                "public_split": public[number].features.split,
                "public_row": place,
                "public_id": ids[number][place],
                "cosine": float(self.best[row]),
                "exact": row in self.exact,
            }


def _find_nearest(
    split: DatasetSplit, public: Sequence[DatasetSplit], threshold: float, device: str
) -> _Nearest:
    n = split.features.rows
    best = np.full(n, -np.inf, dtype=np.float32)
    where = np.zeros((n, 2), dtype=np.int64)
    work = n * sum(rows.features.rows for rows in public)
    label = f"overlap {split.dataset} {split.features.split}"
    with Progress(work // 10**6, label=label, unit="M pairs") as progress:
        done = 0
        for start, block in _unit_blocks(split.features, PRIVATE_ROWS, device):
            for number, rows in enumerate(public):
                for first, other in _unit_blocks(rows.features, PUBLIC_ROWS, device):
                    values, places = (block @ other.T).max(dim=1)
                    cosines, part = values.cpu().numpy(), slice(start, start + len(block))
                    nearer = np.flatnonzero(cosines > best[part])
                    best[part][nearer] = cosines[nearer]
                    where[part][nearer, 0] = number
                    where[part][nearer, 1] = first + places.cpu().numpy()[nearer]
                    pairs = len(block) * len(other)
                    progress.advance_by((done + pairs) // 10**6 - done // 10**6)
                    done += pairs
    exact = _exact_matches(split, public)
    # a bound on the error of a float32 cosine, a sum of `dimension` rounded products
    slack = (split.features.dimension + 8) * 2.0**-23
    near = best > threshold + slack
    close = np.flatnonzero(~near & (best >= threshold - slack))
    near[close] = _largest_in_float64(split, public, close, threshold - 2 * slack) > threshold
    near[list(exact)] = True
    return _Nearest(split=split, best=best, where=where, exact=exact, near=near)


def _largest_in_float64(
    split: DatasetSplit, public: Sequence[DatasetSplit], rows: npt.NDArray[np.int64], floor: float
) -> npt.NDArray[np.float64]:
    """Computes each row's largest cosine, only from pairs whose float32 cosine is at least `floor`.

    Each pair's cosine is summed separately, so that it depends only on the pair.
    """
    largest = np.full(len(rows), -np.inf)
    if not len(rows):
        return largest
    ours = split.features.read_rows(rows).astype(np.float64)
    unit_rows = _scale_to_unit(torch.from_numpy(ours.astype(np.float32)))
    for other in public:
        for _, block in other.features.read_blocks(PUBLIC_ROWS):
            theirs = np.asarray(block, dtype=np.float64)
            products = unit_rows @ _scale_to_unit(torch.from_numpy(block)).T
            for row, place in np.argwhere(products.numpy() >= floor):
                cosine = _compute_cosine(ours[row], theirs[place])
                largest[row] = max(largest[row], cosine)
    return largest


def _compute_cosine(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Computes the cosine of two rows; 0 if either row is all zeros."""
    norms = np.sqrt((first * first).sum()) * np.sqrt((second * second).sum())
    return min(float((first * second).sum() / norms), 1.0) if norms > 0 else 0.0


def _unit_blocks(store: FeatureStore, rows: int, device: str) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields rows of unit norm, float32 [m, d]; zeros and null examples are zeros (cosine 0)."""
    for start, block in store.read_blocks(rows):
        yield start, _scale_to_unit(torch.from_numpy(np.nan_to_num(block, copy=False)).to(device))


def _scale_to_unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)


def _exact_matches(
    private: DatasetSplit, public: Sequence[DatasetSplit]
) -> dict[int, tuple[int, int]]:
    """Maps each private row whose image equals a public image to that image's (split, row)."""
    hashes: dict[bytes, list[int]] = {}
    for row, digest in enumerate(private.table.image_hashes()):
        if digest is not None:  # None: a null example
            hashes.setdefault(digest, []).append(row)
    matches: dict[int, tuple[int, int]] = {}
    for number, rows in enumerate(public):
        for place, digest in enumerate(rows.table.image_hashes()):
            for row in hashes.get(digest or b"", ()):
                matches.setdefault(row, (number, place))
    return matches
