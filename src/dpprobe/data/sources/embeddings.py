"""Vectors computed by another program from text, sound, tables, cells or images, with labels.

dpprobe runs no model on datasets of vectors. A backbone of the family `external` names the model
that computed the vectors, and declares that each vector depends on only one item.

Row i of the table of labels belongs to vector i. Files larger than memory are read in blocks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from dpprobe.data.option_paths import match_files
from dpprobe.data.options import Pooling
from dpprobe.data.people.class_units import CountedRows
from dpprobe.data.people.patient_sides import RowIndex
from dpprobe.data.sources import csv_files
from dpprobe.data.sources.csv_options import TableOptions
from dpprobe.data.sources.numbered_parts import check_pairs
from dpprobe.data.sources.parquet_columns import PARQUET
from dpprobe.data.train_test_split import SplitName
from dpprobe.errors import ConfigError, DataError
from dpprobe.options import Name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from dpprobe.data.sources.csv_rows import ManifestRows
    from dpprobe.data.sources.embedding_formats.embedding_file import EmbeddingFile

logger = logging.getLogger("dpprobe")

# The name of a row's only vector, if the study does not name it.
ONLY = "vectors"


def vector_names(source: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of a row's vectors, from a source's options; empty for images."""
    return tuple(source["vectors"]) or (ONLY,) if source["source"] == "embeddings" else ()


class Options(TableOptions, CountedRows):
    """Vectors computed elsewhere, one per row, with their labels."""

    paths: ClassVar[tuple[str, ...]] = (
        "root",
        "train",
        "test",
        "table",
        "test_table",
        "joins.*.file",
    )
    holds_vectors: ClassVar[bool] = True

    source: Literal["embeddings"] = "embeddings"
    train: str = Field(
        min_length=1,
        description="File with a vector per row: .npy, .npz, .parquet, .safetensors, .pt, .h5 or "
        ".h5ad. A glob pattern may name several parquet files, or numbered .npy files such as "
        "img_emb_*.npy, which are read in the order of their numbers. Or a folder with one file "
        "per row, named after its value in `id_column`, such as slide_1.h5.",
    )
    test: str | None = Field(
        None,
        min_length=1,
        description="File with the vectors of the test split, in the format of `train`. Without "
        "`test` and `split_column`, the rows of `train` are split.",
    )
    table: str | None = Field(
        None,
        min_length=1,
        description="A .csv, .tsv or .parquet file with labels, patients and groups: one row per "
        "vector of `train`, in the same order. A glob pattern may name the parquet files that "
        "belong to the numbered files of `train`. If absent, `train` itself has these columns.",
    )
    test_table: str | None = Field(
        None, min_length=1, description="The same as `table`, for the vectors of `test`."
    )
    pool: Pooling | None = Field(
        None,
        description="How the patches [patches, numbers] in each file of a folder are pooled into "
        "one vector per file. If absent, each file must have one vector.",
    )
    vectors: dict[Name, str] = Field(
        {},
        description="If each row has several vectors: a mapping of names to arrays in the file, "
        "such as a column or obsm/X_geneformer. A backbone of family external reads the vectors "
        "that have its name. Default: the file's only array, or else X, embedding, embeddings or "
        "features.",
    )

    @model_validator(mode="after")
    def _check_rows(self) -> Options:
        if (self.test is None or self.table is None) != (self.test_table is None):
            raise ValueError(
                "test_table: missing; `train` has a table, so name a table for `test` too"
                if self.test_table is None
                else "test_table: works only together with test and table; remove it"
            )
        for name in ("prompts", "prompt_names"):
            if getattr(self, name) != type(self).model_fields[name].get_default():
                raise ValueError(f"{name}: vectors have no text encoder; remove {name}")
        return self

    def check_files(self) -> None:
        dimensions: dict[str, int] = {}
        for split in self.list_splits():
            self._check_folder(split)
            self._check_parts(split)
            csv_files.check_columns(self, split)
            file = self.open_vectors(split)
            known = file.list_vectors()
            for name, where in self.locate_vectors(split).items():
                lengths = known[where].dimension
                if lengths is None:  # the length of vectors is known only after reading all rows
                    continue
                if (first := dimensions.setdefault(name, lengths)) != lengths:
                    raise ConfigError(
                        f"{file.path}: vectors {name!r} have {first} numbers in training rows but "
                        f"{lengths} in test rows; use vectors of one model"
                    )

    def _check_parts(self, split: SplitName) -> None:
        """Raises ConfigError if parts of vectors and parts of their table do not match."""
        if (pair := self._pair_parts(split)) is not None:
            file, table = pair
            check_pairs(file.path, file.count_parts(), table.path, table.count_parts())

    def _pair_parts(self, split: SplitName) -> tuple[EmbeddingFile, EmbeddingFile] | None:
        """Returns the patterns of vectors and table if both are in parts; else None."""
        table = self._find_table(split)
        file = None if table is None else self._open_table(table)
        if file is None or file.path.is_file() or self._vector_path(split).exists():
            return None
        return self.open_vectors(split), file

    def _find_table(self, split: SplitName) -> str | None:
        return self.table if split == "train" else self.test_table

    def _check_folder(self, split: SplitName) -> None:
        if not self._in_folder(split):
            if self.pool is not None:
                raise ConfigError(
                    "pool: works only if `train` and `test` name folders with one file per row; "
                    "remove it"
                )
            return
        for name in ("table" if split == "train" else "test_table", "id_column"):
            if getattr(self, name) is None:
                raise ConfigError(
                    f"{name}: missing; {self.locate_path(getattr(self, split))} is a folder, so "
                    "name the table of its items, and the column with the files' names; for parts "
                    "with many rows name a pattern, such as img_emb/img_emb_*.npy"
                )

    def read_index(self) -> RowIndex:
        from dpprobe.data.sources import csv_rows  # slow import: numpy, pandas and pyarrow

        return csv_rows.read_index(self)

    def vector_names(self) -> tuple[str, ...]:
        return vector_names({"source": self.source, "vectors": self.vectors})

    def open_vectors(self, split: SplitName) -> EmbeddingFile:
        from dpprobe.data.sources import embedding_files, item_files  # slow imports: numpy

        option: SplitName = "test" if split == "test" and self.test is not None else "train"
        path = self._vector_path(option)
        if path.is_dir():
            return item_files.ItemFolder(path, pool=self.pool, named=bool(self.vectors))
        return embedding_files.open_embeddings(path, option=option)

    def open_rows(
        self, split: SplitName, rows: ManifestRows
    ) -> tuple[EmbeddingFile, npt.NDArray[np.int64]]:
        """Opens a file with the vectors of a split's rows; also returns their ascending indices."""
        import numpy as np  # slow import

        from dpprobe.data.sources.item_files import ItemFolder

        file = self.open_vectors(split)
        if not isinstance(file, ItemFolder):
            return file, rows.frame.index.to_numpy()
        ids = rows.frame[self.id_column].tolist()
        return file.choose_items(ids), np.arange(len(ids))

    def locate_vectors(self, split: SplitName) -> dict[str, str]:
        """Maps the study's names of vectors to array names in the file."""
        file = self.open_vectors(split)
        names: Mapping[str, str | None] = self.vectors or {ONLY: None}
        return {name: file.find_vectors(where) for name, where in names.items()}

    def describe_vectors(self) -> Iterator[str]:
        """Yields a line per file or folder: its arrays, and how many of the table's items it has.

        Only compares file names; reads no vectors.
        """
        from dpprobe.data.sources import csv_rows  # slow imports: numpy and pandas
        from dpprobe.data.sources.item_files import ItemFolder

        for split in self.list_splits():
            file = self.open_vectors(split)
            headers = file.read_headers()
            arrays = [
                headers[where].describe(where) for where in self.locate_vectors(split).values()
            ]
            told = f"{getattr(self, split)}: {', '.join(arrays)}"
            if (files := len(file.count_parts())) > 1:
                told += f" in {files:,} parts"
            if self._pair_parts(split) is not None:
                told += f", each with as many rows as its part of {self._find_table(split)}"
            if isinstance(file, ItemFolder):
                parts = csv_rows.load_columns(self, {*self.list_columns()}, quiet=True)
                ids = [
                    name
                    for part, rows in parts.items()
                    if self._uses_file(part, split)
                    for name in rows.frame[self.id_column]
                ]
                pooled = f", pooled by {self.pool}" if self.pool else ""
                told += f" in each file{pooled}; {file.describe_names(ids)}"
            yield told

    def _uses_file(self, part: SplitName, split: SplitName) -> bool:
        """Returns True if the vectors of a part's rows are in a split's file."""
        return part == split or (self.test is None and split == "train")

    def _vector_path(self, split: SplitName) -> Path:
        return self.locate_path(getattr(self, split))

    def _in_folder(self, split: SplitName) -> bool:
        return self._vector_path(split).is_dir()

    def split_file(self, split: SplitName) -> str:
        """Returns the study's path of the file with a split's labels: table, or vectors."""
        return self._find_table(split) or super().split_file(split)

    def open_columns(self, file: str) -> EmbeddingFile | None:
        if file.lower().endswith(csv_files.SUFFIXES):
            return None
        if file in (self.table, self.test_table):
            return self._open_table(file)
        if file in (self.train, self.test):
            return self.open_vectors("test" if file == self.test else "train")
        return None

    def unit_types(self, split: SplitName) -> set[str]:
        file = self.open_columns(self.split_file(split if split in self.list_splits() else "train"))
        made = self.extract.get(self.unit_column or "")
        column = self.unit_column if made is None else made.column
        return file.column_types(column) if file and column in file.columns else set()

    def _open_table(self, file: str) -> EmbeddingFile | None:
        """Opens a table of parquet files; returns None for other tables."""
        from dpprobe.data.sources import embedding_files  # slow import: numpy

        if not file.lower().endswith(PARQUET):
            return None
        option = "table" if file == self.table else "test_table"
        return embedding_files.open_embeddings(self.locate_path(file), option=option)

    def check_length(self, split: SplitName, rows: int) -> None:
        if self._in_folder(split):  # rows are matched to files by name
            return
        known = self.open_vectors(split).list_vectors()
        for name, where in self.locate_vectors(split).items():
            if known[where].rows != rows:
                raise ConfigError(
                    f"{self.split_file(split)}: {rows} rows, but {known[where].rows} vectors "
                    f"{name!r} in {self.open_vectors(split).path}; store one row per vector"
                )

    def input_files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.image_files(), *_match(super().input_files()))))

    def image_files(self) -> tuple[str, ...]:
        return _match(str(self._vector_path(split)) for split in self.list_splits())

    def list_source_files(self) -> Iterator[tuple[str, str | os.PathLike[str]]]:
        for path in map(Path, self.input_files()):
            files = match_files(path / "*") if path.is_dir() else [path]
            yield from ((str(file), file) for file in files)

    def side_options(self, *, own_test: bool) -> set[str]:
        tables = {"table", "test_table"} if own_test else set()
        return super().side_options(own_test=own_test) | tables

    def id_options(self) -> set[str]:
        return {"train", "test", "table", "test_table"}


def _match(paths: Iterable[str]) -> tuple[str, ...]:
    """Lists the files for paths and glob patterns; includes missing paths."""
    return tuple(str(file) for path in paths for file in match_files(Path(path)) or [Path(path)])


def prepare(options: Options, directory: Path) -> None:
    """Writes the split tables of vectors.

    Raises ConfigError if a file does not match the options. Raises DataError, in one message, for
    all faulty rows, and for vectors of different lengths.
    """
    from dpprobe.data.sources import csv_rows  # slow import: numpy, pandas and pyarrow

    options.check_files()
    parts = csv_rows.read_rows(options)
    csv_rows.write_tables(directory, options, parts, _make_batches(options, parts))


def _make_batches(
    options: Options, parts: Mapping[SplitName, ManifestRows]
) -> Iterator[tuple[str, pa.Table]]:
    """Yields one batch for the split tables per block of vectors."""
    import numpy as np  # slow import

    from dpprobe.data.sources import csv_rows
    from dpprobe.data.sources.embedding_rows import pack_vectors

    mistaken = csv_rows.find_mistaken(options, parts)
    if (column := options.unit_column) is not None:
        people = {split: rows.frame[column] for split, rows in parts.items()}
        for line in options.list_rounding(people):
            logger.warning("%s", line)
    dimensions: dict[str, int] = {}
    for split, rows in parts.items():
        file, places = options.open_rows(split, rows)
        named, start = options.locate_vectors(split), 0
        for arrays in file.read_blocks(list(named.values())):
            stop = start + len(arrays[0])
            first, last = np.searchsorted(places, [start, stop]).tolist()
            chosen = places[first:last] - start
            with np.errstate(over="ignore"):  # _find_faults reports infinite numbers
                vectors = {
                    name: array[chosen].astype(np.float32)
                    for name, array in zip(named, arrays, strict=True)
                }
            for name, block in vectors.items():
                if dimensions.setdefault(name, block.shape[1]) != block.shape[1]:
                    raise DataError(
                        f"{file.path}: vectors {name!r} have "
                        f"{block.shape[1]} numbers from row {start} on, but {dimensions[name]} "
                        "before; all vectors must have the same length"
                    )
            faults = _find_faults(vectors, len(chosen))
            if options.unreadable == "drop":
                faults = [[("unreadable", detail) for _, detail in row] for row in faults]
            for row in file.faults.keys() & range(start, stop):
                faults[row - start] = [file.faults[row]]
            if len(chosen):
                yield (
                    split,
                    csv_rows.make_batch(
                        options,
                        rows.take_rows(slice(first, last)),
                        mistaken,
                        images=[
                            pack_vectors({name: block[row] for name, block in vectors.items()})
                            for row in range(len(chosen))
                        ],
                        paths=[None] * len(chosen),
                        faults=faults,
                    ),
                )
            start = stop


def _find_faults(
    vectors: Mapping[str, npt.NDArray[np.float32]], rows: int
) -> list[list[tuple[str, str]]]:
    import numpy as np  # slow import

    faults: list[list[tuple[str, str]]] = [[] for _ in range(rows)]
    for name, block in vectors.items():
        bad = ~np.isfinite(block)
        for row in np.flatnonzero(bad.any(axis=1)).tolist():
            place = int(bad[row].argmax())
            value: Any = block[row, place]
            faults[row].append(("value", f"vectors {name!r}: number {place} is {value}"))
    return faults
