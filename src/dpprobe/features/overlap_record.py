"""Writes and reads the record of a check for near-duplicates."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.data.table import SPLITS
from dpprobe.devices import resolve_device
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files import json_files, table_files

if TYPE_CHECKING:
    from dpprobe.features.near_duplicate_search import DatasetSplit

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-overlap"
FORMAT_VERSION = 2
NOTE = (
    "Found on the private images without noise, so these numbers are not differentially private: "
    "leave them out of what you publish."
)
# Consequences of near-duplicates, in the train split and in the test split.
CONSEQUENCES = ("the guarantee is weaker for them", "results on them are too optimistic")


def write_near_duplicates(
    private: Sequence[DatasetSplit],
    public: Sequence[DatasetSplit],
    *,
    threshold: float,
    device: str,
    counts: Path,
    matches: Path,
) -> None:
    """Writes the result of `find_near_duplicates`, and logs a remedy for near-duplicates."""
    # imports torch, which readers of records do not need
    from dpprobe.features.near_duplicate_search import find_near_duplicates

    record, table = find_near_duplicates(
        private, public, threshold=threshold, device=resolve_device(device)
    )
    for split, consequence in zip(SPLITS, CONSEQUENCES, strict=True):
        part = record[split]
        if part["near"]:
            logger.warning(
                "%s: %d of %d private %s rows have a near-duplicate among the public rows (%d "
                "identical byte for byte): %s. See %s; leave them out of the dataset, or use a "
                "backbone that was not trained on them",
                private[0].dataset,
                part["near"],
                part["rows"],
                split,
                part["exact"],
                consequence,
                matches,
            )
    table_files.write_table(matches, table)
    described = {"format": FORMAT, "format_version": FORMAT_VERSION, **record, "note": NOTE}
    json_files.write_record(counts, described, matches)


def read_near_duplicates(path: Path, train: FeatureStore, test: FeatureStore) -> dict[str, Any]:
    """Reads the part of a finished check that the privacy statement contains.

    Raises DataError if the file is not a record of near-duplicates, or belongs to other features.
    """
    record = json_files.read_record(path, kind=FORMAT, version=FORMAT_VERSION)
    for store in (train, test):
        if record[store.split].get("features") != store.fingerprint:
            raise DataError(
                f"{path}: not computed from the features {store.path}; delete it and run again"
            )
    return {
        name: fact
        for name, fact in record.items()
        if not name.startswith("format") and name != "note"
    }
