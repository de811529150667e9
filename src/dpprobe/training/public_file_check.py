"""Compares files that are declared public with private data, before any training.

A file in any folder is refused if its content derives from private examples:

- heads with the mark of `dpprobe.privacy.private_mark`;
- heads with the weights of one of this study's cells, or of a head that this process fitted, unless
  that fit was initialised from the file. Weights match up to a common factor, and up to a term
  common to all classes, which softmax ignores. A match of one class's weights up to a factor is
  enough. Rounding weights to float16 does not hide a match;
- a manifest with the content hash of existing private features or split tables;
- a manifest that shares a large part of its rows with the fit's rows, or with private features of
  the fit's backbone: see `dpprobe.features.shared_rows`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from dpprobe.data.table import read_info
from dpprobe.errors import DataError, PrivacyError, StoreError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.public_features import ArrayFile, open_rows
from dpprobe.features.shard_manifest import read_manifest
from dpprobe.features.shared_rows import MOST_SHARED, PublicRows, RowStore
from dpprobe.features.text_file import check_classes
from dpprobe.files.json_files import read_json
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.public_inputs import PublicInputs, hash_file
from dpprobe.options import resolve_path
from dpprobe.privacy.private_mark import check_unmarked
from dpprobe.results.cell_files import STATEMENT_FILE, WEIGHTS_FILE

if TYPE_CHECKING:
    from dpprobe.study.study import Study

logger = logging.getLogger("dpprobe")

# The keys of a manifest that identify the rows that it lists.
_CONTENT = ("dataset_fingerprint", "fingerprint", "features_sha256")
_REMEDY = "name a file that derives only from public data"
# Vectors with 1 - |cosine| below this count as parallel; float16 rounding causes about 1e-7.
_SAME_DIRECTION = 5e-7
# With fewer weights, two classes may have the same direction by chance.
_FEWEST_WEIGHTS = 4


# For synthetic rows, such as an audit's: public files need not be compared with them.
SYNTHETIC_ROWS = PublicInputs(open_rows=open_rows, synthetic=True)


@dataclass(frozen=True, kw_only=True)
class PrivateData:
    """The private data of a study that exists on this machine."""

    dataset: str  # the fit's dataset
    backbone: str
    class_names: Sequence[str]
    manifests: Sequence[Path]  # manifests of the fit's features
    datasets: Sequence[str] = ()  # all private datasets of the study
    results: Path | None = None
    tables: Path | None = None
    rows: RowStore | None = None  # the fit's rows, if no manifest lists them
    heads: Sequence[npt.NDArray[np.float32]] = ()  # [classes, d + 1] each, fitted on private rows

    @classmethod
    def of_study(
        cls,
        study: Study,
        *,
        dataset: str,
        backbone: str,
        class_names: Sequence[str],
        manifests: Sequence[Path],
    ) -> PrivateData:
        """Returns a study's private data, for a fit on the features of `manifests`."""
        return cls(
            dataset=dataset,
            backbone=backbone,
            class_names=class_names,
            manifests=manifests,
            datasets=tuple(study.datasets),
            results=Path(study.results_dir),
            tables=Path(study.data_dir),
        )

    def check_public(self, options: MethodOptions) -> PublicInputs:
        """Compares a method's public files, and their rows, with the private data; slow.

        All code paths to a fit call this function: a fit refuses public files without its result.
        Raises PrivacyError if a file derives from private examples, DataError if classes differ.
        """
        checked = self.check_files(options)
        self.check_rows(options)
        return checked

    def check_files(self, options: MethodOptions) -> PublicInputs:
        """Compares a method's public files, but not rows; raises the errors of `check_public`."""
        hashes = {}
        for option, written in options.public_files().items():
            path = resolve_path(written)
            if (digest := hash_file(written)) is not None:
                hashes[written] = digest
            check_classes(path, self.class_names)
            check_unmarked(path, option=option, written=written)
            if origin := self._find_features(path) or self._find_head(path):
                raise PrivacyError(f"{option} {written}: {origin}; {_REMEDY}")
        return PublicInputs(hashes=hashes, open_rows=open_rows)

    def _find_features(self, path: Path) -> str | None:
        """Names the private dataset whose features a manifest lists, if any."""
        for content in _read_hashes(path):
            if content in self._content_hashes:
                return f"features of the private dataset {self._content_hashes[content]}"
        return None

    @cached_property
    def _content_hashes(self) -> dict[str, str]:
        """Maps each content hash to its private dataset."""
        contents = {
            content: self.dataset for path in self.manifests for content in _read_hashes(path)
        }
        for dataset in self.datasets:
            for path in self._list_made("features", dataset, "*/*/manifest.json"):
                contents |= dict.fromkeys(_read_hashes(path), dataset)
            if self.tables is not None:
                with suppress(DataError):  # the next reader of this file reports its fault
                    info = read_info(self.tables / dataset / "dataset.json")
                    contents[info.fingerprint] = dataset
        return contents

    def check_rows(self, options: MethodOptions) -> None:
        """Reads rows of public features; raises PrivacyError if many are private examples."""
        for option, written in options.public_files().items():
            public = _open_rows(resolve_path(written))
            if public is not None and (origin := self._find_rows(public)):
                raise PrivacyError(f"{option} {written}: {origin}; {_REMEDY}")

    def _find_rows(self, public: FeatureStore | ArrayFile) -> str | None:
        """Names the private dataset that shares many rows with public features, if any."""
        known = None
        for owner, place, private in self._list_rows():
            if private.dimension != public.dimension:
                continue
            known = known or PublicRows(public)
            if (part := known.shared_with(private)) > MOST_SHARED:
                return (
                    f"rows of {owner}: this file ({public.rows} rows) and {place} ({private.rows} "
                    f"rows) share about {100 * part:.0f}% of the different rows of the smaller of "
                    "the two, up to rounding"
                )
        return None

    def _list_rows(self) -> Iterator[tuple[str, str, RowStore]]:
        if self.rows is not None:
            yield "the private data", "this fit", self.rows
        manifests = {path.resolve(): self.dataset for path in self.manifests}
        for dataset in self.datasets:
            for path in self._list_made("features", dataset, f"{self.backbone}/*/manifest.json"):
                manifests.setdefault(path.resolve(), dataset)
        for path, dataset in manifests.items():
            if (store := _open_rows(path)) is not None:
                yield f"the private dataset {dataset}", str(path), store

    def _find_head(self, path: Path) -> str | None:
        """Names the cell that has the weights of a file, if any."""
        weights = _read_heads(path)
        if weights is None or len(weights) != 1 or not weights.any():
            return None
        if any(_heads_match(head[None].astype(np.float64), weights) for head in self.heads):
            return "the weights of a head that this process fitted on private rows"
        for dataset in self.datasets:
            for cell in self._list_made("cells", dataset, f"*/*/eps-*/{WEIGHTS_FILE}"):
                heads = _read_heads(cell)
                same = heads is not None and _heads_match(heads, weights)
                if same and not _started_from(cell, path):
                    return f"the weights of a head in {cell}"
        return None

    def _list_made(self, kind: str, dataset: str, pattern: str) -> Iterator[Path]:
        if self.results is not None:
            yield from sorted((self.results / kind / dataset).glob(pattern))


def _read_hashes(manifest: Path) -> list[str]:
    """Returns the content hashes of a manifest; an empty list for any other file."""
    try:
        body = read_manifest(manifest)
    except StoreError:
        return []  # the next reader of this file reports what is wrong with it
    return [body[name] for name in _CONTENT]


def _open_rows(path: Path) -> FeatureStore | ArrayFile | None:
    try:
        return open_rows(path)
    except (StoreError, DataError):
        return None  # the next reader of this file reports what is wrong with it


def _read_heads(path: Path) -> npt.NDArray[np.float64] | None:
    """Returns a file's weights, [heads, classes, d or d + 1]; None if it has no weights."""
    try:
        with safe_open(path, framework="pt") as stream:  # NumPy has no bfloat16
            weights = stream.get_tensor("weights").double().numpy()
    except (OSError, SafetensorError, ValueError):
        return None
    weights = weights[None] if weights.ndim == 2 else weights
    return weights if weights.ndim == 3 and np.isfinite(weights).all() else None


def _heads_match(heads: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> bool:
    """Returns True if one of a cell's heads has the weights of a file's only head.

    Biases are ignored, because a file may lack them.
    """
    columns = heads.shape[2] - 1
    if weights.shape[1] != heads.shape[1] or weights.shape[2] not in (columns, columns + 1):
        return False
    heads, weights = heads[:, :, :columns], weights[:, :, :columns]
    if columns >= _FEWEST_WEIGHTS and _one_direction(heads, weights).any():
        return True
    wholes = [
        (rows - rows.mean(1, keepdims=True)).reshape(len(rows), -1) for rows in (heads, weights)
    ]
    return bool(_one_direction(*wholes).any())


def _one_direction(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Returns True for each pair of nonzero vectors that differ only by a factor."""
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products = np.abs((first * second).sum(axis=-1))
    return (lengths > 0) & (products >= (1 - _SAME_DIRECTION) * lengths)


def _started_from(cell: Path, path: Path) -> bool:
    """Returns True if a cell's heads were initialised from the current version of the file."""
    try:
        hashes = read_json(cell.with_name(STATEMENT_FILE))["public_files"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return sha256_file(path) in hashes
