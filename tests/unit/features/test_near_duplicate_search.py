"""Near-duplicates are found by bytes and by cosine, in blocks, and the statement reports them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpprobe.data import table
from dpprobe.errors import DataError
from dpprobe.features import near_duplicate_search
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.near_duplicate_search import DatasetSplit, find_near_duplicates
from dpprobe.features.overlap_record import read_near_duplicates, write_near_duplicates
from tests.support.feature_stores import write_split
from tests.support.split_tables import encode, write_tables

SIDE = 4
GENERATOR = np.random.default_rng(5)
PIXELS = GENERATOR.integers(0, 256, (60, SIDE, SIDE), dtype=np.uint8)


def png(pixels: np.ndarray, **options: Any) -> bytes:
    return encode(Image.fromarray(pixels), **options)


def make_rows(
    folder: Path,
    name: str,
    images: list[bytes],
    *,
    split: str = "train",
    fingerprint: str = "b",
    features: Any = None,
) -> DatasetSplit:
    """Writes a split in two shards; by default its features are its images' pixels."""
    other = [png(pixels) for pixels in PIXELS[:3]]
    dataset = write_tables(folder / name, {"train": other, "test": other, split: images})
    if features is None:
        features = [np.asarray(Image.open(io.BytesIO(image))).reshape(-1) for image in images]
    manifest = write_split(
        folder / name,
        np.array(features, np.float32),
        np.arange(len(images)) % 3,
        split=split,
        shards=2,
        dataset_fingerprint=dataset,
        backbone="pixels",
        backbone_fingerprint=fingerprint,
    )
    return DatasetSplit(
        dataset=name,
        features=FeatureStore(manifest),
        table=table.SplitTable(folder / name / f"{split}.parquet"),
    )


def brute_force(private: DatasetSplit, public: list[DatasetSplit]) -> np.ndarray:
    """Returns the cosine of each private row and each public row, in float64."""
    unit_rows = private.features.read().astype(np.float64)
    unit_rows /= np.linalg.norm(unit_rows, axis=1, keepdims=True)
    other = np.concatenate([rows.features.read() for rows in public]).astype(np.float64)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    cosines: np.ndarray = unit_rows @ other.T
    return cosines


Pair = tuple[list[DatasetSplit], list[DatasetSplit]]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Returns private and public rows; train 0, test 1 and (re-encoded) train 1 are in both."""
    private = [
        make_rows(tmp_path, "private", [png(pixels) for pixels in PIXELS[:28]]),
        make_rows(tmp_path, "tested", [png(pixels) for pixels in PIXELS[28:31]], split="test"),
    ]
    again = [png(PIXELS[0]), png(PIXELS[1], compress_level=0), *map(png, PIXELS[31:45])]
    assert again[1] != png(PIXELS[1])
    public = [
        make_rows(tmp_path, "seen", [*again, png(PIXELS[29])]),
        make_rows(tmp_path, "more", [png(pixels) for pixels in PIXELS[45:]], split="test"),
    ]
    return private, public


@pytest.mark.parametrize("rows", [3, 4096])
def test_it_finds_what_brute_force_finds(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(near_duplicate_search, "PRIVATE_ROWS", rows)
    monkeypatch.setattr(near_duplicate_search, "PUBLIC_ROWS", rows + 1)
    record, matches = find_near_duplicates(*pair, threshold=0.999, device="cpu")
    for split, (exact, near) in {"train": (1, 2), "test": (1, 1)}.items():
        private = pair[0][("train", "test").index(split)]
        table, part = brute_force(private, pair[1]), record[split]
        cosines = table.max(axis=1)
        assert (part["rows"], part["exact"], part["near"]) == (len(cosines), exact, near)
        assert part["near"] == np.sum(cosines > 0.999)
        assert part["largest_cosine"] == pytest.approx(1, abs=1e-5)
        wanted = {str(part): np.quantile(cosines, part) for part in (0.5, 0.9, 0.99)}
        assert part["cosine_quantiles"] == pytest.approx(wanted, abs=1e-5)
        listed = [row for row in matches.to_pylist() if row["split"] == split]
        assert len(listed) == min(near_duplicate_search.LISTED, len(cosines))
        order = [(not row["exact"], not row["near"], -row["cosine"], row["row"]) for row in listed]
        assert order == sorted(order)
        for row in listed:
            assert row["cosine"] == pytest.approx(cosines[row["row"]], abs=1e-5)
            public_split, _, number = row["public_id"].partition("-")
            assert (row["public_split"], row["public_row"]) == (public_split, int(number))
            place = int(number)
            place += 17 * (row["public_dataset"] == "more")
            assert table[row["row"], place] == pytest.approx(row["cosine"], abs=1e-5)


def test_near_duplicate_matches_do_not_depend_on_the_block_size(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The threshold equals a pair's cosine, so float32 would decide by the block's shape.
    private, public = pair
    ours = private[0].features.read().astype(np.float64)
    theirs = np.concatenate([rows.features.read() for rows in public]).astype(np.float64)

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        lengths = np.sqrt((a * a).sum()) * np.sqrt((b * b).sum())
        return min(float((a * b).sum() / lengths), 1.0) if lengths else 0.0

    cosines = np.array([[cosine(a, b) for b in theirs] for a in ours]).max(axis=1)
    for row in (2, 3, 5, 13, 17, 18, 19, 25):
        below = float(np.nextafter(cosines[row], 0))
        for threshold, near in ((below, True), (float(cosines[row]), False)):
            for rows in (1, 5, 4096):
                monkeypatch.setattr(near_duplicate_search, "PRIVATE_ROWS", rows)
                monkeypatch.setattr(near_duplicate_search, "PUBLIC_ROWS", 3 * rows)
                _, matches = find_near_duplicates(*pair, threshold=threshold, device="cpu")
                named = {
                    m["row"] for m in matches.to_pylist() if m["near"] and m["split"] == "train"
                }
                assert (row in named) == near
                assert named == set(np.flatnonzero(cosines > threshold))


def test_features_of_another_backbone_are_refused(tmp_path: Path, pair: Pair) -> None:
    stranger = make_rows(tmp_path, "stranger", [png(PIXELS[0])] * 3, fingerprint="c")
    for private, public in ((pair[0], [stranger]), ([pair[0][0], stranger], pair[1])):
        with pytest.raises(DataError, match="come from another backbone"):
            find_near_duplicates(private, public, threshold=0.9, device="cpu")


def test_features_of_another_table_are_refused(pair: Pair) -> None:
    private, public = pair
    with pytest.raises(DataError, match="not the features of"):
        DatasetSplit(dataset="private", features=private[0].features, table=public[0].table)


def write(tmp_path: Path, pair: Pair, **options: Any) -> Path:
    counts, matches = tmp_path / "counts.json", tmp_path / "counts.parquet"
    write_near_duplicates(
        *pair, **{"threshold": 0.999, **options}, device="cpu", counts=counts, matches=matches
    )
    return counts


def test_the_record_belongs_to_the_features_it_was_found_on(
    tmp_path: Path, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    stores = [rows.features for rows in pair[0]]
    counts = write(tmp_path, pair)
    for words in (
        "2 of 28 private train rows",
        "(1 identical byte for byte): the guarantee is",
        "1 of 3 private test rows",
        "): results on them are too optimistic",
    ):
        assert words in caplog.text
    check = read_near_duplicates(counts, *stores)
    assert (check["train"]["near"], check["test"]["near"]) == (2, 1)
    assert "not differentially private" in json.loads(counts.read_text())["note"]
    for others in ([pair[1][0].features, stores[1]], [stores[0], pair[1][1].features]):
        with pytest.raises(DataError, match="not computed from"):
            read_near_duplicates(counts, *others)
    counts.write_text("{}")
    with pytest.raises(DataError, match=r"counts\.json: unreadable"):
        read_near_duplicates(counts, *stores)


def test_ties_copies_zeros_and_both_sides_of_a_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(near_duplicate_search, "LISTED", 2)

    def split(name: str, texts: str, rows: Any, **named: Any) -> DatasetSplit:
        wide = [[*row, *[0] * (8 - len(row))] for row in rows]
        return make_rows(tmp_path, name, [text.encode() for text in texts], features=wide, **named)

    above, below = (0.8000005, 0.5999993), (0.7999995, 0.6000007)
    private = [
        split("private", "aabcd", [[1], [9, 0, 1], [0, 1], [], [1, 1, 1]]),
        split("tested", "xyz", [[*[0] * 4, 1], [*[0] * 6, 1], [0, 0, 0, 1]], split="test"),
    ]
    public = [
        split("seen", "eaafg", [[0, 2], [2], [1], [*[0] * 4, *above], [*[0] * 6, *below]]),
        split("more", "ahijk", [[1], [0, 1], [2, 2, 2], [*[0] * 4, *below], [*[0] * 6, *above]]),
    ]
    # row of train or test: its nearest public row (the first if tied), its cosine, same bytes
    nearest: dict[str, Any] = {
        "train-0": ("seen", 1, 1.0, True),
        "train-1": ("seen", 1, 9 / 82**0.5, True),  # the same bytes with other features
        "train-2": ("seen", 0, 1.0, False),
        "train-4": ("more", 2, 1.0, False),
        "train-3": ("seen", 0, 0.0, False),  # all zeros
        "test-0": ("seen", 3, 0.8000005, False),
        "test-1": ("more", 4, 0.8000005, False),
        "test-2": ("seen", 0, 0.0, False),
    }
    for threshold, near in (
        (-1e-7, (5, 3)),
        (0.0, (4, 2)),
        (0.8, (4, 2)),
        (0.9, (4, 0)),
        (1.0, (2, 0)),
    ):
        record, matches = find_near_duplicates(private, public, threshold=threshold, device="cpu")
        for name, count, exact, largest in (
            ("train", near[0], 2, 1),
            ("test", near[1], 0, 0.800001),
        ):
            part = record[name]
            assert (part["near"], part["exact"], part["largest_cosine"]) == (count, exact, largest)
        listed = matches.to_pylist()
        wanted = [
            row
            for split, count in zip(("train", "test"), near, strict=True)
            for row in [one for one in nearest if one.startswith(split)][: max(count, 2)]
        ]
        assert [row["id"] for row in listed] == wanted
        for place, row in enumerate(listed):
            dataset, number, cosine, exact = nearest[row["id"]]
            assert (row["public_dataset"], row["public_row"]) == (dataset, number), row
            assert (row["public_id"], row["public_split"]) == (f"train-{number}", "train")
            assert (row["cosine"], row["exact"]) == (pytest.approx(cosine, abs=1e-6), exact)
            first = row["split"] == "train"
            assert row["near"] == ((place if first else place - max(near[0], 2)) < near[not first])
            assert row["id"] == f"{row['split']}-{row['row']}"
        assert (record["dataset"], record["threshold"]) == ("private", threshold)
        assert record["public"] == {
            f"{rows.dataset}/train": {
                "rows": 5,
                "dataset_fingerprint": rows.features.dataset_fingerprint,
            }
            for rows in public
        }
        assert record["train"]["features"] == private[0].features.fingerprint
        assert record["dataset_fingerprint"] == private[0].features.dataset_fingerprint
    caplog.clear()
    write(tmp_path, (private, public), threshold=0.9)
    assert " 4 of 5 private train rows" in caplog.text
