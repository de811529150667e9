"""Made-up records of long tails in the job's format, for tests of code that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.analyses.long_tail.long_tail_record import RECORD_SUFFIX, LongTailRecord
from dpprobe.files.records import locate_record

FREQUENCIES: dict[str, Any] = {
    "sub_classes": 40,
    "index": {"value": 0.82, "low": 0.75, "high": 0.9},
    "effective": 31.25,
    "few": {"1": 0.1, "2": 0.2, "5": 0.35},
    "shares": [0.5, 0.3, 0.15, 0.05],
}
REFERENCE: dict[str, Any] = {
    "sub_classes": 38,
    "index": {"value": 0.4, "low": 0.33, "high": 0.46},
    "effective": 37.5,
    "few": {"1": 0.0, "2": 0.0, "5": 0.025},
    "shares": [0.3, 0.27, 0.23, 0.2],
}
SCORES: dict[str, Any] = {
    "heads": 200,
    "trained_share": 0.7,
    "rows": 1100,
    "units": 1000,
    "ridge": 1.0,
    "accuracy": 0.88,
    "threshold": 0.25,
    "share": 0.05,
    "chance": 0.0004,
    "low": 0.038,
    "high": 0.065,
    "above": {"thresholds": [0.0, 0.25, 0.5], "share": [0.2, 0.05, 0.0], "chance": [0.1, 0.0, 0.0]},
    "standard_error": 0.02,
    "seconds": 4.0,
}


def long_tail_record(**changes: Any) -> LongTailRecord:
    """Returns a record of two clusterings, and of memorisation."""
    finer = {"clusters": 20, "measured": FREQUENCIES, "reference": REFERENCE, "m_ln_n": 215.9}
    coarse = {**finer, "clusters": 5, "measured": {**FREQUENCIES, "index": None}, "m_ln_n": 27.6}
    values = {
        "dataset": "digits",
        "backbone": "pixels",
        "rows": 1000,
        "units": 900,
        "clustered": 1000,
        "classes": 10,
        "dimension": 64,
        "variance_kept": 0.9,
        "sub_classes": [finer, coarse],
        "memorisation": SCORES,
        "notes": [],
        "seconds": 5.0,
    }
    return LongTailRecord.model_validate(values | changes)


def write_long_tail(root: Path, **changes: Any) -> Path:
    """Writes a record below `root` and returns its path."""
    record = long_tail_record(**changes)
    path = locate_record(root / "long_tail", record.dataset, record.backbone, RECORD_SUFFIX)
    record.write(path)
    return path
