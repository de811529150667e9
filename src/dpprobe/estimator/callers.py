"""Checks the callers of a private fit: what they do with the fit's rows, and what they publish.

A private fit accepts a call of `fit`, a `Pipeline` of stateless and declared steps, and some
searches and cross-validation of scikit-learn. All else is refused. Callers are found on the
interpreter's stack, because simpler checks would protect less:

- An estimator cannot ask scikit-learn who fits it. Metadata routing passes only values that a
  user requests, and `Pipeline` passes the transformed rows to `fit` as any user would. Without the
  stack, the usual mistake, `make_pipeline(StandardScaler(), head)`, looks like a direct `fit`.
- A refusal of all clones (`__sklearn_clone__`) would refuse searches, and still accept pipelines,
  whose last step is not cloned.
- Tags name steps that learn, but not steps that mix rows, such as a `FunctionTransformer` that
  subtracts the mean. So rows are compared with rows that were computed in smaller parts.
- With only a rule in the docs, the mistake above would cause no error, but a meaningless epsilon.

The stack shows neither callers in other processes or threads nor earlier changes of the rows.
"""

from __future__ import annotations

import copy
import math
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import _num_samples

from dpprobe.errors import ConfigError, DpprobeError, PrivacyError

_ALONE = 8  # number of rows that a step transforms apart from other rows
_ROUNDINGS = 8  # roundings that `_rows_differ` tolerates
_OWN = "dpprobe.estimator.private_classifier"
_DIRECT = "Call fit of PrivateClassifier directly"

# Accepted classes of scikit-learn: they publish only results of private fits, each of which spends
# budget, and each row of a fit belongs to one person. No guarantee covers a search's scores.
_ACCEPTED = ("GridSearchCV", "RandomizedSearchCV")
# Methods that always count as fit; names beginning with fit count if the class has a fit.
_FITS = {"fit", "_fit", "partial_fit", "fit_transform", "fit_predict"}
# The module and function with which a pool or joblib starts a task.
_TASK = re.compile(
    r"(joblib\.parallel:BatchedCalls|joblib\._dask|multiprocessing\.pool|concurrent\.futures"
    r"|(.*\.)?loky|distributed|ray)[.:]"
)


class _Caller(NamedTuple):
    """A class whose fit calls a private fit; `instance` is None for a method without `self`."""

    instance: Any
    name: str
    module: str


def check_callers(public: Sequence[str]) -> Any:
    """Raises PrivacyError if a caller breaks the guarantee of a private fit.

    Args:
      public: names that the user declares: pipeline steps that were fitted on public data, classes
        outside scikit-learn, and packages whose workers hide callers.

    Returns:
      The rows before the first step of the outermost pipeline; None without a pipeline.
    """
    raw = None
    if isinstance(public, str):
        raise ConfigError(
            f"public_steps {public!r}: this is a string; pass a list of names, [{public!r}]"
        )
    seen: set[int] = set()
    for call, function, values in _walk_callers(public):
        caller = call.instance
        if not isinstance(caller, Pipeline):
            _check_meta_estimator(call, public, splitter=values.get("cv_orig"))
        elif function == "_fit" and "step_idx" in values:
            raise PrivacyError(
                f"pipeline step {caller.steps[values['step_idx']][0]!r} contains a private fit, "
                "but is not the last step, so later steps may learn from private rows. Fit it "
                "first, and wrap it in FrozenEstimator"
            )
        elif "Xt" in values:
            _refuse_learners(caller.steps[:-1], public)
            _compare_rows(caller.steps[:-1], values["X"], values["Xt"], values["y"])
            seen.add(id(caller))
            raw = values["X"]
        elif id(caller) not in seen:
            _check_meta_estimator(call, public)
    return raw


def _walk_callers(public: Sequence[str]) -> Iterator[tuple[_Caller, str, Any]]:
    """Yields each class whose fit calls the private fit, inner callers first.

    With each caller, yields the name and the variables of its function. Raises PrivacyError for
    functions that break the guarantee, and for hidden callers.
    """
    hidden, inner = False, ""
    for frame, _ in traceback.walk_stack(sys._getframe()):
        code, values = frame.f_code, frame.f_locals
        place = f"{frame.f_globals.get('__name__')}:{code.co_qualname}"
        if not hidden and (task := _TASK.match(place)):
            hidden = True  # frames further out are functions of the pool
            _check_hidden(task[0].split(".")[0], inner, public)
        if place.startswith("sklearn.model_selection._validation:"):
            _check_validation(code.co_name, values)
        if (caller := _find_caller(code, values, str(frame.f_globals.get("__name__")))) is not None:
            yield caller, code.co_name, values
        inner = place


def _find_caller(code: CodeType, values: Mapping[str, Any], module: str) -> _Caller | None:
    """Returns the class whose fit a frame runs; None for functions and `PrivateClassifier.fit`."""
    if not re.match("_?(partial_)?fit|<lambda>", code.co_name) or module == _OWN:
        return None
    first = values.get(code.co_varnames[0]) if code.co_argcount else None
    of = first if isinstance(first, type) else type(first)
    scope = code.co_qualname.rpartition(".")[0]
    assigned = any(
        getattr(getattr(of, name, None), "__code__", None) is code for name in ("fit", code.co_name)
    )
    in_class = bool(scope) and not scope.endswith("<locals>")
    if not assigned and not (in_class and (code.co_name in _FITS or hasattr(of, "fit"))):
        return None
    written_in = scope.rpartition(".")[2]
    if assigned or written_in in {base.__name__ for base in of.__mro__}:
        return _Caller(first, of.__name__, of.__module__)
    return _Caller(None, written_in, module)


def _check_hidden(package: str, started: str, public: Sequence[str]) -> None:
    """Refuses a fit in a worker process or thread, unless the user declares its package.

    Args:
      started: the function that the worker runs. A user cannot declare scikit-learn's functions.
    """
    by_scikit_learn = started.startswith("sklearn.")
    if by_scikit_learn or package not in public:
        remedy = (
            "Write n_jobs=1"
            if by_scikit_learn
            else "Fit outside the worker. Or, if you start the workers yourself and each row "
            f"comes from its own item, pass public_steps=[{package!r}]"
        )
        raise PrivacyError(
            f"{package}: this fit runs in a worker, where dpprobe cannot see callers such as a "
            f"pipeline with a fitted step. {remedy}"
        )


def _check_validation(function: str, values: dict[str, Any]) -> None:
    if function == "permutation_test_score":
        raise PrivacyError(
            "permutation_test_score: It gives rows the labels of other people, so each person "
            f"would count in two rows. {_DIRECT}"
        )
    _check_folds(values.get("cv"))
    if function == "cross_val_predict" and values.get("encode"):
        raise PrivacyError(
            f"cross_val_predict: method {values['method']!r} numbers the classes by the private "
            "labels; pass method='predict'"
        )


def _check_folds(splitter: Any) -> None:
    name = type(splitter).__name__
    if "Stratified" in name:
        raise PrivacyError(
            f"cv {name}: it splits by the private labels, so one person's label moves other "
            "people between folds. For a classifier, cv=5 means StratifiedKFold(5); pass "
            "cv=KFold(5)"
        )


def _check_meta_estimator(caller: _Caller, public: Sequence[str], *, splitter: Any = None) -> None:
    """Refuses classes that may break the guarantee.

    Args:
      splitter: the splitter of a search in scikit-learn 1.8, which has no attribute for it.
    """
    of_scikit_learn = caller.module.startswith("sklearn.")
    _check_folds(getattr(caller.instance, "_checked_cv_orig", splitter))
    if caller.name in (_ACCEPTED if of_scikit_learn else public):
        return
    remedy = (
        f"{_DIRECT}, in a Pipeline, or in {' or '.join(_ACCEPTED)}"
        if of_scikit_learn
        else f"{_DIRECT}. Or, for a class of your own whose rows each come from their own item, "
        f"and which publishes nothing else, pass public_steps=[{caller.name!r}]"
    )
    raise PrivacyError(
        f"{caller.name}: its fit calls a private fit, and may use rows twice, or choose them by "
        f"private labels. It may also publish which classes occur. {remedy}"
    )


def _refuse_learners(steps: list[Any], public: Sequence[str]) -> None:
    """Refuses steps of a pipeline that learn from private rows before a private fit."""
    for name, step in steps:
        if _learns(step) and name not in public:
            raise PrivacyError(
                f"pipeline step {name!r} ({type(step).__name__}) is fitted on the private rows "
                "without noise, so the guarantee would not hold. Remove the step, or use a "
                "stateless step such as Normalizer. Or fit it on public data, wrap it in "
                f"FrozenEstimator, and pass public_steps=[{name!r}]"
            )


def _learns(step: Any) -> bool:
    return step not in (None, "passthrough") and get_tags(step).requires_fit


def _compare_rows(named: list[tuple[str, Any]], rows: Any, returned: Any, labels: Any) -> None:
    """Refuses steps that mix rows; the first step got `rows`, the last step gave `returned`."""
    steps = [(name, step) for name, step in named if step not in (None, "passthrough")]
    for place, (name, step) in enumerate(steps, start=1):
        try:
            among = returned if place == len(steps) else _fit_again(step, rows, labels)
            mixes = _mixes_rows(step, rows, among, labels)
            fault = (
                "returns different values for the same rows if other rows are present"
                if mixes
                else None
            )
        except Exception as error:
            # Errors of other packages may quote a private value.
            text = str(error) if isinstance(error, DpprobeError) else type(error).__name__
            fault = f"fails for a subset of the rows: {text}"
        if fault is not None:
            raise PrivacyError(
                f"pipeline step {name!r} ({type(step).__name__}) {fault}: it computes rows from "
                "other rows, is random, or is fitted on the private rows. Use a step that computes "
                "each row from its own item; fit it on public data, and wrap it in FrozenEstimator"
            )
        rows = among


def _mixes_rows(step: Any, rows: Any, among: Any, labels: Any) -> bool:
    """Compares a step's output for all rows (`among`) with its output for parts of the rows.

    Equal outputs do not prove that rows are independent, because rare dependence may be missed.
    """
    count = _num_samples(rows)
    if _num_samples(among) != count:
        return True
    if count == 1:
        return False
    width = math.prod(rows.shape[1:]) if hasattr(rows, "shape") else 1
    differ = partial(_rows_differ, width=width)
    few = np.linspace(0, count - 1, min(_ALONE, count // 2), dtype=int)
    for part in (few, np.arange(0, count, 2), np.arange(1, count, 2)):
        alone = _fit_again(step, _take(rows, part), _take(labels, part))
        if differ(alone, _take(among, part)):
            return True
    part_rows, expected = _take(rows, few), _take(among, few)
    if differ(step.transform(part_rows), expected):  # `transform` differs from `fit_transform`
        return True
    if not (isinstance(part_rows, np.ndarray) and part_rows.dtype.kind in "iuf"):
        return False
    # all parts may have the same maximum, such as the largest grey value
    larger = np.concatenate([part_rows, 3 * part_rows])
    try:
        mixed = _fit_again(step, larger, _take(labels, np.tile(few, 2)))
    except ValueError:  # the step refuses larger values
        return False
    return differ(_take(mixed, np.arange(len(few))), expected)


def _fit_again(step: Any, rows: Any, labels: Any) -> Any:
    """Fits a copy of a step on rows, as a pipeline does, and returns its rows."""
    # a deep copy, because a step whose fit does nothing must keep its learnt state
    fresh = copy.deepcopy(step) if _learns(step) else clone(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if hasattr(fresh, "fit_transform"):
            return fresh.fit_transform(rows, labels)
        return fresh.fit(rows, labels).transform(rows)


def _take(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    return None if values is None else _safe_indexing(values, rows)


def _rows_differ(one: Any, other: Any, *, width: int) -> bool:
    """Compares rows bit by bit, then, for floating point, up to the rounding of sums.

    A sum of `width` products depends on their order, and so on the size of a batch. A sum's error
    is about sqrt(width) roundings of terms as large as the row's largest number.
    """
    if sparse.issparse(one) and sparse.issparse(other):
        return one.shape != other.shape or (one != other).nnz > 0
    one, other = (np.asarray(rows) for rows in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    one, other = (rows.reshape(len(rows), -1) for rows in (one, other))
    same = (one == other) | ((one != one) & (other != other))  # NaN stays NaN
    if same.all() or one.dtype.kind != "f":
        return not same.all()
    # rounding of float32, which heads read; a float32 network may return float64
    rounding = max(np.finfo(one.dtype).eps, np.finfo(np.float32).eps)
    sizes = np.where(np.isfinite(one), np.abs(one), 0).max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        near = np.abs(one - other) <= _ROUNDINGS * math.sqrt(width) * rounding * sizes
    return not (same | near).all()
