"""Parquet files in the Hugging Face image convention.

A file has an image column (struct of bytes and path), a label column (integers, or lists of 0 and 1
for several labels per image) and class names in the schema's metadata. Files are streamed, so that
memory never contains all images.

Without `id_column`, a row's id is its position in the files. With `split_by: id`, no unit affects
whether another unit is train or test, because null rows that replace a unit keep all positions. But
an inserted row may move later rows between train and test. `limit` also selects rows by position,
before the split.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from itertools import compress, count, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from dpprobe.data.option_paths import Paths, each_once, list_patterns, match_files
from dpprobe.data.options import DatasetOptions, Limit
from dpprobe.data.people import patient_sides
from dpprobe.data.people.alike_names import text_of
from dpprobe.data.people.class_units import CountedRows
from dpprobe.data.people.companion_options import CompanionOptions
from dpprobe.data.people.companions import FoundCompanions, describe_alone
from dpprobe.data.people.group_columns import GroupColumns
from dpprobe.data.people.patient_sides import RowIndex, UnitOptions
from dpprobe.data.people.person_names import person_name
from dpprobe.data.sources.parquet_columns import (
    find_codes,
    float_type,
    label_feature,
    name_codes,
    read_metadata,
    read_schema,
    stream_columns,
)
from dpprobe.data.train_test_split import SplitName, SplitSeed, TestFraction
from dpprobe.errors import ConfigError, DataError
from dpprobe.files import json_files, table_files
from dpprobe.options import Options as Block
from dpprobe.options import real_path, resolve_path

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("dpprobe")

BATCH_ROWS = 128


# The types of an image's bytes and path; a column without values has the type null.
_STORED = {"bytes": ("binary", "null"), "path": ("string", "null")}
# File names of ImageNet's validation images (ILSVRC 2012), which contain numbers from 1.
_IMAGENET_VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})")


class AcceptedLabels(Block):
    """The labels that count as right for each test row, in the format of ReaL's real.json."""

    file: str = Field(
        min_length=1,
        description="A JSON list of lists of class numbers, one list per image of ImageNet's "
        "validation set, in the order of ILSVRC2012_val_00000001 and so on. Images with an empty "
        "list are not scored. An image's number is read from its path.",
    )


class ColumnOptions(CompanionOptions, UnitOptions):
    """The columns, classes and limits of parquet files in the Hugging Face image convention."""

    image_column: str = Field(
        "image", description="Column of the images, a struct of `bytes` and `path`."
    )
    label_column: str = Field(
        "label", description="Column of the labels: integers, or lists of 0 and 1."
    )
    id_column: str | None = Field(
        None, description="Column of unique ids; if absent, the row numbers are the ids."
    )
    group_columns: GroupColumns = ()
    class_names: tuple[str, ...] | None = Field(
        None,
        min_length=2,
        description="Names of the classes, required only if the files do not state them. The names "
        "are published with the weights, so take them from a public list, not from the labels.",
    )
    limit: Limit = Limit()
    test_fraction: TestFraction = 0.2
    split_seed: SplitSeed = 0

    def named_columns(self) -> set[str]:
        """Returns the columns of people, ids and groups."""
        groups = {group.column for group in self.list_groups().values()}
        named = {column for column in (self.unit_column, self.id_column) if column}
        return (groups | named) - {self.label_column, self.image_column}

    def side_options(self, *, own_test: bool) -> set[str]:
        if not own_test and self.unit_column is not None:
            return {"unit_column"}
        if not own_test and self.id_column is not None:
            return {"id_column"}
        return {"repo", "revision", "train", "test"}  # ids are positions in these files


class Options(ColumnOptions, CountedRows):
    """Parquet files in the Hugging Face image convention."""

    paths: ClassVar = ("train", "test", "accepted_labels.file")

    source: Literal["parquet"] = "parquet"
    train: Paths = Field(
        min_length=1, description="Training files: a file, a glob pattern, or a list of them."
    )
    test: Paths | None = Field(
        None,
        min_length=1,
        description="Test files, in the form of `train`; if absent, the training files are split.",
    )
    accepted_labels: AcceptedLabels | None = Field(
        None,
        description="Labels that count as correct in addition to `label`, for the test images "
        "(ReaL).",
    )

    def check_files(self) -> None:
        check_splits(
            self.limit, test=self.test is not None, accepted=self.accepted_labels is not None
        )
        if self.accepted_labels and not resolve_path(self.accepted_labels.file).is_file():
            raise ConfigError(
                f"accepted_labels.file: no file {self.accepted_labels.file}; correct the path or "
                "put the file there"
            )
        headers = [
            _read_header(self, path)
            for name in self.list_splits()
            for path in self._list_files(name)
        ]
        for other in headers[1:]:
            if (other.multi_label, other.class_names) != headers[0][1:3]:
                raise ConfigError(
                    f"{other.path}: labels or class names differ from those in {headers[0].path}; "
                    "name files of one dataset"
                )
        named = headers[0].class_names
        if self.class_names and named and self.class_names != named:
            raise ConfigError(
                f"class_names: {headers[0].path} already names the classes "
                f"({', '.join(named)}); remove the option"
            )
        # Published weights reveal the number of classes, so private labels must not decide it.
        if not (self.class_names or named):
            raise ConfigError(
                f"class_names: {headers[0].path} does not name its classes; write "
                "class_names: one name per class, in the order of the label numbers (from a "
                "public list, not from the labels)"
            )

    def read_index(self) -> RowIndex:
        splits = self.list_splits()
        units = None
        if (column := self.unit_column) is not None:
            units = {name: [*map(person_name, _read_column(self, name, column))] for name in splits}
        return RowIndex(
            rows={name: self._count_rows(name) for name in splits},
            ids=lambda name: _make_ids(self, name),
            labels=lambda name: _read_column(self, name, self.label_column),
            units=units,
            groups=lambda name, column: _read_column(self, name, column),
            names=lambda name: _read_names(self, name),
        )

    def unit_types(self, split: SplitName) -> set[str]:
        column = self.unit_column
        schemas = [read_schema(path)[0] for path in self._list_files(split)] if column else []
        return {float_type(schema.field(column).type) for schema in schemas}

    def find_companions(self) -> FoundCompanions:
        return self._count_split().companions

    def multi_label(self) -> bool:
        return _read_header(self, self._list_files("train")[0]).multi_label

    def count_classes(self) -> int | None:
        names = self.class_names_or_labels()
        return len(names) if names else None

    def class_names_or_labels(self) -> tuple[str, ...] | None:
        """Returns the classes, or the labels; None if neither option nor file names them."""
        return self.class_names or _read_header(self, self._list_files("train")[0]).class_names

    def _count_rows(self, name: SplitName) -> int:
        if (kept := _list_kept(self, name)) is not None:
            return sum(kept)
        rows = sum(_read_header(self, path).rows for path in self._list_files(name))
        return min(rows, getattr(self.limit, name) or rows)

    def input_files(self) -> tuple[str, ...]:
        files = [str(path) for name in self.list_splits() for path in self._list_files(name)]
        if self.accepted_labels:
            files.append(str(resolve_path(self.accepted_labels.file)))
        return tuple(files)

    def image_files(self) -> tuple[str, ...]:
        return tuple(
            str(real_path(path)) for name in self.list_splits() for path in self._list_files(name)
        )

    def _list_files(self, name: SplitName) -> list[Path]:
        files: list[Path] = []
        for pattern in list_patterns(getattr(self, name)):
            matches = match_files(resolve_path(pattern))
            if not matches:
                raise ConfigError(
                    f"{name}: no file {pattern}; correct the path or put the file there"
                )
            files.extend(matches)
        return each_once(name, files)


def check_splits(limit: Limit, *, test: bool, accepted: bool) -> None:
    """Raises ConfigError if a limit or accepted labels refer to a missing test split."""
    if not test and limit.test is not None:
        raise ConfigError("limit.test: the dataset has no `test` to limit; remove limit.test")
    if not test and accepted:
        raise ConfigError(
            "accepted_labels: they apply to test rows, but the dataset has no `test`; name the "
            "test files"
        )


class Header(NamedTuple):
    path: Path
    multi_label: bool
    class_names: tuple[str, ...] | None
    rows: int


def _read_header(options: Options, path: Path) -> Header:
    import pyarrow as pa

    schema, rows = read_schema(path)
    groups = [group.column for group in options.list_groups().values()]
    wanted = [options.image_column, options.label_column, *groups]
    wanted += [column for column in (options.id_column, options.unit_column) if column]
    for column in wanted:
        if column not in schema.names:
            raise ConfigError(
                f"{path}: no column {column!r}; name one of its columns: {', '.join(schema.names)}"
            )
    for column in filter(None, (options.id_column, options.unit_column, *groups)):
        if pa.types.is_nested(kind := schema.field(column).type):
            raise ConfigError(
                f"{path}: column {column!r} is {kind}; name a column with a string or a number in "
                "each row"
            )
    image = schema.field(options.image_column).type
    stored = {each.name: str(each.type) for each in image} if pa.types.is_struct(image) else {}
    if stored.keys() != _STORED.keys() or any(
        stored[name].removeprefix("large_").removesuffix("_view") not in kinds
        for name, kinds in _STORED.items()
    ):
        raise ConfigError(
            f"{path}: column {options.image_column!r} is {image}, not a struct of bytes and path; "
            "name the image column"
        )
    feature = label_feature(schema, options.label_column, path)
    multi_label = _is_multi_label(schema.field(options.label_column).type, feature, path)
    names = feature.get("names")
    ours = (schema.metadata or {}).get(b"dpprobe")
    if names is None and ours is not None:
        names = read_metadata(ours, path).get("class_names")
    if names and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ConfigError(
            f"{path}: its metadata should name the classes, but has {names!r:.60}; replace the file"
        )
    return Header(path, multi_label, tuple(names) if names else None, rows)


def _is_multi_label(kind: pa.DataType, feature: dict[str, Any], path: Path) -> bool:
    import pyarrow as pa

    if pa.types.is_integer(kind):
        return False
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (is_list or pa.types.is_fixed_size_list(kind)) or not pa.types.is_integer(
        kind.value_type
    ):
        raise ConfigError(f"{path}: labels are {kind}; store integers, or lists of 0 and 1")
    inner = feature.get("feature")
    if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
        raise ConfigError(
            f"{path}: labels are lists of class numbers; store lists of 0 and 1, with one number "
            "per class"
        )
    return True


def prepare(
    options: Options,
    directory: Path,
    *,
    recorded: DatasetOptions | None = None,
    revision: str | None = None,
) -> None:
    """Writes parquet files' split tables; dataset.json gets `recorded`, by default `options`.

    Raises ConfigError if a file or a column is missing. Raises DataError for faulty rows, and for
    accepted labels that do not match the test rows.
    """
    from dpprobe.data import table_writer  # slow import: numpy and pyarrow

    options.check_files()
    options.find_companions().refuse(options.companions)
    if options.left_out_words():
        for name in options.list_splits():
            names = _read_names(options, name, every=True)
            if line := describe_alone(names, options.leave_out(names)):
                logger.warning("%s: %s", name, line)
    header = _read_header(options, options._list_files("train")[0])
    class_names = options.class_names or header.class_names
    assert class_names is not None  # check_files raises an error without class names
    accepted = None
    if options.accepted_labels is not None:
        accepted = _read_accepted(options.accepted_labels.file, num_classes=len(class_names))
    table_writer.write_dataset(
        directory,
        _make_batches(options, accepted),
        options=recorded or options,
        class_names=class_names,
        multi_label=header.multi_label,
        groups=tuple(options.list_groups()),
        units=options.unit_column is not None,
        rows=sum(options._count_rows(name) for name in options.list_splits()),
        accepted=accepted is not None,
        revision=revision,
        chosen_test=options.test is not None,
    )


def _read_accepted(file: str, *, num_classes: int) -> list[list[int]]:
    where = f"accepted_labels: {file}"
    try:
        lists = json_files.read_json(resolve_path(file))
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: cannot be read ({error}); fetch it again") from error
    if not isinstance(lists, list) or not all(isinstance(part, list) for part in lists):
        raise DataError(
            f"{where}: not a list of lists; name a file with the structure of real.json"
        )
    for number, part in enumerate(lists, start=1):
        for label in part:
            if type(label) is not int or not 0 <= label < num_classes:
                raise DataError(
                    f"{where}: image {number}: label {label!r} is not a number from 0 to "
                    f"{num_classes - 1}; name the accepted_labels of this dataset"
                )
    return lists


def _merge_accepted(lists: list[list[int]], path: str | None, *, row: str) -> list[int]:
    match = _IMAGENET_VALIDATION.search(path or "")
    if match is None:
        raise DataError(
            f"{row}: its image's path {path!r} lacks the number of an ImageNet validation image "
            "(ILSVRC2012_val_ and eight digits); remove accepted_labels"
        )
    number = int(match.group(1))
    if not 1 <= number <= len(lists):
        raise DataError(
            f"{row}: accepted_labels has images 1 to {len(lists)}, but no image {number}; name the "
            "accepted_labels of this dataset"
        )
    return lists[number - 1]


def _make_ids(options: Options, name: SplitName) -> list[str]:
    if options.id_column is not None:
        values = _read_column(options, name, options.id_column)
        for row, value in enumerate(values):
            if value is None:
                raise DataError(f"{name} row {row}: no {options.id_column}; give every row an id")
        return [str(value) for value in values]
    prefix, kept = "row" if options.test is None else name, _list_kept(options, name)
    rows = range(options._count_rows(name)) if kept is None else compress(count(), kept)
    return [f"{prefix}-{row:08d}" for row in rows]


def _read_column(options: Options, name: SplitName, column: str) -> list[Any]:
    """Reads one column of a split's files, up to the limit; too large for columns of images."""
    values: list[Any] = []
    for batch in _stream_batches(options, name, [column], rows=65_536):
        try:
            values.extend(batch.column(0).to_pylist())
        except (ValueError, KeyError) as error:  # such as an unknown time zone (KeyError of pytz)
            raise DataError(
                f"{name}: {column}: cannot be read as text ({error}); store strings"
            ) from error
    return values


def _read_names(options: Options, name: SplitName, *, every: bool = False) -> list[str]:
    """Reads the names of images: ids if a column has ids, else paths; empty without either.

    With `every`, includes images that `companions` leaves out.
    """
    if options.id_column is not None:
        stream = _stream_every(options, name, [options.id_column], rows=65_536)
        names = [text_of(value) for batch in stream for value in batch.column(0).to_pylist()]
    else:
        paths = _stream_paths(options, name)
        names = [path or "" for path in islice(paths, getattr(options.limit, name))]
    return names if every else [*compress(names, _list_kept(options, name) or repeat(True))]


def _stream_paths(options: Options, name: SplitName) -> Iterator[str | None]:
    """Yields the path of each image, without reading the images."""
    import pyarrow.parquet as pq

    column = options.image_column
    for path in options._list_files(name):
        with (
            table_files.explain_parquet(path, DataError, f"{path}: cannot be read"),
            pq.ParquetFile(path) as file,
        ):
            for batch in file.iter_batches(65_536, columns=[f"{column}.path"]):
                batch.validate(full=True)
                yield from (image and image["path"] for image in batch.column(0).to_pylist())


def _list_kept(options: Options, name: SplitName) -> list[bool] | None:
    """Returns False for each row that `companions` leaves out; None if there are none."""
    if not options.left_out_words():
        return None
    return [not out for out in options.leave_out(_read_names(options, name, every=True))]


def _stream_batches(
    options: Options, name: SplitName, columns: Sequence[str], *, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a split that `companions` does not leave out."""
    import pyarrow as pa

    kept, start = _list_kept(options, name), 0
    for batch in _stream_every(options, name, columns, rows=rows):
        stop = start + batch.num_rows
        yield batch if kept is None else batch.filter(pa.array(kept[start:stop]))
        start = stop


def _stream_every(
    options: Options, name: SplitName, columns: Sequence[str], *, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a split, with names in place of the numbers of people, ids and groups.

    The files may number the same names differently.
    """
    import pyarrow.parquet as pq

    left, named = getattr(options.limit, name), {*columns} & options.named_columns()
    for path in options._list_files(name):
        with table_files.explain_parquet(path, DataError, f"{path}: cannot be read"):
            codes = find_codes(path, pq.read_schema(path), named)
            for batch in stream_columns(path, columns, rows):
                batch.validate(full=True)  # raises for invalid values, such as text not in UTF-8
                part = batch if left is None else batch.slice(0, left)
                if part.num_rows:
                    yield name_codes(part.select(list(columns)), codes)
                if left is not None:
                    left -= part.num_rows
                    if left == 0:
                        return


def _make_batches(
    options: Options, accepted: list[list[int]] | None
) -> Iterator[tuple[str, pa.Table]]:
    from dpprobe.data import table_writer  # slow import: numpy and pyarrow

    index = options.read_index()
    patients, sides = index.units, patient_sides.assign_sides(options, index)
    ids = {name: _make_ids(options, name) for name in index.rows}
    faults = index.list_faults(sides, options.unit_column)
    for line in options.list_rounding(patients or {}):
        logger.warning("%s", line)
    groups = options.list_groups()
    used = [options.image_column, options.label_column, *(g.column for g in groups.values())]
    columns = list(dict.fromkeys(used))
    for name in index.rows:
        start = 0
        for batch in _stream_batches(options, name, columns):
            stop = start + batch.num_rows
            images, of_batch = batch.column(options.image_column), faults[name][start:stop]
            right = None
            if accepted is not None:  # only test rows have accepted labels
                right = [
                    _merge_accepted(accepted, path, row=f"{name} row {row}")
                    if name == "test"
                    else []
                    for row, path in enumerate(images.field("path").to_pylist(), start)
                ]
            part = table_writer.make_batch(
                ids=ids[name][start:stop],
                labels=batch.column(options.label_column),
                images=images.field("bytes"),
                paths=images.field("path"),
                groups={
                    group: each.read_values(batch.column(each.column), of_batch)
                    for group, each in groups.items()
                },
                accepted=right,
                units=None if patients is None else patients[name][start:stop],
                faults=of_batch,
            )
            yield from table_writer.split_batch(part, sides[name][start:stop])
            start = stop
