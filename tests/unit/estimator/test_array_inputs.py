"""Arrays as training data: shapes, blocks, sources, labels and groups."""

from __future__ import annotations

import operator
import pickle
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer

from dpprobe.errors import DpprobeError, PrivacyError
from dpprobe.estimator import array_inputs, fit_and_score, known_rows
from dpprobe.estimator.array_inputs import MappedRows
from dpprobe.estimator.given_values import ArrayError
from dpprobe.heads.row_norms import LONGEST_ROW
from tests.support.classifiers import make_benchmark, make_private, make_rows


@pytest.fixture
def mapped(tmp_path: Path) -> np.memmap:
    np.save(tmp_path / "rows.npy", np.arange(24, dtype=np.float64).reshape(8, 3))
    rows: np.memmap = np.load(tmp_path / "rows.npy", mmap_mode="r")
    return rows


def test_a_large_memory_map_is_a_source(mapped: np.memmap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_inputs, "STREAMED_BYTES", 8 * 3 * 4)
    assert array_inputs.find_source(mapped) is None
    monkeypatch.setattr(array_inputs, "STREAMED_BYTES", 8 * 3 * 4 - 1)
    source = array_inputs.find_source(mapped)
    assert isinstance(source, array_inputs.MappedRows)
    assert array_inputs.read_shape(mapped) == (8, 3)
    assert array_inputs.find_source(mapped.reshape(2, 4, 3)) is None
    starts, blocks = zip(*source.read_blocks(3), strict=True)
    assert starts == (0, 3, 6)
    assert all(block.dtype == np.float32 and block.flags.writeable for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), mapped)
    monkeypatch.setattr(array_inputs, "SCORED_BYTES", 24)
    np.testing.assert_array_equal(array_inputs.read_source(source), mapped.astype(np.float32))


BLOCK = 1024  # 1,024 rows of 1,024 numbers are 4 MiB


class Stored:
    """Rows on disk, as in h5py and zarr; fails if all rows are read at once."""

    chunks, ndim = (10, 10), 2

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows
        self.shape, self.size, self.dtype = rows.shape, rows.size, rows.dtype
        self.slices = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice) -> np.ndarray:
        assert part.stop - part.start <= BLOCK
        self.slices += 1
        return self._rows[part]

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise AssertionError("all rows were asked for")


def test_rows_on_a_disk_are_never_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, y = make_rows(rows=2 * BLOCK + 100)
    X = np.pad(rows, ((0, 0), (0, BLOCK - rows.shape[1])))
    stored = Stored(X)
    for module in (array_inputs, fit_and_score):
        monkeypatch.setattr(module, "STREAMED_BYTES", 2**20)
        monkeypatch.setattr(module, "SCORED_BYTES", BLOCK * 4 * BLOCK)
    found = make_benchmark().fit(stored, y)
    whole = make_benchmark().fit(X, y)
    np.testing.assert_allclose(found.coef_, whole.coef_, rtol=1e-4, atol=1e-6)
    assert found.predict(stored).tolist() == found.predict(X).tolist()
    assert stored.slices >= 6


ROWS, LABELS = make_rows(rows=60)
WIDE = np.ones((60, ROWS.shape[1] + 1), np.float32)


class Source:
    """Claims to have all rows, whichever blocks it yields."""

    def __init__(self, *blocks: Any, **said: Any) -> None:
        self.rows, self.dimension = ROWS.shape
        self.blocks: Any = blocks
        self.__dict__ |= said

    def read_blocks(self, _: int) -> Any:
        return self.blocks if self.blocks is None else iter(self.blocks)


FIRST, LAST = (0, ROWS[:40]), (40, ROWS[40:])
LYING = [
    Source(),
    Source(FIRST),
    Source(LAST, FIRST),
    Source(FIRST, LAST, (60, ROWS[:5])),
    Source((0, ROWS[:50]), LAST),
    Source((0, ROWS[:30]), LAST),
    Source((0, WIDE)),
    Source((0, ROWS[:, :1])),
    Source(FIRST, (40, WIDE[40:])),
    Source((0, ROWS[0])),
    Source((0, ROWS[:, :, None])),
    Source((None, ROWS)),
    Source(ROWS),
    Source(tuple(ROWS)),
    Source((0, ROWS), rows=-60),
    Source((0, ROWS), rows=0),
    Source((0, ROWS), rows=60.0),
    Source((0, ROWS), rows="60"),
    Source((0, ROWS), dimension=None),
    Source((0, ROWS[:, :0]), dimension=0),
    Source((0, ROWS.astype("M8[s]"))),
    Source((0, np.ma.masked_array(ROWS))),
    Source((0, np.full(ROWS.shape, "one"))),
    Source(blocks=iter([FIRST, LAST])),
    Source(blocks=None),
]


def find_stops(source: Any) -> Iterator[int]:
    blocks = array_inputs.find_source(source)
    assert blocks is not None
    return (first + len(block) for first, block in blocks.read_blocks(40))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("place", range(len(LYING)))
def test_inconsistent_array_sources_are_refused_and_not_booked(
    place: int, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is booked for a source with wrong rows, or that can be read only once."""
    for module in (array_inputs, fit_and_score) if streamed else ():
        monkeypatch.setattr(module, "STREAMED_BYTES", 1)
    private = make_private()
    assert private.budget is not None
    with pytest.raises(DpprobeError, match="^X: ") as caught:
        private.fit(LYING[place], LABELS)
    assert "\n" not in str(caught.value)
    assert private.budget is not None
    assert private.budget.compute_spent().entries == 0
    fitted = make_benchmark().fit(ROWS, LABELS)
    with pytest.raises(DpprobeError):
        fitted.predict(LYING[place])
    stops: list[int] = []
    with pytest.raises(DpprobeError, match="^X: "):
        stops.extend(find_stops(LYING[place]))
    one = Source((0, ROWS[:1, :1]), rows=1, dimension=1, chunks=1)
    assert list(find_stops(one)) == [1]
    assert max(stops, default=0) <= len(ROWS), "no consumer gets more rows than it has room for"


@pytest.mark.parametrize(
    "kind", [np.float32, np.float64, np.float16, torch.tensor, np.asfortranarray]
)
def test_a_source_may_have_numbers_of_any_type(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ROWS.astype(np.float16).astype(np.float32)
    source = Source(*((first, kind(block)) for first, block in ((0, rows[:40]), (40, rows[40:]))))
    whole = make_benchmark().fit(rows, LABELS)
    np.testing.assert_array_equal(make_benchmark().fit(source, LABELS).coef_, whole.coef_)
    for module in (array_inputs, fit_and_score):
        monkeypatch.setattr(module, "STREAMED_BYTES", 1)
    with pytest.raises(ArrayError, match="59 labels, but X has 60 rows"):
        make_benchmark().fit(source, LABELS[:-1])
    streamed = make_benchmark().fit(source, LABELS)
    np.testing.assert_allclose(streamed.coef_, whole.coef_, rtol=1e-4, atol=1e-6)
    assert streamed.predict(source).tolist() == whole.predict(rows).tolist()


MOMENTS = (1000 * ROWS).astype("M8[s]")
MASKED = np.ma.masked_array(ROWS)


@pytest.mark.parametrize(
    "X",
    [
        MOMENTS,
        (1000 * ROWS).astype("m8[s]"),
        MOMENTS.astype(object),
        MOMENTS.tolist(),
        pd.DataFrame(MOMENTS.astype("M8[ns]")),
        pd.DataFrame({"a": ROWS[:, 0], "b": MOMENTS[:, 0]}),
        pd.DataFrame({"a": pd.period_range("2020", periods=60), "b": ROWS[:, 0]}),
        [MOMENTS[:40], MOMENTS[40:]],
        MASKED,
        list(MASKED),
        [MASKED],
        ROWS.astype(complex),
        [ROWS.astype(complex)],
        np.zeros(60, [("a", "f4"), ("b", "f4")]),
        torch.from_numpy(ROWS.astype(complex)).conj(),
        torch.from_numpy(ROWS).to_sparse(),
        torch.from_numpy(ROWS).bfloat16(),
        ROWS.astype(complex).tolist(),
    ],
)
def test_arrays_of_unsupported_types_are_refused_without_showing_values(X: Any) -> None:
    """Masks are always refused: an error must not depend on the private rows that they hide."""
    as_blocks = isinstance(X, list) and isinstance(X[0], np.ndarray) and X[0].ndim == 2
    for classifier in (make_private(), make_benchmark()):
        with pytest.raises(ArrayError, match="^X: ") as caught:
            classifier.fit(iter(X) if as_blocks else X, LABELS)
        assert "\n" not in str(caught.value)
        assert str(ROWS[0, 0])[:6] not in str(caught.value)


@pytest.mark.parametrize("mask", [False, True])
def test_masks_of_labels_and_groups_are_refused(mask: bool) -> None:
    masked = np.ma.masked_array(LABELS, np.full(60, mask))
    groups = list(masked) if mask else masked
    for changed in ({"y": masked}, {"y": list(masked) if mask else masked}, {"groups": groups}):
        values = {"X": ROWS, "y": LABELS, "groups": np.arange(60)} | changed
        with pytest.raises(ArrayError, match=f"{next(iter(changed))}: masked"):
            make_benchmark(unit="group").fit(**values)


X, Y = make_rows()
# one person 20 times, with zeros of both signs, and one person twice
COPIED = np.concatenate([X, X[[0] * 20 + [5]]])
COPIED_Y = np.concatenate([Y, Y[[0] * 20 + [5]]])
COPIED[[0, 240], 1] = 0.0, -0.0
COPIED[241:260, 1] = 0.0


def fit_warnings(classifier: Any, *rows: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier.fit(*rows, **options)
    return [str(each.message) for each in caught if "repeat" in str(each.message)]


def test_one_person_many_times_is_counted_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_rows, "SCORED_BYTES", 600)  # blocks of few rows
    for rows in (COPIED, MappedRows(COPIED)):
        head = make_private()
        (told,) = fit_warnings(head, rows, COPIED_Y)
        assert "21 rows repeat another row, and one row occurs 21 times" in told
        assert "unit='group'" in told
        assert "Keep this message private" in told
        assert b"repeat" not in pickle.dumps(head)
        assert "copies" not in head.privacy_
    groups = [f"person {0 if row in range(240, 260) else row}" for row in range(len(COPIED))]
    (told,) = fit_warnings(make_private(unit="group"), COPIED, COPIED_Y, groups=groups)
    assert re.search("1 rows.* in 2 groups", told)
    unwarned = (make_private(), X, Y), (make_benchmark(), COPIED, COPIED_Y)
    assert [fit_warnings(*each) for each in unwarned] == [[], []]


class Changing:
    """A source in which one number changes after `passes` passes."""

    rows, dimension = 40, 3

    def __init__(self, passes: int) -> None:
        self.values = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
        self.left = passes

    def read_blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        self.left -= 1
        values = self.values.copy()
        if self.left < 0:
            values[17] *= 100  # the row's true gradient then exceeds the clipping norm
        for start in range(0, 40, rows):
            yield start, values[start : start + rows]


# Rows in memory are read twice, for copies and for the fit; a stream is read in every step.
@pytest.mark.parametrize(
    ("passes", "streamed"), [(1, False), (1, True), (2, True), (3, True), (5, True)]
)
def test_rows_that_change_between_passes_are_refused(
    passes: int, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is fitted, whenever the change comes; a source without changes is fitted."""
    if streamed:
        monkeypatch.setattr(fit_and_score, "STREAMED_BYTES", 0)
    labels = np.arange(40) % 3
    head = make_private()
    with pytest.raises(ArrayError, match="rows changed between two passes"):
        head.fit(Changing(passes), labels)
    assert not hasattr(head, "fit_")
    make_private().fit(Changing(1000), labels)


def test_a_memory_map_that_another_process_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_inputs, "STREAMED_BYTES", 0)
    made = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (40, 3))
    made[:] = np.random.default_rng(0).normal(size=(40, 3))
    source = array_inputs.find_source(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert source is not None
    first = [block for _, block in source.read_blocks(7)]
    again = [block for _, block in source.read_blocks(40)]  # other blocks, equal rows
    assert np.array_equal(np.concatenate(first), again[0])
    made[39, 2] += 1
    made.flush()
    with pytest.raises(ArrayError, match="rows changed between two passes"):
        list(source.read_blocks(7))


# Sparse rows, such as hashed words, are refused; the error names a step that makes them dense.


TEXTS = [f"{word} number {index}" for index in range(60) for word in ("rain", "sun")]
TOPICS = np.tile([0, 1], 60)
WORKAROUND = r'FunctionTransformer\(operator\.methodcaller\("toarray"\)\)'


def make_steps(*steps: object) -> Pipeline:
    return make_pipeline(HashingVectorizer(n_features=32), *steps, make_private(classes=(0, 1)))


def test_the_refusal_of_a_text_pipeline_names_a_step_that_works() -> None:
    with pytest.raises(DpprobeError, match="sparse") as refused:
        make_steps().fit(TEXTS, TOPICS)
    found = re.search(WORKAROUND, str(refused.value))
    assert found is not None, f"no workaround: {refused.value}"
    step = eval(found[0], {"FunctionTransformer": FunctionTransformer, "operator": operator})
    fitted = make_steps(step, Normalizer()).fit(TEXTS, TOPICS)
    assert fitted.predict(TEXTS).shape == (len(TEXTS),)


# Shapes, labels, groups and blocks of rows, as callers pass them.


EIGHT = np.arange(24, dtype=np.float32).reshape(8, 3)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (np.ones(4), r"got 1D array instead: X has shape \(4,\)"),
        (np.ones((2, 2, 2)), r"got 3D array instead: X has shape \(2, 2, 2\)"),
        (np.ones(()), "got 0D array instead"),
        ([], "got 1D array instead"),
        (np.ones((0, 2)), r"0 sample\(s\) \(shape=\(0, 2\)\)"),
        (np.ones((2, 0)), r"0 feature\(s\) \(shape=\(2, 0\)\)"),
        ([[]], r"0 feature\(s\) \(shape=\(1, 0\)\)"),
    ],
)
def test_other_shapes_are_named_as_scikit_learn_does(values: Any, fault: str) -> None:
    with pytest.raises(ArrayError, match=fault):
        array_inputs.read_shape(values)


@pytest.mark.parametrize(
    ("labels", "classes", "fault"),
    [
        ([0, 1], None, None),
        ([0, 1], [0, 1], None),
        (["a", "b"], ["a", "b"], None),
        (np.array(["b", "a"]), None, None),
        ([True, False], ["a", "b"], None),  # refused by scikit-learn's own checks
        ([], ["a", "b"], None),
        ([0, 1], ["a", "b"], "labels are numbers, but classes are texts"),
        (["a", "b"], [0, 1], "labels are texts, but classes are numbers"),
        (pd.Series([0, pd.NA], dtype=object), None, "a label is missing"),
        (pd.Series([True, 1], dtype=object), None, "labels are numbers and truth values"),
        (np.ma.masked_array([0, 1]), None, "y: masked"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_labels_have_one_kind_which_is_the_classes(
    labels: Any, classes: Any, fault: str | None
) -> None:
    if fault is None:
        array_inputs.check_labels(labels, classes)
        return
    with pytest.raises(ArrayError, match=f"^y: .*{fault}|^{fault}"):
        array_inputs.check_labels(labels, classes)


@given(classes=st.lists(st.integers(0, 50), min_size=1, unique=True), draws=st.data())
def test_a_label_is_numbered_by_its_place_among_the_classes(classes: list[int], draws: Any) -> None:
    labels = draws.draw(st.lists(st.sampled_from(classes)))
    numbers = array_inputs.number_labels(np.array(labels, dtype=np.int64), classes)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [classes.index(label) for label in labels]


@dataclass(frozen=True, repr=False)
class EqualByNumber:
    """Like the patients of many libraries: equal by value, but with a text by address."""

    number: int


@pytest.mark.parametrize(
    ("groups", "units"),
    [
        (["a", "b", "a"], [0, 1, 0]),
        ([2, 10, 2], [1, 0, 1]),
        (["b", "b", "a"], [1, 1, 0]),
        ([b"a", "b", "a"], [0, 1, 0]),
        (np.array([b"b", b"a", b"b"]), [1, 0, 1]),
        ([Decimal("1.50"), np.float64(2), 3], [0, 1, 2]),
        ([UUID(int=2), UUID(int=1), UUID(int=2)], [1, 0, 1]),
        ([date(2020, 1, 2), date(2020, 1, 1), np.datetime64("2020-01-02")], [1, 0, 1]),
        (pd.Series(pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-02"])), [1, 0, 1]),
        (pd.Series(["b", "a", "b"], dtype="category"), [1, 0, 1]),
        (pa.array(["b", "a", "b"]), [1, 0, 1]),
        ([*pa.array([2, 1, 2])], [1, 0, 1]),
        ([True, False, True], [1, 0, 1]),
    ],
)
def test_rows_of_one_name_are_one_unit(groups: Any, units: list[int]) -> None:
    """Units are numbered in the alphabetical order of their names."""
    assert array_inputs.number_groups(groups, 3).unit_of_rows().tolist() == units


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        (["a", None, "b"], "row 1 has no name"),
        (["", "a", "b"], "row 0 has no name"),
        ([float("nan"), "a", "b"], "row 0 has no name"),
        (["a", "b"], r"has shape \(2,\), but X has 3 rows"),
        ([["a"], ["b"], ["c"]], r"has shape \(3, 1\), but X has 3 rows"),
        ([1.0, 2.5, 1], "'1.0' is '1' in other rows"),
        (["1", 1, "01"], "'01' is '1' in other rows"),
        ([EqualByNumber(1), EqualByNumber(1), EqualByNumber(2)], "row 0 .* type EqualByNumber"),
        (["p1", frozenset("ab"), frozenset("ba")], "row 1 has an object of type frozenset"),
        ([{"mrn": 1}, {"mrn": 1}, {"mrn": 2}], "row 0 has an object of type dict"),
        (np.array([(1, 2)] * 3, dtype="i4,i4"), "row 0 has an object of type"),
        ([1, True, 2], "'True' and '1' are equal"),
        ([Fraction(1, 2), 0.5, 1], "'0.5' and '1/2' are equal"),
        (
            [
                datetime(2020, 1, 1, hour, tzinfo=timezone(timedelta(hours=hour)))
                for hour in range(3)
            ],
            r"'2020-01-01 01:00:00\+01:00' and '2020-01-01 00:00:00\+00:00' are equal",
        ),
    ],
)
def test_names_that_may_be_several_people_are_refused(groups: Any, fault: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(PrivacyError, match=fault):
            array_inputs.number_groups(groups, 3)


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_blocks_contain_all_rows_in_order(size: int) -> None:
    source = array_inputs.MappedRows(EIGHT)
    starts, blocks = zip(*source.read_blocks(size), strict=True)
    assert list(starts) == list(range(0, 8, size))
    np.testing.assert_array_equal(np.concatenate(blocks), EIGHT)
    np.testing.assert_array_equal(array_inputs.read_source(source), EIGHT)
    np.testing.assert_array_equal(source.read_rows(np.array([1, 5])), EIGHT[[1, 5]])


def test_rows_without_a_usable_length_are_scored_as_zeros() -> None:
    longest = np.float32(LONGEST_ROW)
    above = np.nextafter(longest, np.float32(np.inf))
    lengths = [longest, above, -longest, np.nan, np.inf, 0.0]
    rows = np.array([[length, 0] for length in lengths], dtype=np.float32)
    kept = rows.copy()
    with pytest.warns(UserWarning, match="^X: 3 rows contain NaN, infinity or huge values"):
        cleared = array_inputs.clear_unusable(rows)
    unusable = [[False], [True], [False], [True], [True], [False]]
    np.testing.assert_array_equal(cleared, np.where(unusable, 0, kept))
    np.testing.assert_array_equal(rows, kept, err_msg="the caller's rows stay")
    assert array_inputs.clear_unusable(EIGHT) is EIGHT


def test_blocks_of_an_iterator_are_joined() -> None:
    for blocks in ([EIGHT[:3], EIGHT[3:]], [EIGHT[:0], EIGHT], [EIGHT.tolist()]):
        np.testing.assert_array_equal(array_inputs.join_blocks(iter(blocks)), EIGHT)
    for wrong, fault in (
        ([], "this iterator has no blocks, or was already read"),
        ([EIGHT, EIGHT[:, 1:]], r"blocks of shapes \(8, 3\), \(8, 2\)"),
        ([EIGHT[0]], r"blocks of shapes \(3,\)"),
    ):
        with pytest.raises(ArrayError, match=fault):
            array_inputs.join_blocks(iter(wrong))
