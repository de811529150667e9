"""Lists all images in the files, folders and tables that a user names, as rows.

Wrong paths and columns are reported before the first image is read. An unreadable image causes an
error only for its row.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.counted_nouns import count_noun
from dpprobe.data.images.image_files import (
    EXTENSIONS,
    ScaledDecoding,
    is_helper,
    is_image_file,
    leads_back,
    open_image,
)
from dpprobe.data.images.image_search import ImagePaths, join_roots, list_roots, search_images
from dpprobe.data.images.tar_shards import read_image_bytes
from dpprobe.data.people.companions import warn_of_companions
from dpprobe.data.problems import ImageError
from dpprobe.data.sources.csv_files import SUFFIXES, open_csv, other_delimiter
from dpprobe.data.sources.parquet_columns import read_schema, stream_columns
from dpprobe.data.table import READ_ROWS, EncodedImage
from dpprobe.data.usual_columns import IMAGE_COLUMNS, IMAGE_NAMES, find_usual
from dpprobe.errors import ConfigError, DataError
from dpprobe.extras import OptionalModule
from dpprobe.files.table_files import explain_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image
else:
    pa = OptionalModule("pyarrow")

logger = logging.getLogger("dpprobe")

ID_COLUMN = "id"
TABLES = (*SUFFIXES, ".parquet")
# The number of image names per table that are tried with other folders and suffixes.
SEARCHED = 20

# A row's id, and its image's bytes or file path; bytes and path are None in an empty row.
Row = tuple[str, bytes | None, str | None]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The rows of all named files, folders and tables, in order."""

    count: int
    rows: Callable[[], Iterator[Row]]

    def read_images(self) -> Iterator[EncodedImage]:
        """Yields the rows in order; tables are streamed."""
        for number, (row_id, data, path) in enumerate(self.rows()):
            yield EncodedImage(number, data, path, row_id, b"")


def find_images(
    inputs: Sequence[Path],
    *,
    image_column: str | None = None,
    id_column: str | None = None,
    root: Path | None = None,
) -> Source:
    """Searches named files and folders for images; raises ConfigError for a folder without images.

    - Folder: all images in and below the folder, by extension, sorted by path, without hidden ones.
    - Parquet file: a column of images (a struct of bytes and path, as Hugging Face writes it, or
      bytes) or of paths.
    - CSV file (also .tsv, .gz): a column of paths.
    - Any other file is an image, whose id is its path.

    Paths in a column are relative to `root`, by default to the table's folder. If no path leads to
    a file, images are searched as in `dpprobe init`, also without folder or suffix. Paths in a
    struct are relative to the working directory, as in split tables. Without `image_column`, a
    table needs one column with a usual name. Without `id_column`, ids come from the column `id`,
    else from image paths as written in the table, else from the table's path and row numbers.
    """
    tables = [path for path in inputs if _is_table(path)]
    options = {"image_column": image_column, "id_column": id_column, "root": root}
    for option, value in options.items():
        if value is not None and not tables:
            raise ConfigError(
                f"{option} {value}: needs a parquet or CSV file among the images; remove {option}"
            )
    sources = [_make_source(path, image_column, id_column, root) for path in inputs]
    count = sum(source.count for source in sources)
    if not count:
        named = ", ".join(map(str, inputs)) or "none named"
        raise ConfigError(f"images: {named}: no rows; name files, folders, parquet or CSV files")
    return Source(
        count=count, rows=lambda: chain.from_iterable(source.rows() for source in sources)
    )


def open_encoded(image: EncodedImage, scaled: ScaledDecoding | None = None) -> Image.Image:
    """Decodes an image as feature extraction does; raises ImageError if decoding fails."""
    data = image.data
    if data is None:
        if image.path is None:
            raise ImageError("no image in this row")
        try:
            data = read_image_bytes(image.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ImageError(f"{_path_text(image.path)} cannot be read ({reason})") from error
    return open_image(data, scaled)


def _is_table(path: Path) -> bool:
    return path.name.lower().endswith(TABLES) and not path.is_dir()


def _make_source(
    path: Path, image_column: str | None, id_column: str | None, root: Path | None
) -> Source:
    if path.is_dir():
        return _of_files(_images_below(path))
    if not path.exists():
        raise ConfigError(f"images: no file or folder {path}; correct the path")
    if not path.is_file():
        raise ConfigError(f"images: {path}: a device, a pipe or a socket; name a file or a folder")
    if not _is_table(path):
        return _of_files([path])
    of_table = _of_parquet if path.suffix.lower() == ".parquet" else _of_csv
    return of_table(path, image_column, id_column, root)


def _images_below(folder: Path) -> list[Path]:
    def refuse_folder(error: OSError) -> None:
        raise ConfigError(f"images: {error.filename}: cannot be read ({error.strerror})")

    images: list[Path] = []
    others: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=refuse_folder, followlinks=True):
        others += [Path(place, name) for name in (*folders, *names) if is_helper(name)]
        folders[:] = [x for x in folders if not is_helper(x) and not leads_back(Path(place, x))]
        for path in (Path(place, name) for name in names if not is_helper(name)):
            (images if is_image_file(path) else others).append(path)
    if not images:
        kinds = ", ".join(sorted(EXTENSIONS))
        raise ConfigError(
            f"images: {folder}: no image in this folder ({kinds}, or DICOM); name another folder"
        )
    if others:
        logger.warning(
            "%s: %s not used, such as %s", folder, count_noun(len(others), "entry"), min(others)
        )
    images.sort()
    warn_of_companions(folder, [path.relative_to(folder).as_posix() for path in images])
    return images


def _of_files(paths: Sequence[Path]) -> Source:
    return Source(
        count=len(paths), rows=lambda: ((_path_text(str(path)), None, str(path)) for path in paths)
    )


def _path_text(path: str) -> str:
    """Returns a path as text; escapes bytes that are not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _find_columns(
    path: Path, known: Sequence[str], image_column: str | None, id_column: str | None
) -> tuple[str, str | None]:
    if image_column is None:
        usual = list(find_usual(known, IMAGE_COLUMNS))
        if not usual and path.suffix.lower() != ".parquet":
            usual = list(find_usual(known, IMAGE_NAMES))[:1]
        if len(usual) != 1:
            seen = (
                f"{' and '.join(usual)} may have images" if usual else "no column has a usual name"
            )
            raise ConfigError(
                f"image_column: {path}: columns are {', '.join(known)}, and {seen}; name the "
                "column with the images"
            )
        image_column = usual[0]
    for option, name in {"image_column": image_column, "id_column": id_column}.items():
        if name is not None and name not in known:
            raise ConfigError(
                f"{option}: {path}: no column {name!r}; name one of its columns: {', '.join(known)}"
            )
    if id_column is None and ID_COLUMN in known and image_column != ID_COLUMN:
        id_column = ID_COLUMN
    for name in (image_column, id_column):
        if name is not None and known.count(name) > 1:
            raise ConfigError(f"images: {path}: two columns are named {name!r}; rename one of them")
    return image_column, id_column


def _of_csv(
    path: Path, image_column: str | None, id_column: str | None, root: Path | None
) -> Source:
    named: list[tuple[str | None, str | None]] = []
    with open_csv(path, f"images: {path}") as rows:
        known = next(rows, [])
        if (character := other_delimiter(known)) and image_column not in known:
            raise ConfigError(
                f"images: {path}: columns seem to be separated by {character!r}: write "
                f"`sep={character}` as the first line of the file"
            )
        paths, ids = _find_columns(path, known, image_column, id_column)
        for row in filter(None, rows):
            if any(row[len(known) :]):
                raise ConfigError(
                    f"images: {path} line {rows.line_num}: {len(row)} values for {len(known)} "
                    "columns; correct the line"
                )
            record = dict(zip(known, row, strict=False))
            named.append((record.get(paths), ids and record.get(ids)))

    files = _find_files(path, [image for image, _ in named if image], root)
    warn_of_companions(path, [image for image, _ in named if image])

    def read_rows() -> Iterator[Row]:
        for number, (image, row_id) in enumerate(named):
            # A record that ends early has no image.
            place = str(files.path_of(image)) if image else None
            yield row_id or image or f"{path}:{number}", None, place

    return Source(count=len(named), rows=read_rows)


def _find_files(table: Path, names: Sequence[str], root: Path | None) -> ImagePaths:
    """Finds the folder of a table's images; raises ConfigError if no image exists."""
    roots = [root] if root else list_roots(table)
    plain = ImagePaths(root=roots[0])
    if not names or any(plain.path_of(name).is_file() for name in names):
        return plain
    paths = search_images(names[:SEARCHED], roots)
    if paths is None:
        raise ConfigError(
            f"images: {table}: none of its images exists, such as {names[0]!r} under "
            f"{join_roots(roots)}; name the folder where the paths start with --root"
        )
    return paths.spread(names)


def _of_parquet(
    path: Path, image_column: str | None, id_column: str | None, root: Path | None
) -> Source:
    fault = f"images: {path}: not a readable parquet file"
    schema, count = read_schema(path, fault=fault)
    images, ids = _find_columns(path, schema.names, image_column, id_column)
    kind = schema.field(images).type
    _check_type(path, images, kind)
    files = ImagePaths(root=root or path.parent)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        with explain_parquet(path, ConfigError, fault):
            batches = stream_columns(path, [images])
            named = [name for batch in batches for name in batch.column(0).to_pylist()]
        files = _find_files(path, [name for name in named if name], root)

    def read_rows() -> Iterator[Row]:
        columns = [images] if ids is None else [images, ids]
        fault = f"images: {path}: cannot be read"
        with explain_parquet(path, DataError, fault):
            batches = stream_columns(path, columns, READ_ROWS)
            records = chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, record in enumerate(records):
                data, place, written = _image_value(files, record[images])
                given = None if ids is None else record[ids]
                row_id = written or f"{path}:{number}"
                yield row_id if given is None else str(given), data, place

    return Source(count=count, rows=read_rows)


def _check_type(path: Path, column: str, kind: pa.DataType) -> None:
    types = pa.types
    struct = types.is_struct(kind) and {"bytes", "path"} & {field.name for field in kind}
    plain = (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    if not struct and not any(is_one(kind) for is_one in plain):
        raise ConfigError(
            f"image_column: {path}: column {column!r} is {kind}, which is neither images (a "
            "struct of bytes and path, or bytes) nor paths; name another column"
        )


def _image_value(files: ImagePaths, value: Any) -> tuple[bytes | None, str | None, str | None]:
    """Returns an image's bytes, the path of its file, and the path as written in the table."""
    if isinstance(value, dict):
        data, written = value.get("bytes"), value.get("path") or None
        return data, None if data is not None else written, written
    if isinstance(value, str):
        return None, str(files.path_of(value)) if value else None, value or None
    return value, None, None
