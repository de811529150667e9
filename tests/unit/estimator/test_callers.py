"""Which callers of a private fit are refused, and why; and which steps may precede it."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from sklearn import ensemble, model_selection
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.feature_selection import RFECV, SelectFromModel, SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from dpprobe.errors import PrivacyError
from dpprobe.estimator import callers
from dpprobe.estimator.private_classifier import PrivateClassifier
from tests.support.classifiers import make_benchmark, make_budget, make_private, make_rows

pytestmark = pytest.mark.filterwarnings("ignore:fit number")

X, Y = make_rows()
TWO = (Y == 0).astype(np.int64)
THREE = np.stack([Y, Y], axis=1)
SOME = np.where(np.arange(len(Y)) < 200, Y, -1)
FOLDS = KFold(2)
Make = Callable[[PrivateClassifier], Any]


class Kept(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A step without the tag that it is stateless."""

    def fit(self, X: Any, y: Any = None) -> Kept:  # noqa: ARG002
        return self

    def transform(self, X: Any) -> Any:
        return X


class Wrapper(BaseEstimator):  # type: ignore[misc]
    """A class outside scikit-learn that fits another estimator."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any) -> Wrapper:
        self.estimator.fit(X, y)
        return self


class Wrapped(Pipeline):  # type: ignore[misc]
    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        return super().fit(X, y, **params)


class Direct(Pipeline):  # type: ignore[misc]
    """A pipeline that changes rows before its last step, unseen by the checks of pipelines."""

    def fit(self, X: Any, y: Any = None) -> Any:
        return self.steps[-1][1].fit(X - X.mean(axis=0), y)


class InParts(BaseEstimator):  # type: ignore[misc]
    """A class whose `partial_fit` calls the private fit."""

    def fit(self, *_: Any) -> Any:
        return self

    def partial_fit(self, head: Any, y: Any) -> Any:
        return head.fit(X - X.mean(axis=0), y)


class NoEstimator:
    def fit(self, head: Any, y: Any) -> Any:
        return head.fit(X, y)


class Chosen(SelectFromModel):  # type: ignore[misc]
    """A user's own class that fits the head as a step of a pipeline."""


class Unbound:
    """Fit methods whose first argument is not the instance."""

    @staticmethod
    def fit(head: Any, y: Any) -> Any:
        return head.fit(X - X.mean(axis=0), y)

    @classmethod
    def partial_fit(cls, head: Any, y: Any) -> Any:
        return head.fit(X - X.mean(axis=0), y)

    def fit_predict(*given: Any) -> Any:
        return given[1].fit(X - X.mean(axis=0), Y)


def fit_for(_: Any, head: Any) -> Any:
    return head.fit(X - X.mean(axis=0), Y)


class Assigned:
    fit = fit_for


class Centred(PrivateClassifier):
    """A subclass that changes rows before the inherited fit."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Any:
        return super().fit(X - X.mean(axis=0), y, groups)


def fit(head: Any) -> Any:
    """Plain functions may fit a head: their caller sees which rows they pass."""
    return head.fit(X, Y)


def scale(rows: Any) -> Any:
    return (rows - rows.mean(axis=0)) / rows.std(axis=0)


def fill_one(place: int) -> Any:
    """Returns a function that changes a single row, which is in only one of the compared parts."""
    return lambda rows: np.where((rows == X[place]).all(1, keepdims=True), rows.mean(0), rows)


def need_many(rows: Any) -> Any:
    if len(rows) < 200:
        raise KeyError(str(rows))
    return rows


def check_range(rows: Any) -> Any:
    if np.abs(rows).max() > 8:
        raise ValueError("out of range")
    return rows


class CentresLater(Kept):
    """A step whose `fit_transform` returns other rows than `transform`."""

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        return self.fit(X, y).transform(X) + 1

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class Shorter(CentresLater):
    def fit_transform(self, X: Any, y: Any = None) -> Any:  # noqa: ARG002
        return X[::2]


def after(step: Any, rows: int = len(X)) -> Make:
    return lambda head: make_pipeline(step, head).fit(X[:rows], Y[:rows])


def spread(function: Any) -> Make:
    return after(FunctionTransformer(function))


def public(step: Any) -> Make:
    """Returns a pipeline with a step that the user declares as fitted on public data."""
    return lambda head: Pipeline([("public", step), ("head", head)]).fit(X, Y)


def frozen(step: Any) -> Make:
    return public(FrozenEstimator(step.fit(make_rows(seed=5).X)))


def named(*steps: Any, kind: Any = Pipeline, then: str = "fit") -> Make:
    """Returns a pipeline of steps that are named by position; None stands for the head."""

    def compose(head: PrivateClassifier) -> Any:
        heads = [Chosen(head) if step is Chosen else step for step in steps]
        made = [(f"{place}", head if step is None else step) for place, step in enumerate(heads)]
        return getattr(kind(made), then)(X, Y)

    return compose


def around(kind: Any, y: Any = Y, **options: Any) -> Make:
    """Returns a fit of the head by another estimator; with `TWO` it has two classes."""

    def compose(head: PrivateClassifier) -> Any:
        head = head.set_params(classes=[0, 1]) if y is TWO else head
        listed = kind in (ensemble.StackingClassifier, ensemble.VotingClassifier)
        return kind([("a", head)] if listed else head, **options).fit(X, y)

    return compose


def declared(make: Make, *public: str) -> Make:
    return lambda head: make(head.set_params(public_steps=public))


def searched(grid: list[float], **options: Any) -> Make:
    return around(GridSearchCV, param_grid={"epsilon": grid}, error_score="raise", **options)


def scored(function: Any, **options: Any) -> Make:
    return lambda head: function(head, X, Y, **{"cv": FOLDS} | options)


FITTED = "is fitted on the private rows without noise"
MIXES = "if other rows are present"
REFUSED = "its fit calls a private fit, and may use rows twice, or choose them"
STRATIFIED = r"cv StratifiedKFold: it splits by the private labels.*pass cv=KFold\(5\)"

REFUSED_CLASSES: list[tuple[Any, Any, dict[str, Any]]] = [
    (ensemble.StackingClassifier, Y, {}),
    (CalibratedClassifierCV, Y, {}),
    (model_selection.TunedThresholdClassifierCV, TWO, {}),
    (OneVsRestClassifier, Y, {}),
    (SelfTrainingClassifier, SOME, {}),
    (ClassifierChain, THREE, {}),
    (RFECV, Y, {}),
    (SelectFromModel, Y, {"max_features": 2}),
    (SequentialFeatureSelector, Y, {"cv": FOLDS}),
    # the n of its first fits follows from the number of classes in y
    (
        HalvingGridSearchCV,
        Y,
        {"param_grid": {"epsilon": [1.0, 2.0]}, "cv": FOLDS, "error_score": "raise"},
    ),
]

# Compositions, with the number of their fits or the reason for the refusal.
COMPOSITIONS: dict[str, tuple[Make, int | str]] = {
    # steps before the head
    "stateless": (after(Normalizer()), 1),
    "nothing": (after("passthrough"), 1),
    "own rows": (spread(np.abs), 1),
    "range": (spread(check_range), 1),
    "own sums": (spread(lambda rows: rows @ np.full((6, 9), 0.3, np.float32)), 1),
    "scaler": (after(StandardScaler()), rf"step 'standardscaler' .*{FITTED}"),
    "union": (after(FeatureUnion([("pca", PCA(2))])), FITTED),
    "columns": (after(ColumnTransformer([("scaled", StandardScaler(), [0, 1])])), FITTED),
    "inner pipeline": (after(make_pipeline(StandardScaler(), Normalizer())), FITTED),
    "unknown step": (after(Kept()), FITTED),
    "scale": (spread(scale), rf"step 'functiontransformer' .*{MIXES}"),
    # the condition holds for none of the few compared rows
    "mean of few rows": (spread(lambda rows: np.where(rows < -3, rows.mean(0), rows)), MIXES),
    "one odd row": (spread(fill_one(101)), MIXES),
    "one even row": (spread(fill_one(100)), MIXES),
    "only in large batches": (
        spread(lambda rows: rows - rows.mean(axis=0) if len(rows) > 150 else rows),
        MIXES,
    ),
    "rare maximum": (  # all rows have a maximum below 8
        spread(lambda rows: rows / np.float32(np.ceil(np.abs(rows).max() / 8))),
        MIXES,
    ),
    "second step": (named(Normalizer(), FunctionTransformer(scale), None), MIXES),
    "random": (spread(lambda rows: rows + np.random.default_rng().normal(size=rows.shape)), MIXES),
    "fit_transform": (after(CentresLater()), MIXES),
    "fewer rows": (after(Shorter()), MIXES),
    "public": (public(Kept()), 1),
    "frozen": (frozen(StandardScaler()), 1),
    "frozen sums": (frozen(PCA(3)), 1),
    "fitted again": (public(StandardScaler().fit(X)), MIXES),
    "too few rows": (public(PCA(6)), MIXES),
    "one row": (after(Normalizer(), 1), 1),
    "two rows": (after(FunctionTransformer(scale), 2), MIXES),
    "three": (after(Normalizer(), 3), 1),
    "error with rows": (spread(need_many), "fails for a subset of the rows: KeyError: it computes"),
    "pipeline of its own": (named(Normalizer(), None, kind=Direct), "Direct: its fit calls"),
    "in parts": (lambda head: InParts().partial_fit(head, Y), "InParts: its fit calls"),
    "no estimator": (lambda head: NoEstimator().fit(head, Y), "NoEstimator: its fit calls"),
    "static": (lambda head: Unbound.fit(head, Y), "Unbound: its fit calls"),
    "of a class": (lambda head: Unbound.partial_fit(head, Y), "Unbound: its fit calls"),
    "any arguments": (lambda head: Unbound().fit_predict(head), "Unbound: its fit calls"),
    "assigned": (lambda head: Assigned().fit(head), "Assigned: its fit calls"),
    "inherited": (lambda head: Centred(**head.get_params(deep=False)).fit(X, Y), "Centred: its"),
    "declared heir": (
        lambda head: (
            Centred(**head.get_params(deep=False)).set_params(public_steps=["Centred"]).fit(X, Y)
        ),
        1,
    ),
    "function": (fit, 1),
    "frozen after frozen": (
        declared(
            named(FrozenEstimator(StandardScaler().fit(X)), FrozenEstimator(PCA(2).fit(X)), None),
            "0",
            "1",
        ),
        1,
    ),
    "private step": (
        public(Chosen(make_private(public_steps=["Chosen"]))),
        "contains a private fit",
    ),
    "outer pipeline": (
        lambda head: make_pipeline(StandardScaler(), make_pipeline(Normalizer(), head)).fit(X, Y),
        "step 'standardscaler'",
    ),
    "subclass": (named(Normalizer(), None, kind=Wrapped), 1),
    "fitted step in a subclass": (named(StandardScaler(), None, kind=Wrapped), FITTED),
    "step before a search": (
        lambda head: make_pipeline(
            StandardScaler(), GridSearchCV(head, {"epsilon": [1.0]}, cv=FOLDS, error_score="raise")
        ).fit(X, Y),
        FITTED,
    ),
    # steps after the head
    "stateless after": (
        declared(named(Chosen, FunctionTransformer(), then="fit_transform"), "Chosen"),
        "step '0' contains a private fit, but is not the last step",
    ),
    "scaler after": (declared(named(Chosen, StandardScaler()), "Chosen"), "not the last step"),
    "step before the inner one": (
        declared(named(StandardScaler(), Chosen, Normalizer()), "Chosen"),
        "not the last step",
    ),
    # estimators that fit estimators
    **{
        kind.__name__: (around(kind, y, **options), f"({kind.__name__}|RFE): {REFUSED}")
        for kind, y, options in REFUSED_CLASSES
    },
    "regressor": (
        declared(around(ensemble.BaggingRegressor), "BaggingRegressor"),
        "BaggingRegressor: its fit calls",
    ),
    "boosting": (around(ensemble.AdaBoostClassifier), "support sample_weight"),
    "own class": (around(Wrapper), r"public_steps=\['Wrapper'\]"),
    "declared class": (declared(around(Wrapper), "Wrapper"), 1),
    "class of scikit-learn": (
        declared(around(ensemble.VotingClassifier), "VotingClassifier"),
        REFUSED,
    ),
    # searches and cross-validation
    "search": (searched([1.0, 2.0], cv=FOLDS), 5),
    "stratified search": (searched([1.0]), STRATIFIED),
    "scores": (scored(model_selection.cross_val_score), 2),
    "stratified scores": (
        scored(model_selection.cross_val_score, cv=5, error_score="raise"),
        STRATIFIED,
    ),
    "predictions": (scored(model_selection.cross_val_predict), 2),
    "probabilities": (
        scored(model_selection.cross_val_predict, method="predict_proba"),
        "numbers the classes by the private labels",
    ),
    "curve": (scored(model_selection.learning_curve, train_sizes=[0.8]), 2),
    "permuted labels": (scored(model_selection.permutation_test_score), "labels of other people"),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions(name: str) -> None:
    compose, expected = COMPOSITIONS[name]
    budget = make_budget(max_epsilon=1000.0)
    head = make_private(budget=budget, public_steps=["public"])
    if isinstance(expected, int):
        compose(head)
        assert budget.compute_spent().entries == expected
        return
    with pytest.raises((PrivacyError, ValueError), match=f"(?s){expected}"):
        compose(head)
    assert budget.compute_spent().entries == 0


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_fits_in_workers_of_scikit_learn_are_refused(backend: str, tmp_path: Path) -> None:
    """The pipeline that fits the scaler is invisible to workers, so no declaration helps."""
    budget = make_budget(tmp_path / "data/people")
    head = make_private(budget=budget, public_steps=["joblib"])
    search = GridSearchCV(head, {"epsilon": [1.0]}, cv=FOLDS, error_score="raise", n_jobs=2)
    with (
        parallel_config(backend=backend),
        pytest.raises(PrivacyError, match=r"joblib: this fit runs in a worker.*Write n_jobs=1"),
    ):
        make_pipeline(StandardScaler(), search).fit(X, Y)
    assert budget.compute_spent().entries == 0


def test_a_fit_in_a_thread_pool_must_declare_its_public_steps() -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(PrivacyError, match=r"pass public_steps=\['concurrent'\]"):
            pool.submit(make_private().fit, X, Y).result()
        pool.submit(make_private(public_steps=["concurrent"]).fit, X, Y).result()


@pytest.mark.parametrize("cached", [False, True])
def test_cached_steps_are_checked(cached: bool, tmp_path: Path) -> None:
    memory = str(tmp_path) if cached else None
    make_pipeline(Normalizer(), make_private(), memory=memory).fit(X, Y)
    for step, reason in ((StandardScaler(), FITTED), (FunctionTransformer(scale), MIXES)):
        with pytest.raises(PrivacyError, match=reason):
            make_pipeline(step, make_private(), memory=memory).fit(X, Y)


def test_steps_of_texts_and_frames_are_compared() -> None:
    words = ["the quick", "brown fox", "jumps over"]
    texts = [words[label] for label in Y]
    hashes = HashingVectorizer(n_features=8), FunctionTransformer(methodcaller("toarray"))
    for given in (texts, np.array(texts)):
        with pytest.warns(UserWarning, match="237 rows repeat another row"):
            make_pipeline(*hashes, make_private()).fit(given, Y)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    make_pipeline(FunctionTransformer(abs), make_private()).fit(frame, Y)
    with pytest.raises(PrivacyError, match=MIXES):
        make_pipeline(FunctionTransformer(scale), make_private()).fit(frame, Y)


def test_a_benchmark_takes_any_caller() -> None:
    assert make_pipeline(StandardScaler(), make_benchmark()).fit(X, Y).score(X, Y) > 0.5


def test_a_pipeline_step_may_fit_a_classifier_while_it_predicts() -> None:
    """A step may fit a classifier on its own rows while it predicts."""
    classifier = make_private()

    class Fits(Kept):
        def predict(self, X: Any) -> Any:  # noqa: ARG002
            return classifier.fit(*make_rows()).classes_

        def __sklearn_is_fitted__(self) -> bool:
            return True

    make_pipeline(StandardScaler(), Fits()).fit(X, Y).predict(X)


STEP_ROWS = np.array([[1.0, -64.0], [2.0**-20, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 100])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_rows_may_differ_by_the_rounding_of_a_sum(kind: Any, width: int, place: int) -> None:
    """The tolerance is 8 float32 roundings of the row's largest number, times sqrt(width)."""
    size = np.abs(STEP_ROWS[place]).max()
    limit = 8 * math.sqrt(width) * 2.0**-23 * size
    for factor in (0.5, 1.0, 1.3, -2.0):
        other = STEP_ROWS.copy()
        other[place, 0] += factor * limit
        wanted = abs(factor) > 1 and size > 0
        pair = STEP_ROWS.astype(kind), other.astype(kind)
        assert callers._rows_differ(*pair, width=width) == wanted
