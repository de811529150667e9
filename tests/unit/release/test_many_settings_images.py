"""Which images files, folders and tables name, over many settings, held against stored answers."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.data.table import EncodedImage
from dpprobe.release import image_sources
from dpprobe.release.image_sources import Source, find_images, open_encoded
from tests.support.stored_records import answer_of, check_values

FILES = (
    "x.png",
    "b/2.png",
    "b/10.png",
    "b/1.JPG",
    "a/é ü.png",
    ".hidden/x.png",
    "b/.x.png",
    "images/7.png",
    "up/8.png",
    "rows.tsv/9.png",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `in` of the working folder, with links to another folder and to what is above."""
    for name in (*FILES, "b/notes.txt", "b/a.txt", "empty/x.txt", "bad.parquet"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2)).save(path) if name in FILES else path.write_text("no image")
    (tmp_path / "in/b").rename(tmp_path / "elsewhere")
    (tmp_path / "in/b").symlink_to("../elsewhere")
    (tmp_path / "elsewhere/up").symlink_to(tmp_path)
    (tmp_path / "in/a/up").symlink_to("..")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image_sources, "READ_ROWS", 2)  # several batches
    return Path("in")


def find(*names: str, **options: Any) -> Any:
    """The count, and each row's number, id, bytes, path, and image or why there is none."""
    source = answer_of(find_images, [Path("in") / name for name in names], **options)
    return (
        source
        if not isinstance(source, Source)
        else [source.count]
        + [
            [
                each.row,
                each.id,
                each.data and len(each.data),
                each.path,
                getattr(opened := answer_of(open_encoded, each), "size", opened),
            ]
            for each in source.read_images()
        ]
    )


def test_files_and_folders_are_found_as_before(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: dict[str, Any] = {}
    (folder / "rows.csv").write_text("path\nx.png\n")
    for names in (
        "x.png",
        "b",
        "a",
        "",
        "images b/2.png",
        "b/notes.txt x.png",
        "empty",
        "gone",
        "bad.parquet",
        "b/2.png rows.csv b",
    ):
        caplog.clear()
        found[names] = [find(*names.split(" ")), [each.getMessage() for each in caplog.records]]
    for option, name in itertools.product(
        ("image_column", "id_column", "root"), ("x.png", "b", "rows.tsv")
    ):
        found[f"{option} {name}"] = find(name, **{option: Path("path")})
        given: Any = Path("in/b") if option == "root" else "path"
        found[f"{option} {name} and a table"] = find(name, "rows.csv", **{option: given})
    found["none"] = find()
    found["a null byte"] = answer_of(open_encoded, EncodedImage(0, None, "a\0b.png", "h", b""))
    check_values("images_of_folders", found)


TABLES = (
    "path\nx.png\n",
    "file,label\nx.png,a\nb/2.png,b\n",
    "id,path\n7,x.png\n,b/2.png\n8,\n9\n",
    "path\n",
    "",
    "path,file\nx.png,x.png\n",
    "x,y\n1,2\n",
    "path,path\nx.png,x.png\n",
    "path,id,id\nx.png,1,2\n",
    "path;id\nx.png;7\n",
    "sep=;\npath;id\nx.png;7\n",
    "path,id\nx.png,1,2\n",
    "path,id\nx.png,1,\n",
    "path\nx\0.png\n",
    "image_id,id\n7,a\n",
    "image_id\n7\n8\n",
    "id\n7\n",
    "id,path\n\n7,x.png\n\n8,gone.png\n",
    "path\ngone.png\nx.png\n",
    "path\nin/x.png\n",
    "path\n2.png\n10.png\n",
    "path\n" + "0.png\n" * 900,
    "path\n" + "gone.png\n" * 20 + "7.png\n",
    "path\n" + "gone.png\n" * 19 + "7.png\n",
    f"path,note\nx.png,{'y' * 200_000}\n",
    ' path ,id\n"x.png", 7\n',
    "path,id\nx.png,1,,2\n",
    "path\nx.png\n7.png\n",
    "path\n7.png\nx.png\n",
)
NAMED: tuple[dict[str, Any], ...] = (
    {},
    {"image_column": "path"},
    {"image_column": "z"},
    {"image_column": "id"},
    {"id_column": "path"},
    {"id_column": "z"},
    {"id_column": "id"},
    {"root": Path("in/b")},
    {"image_column": "path;id"},
)


def test_tables_of_text_are_read_as_before(folder: Path) -> None:
    found: dict[str, Any] = {}
    for text, options in itertools.product(TABLES, NAMED):
        if not options or TABLES.index(text) in (0, 2, 8, 9, 14):
            (folder / "rows.csv").write_text(text)
            found[f"{text[:40]} {len(text)} {options}"] = find("rows.csv", **options)
    for name, content in {
        "rows.TSV": b"path\tid\nx.png\t7\n",
        "rows.csv.gz": gzip.compress(b'id, path\n7, "x.png"\n'),
        "up/rows.csv": b"path\nx.png\n8.png\n",
        "up/more.csv": b"path\nb/2.png\n",
    }.items():
        (folder / name).write_bytes(content)
        found[name] = find(name)
    check_values("images_of_text", found)


def test_tables_of_columns_are_read_as_before(folder: Path) -> None:
    found: dict[str, Any] = {}
    png = (folder / "x.png").read_bytes()
    place = {"bytes": None, "path": "in/x.png"}
    both = {"bytes": png, "path": "a.png"}
    columns: dict[str, pa.Array] = {
        "bytes": pa.array([png, None, b"", b"none"], pa.binary()),
        "large bytes": pa.array([png, b"cut"], pa.large_binary()),
        "paths": pa.array(["x.png", None, "", "gone.png"]),
        "large paths": pa.array(["x.png"], pa.large_string()),
        "both": pa.array([both, place, {"bytes": png, "path": None}, None, {"path": ""}]),
        "alone": pa.array([{"bytes": png}]),
        "another": pa.array([{"x": 1}]),
        "numbers": pa.array([1, 2]),
        "none": pa.array([], pa.binary()),
        "nothing to find": pa.array(["gone.png"]),
        "other folder": pa.array(["7.png", "gone.png"]),
    }
    ids: dict[str, list[Any]] = {"id": [3, None, 5, 6, 7], "name": ["x", "x", "", None, "ü"]}
    for (kind, column), named in itertools.product(columns.items(), (None, *ids)):
        more = {} if named is None else {named: ids[named][: len(column)]}
        pq.write_table(pa.table({"image": column, **more}), folder / "rows.parquet")
        for options in ({}, {"id_column": "name"}, {"root": Path("in/b")}, {"image_column": "id"}):
            if not options or named == "name":
                found[f"{kind} {named} {options}"] = find("rows.parquet", **options)
    pq.write_table(pa.table([["x.png"]] * 2, names=["image"] * 2), folder / "rows.parquet")
    found["two columns"] = find("rows.parquet")
    for column in ("image_id", "image"):  # a name alone is no image
        pq.write_table(pa.table({column: ["x.png"]}), folder / "rows.PARQUET")
        found[f"upper {column}"] = find("rows.PARQUET")
    check_values("images_of_columns", found)
