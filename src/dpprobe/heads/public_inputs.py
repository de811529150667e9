"""Ensures that a fit's public files were compared with its private rows, and opens them.

A training set contains the hashes of the public files that were compared with its rows. `fit_heads`
and `train_network` refuse other public files, so no fit skips the comparison. Heads read public
rows through the training set, like private rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpprobe.errors import DataError, PrivacyError
from dpprobe.files.plain_files import sha256_file
from dpprobe.options import resolve_path

if TYPE_CHECKING:
    from dpprobe.heads.options import MethodOptions
    from dpprobe.heads.row_source import RowSource


@dataclass(frozen=True, kw_only=True)
class PublicInputs:
    """Public files that `training.public_file_check` compared with private data.

    Attributes:
      hashes: maps each file's path to its SHA-256 at the comparison.
      open_rows: a function that opens a public file's rows; None if no file was compared.
      synthetic: True for synthetic rows, such as an audit's, which no public file can contain.
    """

    hashes: Mapping[str, str] = field(default_factory=dict)
    open_rows: Callable[[Path], RowSource] | None = None
    synthetic: bool = False

    def join(self, other: PublicInputs) -> PublicInputs:
        """Joins the public files of two comparisons with the same rows."""
        return PublicInputs(
            hashes={**self.hashes, **other.hashes}, open_rows=self.open_rows or other.open_rows
        )

    def open_features(self, option: str, written: str, *, dimension: int) -> RowSource:
        """Opens the features of a public file that `option` names.

        Raises DataError for features of another dimension, or a file without rows of numbers;
        StoreError for a damaged manifest or shard.
        """
        assert self.open_rows is not None, "`require_files` refuses files that were not compared"
        rows = self.open_rows(resolve_path(written))
        if rows.dimension != dimension:
            raise DataError(
                f"{option} {written}: its features have dimension {rows.dimension}, but the "
                f"private features have {dimension}; use features of the same backbone"
            )
        return rows

    def require_files(self, method: MethodOptions) -> None:
        """Raises PrivacyError for a public file that was not compared, or has changed since."""
        if self.synthetic:
            return
        for option, written in method.public_files().items():
            if self.hashes.get(written) != hash_file(written):
                raise PrivacyError(
                    f"{option} {written}: this file was not compared with the private rows of this "
                    "fit, or it changed since. Fit again, and do not change the file meanwhile"
                )


def hash_file(written: str) -> str | None:
    """Returns a file's hash; None for a missing file, which the file's reader will report."""
    path = resolve_path(written)
    return sha256_file(path) if path.is_file() else None


NOTHING_CHECKED = PublicInputs()
