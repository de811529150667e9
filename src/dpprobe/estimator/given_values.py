"""Reads numbers and classes that callers of the Python API pass as values of Python or NumPy."""

from __future__ import annotations

import itertools
import numbers
import sys
from collections.abc import Iterable, Mapping, Sized
from typing import Any, NoReturn

import numpy as np

from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.privacy.risk import Risk

MISSING = "missing"


class ArrayError(DataError, ValueError):
    """Raised if rows or labels cannot be used; also a ValueError, as scikit-learn expects."""


class NumberError(ConfigError, PrivacyError):
    """Raised if a value is not a number; also a PrivacyError, because epsilon is undefined."""


def read_number(name: str, value: Any) -> float:
    """Returns a number as a float (NumPy's float32 0.1 as 0.1); raises NumberError for others."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value:
        try:
            return float(str(value)) if isinstance(value, np.floating) else float(value)
        except OverflowError:
            pass
    raise NumberError(f"{name} {value!r:.60}: pass one number, such as 0.5, without quotes")


def read_count(name: str, value: Any) -> int:
    """Returns a whole number as an int; raises NumberError for anything else."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    raise NumberError(f"{name} {value!r:.60}: pass one whole number without quotes")


def read_target(value: Any) -> float | Risk:
    """Reads an epsilon from a number, or a permitted risk from a mapping."""
    if isinstance(value, Mapping):
        return read_risk("epsilon", value)
    return read_number("epsilon", value)


def read_risk(name: str, value: Any) -> Risk:
    """Reads a permitted risk from a mapping; raises PrivacyError for a wrong mapping."""
    if not isinstance(value, Mapping):
        raise NumberError(f"{name} {value!r:.60}: pass a mapping, such as {{'advantage': 0.1}}")
    return Risk.from_dict({key: read_number(f"{name} {key}", each) for key, each in value.items()})


def check_order(**arguments: Any) -> list[str]:
    """Raises ArrayError if the row names of two arguments differ, or differ in order.

    Names are the index of pandas, or the ids of stored features. A default index, 0 to n - 1,
    does not count as names, unless the other index has its rows in another order. Lengths are
    checked elsewhere.

    Returns:
      The arguments that are matched by position with the first argument with an index, because only
      one of the two has names.
    """
    pd: Any = sys.modules.get("pandas")  # without pandas no argument has an index
    named: dict[str, Any] = {}
    for argument, values in arguments.items() if pd else ():
        if isinstance(index := getattr(values, "index", None), pd.Index):
            named[argument] = index
        elif isinstance(values, FeatureStore):
            named[argument] = pd.Index(values.ids)
    by_position = []
    for (first, left), (second, right) in itertools.combinations(named.items(), 2):
        if len(left) != len(right) or left.equals(right):
            continue
        default = pd.RangeIndex(len(left))
        unnamed = left.equals(default) or right.equals(default)
        if not unnamed or {*left} == {*right}:
            _refuse_order(first, second, arguments[first], left, right)
        if first == next(iter(named)):
            by_position.append(second)
    return by_position


def _refuse_order(first: str, second: str, values: Any, left: Any, right: Any) -> NoReturn:
    """Raises ArrayError for two indexes of equal length, without names, which may be private."""
    rows = left.append(right).factorize()[0].reshape(2, len(left))
    place = int((rows[0] != rows[1]).argmax())
    names = f"{first}.ids" if isinstance(values, FeatureStore) else f"{first}.index"
    raise ArrayError(
        f"{second}: its index has the rows of {first} in another order, or other rows (from row "
        f"{place}); pass {second}.loc[{names}], or {second}.to_numpy() if its order is right"
    )


def list_classes(classes: Any) -> list[Any]:
    """Returns the classes in order; raises ArrayError for fewer than two, or mixed kinds."""
    several = isinstance(classes, Iterable) and isinstance(classes, Sized)
    is_list = several and not isinstance(classes, str | bytes | Mapping)
    if not is_list or getattr(classes, "ndim", 1) != 1:
        raise ArrayError(f"classes {classes!r:.60}: pass a list of labels, such as [0, 1]")
    values = classes.tolist() if hasattr(classes, "tolist") else list(classes)
    check_kind("classes", values)
    listed: list[Any] = np.sort(np.asarray(values)).tolist()
    if len(set(listed)) < len(listed):
        raise ArrayError(f"classes {listed}: a class is listed twice; remove the copy")
    if len(listed) < 2:
        raise ArrayError(
            f"The number of classes has to be greater than one; got {len(listed)} class: {listed}; "
            "pass rows of two or more classes"
        )
    return listed


def check_kind(name: str, labels: Iterable[Any]) -> str | None:
    """Returns the kind of all labels; None without labels. Raises ArrayError if kinds differ."""
    kinds = {_name_kind(label) for label in labels}
    if MISSING in kinds:  # the error does not quote labels, which may be private
        remedy = "leave out its row" if name == "y" else "remove it"
        raise ArrayError(f"{name}: a label is missing (None, NaN or NA); {remedy}")
    if len(kinds) > 1 or not kinds <= {"numbers", "texts", "truth values"}:
        raise ArrayError(
            f"{name}: labels are {' and '.join(sorted(kinds))}; pass only strings, or only numbers"
        )
    return next(iter(kinds), None)


def _name_kind(label: Any) -> str:
    if isinstance(label, bool | np.bool_):
        return "truth values"
    if isinstance(label, str):
        return "texts"
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return MISSING
    if isinstance(label, numbers.Real):
        return "numbers" if label == label else MISSING
    return f"of type {type(label).__name__}"
