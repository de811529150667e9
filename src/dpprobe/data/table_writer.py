"""Writes the split tables of a dataset (see `table`), and checks their rows.

A source yields batches of rows in any order. Every row is checked, all problems are reported
together, and `dataset.json` is written last. A dataset with a problem leaves no tables.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpprobe import json_values
from dpprobe.data.dataset_checks import CheckedImage, Checks, add_problem, label_words
from dpprobe.data.images.image_files import (
    count_used_bits,
    hint_misspelling,
    open_image,
    pixel_hash,
)
from dpprobe.data.images.tar_shards import read_image_bytes
from dpprobe.data.people.alike_names import find_name_fault
from dpprobe.data.problems import UNREADABLE, WITHOUT_CONTENT, ImageError, Problems
from dpprobe.data.table import FORMAT, FORMAT_VERSION, READ_THREADS, SPLITS
from dpprobe.errors import DataError
from dpprobe.extras import OptionalModule
from dpprobe.files import atomic_writes, json_files, plain_files
from dpprobe.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from dpprobe.data.options import DatasetOptions
else:
    pa = OptionalModule("pyarrow")
    pc = OptionalModule("pyarrow.compute")
    pq = OptionalModule("pyarrow.parquet")

logger = logging.getLogger("dpprobe")

BATCH_ROWS = 128  # rows that a source yields together
# The largest row group, in rows and bytes, because readers must read a group from its first row.
GROUP_ROWS = 4096
GROUP_BYTES = 32 << 20

# Columns that rows of any source may have.
_EXPECTED = {"image", "label", "id", "pixels_sha256", "faults", "origin"}
_ReadImages = Callable[..., Iterable[CheckedImage]]


def make_batch(
    *,
    ids: Sequence[str],
    labels: Any,
    images: Any,
    paths: Any,
    groups: Mapping[str, Any] | None = None,
    accepted: Any = None,
    faults: Sequence[Sequence[tuple[str, str]]] | None = None,
    origins: Sequence[str] | None = None,
    units: Sequence[str] | None = None,
) -> pa.Table:
    """Makes a batch of rows for `write_dataset`.

    Args:
      ids: n unique strings.
      labels: n integers, or n lists of 0 and 1.
      images: n encoded images; None for an image to be read from the path.
      paths: n paths; None for an image without a path.
      groups: column name -> n values, written as strings; null and NaN are unknown.
      accepted: per row, the list of labels that count as right (may be empty), or None if only the
        row's own label counts. None if the dataset has no lists.
      faults: per row, the problems that the source found, as (kind in `problems.KINDS`, detail);
        the label of a row with problems may be None.
      origins: where each row is in the source, such as file and line, for the report.
      units: the patient of each row; None if the dataset names no patients.
    """
    columns: dict[str, Any] = {
        "image": _image_column(images, paths),
        "label": labels if isinstance(labels, pa.Array) else pa.array(labels),
        "id": pa.array(ids, pa.string()),
    }
    for name, values in (groups or {}).items():
        try:
            columns[name] = _text_column(values)
        except pa.ArrowException as error:
            raise DataError(f"{name}: cannot be read as text ({error}); store strings") from error
    if accepted is not None:
        columns["accepted"] = pa.array(accepted, pa.list_(pa.int64()))
    if faults is not None:
        columns["faults"] = pa.array(
            [[list(fault) for fault in row] for row in faults], pa.list_(pa.list_(pa.string()))
        )
    if origins is not None:
        columns["origin"] = pa.array(origins, pa.string())
    if units is not None:
        columns["unit"] = pa.array(units, pa.string())
    return pa.table(columns)


def batch_files(
    parts: Mapping[str, tuple[Path, Sequence[tuple[str, int]]]],
) -> Iterator[tuple[str, pa.Table]]:
    """Yields batches of image files for `write_dataset`; a row's id is its path.

    `parts` has a folder per split, and a path in this folder and a label per row.
    """
    for name, (folder, rows) in parts.items():
        for start in range(0, len(rows), BATCH_ROWS):
            files, labels = zip(*rows[start : start + BATCH_ROWS], strict=True)
            paths = [str(folder / file) for file in files]
            images = [None] * len(files)
            yield name, make_batch(ids=files, labels=labels, images=images, paths=paths)


def batch_images(
    parts: Mapping[str, Sequence[int]], read: Callable[[str, int], tuple[str, int, bytes]]
) -> Iterator[tuple[str, pa.Table]]:
    """Yields batches of encoded images for `write_dataset`, in the order of the rows.

    Args:
      parts: split name -> numbers of rows.
      read: returns the id, the label and the encoded image of a split's row.
    """
    for name, rows in parts.items():
        for start in range(0, len(rows), BATCH_ROWS):
            batch = [read(name, row) for row in rows[start : start + BATCH_ROWS]]
            ids, labels, images = zip(*batch, strict=True)
            yield name, make_batch(ids=ids, labels=labels, images=images, paths=[None] * len(ids))


def split_batch(batch: pa.Table, sides: Sequence[str | None]) -> Iterator[tuple[str, pa.Table]]:
    """Yields the rows of a batch for each table; `sides` has None for a row to leave out."""
    for side in dict.fromkeys(filter(None, sides)):
        yield side, batch.filter([each == side for each in sides])


def _image_type() -> pa.DataType:
    return pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])


def _text_column(values: Any) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), None, array)
    return array.cast(pa.string()).fill_null("")


def _image_column(images: Any, paths: Any) -> pa.Array:
    data = images if isinstance(images, pa.Array) else pa.array(images, pa.binary())
    files = paths if isinstance(paths, pa.Array) else pa.array(paths, pa.string())
    return pa.StructArray.from_arrays(
        [data.cast(pa.binary()), files.cast(pa.string())], fields=list(_image_type())
    )


def write_dataset(
    directory: Path,
    batches: Iterable[tuple[str, pa.Table]],
    *,
    options: DatasetOptions,
    class_names: Sequence[str],
    multi_label: bool = False,
    groups: Sequence[str] = (),
    accepted: bool = False,
    units: bool = False,
    rows: int,
    embed: bool = False,
    revision: str | None = None,
    chosen_test: bool = False,
) -> None:
    """Writes both split tables from a stream of batches, then `dataset.json`.

    Checks every row and reports all problems together, as an error and in `problems.csv`.

    Raises DataError if a row, or the dataset as a whole, has a problem.

    Args:
      batches: (split name, rows of `make_batch`) in any order.
      options: the dataset's options, recorded in dataset.json if they change the data; `expect`,
        `duplicates`, `missing_classes` and `verify` decide the checks.
      accepted: True if the batches have lists of labels that count as right; not for multi-label.
      units: True if the batches name the patient of each row.
      rows: the number of rows of all batches, before `max_images_per_patient` leaves rows out.
      embed: True to copy images into the tables if the batches have only paths.
      revision: the resolved version of the source.
      chosen_test: True if the source has its own test split, whose missing classes are a problem
        (see `missing_classes`). Missing classes in a split by dpprobe are only a warning.
    """
    assert not (accepted and multi_label)
    fault = find_name_fault(class_names)
    if fault or (len(class_names) < 2 and options.has_labels()):
        raise DataError(f"class names: {fault or f'only {len(class_names)}; name two or more'}")
    shape = _Shape(
        tuple(class_names), multi_label, tuple(groups), accepted, units, options.holds_vectors
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "dataset.json").unlink(missing_ok=True)
    with ExitStack() as stack:
        problems = stack.enter_context(Problems(directory))
        checks = Checks(shape.class_names, options, problems, strict_test=chosen_test, units=units)
        pool = stack.enter_context(ThreadPoolExecutor(READ_THREADS))
        decode = options.verify == "decode" and not options.holds_vectors
        drop = options.unreadable == "drop"
        read = partial(pool.map, partial(_check_image, decode=decode, keep=embed))
        writers = {}
        for name in SPLITS:
            path = stack.enter_context(atomic_writes.atomic_path(directory / f"{name}.parquet"))
            writer = _SplitWriter(path, name, shape, read=read, problems=problems, drop=drop)
            writers[name] = stack.enter_context(closing(writer))
        progress = stack.enter_context(Progress(rows, label=f"data {directory.name}"))
        for name, batch in batches:
            shape.check_batch(name, batch, source=options.source)
            images = writers[name].write_batch(batch)
            columns = {n: batch.column(n).to_pylist() for n in shape.named_columns}
            checks.look_at(name, images, batch.column("label").to_pylist(), columns)
            progress.advance_by(batch.num_rows)
        _require_rows(sum(writer.rows for writer in writers.values()), rows, options)
        checks.finish_checks(
            {name: (writer.rows, writer.per_class) for name, writer in writers.items()}
        )
        _check_nulls(writers, problems)
        if problems:
            for name in SPLITS:
                (directory / f"{name}.parquet").unlink(missing_ok=True)
            raise problems.make_error()
        for writer in writers.values():
            writer.write_footer()
        problems.keep_notes()
    facts = {
        "source": options.preparation_params(),
        "catalog": options.catalog,
        "revision": revision,
        **_describe_checks(checks),
        **_describe_tables(directory, writers, shape),
    }
    described = {"format": FORMAT, "format_version": FORMAT_VERSION, **facts}
    json_files.write_record(directory / "dataset.json", described)


def _require_rows(given: int, announced: int, options: DatasetOptions) -> None:
    if given > announced or (given < announced and options.named_people().most_images is None):
        raise DataError(
            f"source {options.source}: {given} rows instead of {announced}; correct the source"
        )


def _check_nulls(writers: Mapping[str, _SplitWriter], problems: Problems) -> None:
    """Warns of null examples, but not of their private number; refuses a split of only nulls."""
    for name, writer in writers.items():
        if 0 < writer.rows == len(writer.nulls):
            problems.add_problem("class", "none of its rows can be read", split=name)
    if any(writer.nulls for writer in writers.values()):
        logger.warning("unreadable rows count as null examples; %s lists them", problems.path)


def _describe_checks(checks: Checks) -> dict[str, Any]:
    copies, tested = checks.count_copies("train"), checks.count_copies("test")
    return {
        "duplicates_across_splits": checks.twins,
        "duplicates_within_train": copies["image"]["rows"],
        "train_copies": copies,
        "test_copies": tested,
        "classes_without_test_rows": checks.untested,
    }


def _describe_tables(
    directory: Path, writers: Mapping[str, _SplitWriter], shape: _Shape
) -> dict[str, Any]:
    content = {
        "class_names": list(shape.class_names),
        "multi_label": shape.multi_label,
        "groups": list(shape.groups),
        "splits": {name: writer.fingerprint for name, writer in writers.items()},
    }
    # Keys are omitted without accepted labels or patients, so that old fingerprints stay valid.
    if shape.accepted:
        content["accepted"] = True
    if shape.units:
        content["units"] = {name: len(writer.units) for name, writer in writers.items()}
    return {
        **content,
        "splits": {
            name: {
                "rows": writer.rows,
                "per_class": writer.per_class.tolist(),
                "bytes": (directory / f"{name}.parquet").stat().st_size,
                "sha256": plain_files.sha256_file(directory / f"{name}.parquet"),
                "fingerprint": writer.fingerprint,
            }
            for name, writer in writers.items()
        },
        "fingerprint": json_values.hash_value(content),
    }


def _check_image(
    row: int,
    image: dict[str, Any] | None,
    row_id: str | None,
    origin: str | None,
    pixels: bytes | None,
    *,
    decode: bool,
    keep: bool,
) -> CheckedImage:
    """Reads, hashes and (with `decode`) decodes an image; with `keep`, also returns its bytes."""
    path: str = image["path"] or "" if image else ""
    data: bytes | None = image["bytes"] if image else None
    digest, bits, fault = None, None, None
    try:
        if data is None:
            if not path:
                raise ImageError("no image")
            data = read_image_bytes(path)
        digest = hashlib.sha256(data).digest()
        if decode:
            picture = open_image(data)
            pixels, bits = pixel_hash(picture), count_used_bits(picture)
    except OSError as error:
        hint = hint_misspelling(path) if isinstance(error, FileNotFoundError) else ""
        fault = ("missing", f"cannot be read ({error.strerror}){hint}")
    except ValueError as error:  # the path contains NUL or half a character
        fault = ("missing", f"cannot be read ({error})")
    except ImageError as error:
        fault = ("missing" if data is None else "unreadable", str(error))
    kept = data if keep else None
    return CheckedImage(row, row_id or "", path, origin or "", digest, pixels, bits, kept, fault)


class _Shape(NamedTuple):
    """The properties that a dataset's two tables share."""

    class_names: tuple[str, ...]
    multi_label: bool
    groups: tuple[str, ...]
    accepted: bool
    units: bool
    vectors: bool

    @property
    def named_columns(self) -> list[str]:
        """The columns of subgroups, and of patients if they are named."""
        return [*self.groups, *(["unit"] if self.units else [])]

    def check_batch(self, split: str, batch: pa.Table, *, source: str) -> None:
        """Raises DataError if a batch's split, labels or columns are not as the source declares."""
        kind = batch.schema.field("label").type
        one = getattr(kind, "value_type", None) if self.multi_label else kind
        whole = str(one).removeprefix("u").startswith(("int", "bool")) or pa.types.is_null(kind)
        named = {*self.named_columns}
        unused = {*batch.schema.names} - named - _EXPECTED
        unused -= {"accepted"} if self.accepted else set()
        if split not in SPLITS or not whole or unused or not named <= {*batch.schema.names}:
            raise DataError(
                f"source {source}: rows of split {split!r} with labels of type {kind} and the "
                f"columns {', '.join(batch.schema.names)} differ from its options; correct the "
                "source"
            )

    def make_schema(self) -> pa.Schema:
        text = {"dtype": "string", "_type": "Value"}
        binary = {"dtype": "binary", "_type": "Value"}
        # column name -> parquet type, Hugging Face feature
        columns: dict[str, tuple[pa.DataType, dict[str, Any]]] = {
            "image": (_image_type(), {"_type": "Image"}),
            "label": (pa.int64(), {"names": list(self.class_names), "_type": "ClassLabel"}),
            "id": (pa.string(), text),
            "image_sha256": (pa.binary(), binary),
            "pixels_sha256": (pa.binary(), binary),
            **{name: (pa.string(), text) for name in self.groups},
        }
        if self.vectors:
            columns["image"] = (_image_type(), {"bytes": binary, "path": text})
        if self.multi_label:
            columns["label"] = (pa.list_(pa.int8()), _describe_list("int8"))
        if self.accepted:
            columns["accepted"] = (pa.list_(pa.int64()), _describe_list("int64"))
        if self.units:
            columns["unit"] = (pa.string(), text)
        features = {name: feature for name, (_, feature) in columns.items()}
        ours = {"class_names": list(self.class_names), "multi_label": self.multi_label}
        if self.vectors:
            ours["vectors"] = True
        metadata = {
            "huggingface": json.dumps({"info": {"features": features}}),
            "dpprobe": json.dumps(ours),
        }
        return pa.schema([(name, kind) for name, (kind, _) in columns.items()], metadata=metadata)


def _describe_list(kind: str) -> dict[str, Any]:
    return {"feature": {"dtype": kind, "_type": "Value"}, "_type": "Sequence"}


class _SplitWriter:
    """Writes one split table: checks rows, hashes images, and limits the size of row groups."""

    def __init__(
        self,
        path: Path,
        name: str,
        shape: _Shape,
        *,
        read: _ReadImages,
        problems: Problems,
        drop: bool,
    ) -> None:
        self.name = name
        self.rows = 0
        self.nulls: list[int] = []
        self._drop = drop
        self.per_class = np.zeros(len(shape.class_names), dtype=np.int64)
        self.fingerprint = ""
        self.units: set[str] = set()
        self._shape = shape
        self._read = read
        self._problems = problems
        self._schema = shape.make_schema()
        self._hash = hashlib.sha256()
        self._ids: dict[str, Any] = {}  # id of a row -> its label
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._writer = pq.ParquetWriter(
            path, self._schema, compression="zstd", use_dictionary=["label", *shape.groups]
        )

    def close(self) -> None:
        self._writer.close()

    def write_batch(self, batch: pa.Table) -> list[CheckedImage]:
        """Checks a batch, writes it unless there have been problems, and returns its images."""
        if batch.num_rows == 0:
            return []
        rows = range(self.rows, self.rows + batch.num_rows)
        named = ("image", "id", "origin", "pixels_sha256")
        images = list(self._read(rows, *(_optional_column(batch, name) for name in named)))
        faults = [[(k, d) for k, d in of_row or ()] for of_row in _optional_column(batch, "faults")]
        if self._drop:
            images = list(map(self._drop_unreadable, images, faults))
        # unreadable images are not compared
        images = [
            image._replace(sha256=None)
            if any(kind in WITHOUT_CONTENT for kind, _ in found)
            else image
            for image, found in zip(images, faults, strict=True)
        ]
        labels = self._check_batch(batch, images, faults)
        self.rows += batch.num_rows
        if not self._problems:
            self._append_rows(batch, images, labels)
        return images

    def write_footer(self) -> None:
        self._flush_rows()
        self.fingerprint = self._hash.hexdigest()
        self._writer.add_key_value_metadata({"dpprobe_fingerprint": self.fingerprint})
        if self.nulls:
            self._writer.add_key_value_metadata({"dpprobe_nulls": json.dumps(self.nulls)})
        self._writer.close()

    def _drop_unreadable(self, image: CheckedImage, faults: list[tuple[str, str]]) -> CheckedImage:
        """Makes an unreadable image a null example; removes its faults, and notes the first."""
        unreadable = [fault for fault in (*faults, image.fault) if fault and fault[0] in UNREADABLE]
        if not unreadable:
            return image
        self.nulls.append(image.row)
        add_problem(self._problems, "null", unreadable[0][1], split=self.name, image=image)
        faults[:] = [fault for fault in faults if fault not in unreadable]
        return image._replace(sha256=None, pixels=None, used_bits=None, data=None, fault=None)

    def _check_batch(
        self,
        batch: pa.Table,
        images: Sequence[CheckedImage],
        given: Sequence[Sequence[tuple[str, str]]],
    ) -> list[Any]:
        """Returns the labels of a batch, and reports the problems of its rows.

        `given` are the problems that the source found in each row.
        """
        accepted = _optional_column(batch, "accepted")
        labels = batch.column("label").to_pylist()
        units = _optional_column(batch, "unit")
        for image, label, of_source, right, unit in zip(
            images, labels, given, accepted, units, strict=True
        ):
            faults = list(of_source)
            known = {kind for kind, _ in faults}  # kinds of problems that the source explained
            checks = [image.fault, self._id_fault(image.id, label), self._label_fault(label)]
            if checks[-1] is None:
                self.per_class[label if not self._shape.multi_label else np.array(label) == 1] += 1
                checks.append(self._accepted_fault(right))
            if self._shape.units and not unit:
                checks.append(("patient", "no patient"))
            faults += [fault for fault in checks if fault is not None and fault[0] not in known]
            for kind, detail in faults:
                add_problem(self._problems, kind, detail, split=self.name, image=image)
        return labels

    def _id_fault(self, row_id: str, label: Any) -> tuple[str, str] | None:
        if not row_id:
            return "id", "no id"
        if row_id not in self._ids:
            self._ids[row_id] = label
            return None
        detail = f"id {row_id!r} appears twice"
        if self._ids[row_id] != label:
            first, other = (
                label_words(value, self._shape.class_names) for value in (self._ids[row_id], label)
            )
            detail += f", under two labels: {first} and {other}"
        return "id", detail

    def _accepted_fault(self, right: list[int] | None) -> tuple[str, str] | None:
        classes = len(self._shape.class_names)
        if right is None or all(value is not None and 0 <= value < classes for value in right):
            return None
        return "label", f"accepted labels {right} are not numbers from 0 to {classes - 1}"

    def _label_fault(self, value: Any) -> tuple[str, str] | None:
        classes = len(self._shape.class_names)
        if self._shape.multi_label:
            good = value is not None and len(value) == classes and {0, 1}.issuperset(value)
            wanted = f"{classes} numbers 0 or 1, one per class"
        else:
            good = value is not None and 0 <= value < classes
            wanted = f"a number from 0 to {classes - 1}"
        return None if good else ("label", f"label {value} is not {wanted}")

    def _append_rows(
        self, batch: pa.Table, images: Sequence[CheckedImage], labels: Sequence[Any]
    ) -> None:
        groups = [batch.column(name).to_pylist() for name in self._shape.groups]
        accepted = _optional_column(batch, "accepted")
        if self._shape.accepted:  # by default only the row's label is accepted
            accepted = [
                [label] if right is None else right
                for label, right in zip(labels, accepted, strict=True)
            ]
        units = _optional_column(batch, "unit")
        self.units.update(units)
        for row, image in enumerate(images):
            row_groups = [column[row] for column in groups]
            record = [image.id, labels[row], row_groups, image.sha256 and image.sha256.hex()]
            record += [accepted[row]] if self._shape.accepted else []
            record += [units[row]] if self._shape.units else []
            self._hash.update(json_values.canonical_json(record).encode() + b"\n")
        columns = {
            "image": batch.column("image"),
            "label": batch.column("label").cast(self._schema.field("label").type),
            "id": batch.column("id"),
            "image_sha256": pa.array([image.sha256 for image in images], pa.binary()),
            "pixels_sha256": pa.array([image.pixels for image in images], pa.binary()),
            **{name: batch.column(name) for name in self._shape.groups},
        }
        nulls = any(image.sha256 is None for image in images)
        if nulls or any(image.data is not None for image in images):
            data = [image.data for image in images]
            if nulls:  # bytes of readable images may only be in the batch
                given = batch.column("image").to_pylist()
                data = [
                    (image.data or one["bytes"]) if image.sha256 else None
                    for image, one in zip(images, given, strict=True)
                ]
            paths = [(image.path or None) if image.sha256 else None for image in images]
            columns["image"] = _image_column(data, paths)
        if self._shape.accepted:
            columns["accepted"] = pa.array(accepted, pa.list_(pa.int64()))
        if self._shape.units:
            columns["unit"] = pa.array(units, pa.string())
        ready = pa.table(columns).select(self._schema.names).cast(self._schema)
        self._pending.append(ready)
        self._pending_bytes += ready.nbytes
        pending_rows = sum(table.num_rows for table in self._pending)
        if self._pending_bytes >= GROUP_BYTES or pending_rows >= GROUP_ROWS:
            self._flush_rows()

    def _flush_rows(self) -> None:
        if self._pending:
            table = pa.concat_tables(self._pending).combine_chunks()
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._pending, self._pending_bytes = [], 0


def _optional_column(batch: pa.Table, name: str) -> list[Any]:
    """Returns a column's values; None per row if the batch has no such column."""
    if name in batch.schema.names:
        return list(batch.column(name).to_pylist())
    return [None] * batch.num_rows
