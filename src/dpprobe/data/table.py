"""Reads split tables: one parquet file per split, in the Hugging Face image convention.

Columns: `image` (struct of bytes and path; if bytes are null, the image is the file at `path`,
relative to the working directory; for the path of an image in a tar see `tar_shards`), `label`
(int64, or list<int8> of 0 and 1 for multi-label), `id` (unique string), `image_sha256` (of the
encoded image), `pixels_sha256` (of its pixels, null if they were not decoded), `group_*` (strings,
empty if unknown) and, if the dataset lists all labels that count as right, `accepted`
(list<int64>). In a dataset of vectors, `bytes` has the vectors of the row (see `embedding_rows`),
without a hash of pixels. Class names are in the schema's metadata; the footer has a fingerprint of
the content. `dataset.json` describes both tables. `table_writer` writes all three files.

With `unreadable: drop` an image that cannot be read becomes a null example. The row keeps its
position, id, label and patient, so splits, n and class counts do not change. Image and hashes are
null, and the footer lists the row.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from dpprobe import json_values
from dpprobe.data.images.image_files import ScaledDecoding, open_image, pixel_hash
from dpprobe.data.images.tar_shards import read_image_bytes
from dpprobe.data.people.group_columns import GROUP_PREFIX
from dpprobe.data.problems import KINDS, ImageError
from dpprobe.data.rare_classes import rare_words
from dpprobe.errors import DataError
from dpprobe.extras import OptionalModule
from dpprobe.files import json_files, table_files
from dpprobe.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image
else:
    pa = OptionalModule("pyarrow")
    pq = OptionalModule("pyarrow.parquet")

SPLITS = ("train", "test")
FORMAT = "dpprobe-dataset"
FORMAT_VERSION = 1
READ_ROWS = 64
READ_THREADS = 8  # threads, because Pillow decodes without the GIL


class EncodedImage(NamedTuple):
    """A row's image as stored in a split table; `sha256` is None for a null example."""

    row: int
    data: bytes | None
    path: str | None
    id: str
    sha256: bytes | None


class SplitInfo(BaseModel, frozen=True):
    """One split of a dataset: its size, its rows per class, and a fingerprint of its content."""

    rows: int
    per_class: tuple[int, ...]
    fingerprint: str
    sha256: str


class DatasetInfo(BaseModel, frozen=True):
    """The parts of `dataset.json` that other modules use.

    Attributes:
      units: the number of patients per split; None if the source does not name patients.
      train_copies: the result of `dataset_checks.Checks.count_copies`, counts of training rows with
        the image of an earlier row; None if not counted.
      test_copies: the same counts for test rows; None if not counted, as in versions before 0.1.0.
      duplicates_across_splits: the number of images in both splits; None if not counted.
    """

    class_names: tuple[str, ...]
    multi_label: bool
    groups: tuple[str, ...]
    fingerprint: str
    splits: Mapping[str, SplitInfo]
    accepted: bool = False
    units: Mapping[str, int] | None = None
    train_copies: Mapping[str, Mapping[str, int | str]] | None = None
    test_copies: Mapping[str, Mapping[str, int | str]] | None = None
    duplicates_across_splits: int | None = None
    source: Mapping[str, Any]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def untested_classes(self) -> tuple[str, ...]:
        """The classes without test rows, which no test result covers."""
        counts = self.splits["test"].per_class
        return tuple(n for n, count in zip(self.class_names, counts, strict=True) if count == 0)

    @property
    def rare_classes_note(self) -> str:
        train, test = (self.splits[name].per_class for name in ("train", "test"))
        return rare_words(self.class_names, train, test)

    @property
    def train_rows(self) -> int:
        return self.splits["train"].rows

    def train_units(self, unit: str) -> int:
        """Returns n, the number of training images or patients."""
        if unit == "image":
            return self.train_rows
        if self.units is None:
            raise DataError("unit: patient, but the dataset names no patients; set unit_column")
        return self.units["train"]

    @property
    def test_rows(self) -> int:
        return self.splits["test"].rows


def read_info(dataset_json: Path) -> DatasetInfo:
    """Reads `dataset.json`; raises DataError if it is missing, damaged or of another version."""
    values = json_files.read_record(dataset_json, kind=FORMAT, version=FORMAT_VERSION)
    return DatasetInfo.model_validate(values)


class SplitTable:
    """Reads a split table, streaming images; raises DataError if it is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.split = path.stem
        with self._explain_damage(), pq.ParquetFile(path) as file:
            metadata = file.metadata.metadata or {}
            schema = file.schema_arrow
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            sizes = [group.num_rows for group in groups]
        if b"dpprobe_fingerprint" not in metadata:
            raise DataError(f"{path}: not a split table; prepare the dataset again")
        ours = json_values.parse_json(metadata[b"dpprobe"])
        self._edges = [0, *itertools.accumulate(sizes)]
        self.rows = self._edges[-1]
        self.fingerprint = metadata[b"dpprobe_fingerprint"].decode()
        # ascending positions of null examples
        self.nulls: tuple[int, ...] = tuple(json.loads(metadata.get(b"dpprobe_nulls", "[]")))
        self.class_names: tuple[str, ...] = tuple(ours["class_names"])
        self.multi_label: bool = ours["multi_label"]
        self.holds_vectors: bool = ours.get("vectors", False)
        self.group_names = tuple(name for name in schema.names if name.startswith(GROUP_PREFIX))
        self._has_accepted = "accepted" in schema.names
        self._has_units = "unit" in schema.names

    def read_labels(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads the labels of rows start..stop: int64 [m], or int8 [m, classes] for multi-label."""
        values = self._read_column("label", start, stop)
        if not self.multi_label:
            return np.asarray(values.to_numpy(), dtype=np.int64)
        flat = pa.concat_arrays([chunk.flatten() for chunk in values.chunks])
        return np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.int8).reshape(
            len(values), len(self.class_names)
        )

    def read_ids(self, start: int = 0, stop: int | None = None) -> list[str]:
        return self._read_column("id", start, stop).to_pylist()

    def image_hashes(self) -> list[bytes | None]:
        return self._read_column("image_sha256").to_pylist()

    def pixel_hashes(self, *, decode: bool = True) -> list[bytes | None]:
        """Returns the SHA-256 of each image's pixels; None for vectors and null examples.

        Decodes images that were not decoded when the table was made (`verify: hash`), or returns
        None for them without `decode`. Raises DataError, naming the row, if such an image cannot be
        read.
        """
        hashes: list[bytes | None] = self._read_column("pixels_sha256").to_pylist()
        missing = {row for row, each in enumerate(hashes) if each is None}.difference(self.nulls)
        if self.holds_vectors or not missing or not decode:
            return hashes
        images = (each for each in self.read_images(0, self.rows) if each.row in missing)
        progress = Progress(
            len(missing), label=f"{self.path}: comparing pixels", unit="images", last_line=False
        )
        with ThreadPoolExecutor(READ_THREADS) as pool, progress:
            while batch := list(itertools.islice(images, READ_ROWS)):
                found = pool.map(partial(_hash_decoded, split=self.split), batch)
                for image, digest in zip(batch, found, strict=True):
                    hashes[image.row] = digest
                progress.advance_by(len(batch))
        return hashes

    def read_first(self) -> EncodedImage:
        """Returns the first image that is not a null example."""
        readable = set(range(len(self.nulls) + 1)).difference(self.nulls)
        return next(self.read_images(min(readable), self.rows))

    def read_groups(self, start: int = 0, stop: int | None = None) -> dict[str, list[str]]:
        """Reads the subgroups: one string per column and row, empty if unknown."""
        return {name: self._read_column(name, start, stop).to_pylist() for name in self.group_names}

    def read_accepted(self, start: int = 0, stop: int | None = None) -> list[list[int]] | None:
        """Reads the labels that count as right for each row; None if the dataset has no lists."""
        return (
            self._read_column("accepted", start, stop).to_pylist() if self._has_accepted else None
        )

    def read_units(self, start: int = 0, stop: int | None = None) -> list[str] | None:
        """Reads the patient of each row; None if the dataset names no patients."""
        return self._read_column("unit", start, stop).to_pylist() if self._has_units else None

    def read_images(self, start: int, stop: int) -> Iterator[EncodedImage]:
        """Yields the images of rows start..stop in order; only one small batch is in memory."""
        return self.read_ranges([range(start, stop)])

    def read_ranges(self, ranges: Sequence[range]) -> Iterator[EncodedImage]:
        """Yields images of ascending ranges of rows; reads only row groups with these rows."""
        clipped = (range(one.start, min(one.stop, self.rows)) for one in ranges)
        left = deque(one for one in clipped if one)
        columns = ["image", "id", "image_sha256"]
        with self._explain_damage(), pq.ParquetFile(self.path, buffer_size=1 << 20) as file:
            while left:
                group = bisect.bisect_right(self._edges, left[0].start) - 1
                first, end = self._edges[group : group + 2]
                for batch in file.iter_batches(READ_ROWS, row_groups=[group], columns=columns):
                    rows = range(first, first + batch.num_rows)
                    while left and left[0].start < rows.stop:
                        part = range(left[0].start, min(left[0].stop, rows.stop))
                        values = batch.slice(part.start - first, len(part)).to_pylist()
                        for row, value in zip(part, values, strict=True):
                            image = value["image"]
                            yield EncodedImage(
                                row,
                                image["bytes"],
                                image["path"],
                                value["id"],
                                value["image_sha256"],
                            )
                        one = left.popleft()
                        if part.stop < one.stop:
                            left.appendleft(range(part.stop, one.stop))
                    first = rows.stop
                    if not left or left[0].start >= end:
                        break

    def _read_column(self, name: str, start: int = 0, stop: int | None = None) -> pa.ChunkedArray:
        """Reads rows start..stop of a column; reads only the row groups with these rows."""
        end = self.rows if stop is None else stop
        first = max(bisect.bisect_right(self._edges, start) - 1, 0)
        last = min(bisect.bisect_left(self._edges, end), len(self._edges) - 1)
        with self._explain_damage(), pq.ParquetFile(self.path) as file:
            column = file.read_row_groups(list(range(first, last)), [name]).column(name)
        return column.slice(start - self._edges[first], end - start)

    def _explain_damage(self) -> AbstractContextManager[None]:
        remedy = "prepare the dataset again"
        return table_files.explain_parquet(
            self.path, DataError, f"{self.path}: cannot be read", remedy
        )


def open_table(path: Path, info: DatasetInfo) -> SplitTable:
    """Opens a split table; raises DataError if dataset.json describes a different table."""
    table = SplitTable(path)
    if table.fingerprint != info.splits[table.split].fingerprint:
        raise DataError(
            f"{path}: not the {table.split} table of its dataset.json; delete both and prepare "
            "the dataset again"
        )
    return table


def _hash_decoded(image: EncodedImage, *, split: str) -> bytes:
    return pixel_hash(decode_image(image, split=split))


def decode_image(
    image: EncodedImage, *, split: str, scaled: ScaledDecoding | None = None
) -> Image.Image:
    """Decodes an image, at a smaller scale if `scaled` is given, upright by its EXIF data.

    Raises DataError, naming the row, if the file cannot be read, has changed since the dataset was
    prepared, does not contain exactly one image, or for a null example.
    """
    where = f"{split} row {image.row} (id {image.id})"
    data = image.data
    if image.sha256 is None:
        raise DataError(f"{where}: a null example has no image; leave the row out")
    if data is None:
        try:
            data = read_image_bytes(str(image.path))
        except OSError as error:
            raise DataError(
                f"{where}: cannot read {image.path} ({error.strerror}); {KINDS['missing'][2]}"
            ) from error
    named = f"{where}, {image.path}" if image.path else where
    if hashlib.sha256(data).digest() != image.sha256:
        raise DataError(
            f"{named}: changed since the dataset was prepared; prepare the dataset again"
        )
    try:
        return open_image(data, scaled)
    except ImageError as error:
        raise DataError(f"{named}: {error}; {KINDS['unreadable'][2]}") from error
