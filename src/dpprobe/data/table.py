"""Split tables: one parquet file a split, in the Hugging Face image convention.

Columns: `image` (struct of bytes and path; bytes are null where the file at `path` holds the
image, relative to the working directory), `label` (int64, or list<int8> of 0 and 1 for
multi-label), `id` (unique string), `image_sha256` (of the encoded image), and `group_*` (strings,
empty where unknown). Class names stand in the schema's metadata; the footer carries a fingerprint
of the content. `dataset.json` beside the tables describes both and is written last.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe import artifacts
from dpprobe.data import GROUP_PREFIX
from dpprobe.errors import DataError
from dpprobe.progress import Progress

if TYPE_CHECKING:
    from PIL import Image

    from dpprobe.config import DatasetOptions

SPLITS = ("train", "test")
FORMAT = "dpprobe-dataset"
FORMAT_VERSION = 1
# A row group is closed at either: readers that start in its middle must skip what precedes.
GROUP_ROWS = 4096
GROUP_BYTES = 32 << 20
READ_ROWS = 64
READ_THREADS = 8

_IMAGE_TYPE = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])


class EncodedImage(NamedTuple):
    """One row's image as it is stored."""

    row: int
    data: bytes | None
    path: str | None
    id: str
    sha256: bytes


@dataclass(frozen=True, kw_only=True)
class SplitInfo:
    """One split of a dataset: its size, its rows a class, and a fingerprint of its content."""

    rows: int
    per_class: tuple[int, ...]
    fingerprint: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What `dataset.json` says."""

    class_names: tuple[str, ...]
    multi_label: bool
    groups: tuple[str, ...]
    fingerprint: str
    splits: Mapping[str, SplitInfo]
    source: Mapping[str, Any] = field(compare=False)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def train_rows(self) -> int:
        return self.splits["train"].rows

    @property
    def test_rows(self) -> int:
        return self.splits["test"].rows


def make_batch(
    *,
    ids: Sequence[str],
    labels: Any,
    images: Any,
    paths: Any,
    groups: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Rows for `write_dataset`.

    Args:
      ids: n unique strings.
      labels: n integers, or n lists of 0 and 1.
      images: n encoded images, None where the file at the path is to be read.
      paths: n paths or None.
      groups: column name -> n values, written as strings.
    """
    columns: dict[str, Any] = {
        "image": _image_column(images, paths),
        "label": labels if isinstance(labels, pa.Array) else pa.array(labels),
        "id": pa.array(ids, pa.string()),
    }
    for name, values in (groups or {}).items():
        array = values if isinstance(values, pa.Array) else pa.array(values)
        columns[name] = array.cast(pa.string()).fill_null("")
    return pa.table(columns)


def _image_column(images: Any, paths: Any) -> pa.Array:
    data = images if isinstance(images, pa.Array) else pa.array(images, pa.binary())
    files = paths if isinstance(paths, pa.Array) else pa.array(paths, pa.string())
    return pa.StructArray.from_arrays(
        [data.cast(pa.binary()), files.cast(pa.string())], fields=list(_IMAGE_TYPE)
    )


def write_dataset(
    directory: Path,
    batches: Iterable[tuple[str, pa.Table]],
    *,
    options: DatasetOptions,
    class_names: Sequence[str],
    multi_label: bool = False,
    groups: Sequence[str] = (),
    rows: int,
) -> None:
    """Writes both split tables from a stream of batches, then `dataset.json`.

    Args:
      directory: where the three files go.
      batches: (split name, rows of `make_batch`) in any order.
      options: recorded as the source, without delta, which is no property of the data.
      class_names: one a class, in the order of the labels.
      multi_label: whether labels are lists of 0 and 1.
      groups: names of the subgroup columns.
      rows: how many rows the batches hold together, for the progress.

    Raises:
      DataError: naming the row, for a label without a class, an id twice, a row without an image
        or a file that cannot be read; naming the class, for one without training rows.
    """
    if len(class_names) < 2 or len(set(class_names)) != len(class_names):
        raise DataError(
            f"class names {', '.join(class_names) or '(none)'}: "
            "at least two classes with names of their own are needed; correct them"
        )
    shape = _Shape(tuple(class_names), multi_label, tuple(groups))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "dataset.json").unlink(missing_ok=True)
    with ExitStack() as stack:
        writers = {}
        for name in SPLITS:
            path = stack.enter_context(artifacts.atomic_path(directory / f"{name}.parquet"))
            writers[name] = stack.enter_context(_SplitWriter(path, name, shape))
        progress = stack.enter_context(Progress(rows, label=f"data {directory.name}"))
        for name, batch in batches:
            writers[name].write(batch)
            progress.advance(batch.num_rows)
        for writer in writers.values():
            writer.finish()
    source = options.preparation_params()
    artifacts.write_json(directory / "dataset.json", _describe(directory, writers, shape, source))


def _describe(
    directory: Path, writers: Mapping[str, _SplitWriter], shape: _Shape, source: dict[str, Any]
) -> dict[str, Any]:
    fingerprints = {name: writer.fingerprint for name, writer in writers.items()}
    content = {
        "class_names": list(shape.class_names),
        "multi_label": shape.multi_label,
        "groups": list(shape.groups),
        "splits": fingerprints,
    }
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "source": source,
        "revision": None,
        "class_names": list(shape.class_names),
        "multi_label": shape.multi_label,
        "groups": list(shape.groups),
        "splits": {
            name: {
                "rows": writer.rows,
                "per_class": writer.per_class.tolist(),
                "sha256": artifacts.sha256_file(directory / f"{name}.parquet"),
                "fingerprint": writer.fingerprint,
            }
            for name, writer in writers.items()
        },
        "fingerprint": artifacts.fingerprint(content),
    }


class _Shape(NamedTuple):
    """What the two tables of a dataset have in common."""

    class_names: tuple[str, ...]
    multi_label: bool
    groups: tuple[str, ...]

    def schema(self) -> pa.Schema:
        label = pa.list_(pa.int8()) if self.multi_label else pa.int64()
        fields = [
            ("image", _IMAGE_TYPE),
            ("label", label),
            ("id", pa.string()),
            ("image_sha256", pa.binary()),
            *((name, pa.string()) for name in self.groups),
        ]
        features: dict[str, Any] = {
            "image": {"_type": "Image"},
            "label": {"names": list(self.class_names), "_type": "ClassLabel"},
            "id": {"dtype": "string", "_type": "Value"},
            "image_sha256": {"dtype": "binary", "_type": "Value"},
            **{name: {"dtype": "string", "_type": "Value"} for name in self.groups},
        }
        if self.multi_label:
            inner = {"dtype": "int8", "_type": "Value"}
            features["label"] = {"feature": inner, "_type": "Sequence"}
        own = {"class_names": list(self.class_names), "multi_label": self.multi_label}
        metadata = {
            "huggingface": json.dumps({"info": {"features": features}}),
            "dpprobe": json.dumps(own),
        }
        return pa.schema(fields, metadata=metadata)


class _SplitWriter:
    """Writes one table: checks rows, hashes images, closes row groups at a bounded size."""

    def __init__(self, path: Path, name: str, shape: _Shape) -> None:
        self.name = name
        self.rows = 0
        self.per_class = np.zeros(len(shape.class_names), dtype=np.int64)
        self.fingerprint = ""
        self._shape = shape
        self._schema = shape.schema()
        self._hash = hashlib.sha256()
        self._ids: set[str] = set()
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._writer = pq.ParquetWriter(
            path, self._schema, compression="zstd", use_dictionary=["label", *shape.groups]
        )

    def __enter__(self) -> _SplitWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, batch: pa.Table) -> None:
        if batch.num_rows == 0:
            return
        labels = self._check_labels(batch.column("label"))
        ids = batch.column("id").to_pylist()
        self._check_ids(ids)
        hashes = self._hash_images(batch.column("image").to_pylist(), ids)
        groups = [batch.column(name).to_pylist() for name in self._shape.groups]
        for row, digest in enumerate(hashes):
            own = [column[row] for column in groups]
            record = [ids[row], labels[row].tolist(), own, digest.hex()]
            self._hash.update(artifacts.canonical_json(record).encode() + b"\n")
        ready = batch.append_column("image_sha256", pa.array(hashes, pa.binary()))
        ready = ready.set_column(1, "label", batch.column("label").cast(self._schema.field(1).type))
        ready = ready.select(self._schema.names).cast(self._schema)
        self.rows += batch.num_rows
        self.per_class += (
            labels.sum(axis=0, dtype=np.int64)
            if self._shape.multi_label
            else np.bincount(labels, minlength=len(self.per_class))
        )
        self._pending.append(ready)
        self._pending_bytes += ready.nbytes
        pending_rows = sum(table.num_rows for table in self._pending)
        if self._pending_bytes >= GROUP_BYTES or pending_rows >= GROUP_ROWS:
            self._flush()

    def finish(self) -> None:
        """Checks what can be known only at the end and writes the footer."""
        if self.rows == 0:
            raise DataError(f"{self.name}: no row; the {self.name} split needs some")
        if self.name == "train" and not self.per_class.all():
            names = [self._shape.class_names[k] for k in np.flatnonzero(self.per_class == 0)]
            raise DataError(
                f"train: no row of class {', '.join(names)}; add some or remove the class"
            )
        self._flush()
        self.fingerprint = self._hash.hexdigest()
        self._writer.add_key_value_metadata({"dpprobe_fingerprint": self.fingerprint})
        self._writer.close()

    def _flush(self) -> None:
        if self._pending:
            table = pa.concat_tables(self._pending).combine_chunks()
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._pending, self._pending_bytes = [], 0

    def _check_labels(self, column: pa.ChunkedArray) -> np.ndarray:
        """int64 [n], or int8 [n, classes]."""
        classes = len(self._shape.class_names)
        values = column.to_pylist()
        for offset, value in enumerate(values):
            if self._shape.multi_label:
                good = value is not None and len(value) == classes and {0, 1}.issuperset(value)
                wanted = f"{classes} numbers 0 or 1, one a class"
            else:
                good = value is not None and 0 <= value < classes
                wanted = f"a number from 0 to {classes - 1}"
            if not good:
                raise DataError(
                    f"{self.name} row {self.rows + offset}: label {value} is not {wanted}; "
                    "correct it or remove the row"
                )
        return np.asarray(values, dtype=np.int8 if self._shape.multi_label else np.int64)

    def _check_ids(self, ids: Sequence[str | None]) -> None:
        for offset, row_id in enumerate(ids):
            if not row_id or row_id in self._ids:
                fault = f"id {row_id!r} stands twice" if row_id else "no id"
                raise DataError(
                    f"{self.name} row {self.rows + offset}: {fault}; give every row its own id"
                )
            self._ids.add(row_id)

    def _hash_images(
        self, images: Sequence[dict[str, Any] | None], ids: Sequence[str]
    ) -> list[bytes]:
        def digest(item: tuple[int, dict[str, Any] | None]) -> bytes:
            offset, image = item
            where = f"{self.name} row {self.rows + offset} (id {ids[offset]})"
            if image is None or (image["bytes"] is None and not image["path"]):
                raise DataError(f"{where}: no image; add it or remove the row")
            data = image["bytes"]
            if data is None:
                data = read_image_file(image["path"], where=where)
            return hashlib.sha256(data).digest()

        if all(image and image["bytes"] is not None for image in images):
            return [digest(item) for item in enumerate(images)]
        with ThreadPoolExecutor(READ_THREADS) as pool:
            return list(pool.map(digest, enumerate(images)))


def read_image_file(path: str, *, where: str = "image") -> bytes:
    """The bytes of an image file.

    Raises:
      DataError: naming `where` and the path, when it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(
            f"{where}: cannot read {path} ({error.strerror}); restore it or remove the row"
        ) from error


def read_info(dataset_json: Path) -> DatasetInfo:
    """Reads `dataset.json`.

    Raises:
      DataError: when it is missing or not a description of a dataset.
    """
    remedy = "delete it and prepare the dataset again"
    try:
        values = artifacts.read_json(dataset_json)
    except (OSError, ValueError) as error:
        raise DataError(f"{dataset_json}: cannot be read ({error}); {remedy}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DataError(f"{dataset_json}: not a dataset's description; {remedy}")
    if values["format_version"] != FORMAT_VERSION:
        raise DataError(
            f"{dataset_json}: format version {values['format_version']}, "
            f"this program reads {FORMAT_VERSION}; {remedy}"
        )
    splits = {
        name: SplitInfo(
            rows=part["rows"],
            per_class=tuple(part["per_class"]),
            fingerprint=part["fingerprint"],
            sha256=part["sha256"],
        )
        for name, part in values["splits"].items()
    }
    return DatasetInfo(
        class_names=tuple(values["class_names"]),
        multi_label=values["multi_label"],
        groups=tuple(values["groups"]),
        fingerprint=values["fingerprint"],
        splits=splits,
        source=values["source"],
    )


class SplitTable:
    """Reads one split table; images are streamed, the other columns read when asked for.

    Raises:
      DataError: when the file is missing or not a split table.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.split = path.stem
        try:
            with pq.ParquetFile(path) as file:
                metadata = file.metadata.metadata or {}
                schema = file.schema_arrow
                self._group_rows = [
                    file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)
                ]
        except (OSError, pa.ArrowInvalid) as error:
            line = str(error).splitlines()[0]
            raise DataError(
                f"{path}: cannot be read ({line}); prepare the dataset again"
            ) from error
        if b"dpprobe_fingerprint" not in metadata:
            raise DataError(f"{path}: not a split table; prepare the dataset again")
        own = json.loads(metadata[b"dpprobe"])
        self.rows = sum(self._group_rows)
        self.fingerprint = metadata[b"dpprobe_fingerprint"].decode()
        self.class_names: tuple[str, ...] = tuple(own["class_names"])
        self.multi_label: bool = own["multi_label"]
        self.group_names = tuple(name for name in schema.names if name.startswith(GROUP_PREFIX))

    def labels(self) -> np.ndarray:
        """int64 [rows], or int8 [rows, classes] for multi-label."""
        values = self._column("label")
        if not self.multi_label:
            return np.asarray(values.to_numpy(), dtype=np.int64)
        flat = pa.concat_arrays([chunk.flatten() for chunk in values.chunks])
        return np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.int8).reshape(
            self.rows, len(self.class_names)
        )

    def ids(self) -> list[str]:
        return self._column("id").to_pylist()

    def groups(self) -> dict[str, list[str]]:
        """Subgroup column name -> one string a row, empty where unknown."""
        return {name: self._column(name).to_pylist() for name in self.group_names}

    def images(self, start: int, stop: int) -> Iterator[EncodedImage]:
        """Rows start..stop in order; in memory is one small batch at a time."""
        first, base = 0, 0
        while first < len(self._group_rows) and base + self._group_rows[first] <= start:
            base += self._group_rows[first]
            first += 1
        wanted = list(range(first, len(self._group_rows)))
        with pq.ParquetFile(self.path, buffer_size=1 << 20) as file:
            for batch in file.iter_batches(
                READ_ROWS, row_groups=wanted, columns=["image", "id", "image_sha256"]
            ):
                low, high = max(start - base, 0), min(stop - base, batch.num_rows)
                part = batch.slice(low, max(high - low, 0)).to_pylist()
                for offset, row in enumerate(part):
                    image = row["image"]
                    yield EncodedImage(
                        base + low + offset, image["bytes"], image["path"], row["id"],
                        row["image_sha256"],
                    )  # fmt: skip
                base += batch.num_rows
                if base >= stop:
                    return

    def _column(self, name: str) -> pa.ChunkedArray:
        with pq.ParquetFile(self.path) as file:
            return file.read([name]).column(name)


def decode(image: EncodedImage, *, split: str) -> Image.Image:
    """The image, decoded, upright where its EXIF data says how it was held.

    Raises:
      DataError: naming split, row, id and path, when the file cannot be read, is not the one
        that was there when the dataset was prepared, is no image, or holds several.
    """
    from PIL import Image, ImageOps

    where = f"{split} row {image.row} (id {image.id})"
    data = image.data
    if data is None:
        data = read_image_file(str(image.path), where=where)
    named = f"{where}, {image.path}" if image.path else where
    if hashlib.sha256(data).digest() != image.sha256:
        raise DataError(
            f"{named}: changed since the dataset was prepared; prepare the dataset again"
        )
    try:
        picture = Image.open(io.BytesIO(data))
        frames = getattr(picture, "n_frames", 1)
        # The first image of an MPO is the photograph, the others are previews of it.
        if frames == 1 or picture.format == "MPO":
            picture.load()
            return ImageOps.exif_transpose(picture)
    except Exception as error:  # Pillow's readers raise whatever their parsing runs into
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{named}: cannot be decoded ({line}); replace it or remove the row"
        ) from error
    raise DataError(f"{named}: {frames} images in one file; keep one of them or remove the row")
