"""A manifest: a CSV file with one row per image.

Columns contain or build paths and labels of images. Other files can be joined by keys, as
MIMIC-CXR needs for labels, splits and patients. Images are read in place. All paths, also of CSV
files, are relative to `root`. A changed CSV file makes the split tables stale. An image that is
changed after preparation is refused, because the tables contain its hash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dpprobe.data import csv_files
from dpprobe.data.class_units import CountedRows
from dpprobe.data.csv_options import ManifestOptions
from dpprobe.data.options import DatasetOptions
from dpprobe.data.patient_sides import RowIndex
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path


class Options(ManifestOptions, CountedRows):
    """A CSV manifest: one row per image, with columns for its path, its label and its groups."""

    source: Literal["csv"] = "csv"

    def check_files(self) -> None:
        if not resolve_path(self.root).is_dir():
            raise ConfigError(
                f"root: no folder {self.root}; correct the path or put the images there"
            )
        for name in self.list_splits():
            csv_files.check_columns(self, name)

    def read_index(self) -> RowIndex:
        from dpprobe.data import csv_rows  # slow import: numpy, pandas and pyarrow

        return csv_rows.read_index(self)


def prepare(options: Options, directory: Path, *, recorded: DatasetOptions | None = None) -> None:
    """Writes the split tables of a manifest, and `recorded` or else `options` into dataset.json.

    Raises ConfigError if a file cannot be read as the options say. Raises DataError if rows are
    faulty; one message covers all faulty rows.
    """
    from dpprobe.data import csv_rows  # slow import: numpy, pandas and pyarrow

    options.check_files()
    parts = csv_rows.read_rows(options)
    batches = csv_rows.make_batches(options, parts)
    csv_rows.write_tables(
        directory, options, parts, batches, recorded=recorded, embed=options.embed
    )
