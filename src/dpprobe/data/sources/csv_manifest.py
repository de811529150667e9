"""A manifest: a CSV file with one row per image, or a folder of images.

Columns contain or build paths and labels of images. Other files can be joined by keys, as
MIMIC-CXR needs for labels, splits and patients. Images are read in place. All paths, including CSV
files, are relative to `root`. A changed CSV file makes the split tables stale. An image that
changes after preparation is refused, because the tables contain its hash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from dpprobe.data.images.image_files import is_image_file
from dpprobe.data.options import DatasetOptions
from dpprobe.data.people.class_units import CountedRows
from dpprobe.data.people.companions import FoundCompanions
from dpprobe.data.people.patient_sides import RowIndex
from dpprobe.data.sources import csv_files
from dpprobe.data.sources.csv_options import ManifestOptions
from dpprobe.data.sources.imagefolder import walk_folder
from dpprobe.data.sources.path_template import SpreadFolders
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path


class ImageFolder(NamedTuple):
    """A folder of images as a manifest: one row per image, with its path relative to `root`."""

    folder: Path
    root: Path
    columns: tuple[str, ...] = ("path",)

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        files = [Path(file.path) for _, files in walk_folder(self.folder) for file in files]
        if other := next((file for file in files if not is_image_file(str(file))), None):
            raise ConfigError(f"{other}: not an image; move it out of {self.folder}")
        inside = self.folder.is_relative_to(self.root)
        paths = [(file.relative_to(self.root) if inside else file).as_posix() for file in files]
        return dict.fromkeys(names, sorted(paths))

    def explain_array(self, name: str) -> None:
        """Returns nothing, because a folder of images has no arrays."""


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
            SpreadFolders.find(resolve_path(self.root), self.template_of(self.split_file(name)))

    def open_columns(self, file: str) -> ImageFolder | None:
        folder = self.locate_path(file)
        return ImageFolder(folder, resolve_path(self.root)) if folder.is_dir() else None

    def input_files(self) -> tuple[str, ...]:
        """Returns the CSV files, and every folder that is searched for images."""
        return tuple(
            str(place)
            for path in map(Path, super().input_files())
            for place in ([at for at, _ in walk_folder(path)] if path.is_dir() else [path])
        )

    def list_source_files(self) -> Iterator[tuple[str, str]]:
        for path in self.input_files():
            folder = Path(path).is_dir()
            files = [each.path for each in next(walk_folder(Path(path)))[1]] if folder else [path]
            yield from ((file, file) for file in files)

    def find_companions(self) -> FoundCompanions:
        return self._count_split().companions

    def read_index(self) -> RowIndex:
        from dpprobe.data.sources import csv_rows  # slow import: numpy, pandas and pyarrow

        return csv_rows.read_index(self)


def prepare(options: Options, directory: Path, *, recorded: DatasetOptions | None = None) -> None:
    """Writes a manifest's split tables; dataset.json gets `recorded`, by default `options`.

    Raises ConfigError if a file does not match the options. Raises one DataError for all faulty
    rows.
    """
    from dpprobe.data.sources import csv_rows  # slow import: numpy, pandas and pyarrow

    options.check_files()
    parts = csv_rows.read_rows(options)
    csv_rows.find_companions(options, parts).refuse(options.companions)
    batches = csv_rows.make_batches(options, parts)
    csv_rows.write_tables(
        directory, options, parts, batches, recorded=recorded, embed=options.embed
    )
