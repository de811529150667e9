"""Reads the columns of parquet files, and compares their types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.data.people.alike_names import text_of
from dpprobe.data.sources.tensor_columns import list_kind
from dpprobe.errors import ConfigError
from dpprobe.files.plain_files import require_proportion
from dpprobe.files.table_files import explain_parquet
from dpprobe.json_values import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET = (".parquet", ".pq")  # endings of parquet files' names
NUMBER_LISTS = "lists of numbers"
MOST_COLUMNS = 100_000
TEXT_BYTES = 64  # the least memory of a row's label or id, as text
_VALUE_BYTES, _LONGEST_TEXT = 8, 1 << 20
# The names of a column's class numbers; None for null and -1, which marks a missing label.
Codes = Mapping[int | None, str | None]


def read_schema(path: Path, *, fault: str | None = None) -> tuple[pa.Schema, int]:
    """Reads a file's columns and its number of rows.

    Raises ConfigError, which may begin with `fault`, if the file cannot be read, has two columns
    with the same name, or declares more values than its size allows.
    """
    import pyarrow.parquet as pq

    fault = fault or f"{path}: not a readable parquet file"
    with explain_parquet(path, ConfigError, fault), pq.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        if metadata.num_columns > MOST_COLUMNS:
            raise OSError(f"more than {MOST_COLUMNS:,} columns")
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        values = [
            sum(group.column(place).num_values for group in groups)
            for place in range(metadata.num_columns)
        ]
        most = max(TEXT_BYTES * metadata.num_rows, _VALUE_BYTES * max(values, default=0))
        require_proportion(path, "a column", most)
    if twice := [name for name, count in Counter(schema.names).items() if count > 1]:
        raise ConfigError(f"{path}: two columns are named {twice[0]!r}; rename one of them")
    return schema, metadata.num_rows


def stream_columns(
    path: Path, columns: Sequence[str], rows: int = 65_536
) -> Iterator[pa.RecordBatch]:
    """Yields batches of columns; raises OSError if texts are too long for labels or ids.

    Millions of rows may repeat a dictionary's text, so it is checked before texts are copied.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {field.name: field.type for field in pq.read_schema(path) if field.name in columns}
    texts = [name for name, kind in kinds.items() if kind in (pa.string(), pa.large_string())]
    with pq.ParquetFile(path, buffer_size=1 << 20, read_dictionary=texts) as file:
        for batch in file.iter_batches(rows, columns=list(columns)):
            arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name, column in arrays.items():
                if pa.types.is_dictionary(column.type):
                    _check_texts(path, name, column)
                    arrays[name] = column.cast(kinds[name]) if name in texts else column
            yield pa.RecordBatch.from_pydict(arrays)


def _check_texts(path: Path, name: str, column: pa.DictionaryArray) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type.value_type not in (pa.string(), pa.large_string()):
        return
    lengths = pc.binary_length(column.dictionary)
    if (pc.max(lengths).as_py() or 0) > _LONGEST_TEXT:
        raise OSError(f"column {name!r}: a string of more than {_LONGEST_TEXT:,} bytes")
    require_proportion(path, name, pc.sum(lengths.take(column.indices)).as_py() or 0)


def check_same_kinds(files: Mapping[Path, tuple[pa.Schema, int]], names: Collection[str]) -> None:
    """Raises ConfigError if a file lacks a column of the first file, or has it in another kind."""
    (first, (expected, _)), *others = files.items()
    for path, (schema, _) in others:
        for name in names:
            if name not in schema.names:
                raise ConfigError(
                    f"{path}: no column {name!r}, which {first} has; name files of one dataset"
                )
            here, there = (describe_kind(each.field(name).type) for each in (schema, expected))
            blank = "null" in (here, there) and NUMBER_LISTS not in (here, there)
            if here != there and not blank:
                raise ConfigError(
                    f"{path}: column {name!r} has {here}, but {there} in {first}; use one type in "
                    "all files"
                )


def describe_kind(kind: pa.DataType) -> str:
    """Returns a name for the type of a column's values, the same for numbers of any width."""
    from pyarrow import types

    kind = list_kind(kind)
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        is_number = types.is_integer(inner) or types.is_floating(inner)
        return NUMBER_LISTS if is_number else f"lists of {describe_kind(inner)}"
    for name, is_one in (
        ("whole numbers", types.is_integer),
        ("floats", types.is_floating),
        ("texts", lambda each: str(each) in ("string", "large_string", "string_view")),
    ):
        if is_one(kind):
            return name
    return str(kind)


def float_type(kind: pa.DataType) -> str:
    """Returns NumPy's name of a type of floats, also in a dictionary; empty for other types."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return names.get(str(kind), "")


def label_feature(schema: pa.Schema, column: str, path: Path) -> dict[str, Any]:
    """Returns the Hugging Face metadata of a column; empty if there is none.

    Raises ConfigError for numbers with value labels, which only R and SPSS can read.
    """
    from pyarrow import types

    metadata, kind = schema.metadata or {}, schema.field(column).type
    is_number = types.is_integer(kind) or types.is_floating(kind)
    if is_number and b"haven_labelled" in metadata.get(b"r", b""):
        raise ConfigError(
            f"{path}: column {column!r} has codes, and the file has value labels of R's haven; "
            "save the names, with haven::as_factor(), or the numbers, with haven::zap_labels()"
        )
    written = metadata.get(b"huggingface")
    feature: Any = read_metadata(written, path) if written else {}
    for key in ("info", "features", column):
        feature = feature.get(key, {}) if isinstance(feature, dict) else {}
    if isinstance(feature, list) and len(feature) == 1:  # the old notation for lists
        return {"feature": feature[0]}
    return feature if isinstance(feature, dict) else {}


def read_metadata(written: bytes, path: Path) -> dict[str, Any]:
    try:
        values = parse_json(written)
    except ValueError as error:
        raise ConfigError(
            f"{path}: its metadata is not JSON ({error}); replace the file"
        ) from error
    return values if isinstance(values, dict) else {}


def find_codes(path: Path, schema: pa.Schema, columns: Iterable[str]) -> dict[str, Codes]:
    """Returns the names of class numbers, by column; only columns whose metadata has names.

    Raises ConfigError as `label_feature` does.
    """
    listed = {column: label_feature(schema, column, path).get("names") for column in columns}
    return {
        column: {None: None, -1: None, **dict(enumerate(names))}
        for column, names in listed.items()
        if isinstance(names, list)
    }


def list_names(batch: pa.RecordBatch, column: str, codes: Mapping[str, Codes]) -> list[Any]:
    """Lists a column's values, with class numbers replaced by names; OSError for other numbers."""
    values = batch.column(column).to_pylist()
    if (known := codes.get(column)) is None:
        return values
    if other := [value for value in values if value not in known]:
        raise OSError(f"column {column!r}: the class number {other[0]} has no name")
    return [known[value] for value in values]


def name_codes(batch: pa.RecordBatch, codes: Mapping[str, Codes]) -> pa.RecordBatch:
    """Returns a batch with texts in place of class numbers; OSError for numbers without a name."""
    import pyarrow as pa

    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    for column in codes:
        texts = map(text_of, list_names(batch, column, codes))
        arrays[column] = pa.array([text or None for text in texts], pa.string())
    return pa.RecordBatch.from_pydict(arrays)
