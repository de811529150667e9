"""The measurement of long tails: datasets, sub-classes, memorisation and the record."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from dpprobe.analyses.long_tail.long_tail_record import LongTailRecord
from dpprobe.analyses.long_tail.measure import long_tail_job
from dpprobe.analyses.long_tail.memorisation import (
    Heads,
    Memorisation,
    measure_memorisation,
    scale_columns,
)
from dpprobe.analyses.long_tail.options import LongTailOptions
from dpprobe.analyses.long_tail.sub_classes import (
    cluster_sizes,
    compute_coordinates,
    draw_reference,
    effective_number,
    tail_index,
)
from dpprobe.errors import ConfigError, DataError
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY
from tests.unit.analyses.tsne.test_measure import write_store

ONE_LABEL = {"source": "sklearn", "name": "digits"}


def _study(tmp_path: Path, long_tail: dict[str, Any] | None, *, only: str | None = None) -> Study:
    for number in range(50):
        (tmp_path / f"{number}.png").touch()
    lines = "".join(f"{number}.png,{number % 2},0\n" for number in range(50))
    (tmp_path / "rows.csv").write_text("image,one,two\n" + lines)
    several = {
        "source": "csv", "root": str(tmp_path), "train": "rows.csv", "label_columns": ["one", "two"]
    }  # fmt: skip
    datasets = {"digits": ONE_LABEL, "chest": several}
    chosen = {only: datasets[only]} if only else datasets
    methods = {"sgd": {"head": "sgd", "batch_size": 8, "epochs": 1}}
    return load_study(
        {**STUDY, "datasets": chosen, "methods": methods, "long_tail": long_tail, "delta": 1e-5}
    )


@pytest.mark.parametrize(
    ("options", "only", "message"),
    [
        ({"datasets": ["chest"]}, None, "datasets: chest: has several labels"),
        ({}, "chest", "datasets: chest: has several labels"),
    ],
)
def test_long_tails_that_cannot_be_measured_are_refused(
    tmp_path: Path, options: dict[str, Any], only: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"config: long_tail: {re.escape(message)}"):
        check_study(_study(tmp_path, options, only=only))


def _zipf(
    index: float, *, classes: int, sub_classes: int, rows: int, seed: int
) -> list[np.ndarray]:
    shares = np.arange(1, sub_classes + 1) ** -index
    drawn = np.random.default_rng(seed).multinomial(rows, shares / shares.sum(), size=classes)
    return [np.sort(one[one > 0])[::-1] for one in drawn]


@pytest.mark.parametrize("index", [0.0, 1.5])
def test_the_index_of_a_known_tail_lies_in_its_interval(index: float) -> None:
    """The interval misses 5% of the draws; seven or more of 40 once in 300 tries."""
    caught = 0
    values = []
    for seed in range(40):
        sizes = _zipf(index, classes=4, sub_classes=12, rows=400, seed=seed)
        measured = tail_index(sizes, seed=seed)
        assert measured is not None
        assert measured.high is not None
        assert measured.low <= measured.value <= measured.high
        caught += measured.low <= index <= measured.high
        values.append(measured.value)
    assert caught > 33
    assert np.mean(values) == pytest.approx(index, abs=0.05)


def test_the_effective_number_counts_equal_sub_classes_and_no_empty_weight() -> None:
    assert effective_number([np.array([5, 5]), np.array([5, 5, 5])]) == pytest.approx(5)
    assert effective_number([np.array([9])]) == pytest.approx(1)
    one_big = effective_number([np.array([97, 1, 1, 1])])
    assert 1 < one_big < 1.3


def test_planted_sub_classes_come_back_with_their_sizes() -> None:
    random = np.random.default_rng(0)
    planted = [60, 25, 10, 5]
    centres = 30 * np.eye(4, 20)
    rows = np.concatenate(
        [
            centre + random.normal(size=(size, 20))
            for centre, size in zip(centres, planted, strict=True)
        ]
    )
    placed = compute_coordinates(rows, seed=1)
    assert list(cluster_sizes(placed.rows, 4, seed=1)) == planted
    assert placed.kept == pytest.approx(placed.total)
    # without sub-classes, of the same variances, the same clustering sees less of a tail
    plain = cluster_sizes(draw_reference(placed.rows, seed=1), 4, seed=1)
    assert effective_number([plain]) > effective_number([np.array(planted)])


@pytest.mark.parametrize(
    "features",
    [np.zeros((1, 3)), np.ones((40, 3)), np.full((2, 1), 1e30), np.zeros((12, 5))],
    ids=["one row", "all equal", "huge", "zero"],
)
def test_classes_without_a_spread_are_one_sub_class(features: np.ndarray) -> None:
    placed = compute_coordinates(features, seed=0)
    assert list(cluster_sizes(placed.rows, 5, seed=0)) == [len(features)]
    assert np.isfinite(draw_reference(placed.rows, seed=0)).all()


CLASSES = 3


def _clouds(rows: int, columns: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three well separated classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    return 6 * np.eye(CLASSES, columns)[labels] + random.normal(size=(rows, columns)), labels


def _scores(features: np.ndarray, labels: np.ndarray, **changes: object) -> Memorisation:
    given = {"units": np.arange(len(labels)), "heads": 100, "seed": 5} | changes
    return measure_memorisation(scale_columns(features), labels, num_classes=CLASSES, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(60, 8), (30, 50)])
@pytest.mark.parametrize("left_out", [0, 1, 11])
def test_a_head_without_rows_is_a_new_fit_without_them(
    shape: tuple[int, int], left_out: int
) -> None:
    random = np.random.default_rng(1)
    rows, targets = random.normal(size=shape), np.eye(CLASSES)[random.integers(3, size=shape[0])]
    out = np.sort(random.permutation(shape[0])[:left_out])
    kept = np.delete(rows, out, axis=0)
    expected = np.linalg.solve(
        kept.T @ kept + 0.3 * np.eye(shape[1]), kept.T @ np.delete(targets, out, axis=0)
    )
    assert Heads(rows, targets, 0.3).weights_without(out) == pytest.approx(expected, abs=1e-9)


def _with_outliers(columns: int, outliers: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which the first few, of another label, stand where no other row does."""
    features, labels = _clouds(300, columns)
    features[:outliers] = 6 * np.eye(columns)[0] + 25 * np.eye(columns)[5]
    labels[:outliers] = 1
    return features, labels


@pytest.mark.parametrize("columns", [10, 150])
def test_a_planted_outlier_is_memorised_and_its_duplicates_are_not(columns: int) -> None:
    """A row in no class's place is learnt only from itself; of six copies four are mostly left."""
    features, labels = _with_outliers(columns, 1)
    alone = _scores(features, labels)
    assert alone.scores[0] > 0.9
    assert np.median(alone.scores[1:]) == 0
    copies = np.vstack([features, np.repeat(features[:1], 5, axis=0)])
    together = _scores(copies, np.append(labels, [1] * 5))
    assert together.scores[[0, *range(300, 305)]] == pytest.approx(0, abs=0.15)


def test_a_mislabelled_row_is_memorised_where_there_are_columns_to_do_it() -> None:
    features, labels = _clouds(90, 200)
    labels[7] = (labels[7] + 1) % CLASSES
    measured = _scores(features, labels)
    assert measured.scores[7] == measured.scores.max() > 0.8


def test_rows_of_a_unit_are_in_or_out_together() -> None:
    """Two copies in one unit are memorised as one is, and as two units they are less so."""
    features, labels = _with_outliers(10, 2)
    units = np.concatenate([[0, 0], np.arange(1, 299)])
    as_one = _scores(features, labels, units=units)
    assert as_one.scores[:2].min() > 0.9
    assert (as_one.heads_in[0], as_one.right_in[0]) == (as_one.heads_in[1], as_one.right_in[1])
    assert _scores(features, labels).scores[:2].max() < 0.6


def _drawn(share_in: float, share_out: float, rows: int) -> Memorisation:
    random = np.random.default_rng(0)
    heads_in = random.binomial(200, 0.7, size=rows)
    return Memorisation(
        random.binomial(heads_in, share_in),
        heads_in,
        random.binomial(200 - heads_in, share_out),
        200 - heads_in,
        1.0,
    )


def test_the_standard_error_is_the_spread_of_scores() -> None:
    measured = _drawn(0.9, 0.5, 20_000)
    assert measured.scores.mean() == pytest.approx(0.4, abs=0.002)
    assert measured.standard_errors.mean() == pytest.approx(measured.scores.std(), rel=0.04)


def _counted(*counts: list[int]) -> Memorisation:
    """Makes scores from right_in, heads_in, right_out and heads_out of each row."""
    right_in, heads_in, right_out, heads_out = map(np.array, counts)
    return Memorisation(right_in, heads_in, right_out, heads_out, 1.0)


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.25])
def test_chance_is_the_share_of_rows_that_nothing_distinguishes(threshold: float) -> None:
    measured = _drawn(0.6, 0.6, 40_000)
    assert measured.expected_share_above(threshold) == pytest.approx(
        measured.share_above(threshold), abs=0.01
    )


def test_chance_is_exact_where_all_outcomes_can_be_listed() -> None:
    """Two of four heads are right, two have the row: six orders, in one the score is 1."""
    measured = _counted([2], [2], [0], [2])
    assert measured.expected_share_above(0.25) == pytest.approx(1 / 6)
    assert measured.expected_share_above(0.0) == pytest.approx(1 / 6), (
        "four orders give 0, which is not above"
    )


def _measured(
    tmp_path: Path,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    units: list[str] | None = None,
    **options: Any,
) -> LongTailRecord:
    long_tail_job(
        write_store(tmp_path / "train", features, labels, shards=1, units=units),
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
        tmp_path, features[:1200], labels[:1200], clusters=[3, 8], memorisation={"heads": 60}
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
    record = _measured(tmp_path, np.eye(8), np.arange(8) % 2)
    assert record.memorisation is None
    assert record.notes == ("no memorisation: 8 units, but at least 20 are needed",)
    assert record.finest.measured.index is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_refused(tmp_path: Path, bad: float) -> None:
    features = np.ones((30, 3))
    features[4, 1] = bad
    with pytest.raises(DataError, match="features of 1 rows are not finite"):
        _measured(tmp_path, features, np.zeros(30, dtype=int))
    assert not (tmp_path / "long_tail").exists()


def test_rows_of_several_labels_are_refused(tmp_path: Path) -> None:
    labels = np.ones((30, 10), dtype=np.int8)
    with pytest.raises(DataError, match="several labels"):
        _measured(tmp_path, np.ones((30, 3)), labels)
