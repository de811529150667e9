"""The order of rows that pandas knows: no label, group or weight goes to another row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.model_selection import cross_val_score

from dpprobe import PrivateClassifier
from dpprobe.errors import DpprobeError
from dpprobe.estimator.given_values import check_order

ROWS = 60
GENERATOR = np.random.default_rng(0)
NUMBERS = GENERATOR.normal(size=(ROWS, 3)).astype(np.float32)
LABELS = (NUMBERS[:, 0] > 0).astype(int)
PEOPLE = [f"p{row // 3}" for row in range(ROWS)]
NAMES = [f"image {row:02}" for row in range(ROWS)]
REFUSED = "its index has the rows of {} in another order"


def shuffled(values: Any, index: Any) -> pd.Series:
    return pd.Series(values, index=index).sample(frac=1, random_state=3)


def reverse(values: Any, index: Any) -> pd.Series:
    return pd.Series(values, index=index)[::-1]


def sort(values: Any, index: Any) -> pd.Series:
    return pd.Series(values, index=index).sort_values(kind="stable", ascending=False)


def swap_two(values: Any, index: Any) -> pd.Series:
    places = [1, 0, *range(2, ROWS)]
    return pd.Series(values, index=index).iloc[places]


def frame_of_one(values: Any, index: Any) -> pd.DataFrame:
    return shuffled(values, index).to_frame()


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
@pytest.mark.parametrize("change", [shuffled, reverse, sort, swap_two, frame_of_one])
def test_another_order_is_refused(index: Any, change: Callable[[Any, Any], Any]) -> None:
    rows = pd.DataFrame(NUMBERS, index=index)
    with pytest.raises(DpprobeError, match=f"y: {REFUSED.format('X')}"):
        classifier().fit(rows, change(LABELS, index))
    people = change(PEOPLE, index)
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
        (pd.Series(LABELS, index=[f"y{row}" for row in range(ROWS)]), np.array(PEOPLE)),
    ):
        fitted = classifier(unit="group").fit(rows, labels, groups=people)
        np.testing.assert_array_equal(fitted.coef_, expected.coef_)


def test_a_default_index_has_no_names() -> None:
    """Rows that another step made have a default index, and labels that of their first table."""
    rows = pd.DataFrame(NUMBERS)
    classifier().fit(rows, pd.Series(LABELS, index=GENERATOR.permutation(2 * ROWS)[:ROWS]))


def test_the_remedies_work() -> None:
    rows = pd.DataFrame(NUMBERS, index=NAMES)
    labels = shuffled(LABELS, NAMES)
    expected = classifier().fit(NUMBERS, LABELS).coef_
    np.testing.assert_array_equal(classifier().fit(rows, labels.loc[rows.index]).coef_, expected)
    classifier().fit(rows, labels.to_numpy())


def test_folds_of_another_order_are_refused() -> None:
    rows, people = pd.DataFrame(NUMBERS), shuffled(PEOPLE, None)
    with config_context(enable_metadata_routing=True):
        estimator = classifier(unit="group").set_fit_request(groups=True)
        with pytest.raises(ValueError, match="another order, or other rows"):
            cross_val_score(estimator, rows, LABELS, params={"groups": people}, error_score="raise")


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_scores_have_the_same_order(index: Any) -> None:
    rows = pd.DataFrame(NUMBERS, index=index)
    fitted = classifier().fit(rows, LABELS)
    accuracy = np.mean(fitted.predict(NUMBERS) == LABELS)
    assert fitted.score(rows, pd.Series(LABELS, index=index)) == accuracy
    with pytest.raises(ValueError, match=f"y: {REFUSED.format('X')}"):
        fitted.score(rows, shuffled(LABELS, index))
    with pytest.raises(ValueError, match=f"sample_weight: {REFUSED.format('X')}"):
        fitted.score(rows, LABELS, sample_weight=shuffled(np.ones(ROWS), index))


def test_other_values_have_no_order() -> None:
    check_order(X=NUMBERS, y=[1, 2], groups=("a",), z=None)
    check_order(X=pd.DataFrame(NUMBERS), y=pd.Series([1, 2]))  # lengths are checked elsewhere
