"""Our results are compared with published numbers like for like, as stand-ins, or not at all."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.exhibits import published
from dpprobe.exhibits.published import Published
from reproduction import facts
from reproduction.compare import Comparison, compare_all
from reproduction.facts import Facts
from reproduction.record import Result

PAPER: dict[str, Any] = {
    "short": "A et al. 2020",
    "authors": "A",
    "title": "T",
    "year": 2020,
    "venue": "V",
}
TABLE: dict[str, Any] = {
    "paper": "a_2020",
    "table": "1",
    "title": "Accuracy",
    "metric": "accuracy",
    "dataset": "cifar10",
    "epsilon": 2,
    "delta": 1e-5,
    "columns": {"a": {"title": "A"}, "change": {"title": "Change", "metric": "accuracy change"}},
    "rows": [{"row": "first", "values": {"a": 90.0}}],
}
ENTRY: dict[str, Any] = {
    "paper": "a_2020",
    "table": "1",
    "rows": ["first"],
    "study": "config/mine.yaml",
    "weights": "pixels",
    "recipe": {"head": "sgd", "batch_size": 32},
    "ours": [{"study": "mine", "methods": ["sgd"]}],
}
PIXELS = {"title": "pixels", "access": "none needed", "backbone": {"family": "pixels"}}
RESULT: dict[str, Any] = {
    "study": "mine",
    "dataset": "cifar10",
    "backbone": "pixels",
    "backbone_options": {"family": "pixels", "size": 32},
    "method": "sgd",
    "head": "sgd",
    "options": {"head": "sgd", "batch_size": 32},
    "epsilon": 2.0,
    "delta": 1e-5,
    "private": True,
    "network": False,
    "metric": "accuracy",
    "values": (0.88, 0.90),
    "mean": 0.89,
    "low": 0.87,
    "high": 0.91,
    "train_rows": 50000,
    "seeds": 2,
}


def printed(*rows: dict[str, Any], **changes: Any) -> Published:
    """Returns a published table with these rows."""
    table = copy.deepcopy(TABLE) | ({"rows": list(rows)} if rows else {}) | changes
    return published.Published.model_validate({"citations": {"a_2020": PAPER}, "tables": [table]})


def known(*entries: dict[str, Any], **changes: Any) -> Facts:
    """Returns facts whose entries are the usual entry with changes."""
    given = [ENTRY | entry for entry in entries or ({},)]
    return facts.parse({"weights": {"pixels": PIXELS}, "entries": given} | changes)


def result(**changes: Any) -> Result:
    """Returns a result, with changes, that is like for like with the first number of `TABLE`."""
    return Result(**RESULT | changes)


def compared(published_: Published, facts_: Facts, *results: Result) -> Comparison:
    """Returns the comparison of the first number."""
    return compare_all(published_, facts_, results)[0]


def test_the_same_in_all_is_like_for_like() -> None:
    found = compared(printed(), known(), result())
    assert found.like_for_like
    assert (found.value, found.ends, found.silent) == (89.0, (87.0, 91.0), ())
    assert found.gap == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"backbone_options": {"family": "timm", "model": "m"}}, "pixels (m), not pixels"),
        ({"train_rows": 1000}, "1,000 training images, not 50,000"),
        ({"delta": 1e-6}, "δ 1e-06, not 1e-05"),
        ({"options": {"head": "sgd", "batch_size": 64}}, "batch_size 64, not 32"),
        ({"options": {"head": "sgd"}}, "batch_size absent, not 32"),
        ({"network": True}, "a network tuned, not the head"),
        ({"private": False}, "hyperparameters searched on private images, not covered by ε"),
    ],
)
def test_any_difference_from_the_published_setting_is_not_like_for_like(
    changes: dict[str, Any], part: str
) -> None:
    found = compared(printed(), known(), result(**changes))
    assert found.unlike == (part,)
    assert not found.like_for_like


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 4.0},
        {"dataset": "mnist"},
        {"study": "another"},
        {"method": "another"},
        {"metric": "auc"},
        {"epsilon": math.inf},
    ],
)
def test_only_published_settings_are_shown(changes: dict[str, Any]) -> None:
    found = compared(printed(), known(), result(**changes))
    assert found.result is None
    assert found.gap is None
    assert not found.like_for_like


@pytest.mark.parametrize(
    ("blocks", "tune", "unlike"),
    [
        (12, {"blocks": 12}, ()),
        (12, {"blocks": 4}, ("4 of its blocks tuned, not 12",)),
        ([1, 12], {"blocks": 4}, ()),
        ([1, 12], "head", ("none of its blocks tuned, not 1 to 12",)),
    ],
)
def test_tuned_blocks_are_compared(blocks: Any, tune: Any, unlike: tuple[str, ...]) -> None:
    table = printed(tuning="blocks", blocks=blocks)
    options = {"head": "fine_tune", "tune": tune}
    found = compared(table, known({"recipe": {}}), result(network=True, options=options))
    assert found.unlike == unlike


CHANGED = {"ours": [{"study": "mine", "methods": ["b_*"], "base": "a_*", "take": "highest"}]}


def test_a_change_is_between_the_best_of_two_sweeps_with_welchs_interval() -> None:
    table = printed({"row": "first", "values": {"change": 1.0}})
    results = [
        result(method="a_1", mean=0.5, values=(0.4, 0.6)),
        result(method="a_2", mean=0.8, values=(0.79, 0.81)),
        result(method="b_1", mean=0.83, values=(0.82, 0.84)),
        result(method="b_2", mean=0.2, values=(0.1, 0.3)),
    ]
    found = compared(table, known(CHANGED), *results)
    assert found.value == pytest.approx(3.0)
    assert found.gap == pytest.approx(2.0)
    assert found.ends is not None
    # half-width of the interval: t(0.975, 2) = 4.303 times sqrt(2 * 0.01^2)
    assert found.ends == pytest.approx((3 - 6.085, 3 + 6.085), abs=1e-2)


PRIVATE = {"title": "JFT", "access": "private", "backbone": {"family": "timm"}}


@pytest.mark.parametrize(
    ("entries", "changes", "message"),
    [
        ([{}, {"columns": ["a"]}], {}, "a_2020, 1, first, a: in 2 entries; write it in one"),
        ([{"rows": ["first", "gone"]}], {}, "a_2020, 1: no published row 'gone'"),
        ([{"columns": ["a", "b"]}], {}, "a_2020, 1: no column 'b'"),
        ([{"weights": "gone"}], {}, "first: no weights 'gone'; add them"),
        ([{"study": None}], {}, "missing: absent; without a study say why nothing runs it"),
        ([{"note": "x"}], {}, r"entries\.0\.note: unknown key; remove it"),
        ([], {"weights": {"pixels": PRIVATE}}, "match none; write nearest"),
    ],
)
def test_entries_with_duplicate_numbers_or_unknown_names_are_refused(
    entries: list[dict[str, Any]], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        known(*entries, **changes).by_number(printed())


def test_a_number_in_no_entry_is_named() -> None:
    rows = [{"row": name, "values": {"a": 2.0}} for name in ("first", "new")]
    with pytest.raises(ConfigError, match="a_2020, 1, new, a: in no entry; write it in one"):
        known().by_number(printed(*rows))
