"""The record of a comparison of two heads: `<results_dir>/comparisons/<name>/comparison.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.files.json_files import RECORD_HASH, check_not_newer, read_whole_record
from dpprobe.privacy.plan import Plan
from dpprobe.release.bundle import Bundle, bundle_digest
from dpprobe.release.comparison import Metric, Noise, ReleasedSums, estimate_difference
from dpprobe.release.counted_units import priced_values

FORMAT, FORMAT_VERSION = "dpprobe-comparison", 1


def make_record(
    bundles: Sequence[Bundle], metric: Metric, plan: Plan, released: ReleasedSums, **named: Any
) -> dict[str, Any]:
    """Returns a record; `named` has name, study, dataset, unit, and number of the ledger entry."""
    found = estimate_difference(released, Noise.of_plan(plan), metric)
    frequencies = {"class_frequencies": list(metric.frequencies)} if metric.frequencies else {}
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **named,
        "heads": [
            {"name": bundle.facts.name, "sha256": bundle_digest(bundle.folder)}
            for bundle in bundles
        ],
        "metric": metric.name,
        **frequencies,
        **priced_values(plan),
        "released": released._asdict(),
        "difference": found.value,
        "interval": [found.low, found.high],
    }


def read_whole(path: Path) -> Mapping[str, Any] | None:
    """Reads a comparison's record; None if missing or damaged, DataError for a newer version."""
    try:
        record = read_whole_record(path)
    except (OSError, ValueError):
        return None
    if not (isinstance(record, dict) and record.get("format") == FORMAT and RECORD_HASH in record):
        return None
    check_not_newer(path, record, kind=FORMAT, version=FORMAT_VERSION)
    return record


def has_hash(path: Path, digest: str | None) -> bool:
    """Returns True if the record in a file is whole and has this hash."""
    record = read_whole(path)
    return record is not None and record[RECORD_HASH] == digest
