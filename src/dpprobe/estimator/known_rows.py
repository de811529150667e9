"""Recognises rows of a study's features in a private fit, and applies the facts of their dataset.

An array with rows of a feature store names neither patients nor the rule that split or chose rows.
So a private fit searches for its rows in all stores that `read_features` opened in this process:
bit by bit as float32, in any order, also in slices, joined arrays and data frames. In a pipeline,
rows before the first step are compared. Rows of a whole store in order are also recognised if
columns were scaled, shifted or removed: each column then correlates with a column of the store,
within each class. If only the labels are equal, the fit warns, because other people may have equal
labels. Not recognised are rows that another process wrote to a file, and rows of a store that was
deleted before the first private fit.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.errors import PrivacyError, StoreError
from dpprobe.estimator.array_inputs import SCORED_BYTES, MappedRows
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.row_source import RowSource
from dpprobe.privacy.plan import Plan

_FEWEST_LABELS = 20  # fewer labels may equal the labels of a store by chance
# To recognise changed rows: the number of compared columns, the smallest correlation with a column
# of the store, and the fewest rows beyond one per class. Rows of other people reach this
# correlation with a probability below 1e-12.
_COMPARED, _ALIKE, _FEWEST_FREE = 8, 0.9999, 10
# Stores that this process opened, by their paths.
_OPENED_STORES: dict[Path, FeatureStore] = {}
_DIGESTS: dict[tuple[Path, str], npt.NDArray[np.uint64]] = {}


def remember_store(store: FeatureStore) -> FeatureStore:
    """Remembers a store, so that private fits recognise its rows; returns the store."""
    path = store.path.absolute()  # valid if the working directory changes
    _OPENED_STORES[path] = store if store.path == path else FeatureStore(path)
    return store


def digest_rows(rows: npt.NDArray[np.float32] | RowSource) -> npt.NDArray[np.uint64]:
    """Returns a 64-bit hash of each row's float32 numbers, -0 as 0.

    Two different rows among a million have equal hashes with probability 3e-8.
    """
    source = MappedRows(rows) if isinstance(rows, np.ndarray) else rows
    digests = b"".join(
        hashlib.blake2b(row.tobytes(), digest_size=8).digest()
        for _, block in source.read_blocks(SCORED_BYTES // (4 * source.dimension) + 1)
        for row in block + np.float32(0)
    )
    return np.frombuffer(digests, dtype=np.uint64)


@dataclass(frozen=True)
class Origin:
    """A store with rows of a fit.

    Attributes:
      rows: int64 [m], positions of the fit's rows that are in the store.
      names: for each of these rows, the store's units that have it; empty without patients.
    """

    store: FeatureStore
    rows: npt.NDArray[np.int64]
    names: Sequence[Sequence[str]]

    @classmethod
    def of_store(cls, store: FeatureStore) -> Origin:
        """Returns the origin of all rows of a store, in order."""
        return cls(store, np.arange(store.rows), [(name,) for name in store.units or ()])

    def check_units(self, unit: str, units: Units | None) -> None:
        """Raises PrivacyError if one patient of the store may count as several units."""
        facts, place = self.store.promise, self.store.path.parent
        if facts.unit_column is None or not self.names:
            return
        if unit == "row":
            raise PrivacyError(
                f"X: rows of {place}, whose dataset names a patient ({facts.unit_column}) for "
                "each image, so a person with several images would be less protected than stated. "
                "Set unit='patient' and pass groups (the object of read_features as X brings its "
                "own), or set unit='image' to state that patients have no guarantee"
            )
        if unit not in Plan.GROUPS:
            self._count_images(facts)
        elif units is not None and self._divides_patients(units.unit_of_rows()[self.rows]):
            raise PrivacyError(
                f"groups: rows of one patient of {place} are in several groups, which would "
                "protect this patient less than stated. Pass the `units` of read_features as groups"
            )

    def _count_images(self, facts: PromiseFacts) -> None:
        most = max(Counter(names[0] for names in self.names).values())
        if facts.images_per_patient is not None and most > facts.images_per_patient:
            raise PrivacyError(
                f"X: max_images_per_patient is {facts.images_per_patient} in the dataset of "
                f"{self.store.path.parent}, but a patient has more rows here; pass each row once"
            )

    def _divides_patients(self, groups: npt.NDArray[np.int64]) -> bool:
        """Returns True if a patient has rows in two groups; rows may belong to several patients."""
        of_patient: dict[str, set[int]] = defaultdict(set)
        for names, group in zip(self.names, groups.tolist(), strict=True):
            if len(names) == 1:
                of_patient[names[0]].add(group)
        strays = (
            names
            for names, group in zip(self.names, groups.tolist(), strict=True)
            if len(names) > 1
            and all(name in of_patient and group not in of_patient[name] for name in names)
        )
        return max(map(len, of_patient.values()), default=1) > 1 or any(strays)


def find_origins(
    rows: npt.NDArray[np.float32] | RowSource, labels: npt.NDArray[Any]
) -> list[Origin]:
    """Finds the stores of a fit's rows among those that `read_features` opened."""
    if isinstance(rows, FeatureStore):
        return [Origin.of_store(rows)]
    same = _find_equal_rows(rows)
    return same or [
        Origin.of_store(store)
        for store in _OPENED_STORES.values()
        if _has_labels(store, labels) and _has_columns(store, rows, labels)
    ]


def find_equal_labels(labels: npt.NDArray[Any]) -> list[Path]:
    """Returns the folders of stores that have these labels, and facts that a fit would miss."""
    return [
        store.path.parent
        for store in _OPENED_STORES.values()
        if _has_labels(store, labels) and _has_facts(store)
    ]


def _find_equal_rows(rows: npt.NDArray[np.float32] | RowSource) -> list[Origin]:
    dimension = rows.shape[1] if isinstance(rows, np.ndarray) else rows.dimension
    stores = [
        store.leave_out_nulls()  # null examples of all stores are equal
        for store in _OPENED_STORES.values()
        if store.dimension == dimension and not _is_gone(store)
    ]
    if not stores:
        return []
    digests = digest_rows(rows)
    matches = {
        number: np.isin(digests, _digest_store(store)) for number, store in enumerate(stores)
    }
    origins, left = [], np.ones(len(digests), dtype=bool)
    # A subsample's rows are also in the whole dataset, so the stores with most rows are chosen.
    while matches and (most := max(int((hits & left).sum()) for hits in matches.values())):
        chosen = [number for number, hits in matches.items() if int((hits & left).sum()) == most]
        covered = np.logical_or.reduce([matches[number] for number in chosen])
        origins += [_match_rows(stores[number], digests, matches.pop(number)) for number in chosen]
        left &= ~covered
    return origins


def read_raw(rows: Any) -> npt.NDArray[np.float32] | RowSource | None:
    """Returns the input rows of a pipeline if they are numbers [n, d]; else None."""
    if isinstance(rows, FeatureStore) or rows is None or sparse.issparse(rows):
        return rows if isinstance(rows, FeatureStore) else None
    try:
        array = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError):
        return None
    return array if array.ndim == 2 else None


def join_facts(origins: Sequence[Origin], unit: str) -> PromiseFacts | None:
    """Returns the facts for the statement of a fit on rows of some stores; None without stores.

    Raises PrivacyError if facts forbid a fit on these rows.
    """
    facts = [origin.store.promise for origin in origins]
    for origin, one in zip(origins, facts, strict=True):
        for fault in one.list_promise_faults(unit):
            raise PrivacyError(f"X: rows of {origin.store.path.parent}: {fault}")
    datasets = {origin.store.path.absolute().parents[2] for origin in origins}
    shared = [one.same_units_as for one in facts if one.same_units_as]
    if len(datasets) > 1 and shared:
        raise PrivacyError(
            f"X: rows of {len(datasets)} datasets, and one has units of {shared[0]} too "
            "(same_units_as). One person might count as several units; fit on one dataset"
        )
    chosen = {repr(one.subsample) for one in facts}
    if len(chosen) > 1:
        raise PrivacyError(
            "X: rows of several stores, and a subsample chose only some of these rows. No "
            "statement would say which rows n counts; fit on one store"
        )
    limits = {one.images_per_patient for one in facts if one.unit_column is not None}
    named = next((one for one in facts if one.unit_column is not None), None)
    joined = named or next(iter(facts), None)
    if joined is not None and len(limits) > 1:
        joined = PromiseFacts(**{**vars(joined), "images_per_patient": None})
    return joined


def _is_gone(store: FeatureStore) -> bool:
    """Returns True for a store that was deleted before its rows were hashed."""
    files = (store.path.parent / shard.file for shard in store.shards)
    return _digest_key(store) not in _DIGESTS and not any(file.exists() for file in files)


def _has_labels(store: FeatureStore, labels: npt.NDArray[Any]) -> bool:
    if store.multi_label or len(labels) != store.rows or store.rows < _FEWEST_LABELS:
        return False
    try:
        known = store.labels.tolist()
    except StoreError:  # deleted since it was opened
        return False
    given: list[Hashable] = labels.tolist()
    return given in (known, [store.class_names[label] for label in known])


def _has_facts(store: FeatureStore) -> bool:
    """Returns True if a store has facts that determine units, or which rows n counts."""
    try:
        facts = store.promise.to_dict()
    except StoreError:  # no fit may use these rows
        return True
    return not facts.keys() <= {"split_rule", "copies", "copies_across"}


def _has_columns(
    store: FeatureStore, rows: npt.NDArray[np.float32] | RowSource, labels: npt.NDArray[Any]
) -> bool:
    """Returns True if compared columns are scaled and shifted columns of a store.

    Columns are compared within classes, because equal labels alone cause correlation.
    """
    _, codes = np.unique(labels, return_inverse=True)
    of_class = sparse.csr_array((np.ones(len(codes)), (codes, np.arange(len(codes)))))
    sizes = np.bincount(codes)[:, None]
    if len(codes) - len(sizes) < _FEWEST_FREE:
        return False
    source = MappedRows(rows) if isinstance(rows, np.ndarray) else rows
    columns = np.unique(np.linspace(0, source.dimension - 1, _COMPARED).astype(int))
    blocks = source.read_blocks(SCORED_BYTES // (4 * source.dimension) + 1)
    own = np.concatenate([_read_numbers(block[:, columns]) for _, block in blocks])
    whole = np.square(own).sum(axis=0)
    own -= ((of_class @ own) / sizes)[codes]
    shared = np.zeros((len(columns), store.dimension))
    squares, sums = np.zeros(store.dimension), np.zeros((len(sizes), store.dimension))
    for start, block in store.read_blocks(SCORED_BYTES // (8 * store.dimension) + 1):
        part, stored = slice(start, start + len(block)), _read_numbers(block)
        shared += own[part].T @ stored
        squares += np.square(stored).sum(axis=0)
        sums += of_class[:, part] @ stored
    spread, moved = squares - (np.square(sums) / sizes).sum(axis=0), np.square(own).sum(axis=0)
    moving, live = moved > 1e-9 * whole, spread > 1e-9 * squares
    lengths = np.sqrt(np.outer(moved[moving], spread[live]))
    alike = np.abs(shared[np.ix_(moving, live)]) >= _ALIKE * lengths
    return bool(len(alike) and alike.any(axis=1).all())


def _read_numbers(block: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    return np.nan_to_num(block.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _digest_store(store: FeatureStore) -> npt.NDArray[np.uint64]:
    key = _digest_key(store)
    if key not in _DIGESTS:
        _DIGESTS[key] = digest_rows(store)
    return _DIGESTS[key]


def _digest_key(store: FeatureStore) -> tuple[Path, str]:
    return store.path.absolute(), store.fingerprint


def _match_rows(
    store: FeatureStore, digests: npt.NDArray[np.uint64], hits: npt.NDArray[np.bool_]
) -> Origin:
    (rows,) = np.nonzero(hits)
    names: dict[int, dict[str, None]] = defaultdict(dict)
    for digest, name in zip(_digest_store(store).tolist(), store.units or (), strict=False):
        names[digest][name] = None
    of_rows = [tuple(names[digest]) for digest in digests[rows].tolist()] if names else []
    return Origin(store, rows, of_rows)
