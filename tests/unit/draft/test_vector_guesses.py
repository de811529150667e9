"""Output of clip-retrieval, and parquet files with vectors, become studies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.unit.draft.conftest import Desk

ROWS, WIDTH, PARTS = 6, 4, 12  # with more than ten parts, order by text is wrong


def rows_of(part: int, **more: Any) -> dict[str, Any]:
    """Returns a part's table: labels alternate by row number, with two rows per patient."""
    numbers = range(part * ROWS, (part + 1) * ROWS)
    return {
        "image_path": [f"{number}.jpg" for number in numbers],
        "caption": ["a picture"] * ROWS,
        "diagnosis": ["ab"[number % 2] for number in numbers],
        "patient": [f"p{number // 2}" for number in numbers],
    } | more


def put_parts(desk: Desk, folder: str = "{0}/{0}_", names: Any = ("img_emb",), **more: Any) -> None:
    """Writes parts in clip-retrieval's format: float16 vectors, and tables."""
    for part in range(PARTS):
        for name in (*names, "metadata"):
            path = desk.folder / "laion" / f"{folder.format(name)}{part}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == "metadata":
                pq.write_table(pa.table(rows_of(part, **more)), path.with_suffix(".parquet"))
            else:
                np.save(path, np.random.default_rng(part).normal(size=(ROWS, WIDTH)).astype("f2"))


def put_parquet(desk: Desk, path: str, part: int = 0, **more: Any) -> None:
    (desk.folder / path).parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(part).normal(size=(ROWS, WIDTH)).astype(np.float32)
    columns = {"embedding": pa.FixedShapeTensorArray.from_numpy_ndarray(values)}
    table = pa.table({**columns, **rows_of(part), **more})
    pq.write_table(table, desk.folder / path)


def keys_of(desk: Desk, file: str) -> dict[str, Any]:
    (keys,) = yaml.safe_load((desk.folder / file).read_text())["datasets"].values()
    return dict(keys)


def confirm(desk: Desk, file: str) -> str:
    """Completes the declaration as a user would; returns the output of `check`."""
    text = (desk.folder / file).read_text()
    for key in ("model", "each"):
        text = text.replace(f"    # {key}", f"    {key}")
    (desk.folder / file).write_text(text)
    return desk.run("check", file)


@pytest.mark.parametrize("place", ["laion", "laion/", "laion/img_emb"])
def test_parts_of_clip_retrieval_are_recognised(desk: Desk, place: str) -> None:
    put_parts(desk, names=("img_emb", "text_emb"))
    said = desk.init(place)
    assert "laion: 72 items of 36 patients, 2 classes" in said
    assert ("text_emb is not used" in said) == (place != "laion/img_emb")
    keys = keys_of(desk, "laion.yaml")
    assert keys["train"] == "laion/img_emb/img_emb_*.npy"
    assert keys["table"] == "laion/metadata/metadata_*.parquet"
    assert keys["id_column"] == "image_path"
    assert keys["unit_column"] == "patient"
    assert keys["class_names"] == ["a", "b"]
    refused = desk.run("check", "laion.yaml")
    assert "backbones.img_emb.each_by_itself: missing" in refused
    assert (
        "laion: laion/img_emb/img_emb_*.npy: array [72, 4] of float16 in 12 parts, each with as "
        "many rows as its part of laion/metadata/metadata_*.parquet"
    ) in confirm(desk, "laion.yaml")


def test_a_part_without_its_table_is_named(desk: Desk) -> None:
    put_parts(desk)
    table = desk.folder / "laion/metadata/metadata_11.parquet"
    table.unlink()
    assert "no part 11, but laion/img_emb/img_emb_11.npy exists" in desk.refuse("laion")
    pq.write_table(pa.table(rows_of(0)).slice(1), table)
    assert "metadata_11.parquet: 5 rows, but 6 vectors in" in desk.refuse("laion")
    (desk.folder / "laion/img_emb/img_emb_7.npy").unlink()
    assert "no img_emb_7.npy between img_emb_6.npy and img_emb_8.npy" in desk.refuse("laion")


@pytest.mark.parametrize(
    ("names", "place", "train", "test", "parts"),
    [
        (["x.parquet"], "out/x.parquet", "out/x.parquet", None, 1),
        (["x.parquet"], "out", "out/*.parquet", None, 1),
        ([f"b7e_{n:06d}-0.parquet" for n in range(3)], "out", "out/*.parquet", None, 3),
        (["9c-0.parquet", "1f-0.parquet"], "out", "out/*.parquet", None, 2),
        (
            ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000.parquet"],
            "out",
            "out/train-*.parquet",
            "out/test-00000.parquet",
            2,
        ),
        (
            ["train.parquet", "test.parquet", "validation.parquet"],
            "out",
            "out/train.parquet",
            "out/test.parquet",
            1,
        ),
        (["train.parquet", "valid.parquet"], "out", "out/train.parquet", "out/valid.parquet", 1),
        (["train.parquet", "test.parquet"], "out/train.parquet", "out/train.parquet", True, 1),
    ],
)
def test_parquet_files_of_vectors_are_recognised(
    desk: Desk, names: list[str], place: str, train: str, test: Any, parts: int
) -> None:
    for part, name in enumerate(names):
        put_parquet(desk, f"out/{name}", part)
    said = desk.init(place, "--output", "x.yaml")
    keys = keys_of(desk, "x.yaml")
    assert keys["train"] == train
    assert keys.get("test") == ("out/test.parquet" if test is True else test)
    assert "vectors" not in keys
    assert f"embedding [{parts * ROWS}, 4] of float32" in said
    assert (f" in {parts} parts" in said) == (parts > 1)
    assert ("out/validation.parquet is not used" in said) == ("validation.parquet" in names)
    assert f"{train}: embedding [{parts * ROWS}, 4] of float32" in confirm(desk, "x.yaml")


def test_a_column_of_vectors_is_named_next_to_images(desk: Desk) -> None:
    """A file with images is read as images unless the user names its vector column."""
    numbers = [row % 2 for row in range(ROWS)]
    put_parquet(
        desk,
        "x.parquet",
        image=[{"bytes": b"png", "path": ""}] * ROWS,
        more=[[1.5, 2.5]] * ROWS,
        diagnosis=numbers,
    )
    desk.init("x.parquet")
    assert keys_of(desk, "x.yaml")["source"] == "parquet"
    desk.init("x.parquet", "--vectors", "more", "--force")
    keys = keys_of(desk, "x.yaml")
    assert (keys["source"], keys["vectors"]) == ("embeddings", {"more": "more"})
    put_parquet(desk, "y.parquet", embedding=[1] * ROWS, one=[[1.5]] * ROWS, two=[[2.5]] * ROWS)
    assert "name the array of vectors with --vectors" in desk.refuse("y.parquet")
