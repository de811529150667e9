"""Trains the head of a `PrivateClassifier`, and scores rows with the head."""

from __future__ import annotations

import numbers
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from dpprobe.errors import ConfigError
from dpprobe.estimator.array_inputs import (
    SCORED_BYTES,
    STREAMED_BYTES,
    check_labels,
    clear_unusable,
    find_source,
    hide_values,
    join_blocks,
    number_labels,
    read_shape,
    read_source,
    warn_caller,
)
from dpprobe.estimator.fitted_head import Fit
from dpprobe.estimator.given_values import ArrayError, check_order
from dpprobe.estimator.known_rows import Origin, find_equal_labels, find_origins, read_raw
from dpprobe.estimator.planned_fit import PlannedFit, explain_searches, fit_privately, plan_fit
from dpprobe.estimator.private_rows import compare_public_files, remember_head
from dpprobe.estimator.row_copies import warn_of_copies
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.row_source import RowSource
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.plan import Plan

MANY_LOST = 0.1  # share of rows without usable values at which a fit is refused


def fit_classifier(classifier: Any, X: Any, y: Any, groups: Any, raw: Any) -> None:
    """Trains a head and sets a `PrivateClassifier`'s attributes; see `PrivateClassifier.fit`.

    Args:
      raw: the rows before the first step of a pipeline; None for rows without a pipeline.
    """
    by_position = check_order(X=X if raw is None else raw, y=y, groups=groups)
    if "groups" in by_position and classifier.budget is not None:
        _warn_of_positions()
    X = join_blocks(X)
    if isinstance(X, FeatureStore) and groups is None and classifier.unit in Plan.GROUPS:
        groups = X.units
    if classifier.budget is None:
        rows, labels = _read_rows(classifier, X, y)
        planned = plan_fit(classifier, len(labels), classifier.n_features_in_, groups, labels)
    else:
        # A fit that the budget does not allow is refused before any row is read.
        origins = [Origin.of_store(X)] if isinstance(X, FeatureStore) else []
        planned = _check_plan(classifier, X, groups, origins)
        rows, labels = _read_rows(classifier, X, y)
        if not origins and (origins := _find_origins(rows, labels, raw)):
            planned = _check_plan(classifier, X, groups, origins)
        warn_of_copies(rows, planned.units, planned.promise)
    for warning in planned.list_delta_warnings(classifier.budget):
        warn_caller(warning)
    class_names = tuple(map(str, planned.classes))
    data = TrainingSet(
        load_features(rows, planned.plan),
        torch.from_numpy(number_labels(labels, planned.classes)),
        num_classes=len(planned.classes),
        units=planned.units,
        public=compare_public_files(planned.method, rows, class_names),
        warn=lambda _: None,  # `_judge_missing` warns with more details
    )
    # A result of `read_features` may have null examples, which its study accepted.
    _judge_missing(data, accepted=classifier.missing == "null" or isinstance(X, FeatureStore))
    if classifier.budget is None:
        seed = draw_seed(classifier.random_state)
        heads = fit_heads(planned.method, data, planned.plan, [seed], entropy=SEEDED)
        booked: dict[str, Any] = {}
    else:
        heads, booked = fit_privately(classifier.budget, planned, data)
    classifier.fit_ = Fit(
        method=planned.method,
        facts=planned.facts,
        plan=planned.plan,
        classes=class_names,
        file_hashes=data.public.hashes,
        heads=heads,
        promise=planned.promise,
        **booked,
    )
    remember_head(heads.weights[0])
    classifier.plan_ = planned.plan
    classifier.classes_ = np.asarray(planned.classes)
    # copies, so that the bundle and predictions keep the released weights
    classifier.coef_ = heads.weights[0, :, :-1].copy()
    classifier.intercept_ = heads.weights[0, :, -1].copy()
    classifier.coef_.flags.writeable = classifier.intercept_.flags.writeable = False
    budget, entry = classifier.budget, classifier.fit_.entry
    if budget is not None and entry is not None and entry > 1:
        warn_caller(
            f"fit number {entry} on this budget: all fits together cost epsilon "
            f"{budget.compute_spent().epsilon:g} at delta {budget.delta:g}; the limit is "
            f"{budget.describe_limit()}"
        )


def _judge_missing(data: TrainingSet, *, accepted: bool) -> None:
    """Warns of rows that count as zeros; raises ArrayError if there are too many."""
    lost = int(data.lengths.isinf().sum())
    if not lost:
        return
    share = lost / data.rows
    told = (
        f"X: {share:.1%} of the rows ({lost:,} of {data.rows:,}) have NaN, infinity, huge or tiny "
        "values, and count as rows of zeros"
    )
    if share >= MANY_LOST and not accepted:
        raise ArrayError(
            f"{told}; nothing was fitted or spent. Replace such values by public constants, or "
            'pass missing="null"'
        )
    warn_caller(told)


def _warn_of_positions() -> None:
    warn_caller(
        "groups: matched by position with the rows, because one of them has the default index, 0 "
        "to n - 1, and the other does not. In another order people are less protected than stated. "
        "Give both the same index, or pass groups.to_numpy() if the order is right"
    )


def _check_plan(classifier: Any, X: Any, groups: Any, origins: Sequence[Origin]) -> PlannedFit:
    """Plans a private fit; raises BudgetError if the budget does not allow it."""
    planned = plan_fit(classifier, *read_shape(X), groups, origins=origins)
    with explain_searches():
        classifier.budget.check_fit(planned.make_booking(classifier.budget))
    return planned


def _find_origins(
    rows: npt.NDArray[np.float32] | RowSource, labels: npt.NDArray[Any], raw: Any
) -> list[Origin]:
    """Finds the stores of a fit's rows; in a pipeline, also of the rows before the first step."""
    before = read_raw(raw)
    same = before is not None and read_shape(before)[0] == len(labels)
    origins = find_origins(before, labels) if before is not None and same else []
    if found := origins or find_origins(rows, labels):
        return found
    for place in find_equal_labels(labels):
        warn_caller(
            f"X: y has the labels of all rows of {place}, in order, but X has other rows. If X was "
            "computed from these features, the fit knows nothing of their patients, split or "
            "subsample: pass the object of read_features as X, or set unit and groups as the study "
            "does"
        )
    return []


def score_blocks(classifier: Any, X: Any) -> npt.NDArray[np.float32]:
    """Returns the scores of rows, [rows, classes]."""
    size = max(1, SCORED_BYTES // (4 * classifier.n_features_in_))
    if (source := find_source(X)) is not None:
        blocks: Iterator[Any] = (block for _, block in source.read_blocks(size))
    else:
        values = validate_data(
            classifier, join_blocks(X), dtype=np.float32, reset=False, ensure_all_finite=False
        )
        blocks = (  # PyTorch takes no reversed arrays, and warns of arrays that are read-only
            np.require(values[start : start + size], requirements=["C", "W"])
            for start in range(0, len(values), size)
        )
    parts = [score_rows(classifier.fit_.heads, clear_unusable(block))[0] for block in blocks]
    return np.concatenate(parts)


def link_scores(scores: npt.NDArray[np.float32], method: MethodOptions) -> npt.NDArray[np.float64]:
    """Returns the probabilities of scores [rows, classes], which sum to 1 in each row."""
    logits = torch.from_numpy(scores).to(torch.float64)
    if method.link_on(False) == "sigmoid":  # logarithms, as all of a row's chances may round to 0
        logits = torch.nn.functional.logsigmoid(logits)
    chances: npt.NDArray[np.float64] = logits.softmax(dim=1).numpy()
    return chances


def _read_rows(
    classifier: Any, X: Any, y: Any
) -> tuple[npt.NDArray[np.float32] | RowSource, npt.NDArray[Any]]:
    """Returns the rows (a new array, or their source) and the labels."""
    if getattr(getattr(y, "dtype", None), "kind", None) == "T":  # unknown to scikit-learn
        y = np.array(y.tolist(), dtype=object)
    check_labels(y, classifier.classes)
    if (source := find_source(X)) is not None:
        classifier.n_features_in_ = source.dimension
        labels = column_or_1d(y, warn=True)
        if len(labels) != source.rows:
            raise ArrayError(
                f"y: {len(labels)} labels, but X has {source.rows} rows; pass one label per row"
            )
        rows: npt.NDArray[np.float32] | RowSource = source
    else:
        # a copy, because training replaces unusable rows by zeros
        with hide_values():
            rows, labels = validate_data(
                classifier, X, y, dtype=np.float32, order="C", copy=True, ensure_all_finite=False
            )
    check_classification_targets(labels)
    return rows, np.asarray(labels)


def draw_seed(state: int | np.random.RandomState | None) -> int:
    """Returns the seed of a fit: a given number, a draw of a RandomState, or 128 random bits."""
    if isinstance(state, numbers.Integral):
        return int(state)
    if isinstance(state, np.random.RandomState):
        return int(state.randint(2**31))
    if state is not None:
        raise ConfigError(f"random_state {state!r}: pass a whole number, or None")
    return secrets.randbits(128)


def load_features(
    rows: npt.NDArray[np.float32] | RowSource, plan: Plan
) -> torch.Tensor | RowSource:
    """Reads a source's rows into memory if they are few, or if the plan samples rows."""
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(rows)
    samples = any(mechanism.sample_rate < 1 for mechanism in plan.mechanisms)
    if samples or 4 * rows.rows * rows.dimension <= STREAMED_BYTES:
        return torch.from_numpy(read_source(rows))
    return rows
