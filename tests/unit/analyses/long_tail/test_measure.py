"""The measurement of long tails: datasets, sub-classes, memorisation and the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from dpprobe.analyses.long_tail.long_tail_record import LongTailRecord
from dpprobe.analyses.long_tail.measure import Rows, measure_long_tail, measure_sub_classes
from dpprobe.analyses.long_tail.memorisation import (
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
)
from dpprobe.errors import DataError
from dpprobe.privacy.randomness import derived_seed
from dpprobe.results.intervals import wilson_interval
from tests.support.clouds import clouds
from tests.unit.analyses.tsne.test_measure import write_store


def test_the_kept_variance_equals_that_of_all_classes() -> None:
    random, labels = np.random.default_rng(0), np.repeat([0, 1, 2], [70, 90, 80])
    features = random.normal(size=(240, 120)) * np.array([1.0, 5.0, 0.2])[labels, None]
    places = [
        compute_coordinates(features[labels == one], seed=derived_seed(3, f"class {one}"))
        for one in range(3)
    ]
    whole = sum(place.kept for place in places) / sum(place.total for place in places)
    measured = measure_sub_classes(features, labels, [2], seed=3)["variance_kept"]
    assert measured == pytest.approx(whole)
    assert whole < 1


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
    both = measure_sub_classes(rows, np.zeros(100, dtype=np.int64), [4], seed=1)["sub_classes"][0]
    assert both["measured"]["shares"] == [0.6, 0.25, 0.1, 0.05]
    assert both["reference"]["effective"] > both["measured"]["effective"]
    # clustering rows of the same variances without sub-classes gives less of a tail
    plain = cluster_sizes(draw_reference(placed.rows, seed=1), 4, seed=1)
    assert effective_number([plain]) > effective_number([np.array(planted)])


CLASSES = 3


def _clouds(rows: int, columns: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draws rows of three well separated classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    return 6 * np.eye(CLASSES, columns)[labels] + random.normal(size=(rows, columns)), labels


def _scores(features: np.ndarray, labels: np.ndarray, **changes: object) -> Memorisation:
    given = {"units": np.arange(len(labels)), "heads": 100, "seed": 5} | changes
    return measure_memorisation(scale_columns(features), labels, num_classes=CLASSES, **given)  # type: ignore[arg-type]


def _with_outliers(columns: int, outliers: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows of which the first few have a changed label and are far from all others."""
    features, labels = _clouds(300, columns)
    features[:outliers] = 6 * np.eye(columns)[0] + 25 * np.eye(columns)[5]
    labels[:outliers] = 1
    return features, labels


@pytest.mark.parametrize("columns", [10, 150])
def test_a_planted_outlier_is_memorised_but_its_duplicates_are_not(columns: int) -> None:
    """An outlier is learned only from itself; of its six copies, usually four are in training."""
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


def test_chance_is_exact_where_all_outcomes_can_be_listed() -> None:
    """Two of four heads are right, and two have the row: in one of six orders the score is 1."""
    two, none = np.array([2]), np.array([0])
    measured = Memorisation(two, two, none, two, 1.0)
    for threshold in (0.0, 0.25):  # four orders give 0, which is not above the threshold
        assert measured.expected_share_above(threshold) == pytest.approx(1 / 6)


# The job


def _job(folder: Path, manifest: Path, *, seed: int = 2, **options: Any) -> tuple[Any, Any]:
    """Runs the job; returns its record and its table of rows."""
    measure_long_tail(
        manifest,
        folder,
        dataset="digits",
        backbone="pixels",
        options=LongTailOptions.model_validate(
            {"clusters": [3], "memorisation": {"heads": 50}} | options
        ),
        seed=seed,
        threads=1,
    )
    table = pq.read_table(folder / "digits/pixels.parquet")
    return LongTailRecord.read(folder / "digits/pixels.json"), table


def _store(folder: Path, rows: int = 150, *, patients: int = 0, **given: Any) -> Path:
    features, labels = clouds(rows, 6, 3, apart=1.0)
    units = [f"p{row * 7 % patients}" for row in range(rows)] if patients else None
    return write_store(folder, features, labels, units=units, **given)


def test_the_record_sums_up_the_scores_of_the_rows(tmp_path: Path) -> None:
    record, table = _job(tmp_path, _store(tmp_path / "train"))
    scores = record.memorisation
    assert scores is not None
    assert (record.rows, record.units, record.clustered) == (150, 150, 150)
    assert (record.classes, record.dimension, record.notes) == (3, 6, ())
    assert (scores.heads, scores.rows, scores.units) == (50, 150, 150)
    assert (scores.trained_share, scores.threshold) == (0.7, 0.25)
    assert table["id"].to_pylist() == [f"row-{row}" for row in range(150)]
    assert table["label"].to_pylist() == clouds(150, 6, 3)[1].tolist()
    columns = {name: table[name].to_numpy() for name in table.column_names[2:]}
    assert (columns["heads_in"] + columns["heads_out"] == 50).all()
    share = columns["right_in"] / columns["heads_in"] - columns["right_out"] / columns["heads_out"]
    np.testing.assert_allclose(columns["memorisation"], share)
    assert scores.accuracy == columns["right_out"].sum() / columns["heads_out"].sum()
    assert scores.standard_error == np.median(columns["standard_error"])
    above = [float((share > threshold).mean()) for threshold in scores.above.thresholds]
    assert list(scores.above.share) == above
    assert scores.above.thresholds == pytest.approx(np.arange(20) / 20)
    assert scores.share == above[5] > 0
    interval = binomtest(round(150 * scores.share), 150).proportion_ci(method="wilson")
    assert (scores.low, scores.high) == pytest.approx((interval.low, interval.high))
    assert scores.chance == scores.above.chance[5]
    (part,) = record.sub_classes
    assert part.m_ln_n == pytest.approx(part.measured.effective * np.log(150))
    assert record.variance_kept == pytest.approx(1)
    assert 3 <= part.measured.sub_classes <= 9
    assert sum(part.measured.shares) == pytest.approx(1)


def test_patients_count_as_units_and_are_sampled_as_a_whole(tmp_path: Path) -> None:
    manifest = _store(tmp_path / "train", patients=60)
    record, table = _job(tmp_path, manifest, rows=100, memorisation={"heads": 50, "rows": 70})
    scores = record.memorisation
    assert scores is not None
    assert (record.rows, record.units) == (150, 60)
    assert 90 < record.clustered <= 100
    assert 60 < scores.rows == table.num_rows <= 70
    assert record.sub_classes[0].m_ln_n == pytest.approx(
        record.sub_classes[0].measured.effective * np.log(60)
    )
    rows = [int(name.removeprefix("row-")) for name in table["id"].to_pylist()]
    patients = {row * 7 % 60 for row in rows}
    assert rows == [row for row in range(150) if row * 7 % 60 in patients]
    assert scores.units == len(patients)
    labels = clouds(150, 6, 3)[1]
    assert table["label"].to_pylist() == labels[rows].tolist()
    interval = wilson_interval(scores.share, len(patients))
    assert (scores.low, scores.high) == interval, "over patients, not over rows"


def test_the_study_s_seed_draws_the_rows(tmp_path: Path) -> None:
    manifest = _store(tmp_path / "train")
    found = [
        _job(tmp_path / f"{run}", manifest, seed=seed, rows=60)[1]["id"].to_pylist()
        for run, seed in enumerate((2, 2, 3))
    ]
    assert found[0] == found[1] != found[2]
    assert len(found[0]) == 60


@pytest.mark.parametrize("units", [19, 20])
def test_twenty_units_are_needed_for_memorisation(tmp_path: Path, units: int) -> None:
    record, table = _job(tmp_path, _store(tmp_path / "train", 40, patients=units))
    assert (record.memorisation is None) == (units < 20)
    told = ("no memorisation: 19 units, but at least 20 are needed",) if units < 20 else ()
    assert record.notes == told
    assert table.num_rows == (0 if units < 20 else 40)
    assert table.column_names == [
        "id",
        "label",
        "memorisation",
        "standard_error",
        "right_in",
        "heads_in",
        "right_out",
        "heads_out",
    ]


def test_rows_of_several_labels_are_refused(tmp_path: Path) -> None:
    manifest = write_store(tmp_path / "train", *clouds(30, 6, 3, several=True))
    with pytest.raises(DataError, match="several labels.*remove the dataset from long_tail"):
        _job(tmp_path, manifest)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=9),
    most=st.integers(0, 30),
    seed=st.integers(0, 99),
)
def test_a_sample_has_whole_units_and_as_many_as_fit(
    sizes: list[int], most: int, seed: int
) -> None:
    units = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)) * 3
    ids = [f"{row}" for row in range(len(units))]
    rows = Rows(units[:, None].astype(np.float32), units + 1, units, ids)
    drawn = rows.draw_units(most, seed)
    assert drawn.ids == [name for name in ids if units[int(name)] in set(drawn.units)]
    assert drawn.count == len({*drawn.units}) >= 1
    assert np.array_equal(drawn.features[:, 0], drawn.units)
    assert np.array_equal(drawn.labels, drawn.units + 1)
    assert len(drawn.ids) <= most or drawn.count == 1
    if most >= len(units):
        assert list(drawn.ids) == ids
    elif set(sizes) == {1}:
        assert len(drawn.ids) == max(1, most)
