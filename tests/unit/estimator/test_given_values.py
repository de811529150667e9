"""The order of rows by pandas indexes: labels, groups and weights stay with their rows."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from datetime import UTC
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from dpprobe import PrivateClassifier
from dpprobe.errors import ConfigError, DpprobeError, PrivacyError
from dpprobe.estimator import given_values
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.given_values import ArrayError, check_order
from dpprobe.privacy.risk import Risk
from tests.support.classifiers import make_budget, make_private
from tests.support.refusals import check_tokens, refuses

ROWS = 60
GENERATOR = np.random.default_rng(0)
NUMBERS = GENERATOR.normal(size=(ROWS, 3)).astype(np.float32)
LABELS = (NUMBERS[:, 0] > 0).astype(int)
PEOPLE = [f"p{row // 3}" for row in range(ROWS)]
NAMES = [f"image {row:02}" for row in range(ROWS)]
REFUSED = "its index has the rows of {} in another order"


def shuffled(values: Any, index: Any) -> pd.Series:
    return pd.Series(values, index=index).sample(frac=1, random_state=3)


CHANGES: dict[str, Callable[[pd.Series], Any]] = {
    "shuffled": lambda values: values.sample(frac=1, random_state=3),
    "reversed": lambda values: values[::-1],
    "sorted": lambda values: values.sort_values(kind="stable", ascending=False),
    "two swapped": lambda values: values.iloc[[1, 0, *range(2, ROWS)]],
    "frame of one": lambda values: values.sample(frac=1, random_state=3).to_frame(),
}
INDICES = {
    "default": pd.RangeIndex(ROWS),
    "names": pd.Index(NAMES),
    "every other": range(0, 2 * ROWS, 2),
    "dates": pd.date_range("2020-01-01", periods=ROWS),
    "pairs": pd.MultiIndex.from_product([range(ROWS // 2), ["left", "right"]]),
    "numbers": GENERATOR.permutation(ROWS),
}


def classifier(**options: Any) -> PrivateClassifier:
    return PrivateClassifier(
        classes=[0, 1], benchmark=True, head="least_squares", random_state=0, **options
    )


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_order_is_refused(index: Any, change: Callable[[pd.Series], Any]) -> None:
    rows = pd.DataFrame(NUMBERS, index=index)
    with pytest.raises(DpprobeError, match=f"y: {REFUSED.format('X')}"):
        classifier().fit(rows, change(pd.Series(LABELS, index=index)))
    people = change(pd.Series(PEOPLE, index=index))
    for (x, y), than in (((rows, LABELS), "X"), ((NUMBERS, pd.Series(LABELS, index=index)), "y")):
        with pytest.raises(ValueError, match=f"groups: {REFUSED.format(than)}"):
            classifier(unit="group").fit(x, y, groups=people)


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_rows_in_one_order_train_as_arrays_do(index: Any) -> None:
    rows = pd.DataFrame(NUMBERS, index=index)
    expected = classifier(unit="group").fit(NUMBERS, LABELS, groups=PEOPLE)
    for labels, people in (
        (pd.Series(LABELS, index=index), pd.Series(PEOPLE, index=index)),
        (LABELS, PEOPLE),
        (pd.Series(LABELS, index=index).to_numpy(), np.array(PEOPLE)),
    ):
        fitted = classifier(unit="group").fit(rows, labels, groups=people)
        np.testing.assert_array_equal(fitted.coef_, expected.coef_)


def test_a_default_index_has_no_names() -> None:
    """Rows from another step have a default index, while labels still have their table's index."""
    rows = pd.DataFrame(NUMBERS)
    classifier().fit(rows, pd.Series(LABELS, index=GENERATOR.permutation(2 * ROWS)[:ROWS]))


# Parts of one table that begin at different rows: one position belongs to different people.

TABLE = 3 * ROWS
PERSON = pd.Series([f"p{row // 2}" for row in range(TABLE)])
FEATURES = pd.DataFrame(np.random.default_rng(1).normal(size=(TABLE, 3)).astype(np.float32))
CLASS = (FEATURES[0] > 0).astype(int)
PARTS = {
    "from 12": slice(12, 12 + ROWS),
    "every other": slice(12, 12 + 2 * ROWS, 2),
    "reversed": slice(9 + ROWS, 9, -1),
    "disjoint": slice(2 * ROWS, 3 * ROWS),
}


def private(**options: Any) -> PrivateClassifier:
    budget = make_budget(max_epsilon=9.0)
    return make_private(classes=[0, 1], unit="group", budget=budget, **options)


def budget_of(head: PrivateClassifier) -> Budget:
    assert head.budget is not None
    return head.budget


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("wrong", ["y", "groups", "both"])
def test_parts_of_a_table_that_differ_are_refused(part: slice, wrong: str) -> None:
    rows, right = FEATURES.iloc[10 : 10 + ROWS], slice(10, 10 + ROWS)
    labels = CLASS.iloc[right if wrong == "groups" else part]
    people = PERSON.iloc[right if wrong == "y" else part]
    named = "groups" if wrong == "groups" else "y"
    head = private()
    with refuses(ArrayError, named, "X", "row 0", f"{named}.loc[X.index]", f"{named}.to_numpy()"):
        head.fit(rows, labels, people)
    assert budget_of(head).compute_spent().entries == 0
    head.fit(rows, labels.to_numpy(), people.to_numpy())


BY_POSITION = "groups: matched by position"
NAMED = pd.Index([f"i{row}" for row in range(ROWS)])


@pytest.mark.parametrize(
    ("x", "y", "groups", "said"),
    [
        (None, None, NAMED, True),
        (NAMED, NAMED, None, True),
        (NAMED, None, None, True),
        ("array", NAMED, None, True),
        ("array", None, NAMED, True),
        (None, NAMED, NAMED, True),
        (range(2, ROWS + 2), None, None, True),
        (None, None, range(2, ROWS + 2), True),
        (None, NAMED, None, False),  # only labels are matched by position
        (NAMED, None, NAMED, False),
        (NAMED, NAMED, NAMED, False),
        (None, None, None, False),
        (NAMED, NAMED, "array", False),  # the caller removed the names
        ("array", NAMED, NAMED, False),
    ],
)
def test_a_private_fit_says_that_groups_are_matched_by_position(
    x: Any, y: Any, groups: Any, said: bool
) -> None:
    def give(values: Any, index: Any) -> Any:
        if isinstance(index, str):
            return np.asarray(values)
        kind = pd.DataFrame if np.ndim(values) == 2 else pd.Series
        return kind(values, index=index)

    given = give(NUMBERS, x), give(LABELS, y), give(PEOPLE, groups)
    head = private()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        head.fit(*given)
    lines = [str(each.message) for each in told if BY_POSITION in str(each.message)]
    assert len(lines) == said
    for line in lines:
        check_tokens(line, "0 to n - 1", "groups.to_numpy()", "same index")
    with warnings.catch_warnings():  # a benchmark protects nobody
        warnings.filterwarnings("error", BY_POSITION)
        classifier(unit="group").fit(*given)


def test_a_warning_about_positions_raised_as_an_error_spends_no_budget() -> None:
    head = private()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", BY_POSITION)
        with pytest.raises(UserWarning, match=BY_POSITION):
            head.fit(pd.DataFrame(NUMBERS), LABELS, pd.Series(PEOPLE, index=NAMED))
    assert budget_of(head).compute_spent().entries == 0


def test_the_rows_before_a_pipeline_are_compared() -> None:
    head = private()
    steps = make_pipeline(Normalizer(), head)
    with refuses(ArrayError, "groups", "X", "groups.loc[X.index]"):
        steps.fit(
            FEATURES.iloc[10 : 10 + ROWS],
            CLASS.iloc[10 : 10 + ROWS],
            privateclassifier__groups=PERSON.iloc[12 : 12 + ROWS],
        )
    assert budget_of(head).compute_spent().entries == 0


@pytest.mark.parametrize(
    ("left", "right", "first"),
    [
        ([5, 6, 7], [5, 6, 8], 2),
        (["a", "b", "c"], ["a", "c", "b"], 1),
        ([math.nan, 1.0, 2.0], [math.nan, 1.0, 3.0], 2),
        (pd.MultiIndex.from_tuples([(0, "a"), (1, "a"), (1, "b")]), ["a", "b", "c"], 0),
        (pd.CategoricalIndex(["a", "b", "b"]), ["a", "b", "a"], 2),
        (pd.date_range("2020-01-01", periods=3), pd.date_range("2020-01-01", periods=3, tz=UTC), 0),
        ([1, 2, 3], ["1", "2", "3"], 0),
        ([1, 1, 2], [1, 2, 2], 1),  # repeated names, as of people
    ],
)
def test_the_first_row_that_differs_is_named(left: Any, right: Any, first: int) -> None:
    arguments = {"X": pd.Series(0, index=left), "y": pd.Series(0, index=right)}
    with refuses(ArrayError, "y", "X", f"row {first}", "y.loc[X.index]"):
        check_order(**arguments)


def test_folds_of_another_order_are_refused() -> None:
    rows, people = pd.DataFrame(NUMBERS), shuffled(PEOPLE, None)
    with config_context(enable_metadata_routing=True):
        estimator = classifier(unit="group").set_fit_request(groups=True)
        with pytest.raises(ValueError, match="another order, or other rows"):
            cross_val_score(estimator, rows, LABELS, params={"groups": people}, error_score="raise")


def test_other_values_have_no_order() -> None:
    check_order(X=NUMBERS, y=[1, 2], groups=("a",), z=None)
    check_order(X=pd.DataFrame(NUMBERS), y=pd.Series([1, 2]))  # lengths are checked elsewhere


# Numbers, risks and classes from callers, as Python, NumPy or pandas values.


NO_NUMBERS: list[Any] = [
    True,
    np.bool_(1),
    "1",
    "inf",
    b"1",
    None,
    math.nan,
    np.float32("nan"),
    1j,
    10**400,
    [1.0],
    np.array(1.0),
    pd.NA,
    {"advantage": 0.1},
]


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (1, 1.0),
        (-2, -2.0),
        (0.5, 0.5),
        (np.float32(0.1), 0.1),  # as written, without float32 rounding
        (np.float16(0.1), 0.1),
        (np.float64(0.1), 0.1),
        (np.int64(3), 3.0),
        (Fraction(1, 2), 0.5),
        (math.inf, math.inf),
    ],
    ids=repr,
)
def test_python_and_numpy_numbers_are_read_without_float32_rounding(
    given: Any, number: float
) -> None:
    for read in (given_values.read_number("named", given), given_values.read_target(given)):
        assert (read, type(read)) == (number, float)


@pytest.mark.parametrize("given", NO_NUMBERS, ids=lambda value: repr(value)[:12])
def test_arguments_that_are_not_numbers_are_refused(given: Any) -> None:
    with pytest.raises(given_values.NumberError, match="^named .*pass one number") as caught:
        given_values.read_number("named", given)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, PrivacyError)
    assert len(str(caught.value)) < 140


def test_a_count_is_whole() -> None:
    for count in (3, np.int64(3), np.uint8(3)):
        read = given_values.read_count("named", count)
        assert (read, type(read)) == (3, int)
    for other in (3.0, np.float32(3), True, np.bool_(1), "3", None, Fraction(3)):
        with pytest.raises(given_values.NumberError, match="pass one whole number"):
            given_values.read_count("named", other)


def test_a_risk_is_read_from_a_mapping() -> None:
    for read in (given_values.read_target, lambda risk: given_values.read_risk("named", risk)):
        assert read({"advantage": np.float32(0.1)}) == Risk(advantage=0.1)
        rates = {"true_positives": 0.2, "at": np.float16(0.1)}
        assert read(rates) == Risk(true_positives=0.2, at=0.1)
        with pytest.raises(PrivacyError, match=r"advantage 2\.0: must be a number between 0 and 1"):
            read({"advantage": 2})
        with pytest.raises(PrivacyError, match="risk: set advantage"):
            read({})
        with pytest.raises(given_values.NumberError, match="advantage True: pass one number"):
            read({"advantage": True})
    for other in (0.1, "0.1", [0.1], None):
        with pytest.raises(given_values.NumberError, match="named .*: pass a mapping, such as"):
            given_values.read_risk("named", other)


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ([0, 1], [0, 1]),
        ([1, 0, 2.5], [0.0, 1.0, 2.5]),
        ([10, 9, 2], [2, 9, 10]),
        ({"b", "a"}, ["a", "b"]),
        (("10", "9"), ["10", "9"]),
        (np.array(["b", "a"]), ["a", "b"]),
        ([True, False], [False, True]),
        (pd.Index(["b", "a"]), ["a", "b"]),
        (pd.array([1, 0], dtype="Int64"), [0, 1]),
        (pd.Series(["b", "a"], index=[7, 3]), ["a", "b"]),
    ],
)
def test_classes_are_listed_in_order(given: Any, listed: list[Any]) -> None:
    found = given_values.list_classes(given)
    assert found == listed
    assert [type(each) for each in found] == [type(each) for each in listed]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        *(
            (each, "pass a list of labels")
            for each in (
                "ab",
                b"ab",
                {0: "a", 1: "b"},
                2,
                None,
                np.array(1),
                np.zeros((2, 2)),
                itertools.repeat(0, 2),
            )
        ),
        ([0, 1, 1], "a class is listed twice"),
        ([0], r"greater than one; got 1 class: \[0\]"),
        ([], "greater than one; got 0 class"),
        ([0, True], "labels are numbers and truth values"),
        ([0, "1"], "labels are numbers and texts"),
        (["a", True], "labels are texts and truth values"),
        ([b"a", b"b"], "labels are of type bytes"),
        ([[0], [1]], "labels are of type list"),
        ([(0, 1), 1], "labels are numbers and of type tuple"),
        (np.ones(3, "c16"), "labels are of type complex"),
        (np.ones(3, "M8[D]"), "labels are of type date"),
        *(
            (each, r"a label is missing \(None, NaN or NA\); remove it")
            for each in ([0, None], [0, math.nan], [0, pd.NA], [pd.NaT, "a"])
        ),
        (pd.Series([1, "a"], dtype=object), "labels are numbers and texts"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_classes_of_other_kinds_are_named(given: Any, fault: str) -> None:
    with pytest.raises(ArrayError, match=fault):
        given_values.list_classes(given)


KINDS_OF_LABELS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.booleans()
)
KINDS = {bool: "truth values", int: "numbers", float: "numbers", str: "texts"}


@given(labels=st.lists(KINDS_OF_LABELS))
def test_labels_have_one_kind(labels: list[Any]) -> None:
    kinds = {KINDS[type(label)] for label in labels}
    if len(kinds) > 1:
        with pytest.raises(ArrayError, match=f"^y: labels are {' and '.join(sorted(kinds))};"):
            given_values.check_kind("y", labels)
    else:
        assert given_values.check_kind("y", labels) == next(iter(kinds), None)


def test_a_missing_label_is_not_quoted() -> None:
    for labels in (["secret", None], [math.nan, "secret"], [pd.NA, "secret"]):
        with pytest.raises(ArrayError, match="^y: a label is missing .*leave out its row") as one:
            given_values.check_kind("y", labels)
        assert "secret" not in str(one.value)
