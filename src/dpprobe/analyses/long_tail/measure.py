"""The long-tail job for one (dataset, backbone); not private.

Sub-classes are computed from at most `rows` training examples, memorisation from at most
`memorisation.rows` of the clustered examples. Larger sets are sampled by units, with the study's
seed. The rows' scores are written first, the record last.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpprobe.analyses.long_tail import memorisation, sub_classes
from dpprobe.analyses.long_tail.long_tail_record import RECORD_SUFFIX, ROWS_SUFFIX, LongTailRecord
from dpprobe.analyses.long_tail.memorisation import (
    FEWEST_UNITS,
    SHARE,
    THRESHOLD,
    Memorisation,
    scale_columns,
)
from dpprobe.analyses.long_tail.options import LongTailOptions, MemorisationOptions
from dpprobe.analyses.long_tail.sub_classes import Index, Sizes
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.records import locate_record
from dpprobe.files.table_files import write_table
from dpprobe.privacy.randomness import cell_seed, derived_seed, open_stream
from dpprobe.progress import Progress
from dpprobe.results.intervals import wilson_interval
from dpprobe.results.unit_counts import unit_codes

logger = logging.getLogger("dpprobe")

_THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(20))
ROWS = pa.schema(
    [
        ("id", pa.string()),
        ("label", pa.int64()),
        ("memorisation", pa.float64()),
        ("standard_error", pa.float64()),
        ("right_in", pa.int64()),
        ("heads_in", pa.int64()),
        ("right_out", pa.int64()),
        ("heads_out", pa.int64()),
    ]
)


def measure_long_tail(
    train: Path,
    folder: Path,
    *,
    dataset: str,
    backbone: str,
    options: LongTailOptions,
    seed: int,
    threads: int,
) -> None:
    """Measures sub-classes and memorisation in the features of one (dataset, backbone).

    Raises:
      DataError: if rows have several labels, or features are not finite.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    started = time.monotonic()
    store = FeatureStore(train).leave_out_nulls()
    seed = cell_seed({"use": "long tail", "dataset": dataset, "study_seed": seed}, 0)
    with threadpool_limits(threads):
        rows = read_rows(store, options.rows, seed=seed)
        parts = measure_sub_classes(rows.features, rows.labels, options.clusters, seed=seed)
        scores, table, notes = None, ROWS.empty_table(), []
        if options.memorisation:
            scored = rows.draw_units(options.memorisation.rows, derived_seed(seed, "scored units"))
            if scored.count < FEWEST_UNITS:
                notes.append(
                    f"no memorisation: {scored.count} units, but at least {FEWEST_UNITS} are needed"
                )
            else:
                scores, table = measure_memorisation(
                    scored, store.num_classes, options.memorisation, seed
                )
    total = int(_number_units(store).max()) + 1
    for item in parts["sub_classes"]:
        item["m_ln_n"] = item["measured"]["effective"] * math.log(total)
    record = LongTailRecord.model_validate(
        {
            "dataset": dataset,
            "backbone": backbone,
            "rows": store.rows,
            "units": total,
            "clustered": len(rows.labels),
            "classes": len(np.unique(rows.labels)),
            "dimension": store.dimension,
            **parts,
            "memorisation": scores,
            "notes": notes,
            "seconds": round(time.monotonic() - started, 3),
        }
    )
    rows_file = locate_record(folder, dataset, backbone, ROWS_SUFFIX)
    write_table(rows_file, table)
    record.write(locate_record(folder, dataset, backbone, RECORD_SUFFIX), rows_file)


@dataclass(frozen=True)
class Rows:
    """Some rows of a training split: features [n, d], and for each row its class, unit and id."""

    features: npt.NDArray[np.float32]
    labels: Index
    units: Index
    ids: Sequence[str]

    @property
    def count(self) -> int:
        return len(np.unique(self.units))

    def draw_units(self, most: int, seed: int) -> Rows:
        """Samples units, with all their rows: at most `most` rows, but at least one unit."""
        chosen = _draw_positions(self.units, most, seed)
        ids = [self.ids[row] for row in chosen]
        return Rows(self.features[chosen], self.labels[chosen], self.units[chosen], ids)


def read_rows(store: FeatureStore, most: int, *, seed: int) -> Rows:
    """Reads all rows of a random sample of units, at most `most` rows."""
    if store.multi_label:
        raise DataError(
            f"{store.path}: rows have several labels, but a long tail needs one label per "
            "row; remove the dataset from long_tail"
        )
    units = _number_units(store)
    chosen = _draw_positions(units, most, derived_seed(seed, "clustered units"))
    features = store.read_rows(chosen)
    if bad := int((~np.isfinite(features).all(axis=1)).sum()):
        raise DataError(f"{store.path}: features of {bad} rows are not finite; extract them again")
    ids = store.ids
    return Rows(
        features, np.asarray(store.labels)[chosen], units[chosen], [ids[row] for row in chosen]
    )


def measure_sub_classes(
    features: npt.NDArray[np.floating], labels: Index, clusters: Sequence[int], *, seed: int
) -> dict[str, Any]:
    """Clusters each class and its simulated reference, for each number of clusters."""
    sizes: dict[tuple[int, bool], list[Index]] = {}
    classes = np.unique(labels)
    kept = total = 0.0
    steps = len(classes) * len(clusters)
    with Progress(steps, label="sub-classes", unit="clusterings") as progress:
        for one in classes:
            class_seed = derived_seed(seed, f"class {one}")
            placed = sub_classes.compute_coordinates(features[labels == one], seed=class_seed)
            kept, total = kept + placed.kept, total + placed.total
            plain = sub_classes.draw_reference(placed.rows, seed=class_seed)
            for number in clusters:
                for is_reference, points in ((False, placed.rows), (True, plain)):
                    counted = sub_classes.cluster_sizes(points, number, seed=class_seed)
                    sizes.setdefault((number, is_reference), []).append(counted)
                progress.advance_by(1)
    return {
        "variance_kept": kept / total if total else 1.0,
        "sub_classes": [
            {
                "clusters": number,
                "measured": _measure_frequencies(sizes[number, False], seed),
                "reference": _measure_frequencies(sizes[number, True], seed),
            }
            for number in clusters
        ],
    }


def _measure_frequencies(sizes: Sizes, seed: int) -> dict[str, Any]:
    return {
        "sub_classes": sum(map(len, sizes)),
        "index": sub_classes.tail_index(sizes, seed=seed),
        "few": sub_classes.few_rows(sizes),
        "effective": sub_classes.effective_number(sizes),
        "shares": sub_classes.shares_by_rank(sizes),
    }


def measure_memorisation(
    rows: Rows, classes: int, options: MemorisationOptions, seed: int
) -> tuple[dict[str, Any], pa.Table]:
    """Returns the part `memorisation` of the record, and the table of scores."""
    started = time.monotonic()
    codes: Index = np.unique(rows.units, return_inverse=True)[1]
    measured = memorisation.measure_memorisation(
        scale_columns(rows.features),
        rows.labels,
        num_classes=classes,
        units=codes,
        heads=options.heads,
        seed=seed,
    )
    record = {
        "heads": options.heads,
        "trained_share": SHARE,
        "rows": len(codes),
        "units": rows.count,
        **_describe_shares(measured, rows.count),
        "seconds": round(time.monotonic() - started, 3),
    }
    return record, _make_table(rows, measured)


def _describe_shares(measured: Memorisation, units: int) -> dict[str, Any]:
    share = measured.share_above(THRESHOLD)
    low, high = wilson_interval(share, units)
    return {
        "ridge": measured.ridge,
        "accuracy": float(measured.right_out.sum() / measured.heads_out.sum()),
        "threshold": THRESHOLD,
        "share": share,
        "chance": measured.expected_share_above(THRESHOLD),
        "low": low,
        "high": high,
        "standard_error": float(np.median(measured.standard_errors)),
        "above": {
            "thresholds": _THRESHOLDS,
            "share": [measured.share_above(threshold) for threshold in _THRESHOLDS],
            "chance": [measured.expected_share_above(threshold) for threshold in _THRESHOLDS],
        },
    }


def _make_table(rows: Rows, measured: Memorisation) -> pa.Table:
    """Makes the table of memorisation scores, one line per row; an unknown score is null."""
    columns = {
        "id": rows.ids,
        "label": rows.labels,
        "memorisation": pa.array(measured.scores, from_pandas=True),
        "standard_error": measured.standard_errors,
        "right_in": measured.right_in,
        "heads_in": measured.heads_in,
        "right_out": measured.right_out,
        "heads_out": measured.heads_out,
    }
    return pa.table(columns).cast(ROWS)


def _number_units(store: FeatureStore) -> Index:
    codes = unit_codes(store.units)
    return np.arange(store.rows) if codes is None else codes


def _draw_positions(units: Index, most: int, seed: int) -> Index:
    """Samples units; returns sorted positions of their rows: at most `most`, or one unit's rows."""
    if len(units) <= most:
        return np.arange(len(units))
    names, codes, sizes = np.unique(units, return_inverse=True, return_counts=True)
    order = open_stream(seed, "units").permutation(len(names))
    taken = max(1, int((np.cumsum(sizes[order]) <= most).sum()))
    chosen = np.zeros(len(names), dtype=bool)
    chosen[order[:taken]] = True
    return np.flatnonzero(chosen[codes])
