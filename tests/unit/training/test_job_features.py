"""A training job refuses splits that do not fit, and its blocks cover every row once."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.training import job_features
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.job_features import JobFeatures, read_job_features
from tests.support.feature_stores import write_split

FEATURES = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
ONE, SEVERAL = np.arange(11) % 2, np.array([[row % 2, 0, 1] for row in range(11)], np.uint8)


def write(folder: Path, labels: np.ndarray = ONE, *, names: str = "ab", width: int = 4) -> Path:
    return write_split(
        folder,
        FEATURES[: len(labels), :width],
        labels,
        class_names=tuple(names),
        units=[f"p{row // 2}" for row in range(len(labels))],
        groups={"sex": ["fm"[row % 2] for row in range(len(labels))]},
        accepted=[[row % 2] for row in range(len(labels))],
        shards=min(3, len(labels)),
    )


def read(train: Path, test: Path, *, memory_mb: int = 9, headline: str = "accuracy") -> JobFeatures:
    inputs = FitInputs(FeatureStore(train), "image")
    return read_job_features(
        inputs, FeatureStore(test), device="cpu", memory_mb=memory_mb, headline=headline
    )


@pytest.mark.parametrize(
    ("names", "width"), [("abc", 4), ("ba", 4), ("ab", 3)], ids=["more", "turned", "narrower"]
)
def test_splits_of_other_classes_or_vectors_are_refused(
    tmp_path: Path, names: str, width: int
) -> None:
    train = write(tmp_path / "train")
    test = write(tmp_path / "test", names=names, width=width)
    with pytest.raises(DataError, match="classes or dimension differ from.*delete both") as caught:
        read(train, test)
    assert str(caught.value).startswith(str(test))
    assert str(train) in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "names", "ranked"),
    [
        (ONE, "ab", [1]),
        (np.zeros(11, np.int64), "ab", []),
        (np.ones(11, np.int64), "ab", []),
        (np.arange(11) % 3, "abc", []),
        (SEVERAL, "abc", [0]),
        (SEVERAL[:1], "abc", []),
    ],
    ids=["two classes", "all first", "all second", "three", "several labels", "one row"],
)
def test_auc_needs_a_label_that_some_test_rows_have_and_others_lack(
    tmp_path: Path, labels: np.ndarray, names: str, ranked: list[int]
) -> None:
    train = write(tmp_path / "train", labels, names=names)
    test = write(tmp_path / "test", labels, names=names)
    assert read(train, test).ranked == ranked
    if ranked:
        assert read(train, test, headline="auc").ranked == ranked
    else:
        with pytest.raises(DataError, match="no AUC exists; enlarge the test split") as caught:
            read(train, test, headline="auc")
        assert str(caught.value).startswith(str(test))


def test_labels_without_an_auc_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="dpprobe")
    test = write(tmp_path / "test", SEVERAL, names="xyz")
    features = read(write(tmp_path / "train", SEVERAL, names="xyz"), test)
    assert features.multi_label
    (told,) = caplog.messages
    assert told.startswith(f"{test}: all test rows have the same value of y, z, so")
    caplog.clear()
    pair = write(tmp_path / "train", names="ab"), write(tmp_path / "test", names="ab")
    assert not read(*pair).multi_label
    assert caplog.messages == [], "of one label per row"


@pytest.mark.parametrize("memory_mb", [9, 0])
def test_blocks_cover_each_test_row_once_and_in_order(
    tmp_path: Path, memory_mb: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of streamed rows is one shard's rows."""
    monkeypatch.setattr(job_features, "chunk_rows", lambda *_: [(0, 4), (4, 8), (8, 11)])
    features = read(write(tmp_path / "train"), write(tmp_path / "test"), memory_mb=memory_mb)
    blocks = list(features.test_blocks())
    assert len(blocks) == 3
    assert [start for start, _ in blocks] == np.cumsum([0, *(len(b) for _, b in blocks)])[
        :3
    ].tolist()
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), FEATURES)
    assert list(features.test_ids) == [f"test-{row}" for row in range(11)]
    np.testing.assert_array_equal(features.test_labels, ONE)
    assert {name: list(own) for name, own in features.test_groups.items()} == {
        "sex": [*"fmfmfmfmfmf"]
    }
    assert features.test_accepted is not None
    assert [list(each) for each in features.test_accepted] == [[row % 2] for row in range(11)]
    assert features.test_units is not None
    same = features.test_units[:, None] == features.test_units[None]
    patients = np.arange(11) // 2
    np.testing.assert_array_equal(same, patients[:, None] == patients[None])


def test_halves_are_drawn_once_per_metric_and_keep_patients_whole(tmp_path: Path) -> None:
    features = read(write(tmp_path / "train"), write(tmp_path / "test"))
    halves = features.test_halves("macro_accuracy")
    assert features.test_halves("macro_accuracy") is halves
    assert features.test_halves("accuracy") is not halves
    assert halves.members.shape[1:] == (2, 6), "of six patients"
    np.testing.assert_array_equal(halves.codes, np.arange(11) // 2)
