"""Companion images, such as masks, are handled by `init`, by `check` and in split tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable
from dpprobe.errors import ConfigError
from tests.support.refusals import check_tokens, refuses
from tests.support.shards import pack, png
from tests.support.sources import write_images, write_parquet, write_table
from tests.unit.draft.conftest import STUDY, Desk

NUMBERS = range(1, 21)


def prepared(keys: dict[str, Any]) -> int:
    """Makes the split tables, and returns their total number of rows."""
    prepare_dataset(dataset_options(keys), Path("tables"))
    splits = json.loads(Path("tables/dataset.json").read_text())["splits"]
    return sum(split["rows"] for split in splits.values())


def check_said(desk: Desk, keys: dict[str, Any]) -> str:
    """Returns the output of `check` for the drafted study with other options of its dataset."""
    values = yaml.safe_load((desk.folder / STUDY).read_text())
    (name,) = values["datasets"]
    values["datasets"][name] = keys
    (desk.folder / "changed.yaml").write_text(yaml.safe_dump(values))
    desk.monkeypatch.setattr(desk.capsys, "readouterr", joined(desk.capsys.readouterr))
    return desk.run("check", "changed.yaml")


def joined(read: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a reader that joins both streams, because warnings are on standard error."""

    def both() -> Any:
        captured = read()
        return captured._replace(out=captured.out + captured.err)

    return both


def folder(part: str, numbers: Sequence[int] = NUMBERS) -> list[str]:
    return [
        f"x/{kind}/{name.format(f'{kind} ({number})')}.png"
        for kind in ("benign", "malignant")
        for number in numbers
        for name in ("{}", part)
    ]


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ("{}_mask", "mask"),
        ("{}_thumb", "thumb"),
        ("{}-150x150", "#x#"),
        ("annotated/{}_annotated", "annotated"),
        ("masks/{}", "mask"),
    ],
)
def test_masks_and_previews_are_left_out_or_refused(
    desk: Desk, part: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The data resembles BUSI: two classes of 20 pictures, each with a mask in the same folder."""
    write_images(desk.folder, folder(part))
    drafted = desk.draft("x")
    assert drafted.keys["companions"] == [word]
    assert {name: each[0] for name, each in drafted.counted.items()} == {
        "benign": 20,
        "malignant": 20,
    }
    assert any("40 of 80" in note and "companions" in note for note in drafted.notes())
    assert prepared(drafted.keys) == 40
    undecided = {key: value for key, value in drafted.keys.items() if key != "companions"}
    shown = f'"{word}"' if word in ("#x#",) else word
    remedy = f"companions: [{shown}]"
    check_tokens(check_said(desk, undecided), "changed.yaml:", "40", "80", remedy, "keep")
    with refuses(ConfigError, "companions", "40", "80", word, remedy, "companions: keep"):
        prepared(undecided)
    caplog.clear()
    assert prepared(undecided | {"companions": "keep"}) == 80
    assert not [line for line in caplog.messages if "companions" in line]


@pytest.mark.parametrize(
    ("part", "word"),
    [("{}_flip", "flip"), ("{}_rot90", "rot"), ("{}_aug_1", "aug"), ("{} - Copy", "copy")],
)
def test_copies_are_reported_and_left_out_by_the_draft(
    desk: Desk, part: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(desk.folder, folder(part))
    drafted = desk.draft("x")
    assert drafted.keys["companions"] == [word]
    undecided = {key: value for key, value in drafted.keys.items() if key != "companions"}
    remedy = f"companions: [{word}]"
    check_tokens(check_said(desk, undecided), "40", "80", remedy, "unit_column", "keep")
    assert prepared(undecided) == 80
    (told,) = [line for line in caplog.messages if "companions" in line]
    check_tokens(told, "40", "80", remedy, "unit_column")
    assert prepared(drafted.keys) == 40


def test_pairs_on_both_sides_are_counted(desk: Desk) -> None:
    """The last five masks of each class are in the test part, but their pictures are not."""
    parts = [
        f"x/{part}/{kind}/{number}{end}.png"
        for kind in "ab"
        for number in range(10)
        for end, part in (("", "train"), ("_mask", "test" if number >= 5 else "train"))
    ]
    write_images(desk.folder, [*parts, "x/test/a/other.png", "x/test/b/other.png"])
    with refuses(ConfigError, "companions", "20 of 42", "10 of them", "other side"):
        prepared({"source": "imagefolder", "path": "x"})
    assert prepared(desk.draft("x").keys) == 22


def test_a_folder_of_masks_next_to_the_class_folders_is_excluded(desk: Desk) -> None:
    write_images(desk.folder, [f"x/{name}/{n}.png" for n in NUMBERS for name in ("a", "masks")])
    write_images(desk.folder, [f"x/b/b{number}.png" for number in NUMBERS])
    drafted = desk.draft("x")
    assert drafted.keys["exclude"] == ["masks"]
    assert [*drafted.counted] == ["a", "b"]
    with refuses(ConfigError, "companions", "masks", 'exclude: ["masks"]', "companions: keep"):
        prepared({"source": "imagefolder", "path": "x"})
    write_images(desk.folder, [f"y/{name}/{n}.png" for n in NUMBERS for name in ("a", "b")])
    write_images(desk.folder, [f"y/annotated/{n}_annotated.png" for n in NUMBERS])
    drafted = desk.draft("y")
    assert drafted.keys["exclude"] == ["annotated"]
    assert prepared(drafted.keys) == 40


def lesions(copies: int = 10) -> list[dict[str, str]]:
    """Returns a table like HAM10000: lesions with up to ten copies each, in one folder."""
    return [
        {
            "image": f"img/ISIC_{number:07}{end}.png",
            "dx": ("mel", "nv")[number % 2],
            "lesion": f"HAM_{number}",
        }
        for number in range(40)
        for end in ["", *(f"_transformed_{copy}_" for copy in range(number % (copies + 1)))]
    ]


def test_copies_in_a_table(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    rows = lesions()
    copies = len(rows) - 40
    write_images(desk.folder, [row["image"] for row in rows])
    write_table(desk.folder / "a.csv", [{k: r[k] for k in ("image", "dx")} for r in rows])
    drafted = desk.draft("a.csv")
    assert drafted.keys["companions"] == ["transformed"]
    assert prepared(drafted.keys) == 40
    undecided = {key: value for key, value in drafted.keys.items() if key != "companions"}
    check_tokens(check_said(desk, undecided), copies, len(rows), "companions: [transformed]")
    caplog.clear()
    assert prepared(undecided) == len(rows)
    (told,) = [line for line in caplog.messages if "companions" in line]
    check_tokens(told, copies, len(rows), "companions: [transformed]", "unit_column")
    # With lesions as units, a lesion's copies belong to one unit, on one side of the split.
    write_table(desk.folder / "b.csv", rows)
    drafted = desk.draft("b.csv", "--patient", "lesion")
    caplog.clear()
    assert "companions" not in drafted.keys
    assert prepared(drafted.keys) == len(rows)
    assert not [line for line in caplog.messages if "companions" in line]


def test_masks_in_a_table_are_refused_even_with_units(desk: Desk) -> None:
    rows = [
        {"image": f"{part}/{number}.png", "dx": "ab"[number % 2], "patient": f"p{number}"}
        for number in NUMBERS
        for part in ("images", "masks")
    ]
    write_images(desk.folder, [row["image"] for row in rows])
    write_table(desk.folder / "a.csv", rows)
    drafted = desk.draft("a.csv")
    assert (drafted.keys["companions"], drafted.keys["unit_column"]) == (["mask"], "patient")
    assert prepared(drafted.keys) == 20
    undecided = {key: value for key, value in drafted.keys.items() if key != "companions"}
    with refuses(ConfigError, "companions: [mask]", "20 of 40", "masks/1.png", "images/1.png"):
        prepared(undecided)


def test_the_option_changes_tables_only_if_it_is_written() -> None:
    plain = dataset_options({"source": "imagefolder", "path": "x"})
    words = dataset_options({"source": "imagefolder", "path": "x", "companions": ["mask"]})
    assert "companions" not in plain.preparation_params()
    assert words.preparation_params()["companions"] == ["mask"]
    assert plain.image_params() == words.image_params()  # a ledger sees the same people


def parquet_keys(folder: Path, names: Sequence[str], column: str) -> dict[str, Any]:
    labels = [number // 2 % 2 for number in range(len(names))]
    more: dict[str, Any] = {"name": names}
    if column == "path":
        more["image"] = [{"bytes": png(n), "path": f"{x}.png"} for n, x in enumerate(names)]
    path = write_parquet(folder / "a.parquet", labels, **more)
    keys = {"source": "parquet", "train": path, "test_fraction": 0.5}
    return keys | ({"id_column": "name"} if column == "id" else {})


def shard_keys(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    members = [
        member
        for number, name in enumerate(names)
        for member in ((f"{name}.png", png(number)), (f"{name}.cls", b"%d" % (number // 2 % 2)))
    ]
    shard = str(pack(folder / "a.tar", members))
    return {"source": "webdataset", "train": shard, "class_names": ["a", "b"], "test_fraction": 0.5}


SOURCES = {
    "paths of parquet": lambda folder, names: parquet_keys(folder, names, "path"),
    "ids of parquet": lambda folder, names: parquet_keys(folder, names, "id"),
    "keys of shards": shard_keys,
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_with_names_refuses_masks_and_warns_of_copies(
    desk: Desk, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    masks = [f"p/{number:03}{end}" for number in range(12) for end in ("", "_mask")]
    keys = SOURCES[source](desk.folder, masks)
    with refuses(ConfigError, "companions: [mask]", "12 of 24", "companions: keep"):
        prepared(keys)
    assert prepared(keys | {"companions": "keep"}) == 24
    assert prepared(keys | {"companions": ["mask"]}) == 12
    rows = [*chain(*(read_ids(split) for split in ("train", "test")))]
    positions = [f"row-{number:08}" for number in range(0, 24, 2)]
    assert sorted(rows) == (positions if source == "paths of parquet" else masks[::2])
    keys = SOURCES[source](desk.folder, [each.replace("mask", "flip") for each in masks])
    caplog.clear()
    assert prepared(keys) == 24
    (told,) = [line for line in caplog.messages if "named like" in line]
    check_tokens(told, "12 of 24", "companions: [flip]", "unit_column")


def read_ids(split: str) -> list[str]:
    return SplitTable(Path(f"tables/{split}.parquet")).read_ids()


def test_masks_in_a_parquet_file_are_left_out_by_the_draft(desk: Desk) -> None:
    names = [f"p/{number:03}{end}" for number in range(40) for end in ("", "_mask")]
    keys = parquet_keys(desk.folder, names, "path")
    drafted = desk.draft("a.parquet")
    assert drafted.keys["companions"] == ["mask"]
    assert {name: each[0] for name, each in drafted.counted.items()} == {"cat": 20, "dog": 20}
    assert prepared(drafted.keys) == 40
    undecided = {key: value for key, value in drafted.keys.items() if key != "companions"}
    check_tokens(check_said(desk, undecided), "40", "80", "companions: [mask]", "keep")
    options = dataset_options(keys | {"companions": ["mask"]})
    assert sum(options.count_rows() or ()) == 40


def test_a_class_named_like_masks_is_warned_of_and_a_class_of_masks_is_not(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Photos of faces with masks are no companions; class names `mask` and `hat` are ambiguous."""
    for number, (classes, told) in enumerate(
        {("mask", "no_mask"): 0, ("with_mask", "without_mask"): 0, ("mask", "hat"): 1}.items()
    ):
        root = f"x{number}"
        write_images(
            desk.folder, [f"{root}/{name}/{name}{n}.png" for name in classes for n in NUMBERS]
        )
        caplog.clear()
        assert prepared({"source": "imagefolder", "path": root}) == 40
        lines = [line for line in caplog.messages if "companions" in line]
        assert len(lines) == told, lines
        for line in lines:
            check_tokens(line, "mask", 'exclude: ["mask"]', "companions: keep")
