"""Split tables without the rows that have a near-duplicate among public images.

Removal is safe for the guarantee because each row is removed or kept on its own. The check looks at
  its image,
its feature and public examples, never at another private example (see `near_duplicate_search`), so
that two datasets that differ in one unit's rows differ, after removal, in what is left of these
rows and in nothing else: neighbours stay neighbours. A unit whose rows all go has no part in what
is trained; one that keeps some is protected as any other. This holds for images and, a row at a
time, for patients. The number of rows that are left becomes n, and is public as n always is; it and
the counts of removed rows are functions of the private examples without noise.

Mehta et al. 2022 do the reverse: they take duplicates out of the public set and pre-train again.
Here the backbone is given, so the private side gives way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dpprobe.data.options import DatasetOptions, Expected
from dpprobe.data.subsampled_tables import WholeTables
from dpprobe.data.table import SPLITS
from dpprobe.errors import DataError
from dpprobe.features.overlap_record import read_check

logger = logging.getLogger("dpprobe")

REMEDY = "write a larger overlap.threshold, or remove overlap.remove"


def remove_near_duplicates(
    whole: Path, directory: Path, options: DatasetOptions, *, counts: Path, matches: Path
) -> None:
    """Writes the rows of both splits that a check did not call near-duplicates, in their order.

    Args:
      counts, matches: the record and the table of the check of all rows.

    Raises:
      DataError: for a check of other rows; for a class that would have no training example left,
        and a test split without any.
    """
    tables, record = WholeTables.open_folder(whole), read_check(counts)
    if record["dataset_fingerprint"] != tables.info.fingerprint:
        raise DataError(f"{counts}: computed for other rows than {whole}; delete it and run again")
    kept = _choose_kept(tables, record, matches)
    _check_classes(tables, kept, record)
    removed = {
        **{name: record[name] for name in ("backbone", "threshold")},
        "public": list(dict.fromkeys(split.partition("/")[0] for split in record["public"])),
        **{split: _pick_counts(record[split]) for split in SPLITS},
    }
    logger.info(
        "%s: %s", directory.name,
        " and ".join(f"{removed[s]['near']} of {removed[s]['rows']} {s} rows" for s in SPLITS)
        + " left out, which have a near-duplicate among public images",
    )  # fmt: skip
    # `expect` was held against all rows
    left = options.model_copy(update={"expect": Expected()})
    tables.write_part(directory, kept, left, removed=removed)


def _pick_counts(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part[name] for name in ("rows", "exact", "near")}


def _choose_kept(
    tables: WholeTables, record: Mapping[str, Any], matches: Path
) -> dict[str, Sequence[bool]]:
    """Returns for each row of each split whether it stays."""
    kept: dict[str, Sequence[bool]] = {}
    listed = pq.read_table(matches, columns=["split", "near", "row", "id"]).to_pylist()
    for split, table in tables.splits.items():
        ids, stays = table.read_ids(), [True] * table.rows
        for match in listed:
            if match["split"] == split and match["near"]:
                if ids[match["row"]] != match["id"]:
                    raise DataError(
                        f"{matches}: computed for other rows than {table.path}; delete it"
                    )
                stays[match["row"]] = False
        if stays.count(False) != record[split]["near"]:
            raise DataError(
                f"{matches}: its rows are not those that {matches.stem}.json counts; delete both"
            )
        kept[split] = stays
    return kept


def _check_classes(
    tables: WholeTables, kept: Mapping[str, Sequence[bool]], record: Mapping[str, Any]
) -> None:
    """Checks that each class keeps a training example, and the test split any row."""
    by = f"a near-duplicate of a public image (cosine above {record['threshold']:g} through "
    by += f"{record['backbone']}, or the same bytes)"
    if not any(kept["test"]):
        raise DataError(f"overlap.remove: each of the test rows is {by}; {REMEDY}")
    labels, before = tables.splits["train"].read_labels(), tables.info.splits["train"].per_class
    stays = np.asarray(kept["train"], dtype=bool)
    if tables.info.multi_label:
        after = (labels[stays] == 1).sum(axis=0)
    else:
        after = np.bincount(labels[stays], minlength=len(before))
    lost = [
        f"overlap.remove: each of the {count} training rows of class {name} is {by}; {REMEDY}"
        for name, count, left in zip(tables.info.class_names, before, after, strict=True)
        if count and not left
    ]
    if lost:
        raise DataError("\n".join(lost))
