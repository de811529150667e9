"""Files, folders and tables name images: which rows, in which order, with which ids."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.data.problems import ImageError
from dpprobe.data.table import EncodedImage
from dpprobe.errors import ConfigError, DataError
from dpprobe.release import image_sources
from dpprobe.release.image_sources import find_images, open_encoded
from tests.support.refusals import check_tokens, refuses

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
# In the order of paths; `b` links to a folder outside, and `a/up` to its parent folder.
BELOW_B = ["in/b/1.JPG", "in/b/10.png", "in/b/2.png"]
BELOW = ["in/a/é ü.png", *BELOW_B, "in/images/7.png", "in/rows.tsv/9.png", "in/up/8.png"]
BELOW += ["in/x.png"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the folder `in`, with one link to a folder outside and one to its parent folder."""
    for name in (*FILES, "b/notes.txt", "b/a.txt", "empty/x.txt", "bad.parquet"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2)).save(path) if name in FILES else path.write_text("no image")
    (tmp_path / "in/b").rename(tmp_path / "elsewhere")
    (tmp_path / "in/b").symlink_to("../elsewhere")
    (tmp_path / "in/a/up").symlink_to("..")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image_sources, "READ_ROWS", 2)  # several batches
    return Path("in")


def find(*names: str, **options: Any) -> list[tuple[str, str]]:
    """Returns each row's id with its image's size, or with the reason why it has no image."""
    source = find_images([Path("in") / name for name in names], **options)
    rows = list(source.read_images())
    assert source.count == len(rows)
    assert [each.row for each in rows] == [*range(len(rows))]
    found = []
    for each in rows:
        try:
            found.append((each.id, "{} x {}".format(*open_encoded(each).size)))
        except DataError as error:
            found.append((each.id, str(error)))
    return found


def images(*ids: str) -> list[tuple[str, str]]:
    return [(each, "3 x 2") for each in ids]


def write(folder: Path, text: str | bytes, name: str = "rows.csv") -> None:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (["x.png"], ["in/x.png"]),
        (["b"], BELOW_B),
        (["images", "b/2.png", "x.png"], ["in/images/7.png", "in/b/2.png", "in/x.png"]),
        (["rows.tsv"], ["in/rows.tsv/9.png"]),  # a folder, whatever its name
    ],
)
def test_folders_and_files_are_rows_in_the_order_of_paths(names: list[str], ids: list[str]) -> None:
    assert find(*names) == images(*ids)


def test_a_folder_is_searched_below_through_links_and_never_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Omitted files are counted: two texts in b, one in empty, bad.parquet, and hidden files."""
    assert find("") == images(*BELOW)
    (record,) = caplog.records
    check_tokens(record.getMessage(), "in", "6 entries")
    caplog.clear()
    assert find("images")
    assert caplog.records == []


def test_a_file_of_any_other_name_is_an_image_or_a_fault_of_its_row() -> None:
    text, image = find("b/notes.txt", "x.png")
    assert image == ("in/x.png", "3 x 2")
    assert text[0] == "in/b/notes.txt"
    assert "cannot be decoded" in text[1]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["empty"], ("images", "in/empty", ".png", "DICOM")),
        (["gone"], ("images", "in/gone")),
        (["x.png", "gone"], ("in/gone",)),
        (["bad.parquet"], ("images", "in/bad.parquet")),
        ([], ("images", "CSV")),
    ],
)
def test_a_wrong_path_is_one_error_before_any_image_is_read(
    names: list[str], said: tuple[object, ...]
) -> None:
    with refuses(ConfigError, *said):
        find(*names)


@pytest.mark.parametrize("option", ["image_column", "id_column", "root"])
def test_options_of_tables_need_a_table(folder: Path, option: str) -> None:
    given: Any = Path("in") if option == "root" else "path"
    for name in ("x.png", "b", "rows.tsv"):
        with refuses(ConfigError, option, given, "CSV"):
            find(name, **{option: given})
    write(folder, "path\nx.png\n")
    assert find("images", "rows.csv", **{option: given})[-1][1] == "3 x 2"


def test_a_path_that_no_system_takes_is_a_fault_of_its_row() -> None:
    for path, said in (("a\0b.png", ".png"), ("in/gone.png", "No such file")):
        with refuses(ImageError, said):
            open_encoded(EncodedImage(0, None, path, "h", b""))
    with refuses(ImageError, "image", "row"):
        open_encoded(EncodedImage(0, None, None, "h", b""))


NONE, GONE = "no image in this row", "in/gone.png cannot be read (No such file or directory)"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("path\nx.png\n", images("x.png")),
        ("file,label\nx.png,a\nb/2.png,b\n", images("x.png", "b/2.png")),
        ("id,path\n7,x.png\n8,b/2.png\n", images("7", "8")),
        (
            "id,path\n7,x.png\n,b/2.png\n8,\n9\n",
            [*images("7", "b/2.png"), ("8", NONE), ("9", NONE)],
        ),
        ("path,more\nx.png,1\n,2\n", [*images("x.png"), ("in/rows.csv:1", NONE)]),
        ("id,path\n\n7,x.png\n\n8,gone.png\n", [*images("7"), ("8", GONE)]),
        ("path\nin/x.png\n", images("in/x.png")),  # relative to the working folder
        ('id,path\n7,"x.png"\n', images("7")),
        ("sep=;\npath;id\nx.png;7\n", images("7")),
        ("path,id\nx.png,1,\n", images("1")),  # an extra empty value is ignored
        (f"path,note\nx.png,{'y' * 200_000}\n", images("x.png")),
    ],
)
def test_a_table_of_text_names_images_by_a_usual_column(
    folder: Path, text: str, rows: list[tuple[str, str]]
) -> None:
    write(folder, text)
    assert find("rows.csv") == rows


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,file\nx.png,x.png\n", ("image_column", "in/rows.csv", "path", "file")),
        ("x,y\n1,2\n", ("image_column", "x, y")),
        ("path,path\nx.png,x.png\n", ("in/rows.csv", "path")),
        ("path,id,id\nx.png,1,2\n", ("in/rows.csv", "'id'")),
        ("path;id\nx.png;7\n", ("in/rows.csv", "`sep=;`")),
        ("path,id\nx.png,1,2\n", ("in/rows.csv line 2", "3 values", "2 columns")),
        ("path,id\nx.png,1\nx.png,1,,2\n", ("in/rows.csv line 3", "4 values", "2 columns")),
        ("path\n", ("in/rows.csv",)),
    ],
)
def test_a_table_that_cannot_be_read_names_line_or_column(
    folder: Path, text: str, said: tuple[object, ...]
) -> None:
    write(folder, text)
    with refuses(ConfigError, *said):
        find("rows.csv")


def test_named_columns_are_taken_and_missing_ones_refused(folder: Path) -> None:
    write(folder, "path,file,id,who\nx.png,b/2.png,7,Ann\n")
    assert find("rows.csv", image_column="file") == images("7")
    assert find("rows.csv", image_column="path", id_column="who") == images("Ann")
    assert find("rows.csv", image_column="path", id_column="file") == images("b/2.png")
    for option, other in (("image_column", {}), ("id_column", {"image_column": "path"})):
        with refuses(ConfigError, option, "in/rows.csv", "'z'"):
            find("rows.csv", **{option: "z"}, **other)
    write(folder, "id,note\nx.png,1\n")  # ids never come from the column of images
    assert find("rows.csv", image_column="id") == images("x.png")


def png() -> bytes:
    return Path("in/x.png").read_bytes()


def columns() -> dict[str, tuple[pa.Array, list[tuple[str | None, str]]]]:
    """Returns a column per kind and, for each row, the written id and the image or its fault."""
    data, place = png(), {"bytes": None, "path": "in/x.png"}
    cut = "cannot be decoded"
    return {
        "bytes": (
            pa.array([data, None, b"", b"none"], pa.binary()),
            [(None, "3 x 2"), (None, NONE), (None, "it is empty"), (None, cut)],
        ),
        "large bytes": (pa.array([data], pa.large_binary()), [(None, "3 x 2")]),
        "paths": (
            pa.array(["x.png", None, "", "gone.png"]),
            [("x.png", "3 x 2"), (None, NONE), (None, NONE), ("gone.png", GONE)],
        ),
        "large paths": (pa.array(["x.png"], pa.large_string()), [("x.png", "3 x 2")]),
        "both": (
            pa.array(
                [
                    {"bytes": data, "path": "a.png"},
                    place,
                    {"bytes": data, "path": None},
                    None,
                    {"bytes": None, "path": ""},
                ]
            ),
            [
                ("a.png", "3 x 2"),
                ("in/x.png", "3 x 2"),
                (None, "3 x 2"),
                (None, NONE),
                (None, NONE),
            ],
        ),
        "bytes alone": (pa.array([{"bytes": data}]), [(None, "3 x 2")]),
        "searched": (pa.array(["7.png"]), [("7.png", "3 x 2")]),
    }


@pytest.mark.parametrize(
    "kind", ["bytes", "large bytes", "paths", "large paths", "both", "bytes alone", "searched"]
)
def test_a_parquet_file_holds_images_or_their_paths(folder: Path, kind: str) -> None:
    """Ids come from the column `id`, else from the paths as written, else from row numbers."""
    column, wanted = columns()[kind]
    ids: list[Any] = [3, None, 5, 6, 7][: len(column)]
    written = [each or f"in/rows.parquet:{row}" for row, (each, _) in enumerate(wanted)]
    named = [str(a) if a is not None else b for a, b in zip(ids, written, strict=True)]
    cases: tuple[Any, ...] = (
        ({}, {}, written),
        ({"id": ids}, {}, named),
        ({"name": ids}, {}, written),
        ({"name": ids}, {"id_column": "name"}, named),
    )
    for more, options, names in cases:
        pq.write_table(pa.table({"image": column, **more}), folder / "rows.parquet")
        found = find("rows.parquet", **options)
        assert [each for each, _ in found] == names, f"{[*more]} {options}"
        for (_, fault), (_, said) in zip(found, wanted, strict=True):
            assert said in fault


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"image": [1, 2]}), ("in/rows.parquet", "'image'", "int64")),
        (pa.table({"image": [{"x": 1}]}), ("in/rows.parquet", "'image'", "struct<x: int64>")),
        (pa.table({"image": pa.array([], pa.binary())}), ("in/rows.parquet",)),
        (pa.table([["x.png"]] * 2, names=["image"] * 2), ("in/rows.parquet", "image")),
        (pa.table({"image_id": ["x.png"]}), ("image_column", "image_id")),
    ],
)
def test_a_parquet_file_without_images_is_refused(
    folder: Path, table: pa.Table, said: tuple[object, ...]
) -> None:
    """Columns with names that images may have (`image_id`) count only in tables of text."""
    pq.write_table(table, folder / "rows.parquet")
    with refuses(ConfigError, *said):
        find("rows.parquet")


def test_all_inputs_are_one_list_in_the_order_of_their_names(folder: Path) -> None:
    write(folder, "path\nx.png\nb/2.png\n")
    pq.write_table(pa.table({"image": ["x.png"] * 3}), folder / "rows.PARQUET")
    for names in itertools.permutations(["b", "rows.csv", "rows.PARQUET"]):
        wanted = {"b": BELOW_B, "rows.csv": ["x.png", "b/2.png"], "rows.PARQUET": ["x.png"] * 3}
        ids = list(itertools.chain.from_iterable(wanted[name] for name in names))
        assert find(*names) == images(*ids)
