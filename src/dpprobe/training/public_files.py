"""Holds what a study declares public against its private data, before a job trains.

A file is refused where its content tells that it was made from private rows, wherever it lies and
whatever its name is:

- heads with the mark of `dpprobe.heads.private_mark`, or with the weights of a head among this
  study's cells, which a seed saved by itself has without the mark;
- a manifest of features with the content of the job's features, or of any features or split tables
  of the study's private datasets that exist by now: the fingerprint of the dataset, that of the
  features, or the SHA-256 of the features' bytes.

`heads.shared_rows` looks at the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from dpprobe.data.table import read_info
from dpprobe.errors import DataError, PrivacyError, StoreError
from dpprobe.features.manifest import read_manifest
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.private_mark import check_unmarked
from dpprobe.options import resolve_path
from dpprobe.results.cell_record import WEIGHTS_FILE

# The parts of a manifest that tell whose rows it lists.
_CONTENT = ("dataset_fingerprint", "fingerprint", "features_sha256")
_REMEDY = "name a file made from public data alone"


@dataclass(frozen=True, kw_only=True)
class PrivateData:
    """The private data of a study, as far as it is on the disk.

    Attributes:
      dataset: the name of the job's dataset, and `manifests`: of its features.
      datasets: the names of all private datasets of the study.
      results, tables: the folders of the study's results and split tables.
    """

    dataset: str
    manifests: Sequence[Path]
    datasets: Sequence[str] = ()
    results: Path | None = None
    tables: Path | None = None

    def check(self, options: MethodOptions) -> None:
        """Checks the public files of a method.

        Args:
          options: with the names of dataset and backbone put into paths.

        Raises:
          PrivacyError: for one that was made from private rows.
        """
        for option, written in options.public_files().items():
            path = resolve_path(written)
            check_unmarked(path, option=option, written=written)
            if origin := self._features(path) or self._head(path):
                raise PrivacyError(f"{option} {written}: {origin}; {_REMEDY}")

    def _features(self, path: Path) -> str | None:
        """Returns whose features a manifest lists, None where they are nobody's known here."""
        for content in _content(path):
            if content in self._contents:
                return f"features of the private dataset {self._contents[content]}"
        return None

    @cached_property
    def _contents(self) -> dict[str, str]:
        """The private dataset of each hash that tells its content."""
        contents = {content: self.dataset for path in self.manifests for content in _content(path)}
        for dataset in self.datasets:
            for path in self._made("features", dataset, "*/*/manifest.json"):
                contents |= dict.fromkeys(_content(path), dataset)
            if self.tables is not None:
                contents |= dict.fromkeys(_table(self.tables / dataset / "dataset.json"), dataset)
        return contents

    def _head(self, path: Path) -> str | None:
        """Returns the cell that has the weights of a file, None where none has."""
        weights = _first_rows(path)
        if weights is None or len(weights) != 1 or not weights.any():
            return None
        for dataset in self.datasets:
            for cell in self._made("cells", dataset, f"*/*/eps-*/{WEIGHTS_FILE}"):
                heads = _first_rows(cell)
                # a file may leave the biases out
                if heads is None or heads.shape[1] - weights.shape[1] not in (0, 1):
                    continue
                if (heads[:, : weights.shape[1]] == weights).all(1).any():
                    return f"the weights of a head in {cell}"
        return None

    def _made(self, kind: str, dataset: str, pattern: str) -> Iterator[Path]:
        if self.results is not None:
            yield from sorted((self.results / kind / dataset).glob(pattern))


def _content(manifest: Path) -> list[str]:
    """Returns the hashes that tell whose rows a manifest lists; none for another file."""
    try:
        body = read_manifest(manifest)
    except StoreError:
        return []  # whoever reads it next says what is wrong with it
    return [body[name] for name in _CONTENT]


def _table(dataset_json: Path) -> list[str]:
    try:
        return [read_info(dataset_json).fingerprint]
    except DataError:
        return []  # as above


def _first_rows(path: Path) -> npt.NDArray[np.float32] | None:
    """Returns the weights of class 0, float32 [heads, d or d + 1]; None for a file without them."""
    try:
        with safe_open(path, framework="numpy") as stream:
            weights = stream.get_slice("weights")
            rows = weights[:, 0, :] if len(weights.get_shape()) == 3 else weights[0:1, :]
    except (OSError, SafetensorError, IndexError):
        return None
    return np.asarray(rows, dtype=np.float32)
