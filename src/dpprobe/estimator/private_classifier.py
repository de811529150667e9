"""A linear classifier with differential privacy, as an estimator of scikit-learn.

The estimator uses the same options, plans, noise, statements and bundles as a study. With the seed
of a study's cell, the estimator computes the weights of the cell, bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.callers import check_callers
from dpprobe.estimator.given_values import check_order
from dpprobe.estimator.parameters import PROTECTS_NOTHING, check_parameters, read_method

if TYPE_CHECKING:
    from dpprobe.estimator.fitted_head import Fit
    from dpprobe.privacy.plan import Plan


def _has_probabilities(classifier: PrivateClassifier) -> bool:
    if hasattr(classifier, "fit_"):
        return classifier.fit_.method.link_on(False) != "none"
    try:
        return read_method(classifier).link_on(False) != "none"
    except ConfigError:
        return True  # `auto` always chooses a head with probabilities


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier of vectors, trained with differential privacy.

    A classifier has two modes. By default the noise is secret, sums are exact, and the head may be
    published. Each fit is booked in `budget` before its noise is drawn. With `benchmark=True` the
    noise comes from a seed, so that results can be reproduced; benchmark mode protects nobody.

    Args:
      epsilon: the target epsilon, or a permitted risk: `{"advantage": 0.1}`, or `{"true_positives":
        0.01, "at": 0.001}`. In benchmark mode `math.inf` means no noise.
      delta: the target delta. By default the budget's delta, or in benchmark mode the largest power
        of ten up to 1e-5 and 0.1 / n. A delta above 0.1 / n gives a warning.
      head: the name of a method (`auto`, `momentum`, `least_squares`, ...) or a mapping with its
        options as in a study, such as `{"head": "sgd", "batch_size": 256}`.
      classes: the labels that y may have. The classes are published with the weights, so a private
        fit does not read them from y, which is private.
      unit: the unit of privacy. "row": each row is a unit. "group": all rows with one value of
        `groups` are a unit, such as a patient's images. With unit "group", `fit` needs `groups`.
        "image" and "patient" mean the same for images: use the study's word if a study shares the
        ledger.
      budget: the common privacy budget of all private fits on these data, which a private fit
        needs. Clones of the estimator share the estimator's budget.
      benchmark: True for seeded noise without a budget, which protects nobody.
      random_state: the seed of benchmark mode: a whole number, or None for a random seed. A private
        fit refuses a seed.
      public_steps: names of steps of a `Pipeline` that were fitted on public data. Wrap these steps
        in `FrozenEstimator`, so that the pipeline does not fit them again. Steps that scikit-learn
        tags as stateless, such as `Normalizer`, need not be listed. List here also your own classes
        whose `fit` calls this estimator, and packages whose workers call it, such as "joblib".
      missing: "refuse", or "null". Rows with NaN, infinity or huge values count as rows of zeros,
        as in a study, and a warning states their share. "refuse" raises an error before anything
        is spent if they are a tenth of all rows or more; "null" accepts any share. The error and
        the warning depend on the data and no epsilon covers them, so do not publish them.

    Attributes:
      classes_: [classes], sorted, as tools of scikit-learn assume.
      n_features_in_: the dimension of X.
      coef_: float32 [classes, n_features_in_], for rows after the method's `normalize`; read-only.
      intercept_: float32 [classes], read-only.
      plan_: the mechanisms with their noise multipliers.
      fit_: the heads and the facts of their privacy statement.

    Example:
      >>> import numpy as np
      >>> from dpprobe import Budget, PrivateClassifier
      >>> rows = np.random.default_rng(0).normal(size=(100, 2))
      >>> labels = np.where(rows[:, 0] > 0, "benign", "malignant")
      >>> PrivateClassifier(epsilon=1).fit(rows, labels)
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: budget: a private fit needs one:
      budget=dpprobe.Budget(max_epsilon=1, delta=1e-6); or pass benchmark=True for a seeded
      fit that protects nothing
      >>> head = PrivateClassifier(
      ...     epsilon=1, head="prototypes", classes=["benign", "malignant"],
      ...     budget=Budget(max_epsilon=2, delta=1e-5),
      ... )
      >>> head.fit(rows, labels).coef_.shape  # [classes, features]
      (2, 2)
      >>> [(m.name, round(m.noise_multiplier, 2)) for m in head.plan_.mechanisms]
      [('centre', 18.65), ('class_sums', 3.81)]
    """

    classes_: npt.NDArray[Any]
    n_features_in_: int
    coef_: npt.NDArray[np.float32]
    intercept_: npt.NDArray[np.float32]
    plan_: Plan
    fit_: Fit

    def __init__(
        self,
        epsilon: float | Mapping[str, float] = 1.0,
        *,
        delta: float | None = None,
        head: str | Mapping[str, Any] = "auto",
        classes: Sequence[Hashable] | None = None,
        unit: Literal["row", "group", "image", "patient"] = "row",
        budget: Budget | None = None,
        benchmark: bool = False,
        random_state: int | np.random.RandomState | None = None,
        public_steps: Sequence[str] = (),
        missing: Literal["refuse", "null"] = "refuse",
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.head = head
        self.classes = classes
        self.unit = unit
        self.budget = budget
        self.benchmark = benchmark
        self.random_state = random_state
        self.public_steps = public_steps
        self.missing = missing

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = not self.benchmark
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Trains a head; a private fit always spends from the budget.

        Args:
          X: numbers [n, d]: an array, a tensor, a data frame, a memory map or a dataset of h5py. X
            may also be an iterator of blocks [m, d], or a result of `read_features`. Each row must
            be computed from its own item alone, such as an image.
          y: [n] labels, each one of `classes`.
          groups: [n] names of the rows' groups, for `unit="group"`.

        Returns:
          The estimator itself.

        Raises:
          PrivacyError: before the fit is recorded, if the guarantee would not hold.
          BudgetError: if the budget does not allow this fit.
          DpprobeError, ValueError: for inputs or parameters that cannot be used.

        Example:
          >>> rows, labels = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], [0, 0, 1]
          >>> head = PrivateClassifier(unit="group", head="prototypes", benchmark=True)
          >>> head.fit(rows, labels, groups=["ann", "ann", "eve"]).plan_.n  # patients, not rows
          2
          >>> head.fit(rows, labels)
          Traceback (most recent call last):
              ...
          dpprobe.errors.PrivacyError: groups: the unit of privacy is a group, but the fit has no
          groups; pass fit(X, y, groups=...), in cross_val_score params={'groups': ...}
        """
        raw = None if self.benchmark else check_callers(self.public_steps)
        check_parameters(self)
        # late import: torch takes seconds, and errors above should come first
        from dpprobe.estimator.fit_and_score import fit_classifier

        fit_classifier(self, X, y, groups, raw)
        return self

    # scores and predictions

    def decision_function(self, X: Any) -> npt.NDArray[np.float32]:
        """Returns scores [n, classes]; for two classes [n], positive for the second class."""
        scores = self._score_rows(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Returns each row's class with the largest score, [n].

        Example:
          >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
          >>> head = PrivateClassifier(head="prototypes", benchmark=True, random_state=0)
          >>> _ = head.fit(rows, np.where(rows[:, 0] > 0, "benign", "malignant"))
          >>> head.predict([[2.0, 0.1], [-1.5, 0.1]]).tolist()
          ['benign', 'malignant']
        """
        scores = self._score_rows(X)
        answers: npt.NDArray[Any] = self.classes_[scores.argmax(axis=1)]
        return answers

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Returns probabilities [n, classes]; only for heads whose scores are logits.

        The probabilities of a row sum to 1. With `loss: sigmoid` a bundle gives each class's own
        probability; these need not add up to 1.
        """
        from dpprobe.estimator.fit_and_score import link_scores  # late, as in `fit`

        return link_scores(self._score_rows(X), self.fit_.method)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the accuracy; raises ValueError if two indexes differ, in rows or in order."""
        check_order(X=X, y=y, sample_weight=sample_weight)
        return float(super().score(X, y, sample_weight))

    def _score_rows(self, X: Any) -> npt.NDArray[np.float32]:
        check_is_fitted(self)
        from dpprobe.estimator.fit_and_score import score_blocks  # late, as in `fit`

        return score_blocks(self, X)

    # the privacy statement

    @property
    def privacy_(self) -> dict[str, Any]:
        """The privacy statement: facts on the guarantee, its mechanisms, and its limits.

        Raises:
          NotFittedError: before `fit`.
        """
        check_is_fitted(self)
        # late, because releases need more libraries than benchmarks
        from dpprobe.estimator.estimator_bundle import state_benchmark, state_release

        fit = self.fit_
        return state_release(fit) if fit.is_private else state_benchmark(fit)

    @property
    def promise_(self) -> str:
        """The guarantee in words, or why there is none; "Not for release" if it is a benchmark.

        Raises:
          NotFittedError: before `fit`.

        Example:
          >>> head = PrivateClassifier(head="prototypes", benchmark=True, random_state=0)
          >>> head.fit([[1.0, 0.0], [0.0, 1.0]], [0, 1]).promise_.partition(".")[0]
          'Not for release'
        """
        from dpprobe.privacy.statement_words import explain_statement  # late, as in `privacy_`

        words = explain_statement(self.privacy_)
        return words.promise if self.fit_.is_private else f"{words.mode} {words.promise}"

    def save_bundle(
        self,
        folder: str | Path,
        *,
        dataset: str,
        model: str,
        each_by_itself: bool,
        pretrained: bool,
        version: str | None = None,
        weights_sha256: str | None = None,
        sign_key: str | Path | None = None,
        card: Mapping[str, str] | None = None,
    ) -> Path:
        """Writes the bundle of a private head, which others can check (`dpprobe verify`) and use.

        Args:
          folder: the path of a new folder; the folder's name is the name of the release.
          dataset: the name of the private data.
          model: the name of the model that computed the rows of X.
          each_by_itself: True declares that each row was computed from its own item alone.
          pretrained: True declares that the model was trained, on public data with neither the
            private items nor near-duplicates of them; False, that no data went into the model.
          version: the version of the model.
          weights_sha256: the hash of the model's weights, if known.
          sign_key: the file with an Ed25519 private key in PEM, to sign the bundle.
          card: `license`, `intended_use`, `limits` and `contact`, texts for the model card.

        Returns:
          The folder.

        Raises:
          PrivacyError: after a fit in benchmark mode, for weights that have changed since the fit,
            or if `each_by_itself` is not True.
          ConfigError: if the folder exists, or a name cannot be used.

        Example:
          >>> head = PrivateClassifier(head="prototypes", benchmark=True, random_state=0)
          >>> _ = head.fit([[1.0, 0.0], [0.0, 1.0]], [0, 1])
          >>> facts = {"dataset": "moles", "model": "m", "each_by_itself": True, "pretrained": True}
          >>> head.save_bundle("v1", **facts)
          Traceback (most recent call last):
              ...
          dpprobe.errors.PrivacyError: save_bundle: benchmark=True protects nothing: the noise
          follows from a seed in the statement. Fit with benchmark=False and a budget, and save
          that head
        """
        check_is_fitted(self)
        if not self.fit_.is_private:
            raise PrivacyError(
                f"save_bundle: {PROTECTS_NOTHING}Fit with benchmark=False and a budget, and save "
                "that head"
            )
        # late, as in `privacy_`
        from dpprobe.estimator.estimator_bundle import write_release

        return write_release(
            Path(folder),
            self.fit_,
            dataset=dataset,
            external={
                "family": "external",
                "model": model,
                "version": version,
                "weights_sha256": weights_sha256,
                "pretrained": pretrained,
                "each_by_itself": each_by_itself,
            },
            sign_key=None if sign_key is None else Path(sign_key),
            card=dict(card or {}),
        )
