"""The long-tail job on stored features, kind and ugly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from dpprobe.analyses.long_tail.long_tail_record import LongTailRecord
from dpprobe.analyses.long_tail.measure import long_tail_job
from dpprobe.errors import DataError
from dpprobe.study.options import LongTailOptions
from tests.unit.analyses.tsne.test_measure import write_store


def _measured(
    tmp_path: Path,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    units: list[str] | None = None,
    **options: Any,
) -> LongTailRecord:
    test = test or (features[:20], labels[:20])
    train = write_store(tmp_path / "train", features, labels, shards=1, units=units)
    long_tail_job(
        train,
        write_store(tmp_path / "test", *test, shards=1),
        tmp_path / "long_tail",
        dataset="digits",
        backbone="pixels",
        options=LongTailOptions.model_validate({"clusters": [3], **options}),
        seed=0,
        threads=1,
    )
    return LongTailRecord.read(tmp_path / "long_tail/digits/pixels.json")


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    images = load_digits()
    return images.data, images.target


def test_real_digits(tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]) -> None:
    features, labels = digits
    record = _measured(
        tmp_path,
        features[:1200],
        labels[:1200],
        test=(features[1200:], labels[1200:]),
        clusters=[3, 8],
        memorisation={"heads": 60},
    )
    assert (record.private, record.rows, record.units, record.classes) == (False, 1200, 1200, 10)
    assert [part.measured.sub_classes for part in record.sub_classes] == [30, 80]
    finest = record.finest
    assert finest.clusters == 8
    assert finest.m_ln_n == pytest.approx(finest.measured.effective * math.log(1200))
    assert sum(finest.measured.shares) == pytest.approx(1)
    scores = record.memorisation
    assert scores is not None
    assert 0.8 < scores.accuracy < 1
    assert scores.low < scores.share < scores.high < 0.2
    assert scores.chance < 0.01
    assert list(scores.above.share) == sorted(scores.above.share, reverse=True)
    table = pq.read_table(tmp_path / "long_tail/digits/pixels.parquet").to_pandas()
    assert len(table) == scores.rows == 1200
    assert (table.memorisation > 0.25).mean() == pytest.approx(scores.share)
    rows = [int(name.removeprefix("row-")) for name in table.id]
    assert list(table.label) == list(labels[rows])
    assert set(table.heads_in + table.heads_out) == {60}
    assert scores.removal is not None
    assert scores.removal.removed == (table.memorisation > 0.25).sum()


def test_large_splits_are_sampled_by_whole_units(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    features, labels = digits
    units = [f"patient-{row // 4}" for row in range(400)]
    record = _measured(
        tmp_path, features[:400], labels[:400], units=units, rows=202,
        memorisation={"heads": 50, "rows": 100},
    )  # fmt: skip
    assert (record.rows, record.units, record.clustered) == (400, 100, 200)
    assert record.memorisation is not None
    assert (record.memorisation.rows, record.memorisation.units) == (100, 25)
    assert record.finest.m_ln_n == pytest.approx(
        record.finest.measured.effective * math.log(100)
    ), "N is all units, not the sampled ones"
    table = pq.read_table(tmp_path / "long_tail/digits/pixels.parquet").to_pandas()
    patients = table.id.map(lambda name: int(name.removeprefix("row-")) // 4)
    assert set(patients.value_counts()) == {4}
    assert table.groupby(patients).heads_in.nunique().max() == 1


def test_memorisation_may_be_left_out(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    record = _measured(tmp_path, digits[0][:60], digits[1][:60], memorisation=None)
    assert record.memorisation is None
    assert record.notes == ()
    assert pq.read_table(tmp_path / "long_tail/digits/pixels.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (np.zeros((30, 4)), np.arange(30) % 3),
        (np.eye(30), np.zeros(30, dtype=int)),
        (np.eye(30), np.arange(30) % 10),
        (np.random.default_rng(0).normal(size=(30, 1)), np.arange(30) // 29),
        (np.full((30, 2), 3e38) * np.sign(np.arange(30) - 15.5)[:, None], np.arange(30) % 2),
    ],
    ids=["equal rows", "one class", "three rows a class", "a class of one row", "huge"],
)
def test_ugly_features_have_a_record(
    tmp_path: Path, features: np.ndarray, labels: np.ndarray
) -> None:
    record = _measured(tmp_path, features, labels, memorisation={"heads": 50})
    assert record.memorisation is not None
    assert 0 <= record.memorisation.share <= 1
    assert record.classes == len(np.unique(labels))


def test_too_few_units_have_sub_classes_and_a_note(tmp_path: Path) -> None:
    record = _measured(tmp_path, np.eye(8), np.arange(8) % 2, test=(np.eye(8), np.zeros(8, int)))
    assert record.memorisation is None
    assert record.notes == ("no memorisation: 8 units; 20 are needed",)
    assert record.finest.measured.index is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_refused(tmp_path: Path, bad: float) -> None:
    features = np.ones((30, 3))
    features[4, 1] = bad
    with pytest.raises(DataError, match="features of 1 rows are not finite"):
        _measured(tmp_path, features, np.zeros(30, dtype=int), test=(np.eye(3), np.zeros(3, int)))
    assert not (tmp_path / "long_tail").exists()


def test_test_features_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    """A head would take such rows for the first class."""
    features = np.random.default_rng(0).normal(size=(60, 3))
    bad = features[:20].copy()
    bad[4, 1] = np.nan
    with pytest.raises(DataError, match="test.*features of 1 rows are not finite"):
        _measured(
            tmp_path, features, np.arange(60) % 3, test=(bad, np.arange(20) % 3),
            memorisation={"heads": 50},
        )  # fmt: skip


def test_rows_of_several_labels_are_refused(tmp_path: Path) -> None:
    labels = np.ones((30, 10), dtype=np.int8)
    with pytest.raises(DataError, match="several labels"):
        _measured(tmp_path, np.ones((30, 3)), labels, test=(np.ones((5, 3)), labels[:5]))


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pixels.json"
    path.write_text('{"format": "dpprobe-long-tail", "format_version": 1, "rows": 3}')
    with pytest.raises(DataError, match="delete it and run again"):
        LongTailRecord.read(path)
