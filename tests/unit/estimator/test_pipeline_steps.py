"""Steps before a private classifier: one that was fitted on private rows breaks the promise."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from dpprobe.errors import PrivacyError
from tests.support.classifiers import make_benchmark, make_budget, make_private, make_rows


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (StandardScaler(), "standardscaler"),
        (PCA(3), "pca"),
        (FeatureUnion([("pca", PCA(2))]), "featureunion"),
        (ColumnTransformer([("scaled", StandardScaler(), [0, 1])]), "columntransformer"),
        (make_pipeline(StandardScaler(), Normalizer()), "pipeline"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_a_step_that_was_fitted_on_the_rows_is_refused(
    step: Any, name: str, cached: bool, tmp_path: Any
) -> None:
    budget = make_budget()
    memory = str(tmp_path) if cached else None
    steps = make_pipeline(step, make_private(budget=budget), memory=memory)
    with pytest.raises(PrivacyError, match=rf"step '{name}' .*public_steps=\['{name}'\]"):
        steps.fit(*make_rows())
    assert budget.compute_spent().entries == 0


def test_a_fitted_step_far_before_is_refused() -> None:
    inner = make_pipeline(Normalizer(), make_private())
    with pytest.raises(PrivacyError, match="step 'standardscaler'"):
        make_pipeline(StandardScaler(), inner).fit(*make_rows())
    searched = GridSearchCV(make_private(), {"epsilon": [1.0]}, error_score="raise", cv=2)
    with pytest.raises(PrivacyError, match="step 'standardscaler'"):
        make_pipeline(StandardScaler(), searched).fit(*make_rows())


def test_a_classifier_within_a_step_has_only_the_steps_before_that() -> None:
    budget = make_budget()
    steps = Pipeline(
        [
            ("stateless", Normalizer()),
            ("chosen", SelectFromModel(make_private(budget=budget))),
            ("scaler", StandardScaler()),
            ("last", LogisticRegression()),
        ]
    )
    steps.fit(*make_rows())
    assert budget.compute_spent().entries == 1
    refused = Pipeline([("before", StandardScaler()), *steps.steps])
    with pytest.raises(PrivacyError, match="step 'before'"):
        refused.fit(*make_rows())


class Centred(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A step that does not say that it is stateless."""

    def fit(self, X: Any, y: Any = None) -> Centred:  # noqa: ARG002
        return self

    def transform(self, X: Any) -> Any:
        return X


@pytest.mark.parametrize(
    "step", [Normalizer(), FunctionTransformer(abs), "passthrough", None], ids=str
)
def test_stateless_steps_pass(step: Any) -> None:
    X, y = make_rows()
    steps = Pipeline([("step", step), ("head", make_private())]).fit(X, y)
    assert steps.score(X, y) > 0.3


def test_a_step_that_does_not_say_what_it_is_needs_a_declaration() -> None:
    X, y = make_rows()
    with pytest.raises(PrivacyError, match="step 'centred'"):
        make_pipeline(Centred(), make_private()).fit(X, y)
    make_pipeline(Centred(), make_private(public_steps=["centred"])).fit(X, y)


def test_a_step_that_was_fitted_on_public_rows_is_declared() -> None:
    X, y = make_rows()
    declared = make_private(public_steps=["standardscaler"])
    make_pipeline(StandardScaler(), declared).fit(X, y)


def test_a_benchmark_takes_any_step() -> None:
    X, y = make_rows()
    assert make_pipeline(StandardScaler(), make_benchmark()).fit(X, y).score(X, y) > 0.5


def test_a_pipeline_that_is_not_fitting_is_no_pipeline_of_it() -> None:
    """A step that fits a classifier of its own rows while it predicts."""
    X, y = make_rows()
    classifier = make_private()

    class Fits(BaseEstimator):  # type: ignore[misc]
        def fit(self, X: Any, y: Any = None) -> Fits:  # noqa: ARG002
            return self

        def predict(self, X: Any) -> Any:  # noqa: ARG002
            return classifier.fit(*make_rows()).classes_

        def __sklearn_is_fitted__(self) -> bool:
            return True

    make_pipeline(StandardScaler(), Fits()).fit(X, y).predict(X)
