"""Ours beside published numbers: what matches, what differs, what is only a stand-in."""

from __future__ import annotations

import math
from typing import Any

import pytest

from reproduction.compare import compare_all
from tests.support.reproduction import compared, known, printed, result


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
def test_whatever_differs_makes_a_stand_in(changes: dict[str, Any], part: str) -> None:
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
def test_what_is_not_beside_a_number_is_not_shown(changes: dict[str, Any]) -> None:
    found = compared(printed(), known(), result(**changes))
    assert found.result is None
    assert found.gap is None
    assert not found.like_for_like


def test_another_dataset_stands_in_only_where_the_entry_says_so() -> None:
    entry = {"ours": [{"study": "mine", "methods": ["sgd"], "dataset": "mnist"}]}
    found = compared(printed(), known(entry), result(dataset="mnist", train_rows=60000))
    assert found.unlike == ("MNIST, not CIFAR-10",)


def test_a_number_without_epsilon_takes_only_the_one_that_its_entry_names() -> None:
    table = printed(epsilon=None, delta=None)
    assert compared(table, known(), result()).result is None
    entry = {"ours": [{"study": "mine", "methods": ["sgd"], "epsilon": 2}]}
    found = compared(table, known(entry), result())
    assert found.silent == ("ε",)


def test_without_privacy_infinity_matches_infinity() -> None:
    table = printed(epsilon=math.inf, delta=None)
    found = compared(table, known(), result(epsilon=math.inf, delta=None, private=False))
    assert found.like_for_like
    assert found.silent == ()


@pytest.mark.parametrize(("take", "mean"), [("lowest", 0.1), ("highest", 0.9)])
def test_of_a_pattern_the_lowest_or_the_highest_is_taken(take: str, mean: float) -> None:
    entry = {"ours": [{"study": "mine", "methods": ["tuned_[1-9]*"], "take": take}]}
    results = [result(method=f"tuned_{i}", mean=m) for i, m in enumerate((0.99, 0.1, 0.9, 0.5))]
    found = compared(printed(), known(entry), *results)
    assert found.result is not None
    assert found.result.mean == mean


def test_a_change_of_backbones_is_from_the_base_s_best() -> None:
    ours = {
        "study": "mine", "methods": ["sgd_*"], "backbone": "centre", "take": "highest",
        "base": "sgd_*", "base_backbone": "pixels",
    }  # fmt: skip
    results = [
        result(method=f"sgd_{rate}", backbone=backbone, mean=mean, values=(mean, mean + 0.01))
        for backbone, rate, mean in (
            ("pixels", 1, 0.5), ("pixels", 2, 0.6), ("centre", 1, 0.9), ("centre", 2, 0.8),
        )
    ]  # fmt: skip
    found = compared(printed(metric="accuracy change"), known({"ours": [ours]}), *results)
    assert found.result == results[2]
    assert found.value == pytest.approx(30)


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
    # half: t(0.975, 2) = 4.303 times sqrt(2 * 0.01^2)
    assert found.ends == pytest.approx((3 - 6.085, 3 + 6.085), abs=1e-2)


@pytest.mark.parametrize(("size", "shown"), [(32, True), (64, False)])
def test_of_a_sweep_only_the_published_batch_stands_beside(size: int, shown: bool) -> None:
    found = compared(printed(batch_size=size), known(), result())
    assert (found.result is not None) is shown


def test_a_batch_of_all_rows_is_their_number() -> None:
    table = printed(batch_size=50000)
    full = result(options={"head": "sgd", "batch_size": "full"})
    assert compared(table, known({"recipe": {}}), full).like_for_like


def test_epochs_are_the_passes_that_were_taken() -> None:
    entry = {"recipe": {"epochs": 20}}
    options = {"head": "sgd", "epochs": None}
    assert compared(printed(), known(entry), result(options=options, passes=20.01)).like_for_like
    other = compared(printed(), known(entry), result(options=options, passes=10.0))
    assert other.unlike == ("epochs 10, not 20",)


@pytest.mark.parametrize(("epsilon", "shown"), [(0.5, True), (1.5, True), (2.0, False)])
def test_a_range_takes_any_epsilon_within(epsilon: float, shown: bool) -> None:
    found = compared(printed(epsilon=[0.5, 1.5]), known(), result(epsilon=epsilon))
    assert (found.result is not None) is shown


def test_areas_are_fractions_and_stand_beside_areas_alone() -> None:
    table = printed({"row": "first", "values": {"a": 0.9}}, metric="auc")
    assert compared(table, known(), result()).result is None
    found = compared(table, known(), result(metric="auc"))
    assert (found.value, found.ends) == (0.89, (0.87, 0.91))
    assert found.gap == pytest.approx(-0.01)


def test_the_first_method_that_was_run_is_taken() -> None:
    entry = {"ours": [{"study": "mine", "methods": ["gone", "later", "sgd"]}]}
    found = compared(printed(), known(entry), result(), result(method="later", mean=0.1))
    assert found.result is not None
    assert found.result.method == "later"


RATES = {
    "net": {
        "model": "m", "side": 378, "row": "first", "machine": "1 of 2 cores of A", "settings": "s",
        "unlike": ["378 px, not 384"], "rates": {"full": 2.0, "last": 9.0},
    }
}  # fmt: skip
THROUGHPUT = {
    "metric": "throughput",
    "epsilon": None,
    "delta": None,
    "columns": {
        "full": {"title": "Full"},
        "last": {"title": "Last layer"},
        "ratio": {"title": "Speed-up", "metric": "speed-up"},
    },
}


def compare_rates(measured: dict[str, Any]) -> list[Any]:
    values = {"full": 170, "last": 900, "ratio": 5.3}
    published = printed({"row": "first", "values": values}, **THROUGHPUT)
    entry: dict[str, Any] = {
        "study": None,
        "command": "c",
        "networks": {"first": ["net", "small"]},
        "ours": [],
    }
    return compare_all(published, known(entry), [result()], measured)


def test_throughput_stands_beside_the_published_one_with_its_machine() -> None:
    found = compare_rates(RATES)
    assert [comparison.value for comparison in found] == [2.0, 9.0, 4.5]
    assert [comparison.gap for comparison in found] == pytest.approx([-168.0, -891.0, -0.8])
    for comparison in found:
        assert comparison.run
        assert not comparison.like_for_like
        assert comparison.unlike == ("1 of 2 cores of A, not TPUv4 cores", "378 px, not 384")


def test_of_a_small_network_the_speed_up_alone_stands_in() -> None:
    small = {"small": RATES["net"] | {"model": "s", "row": None, "side": 128, "unlike": []}}
    full, last, ratio = compare_rates(small)
    assert not full.run
    assert not last.run
    assert ratio.value == 4.5
    assert ratio.unlike == ("1 of 2 cores of A, not TPUv4 cores", "s at 128 px, not first")
    assert compare_rates({**small, **RATES}) == compare_rates(RATES)


def test_a_way_that_was_not_measured_has_neither_a_rate_nor_a_ratio() -> None:
    full, last, ratio = compare_rates({"net": RATES["net"] | {"rates": {"last": 9.0}}})
    assert (full.run, last.value, ratio.run) == (False, 9.0, False)
    assert not any(comparison.run for comparison in compare_rates({}))
