"""A head that is no better than a constant prediction is refused, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.data.options import Headline
from dpprobe.files.json_files import read_json, write_json
from dpprobe.heads.facts import DataFacts
from dpprobe.release.usefulness import benchmark_faults, check_metric, check_usefulness
from dpprobe.results.cell_record import CellRecord, read_cell
from tests.support.cell_files import write_cell
from tests.support.refusals import check_tokens, refusal_of

FACTS = DataFacts(
    n=20_000, dimension=768, classes=2, multi_label=False, epsilon=1.0, delta=1e-6, unit="image"
)


def refusal(**given: Any) -> str | None:
    return refusal_of(check_usefulness, "v1", **given)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> CellRecord:
    """Returns a benchmark of four classes with two seeds."""
    return read_cell(write_cell(tmp_path_factory.mktemp("cell"), rows=120, seeds=2))


def changed(
    record: CellRecord,
    *,
    low: float | None = 0.9,
    auc_low: float | None = 0.9,
    headline: Headline = "accuracy",
    never: Sequence[Sequence[int]] = ((), ()),
    **more: Any,
) -> CellRecord:
    """Returns a record with a headline interval from `low` and an AUC interval from `auc_low`."""
    known = record.summary["accuracy"]
    summary = {
        name: known.model_copy(update={"both_low": begins})
        for name, begins in {"auc": auc_low, headline: low}.items()
    }
    seeds = [
        {**seed, "never_predicted": list(each)}
        for seed, each in zip(record.seeds, never, strict=True)
    ]
    update = {"summary": summary, "headline": headline, "seeds": seeds, **more}
    return record.model_copy(update=update)


@pytest.mark.parametrize(
    ("headline", "low", "says"),
    [
        ("accuracy", 0.25, ("accuracy", "0.250", "at 0.250")),
        ("accuracy", 0.1, ("accuracy", "0.250", "0.100")),
        ("accuracy", 0.2501, None),
        ("accuracy", None, ("accuracy", "0.250")),
        ("macro_accuracy", 0.25, ("macro accuracy", "0.250")),  # one of four classes with recall 1
        ("macro_accuracy", 0.26, None),
    ],
)
def test_the_headline_s_interval_begins_above_a_constant_prediction(
    record: CellRecord, headline: Headline, low: float | None, says: tuple[object, ...] | None
) -> None:
    faults = list(
        benchmark_faults(changed(record, headline=headline, low=low, constant_accuracy=0.25))
    )
    assert len(faults) == (says is not None), faults
    for each in faults:
        check_tokens(each, *says or ())


@pytest.mark.parametrize(("low", "fault"), [(0.5, True), (0.3, True), (0.501, False)])
def test_a_ranking_that_may_be_chance_is_one_fault(
    record: CellRecord, low: float, fault: bool
) -> None:
    """The fault applies to every headline metric; AUC as headline gives one fault, not two."""
    as_headline = changed(record, headline="auc", low=low)
    for each in (changed(record, auc_low=low), as_headline):
        said = [one for one in benchmark_faults(each) if "AUC" in one]
        assert len(said) == fault, said
    (one,) = benchmark_faults(changed(record, auc_low=0.5))
    check_tokens(one, "AUC", "0.500")
    assert not list(benchmark_faults(changed(record, auc_low=None)))


@pytest.mark.parametrize(
    ("never", "named"),
    [
        (((), ()), None),
        (((1,), ()), "one"),  # half of the seeds
        (((1, 2), (2,)), "one, two"),
        (((0, 1, 2, 3), (1,)), "zero, one, two, three"),
    ],
)
def test_a_class_that_half_of_the_seeds_never_predict_is_named(
    record: CellRecord, never: Any, named: str | None
) -> None:
    faults = list(benchmark_faults(changed(record, never=never)))
    assert bool(faults) == (named is not None)
    for each in faults:
        check_tokens(each, named, "`balanced:")


def test_a_class_never_predicted_by_a_minority_of_seeds_is_not_a_fault(tmp_path: Path) -> None:
    three = read_cell(write_cell(tmp_path, rows=120, seeds=3))
    for count in range(4):
        never = [[1]] * count + [[]] * (3 - count)
        faults = list(benchmark_faults(changed(three, never=never)))
        assert bool(faults) == (count >= 2), f"{count} of 3 seeds"


def test_of_several_labels_none_need_be_predicted(tmp_path: Path) -> None:
    """A label in few images rarely exceeds one half, but may still be ranked well."""
    labels = read_cell(write_cell(tmp_path, class_names="abc", multi_label=True, quality=0.0))
    shown = labels.model_copy(
        update={
            "summary": {
                name: each.model_copy(update={"both_low": 0.9})
                for name, each in labels.summary.items()
            }
        }
    )
    for seed in shown.seeds:
        seed["never_predicted"] = [0, 1, 2]
    assert not list(benchmark_faults(shown))


@pytest.mark.parametrize(("quality", "useless"), [(0.0, True), (4.0, False)])
@pytest.mark.parametrize("headline", ["accuracy", "auc", "macro_accuracy"])
def test_only_useless_heads_are_refused(
    tmp_path: Path, quality: float, useless: bool, headline: Headline
) -> None:
    path = write_cell(tmp_path, class_names="ab", quality=quality, headline=headline, rows=120)
    said = refusal(benchmark=path, facts=FACTS)
    assert (said is not None) == useless
    if said:
        check_tokens(said, "release v1", path, "epsilon", "`allow_useless: true`")


@pytest.mark.parametrize("unit", ["image", "patient"])
@pytest.mark.parametrize("classes", [2, 40])
def test_without_a_benchmark_the_planner_names_a_number_that_is_enough(
    classes: int, unit: str
) -> None:
    few = replace(FACTS, n=40, classes=classes, epsilon=0.1, unit=unit, delta=1e-5)
    said = refusal(benchmark=None, facts=few)
    assert said
    check_tokens(said, f"40 training {unit}s", f"{classes} classes", "epsilon 0.1")
    enough = int(said.partition("about ")[2].partition(" are")[0].replace(",", ""))
    assert refusal(benchmark=None, facts=replace(few, n=enough)) is None, "as it says"
    # for several labels per image nothing is known
    assert refusal(benchmark=None, facts=replace(few, multi_label=True)) is None


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("ranks", [True, False])
def test_otherwise_balanced_cells_count_only_by_auc(
    tmp_path: Path, classes: int, ranks: bool
) -> None:
    """With two classes the AUC decides; with more the planner decides, from public facts."""
    shares = (1.05 - 0.05 * classes, *[0.05] * (classes - 1))
    path = write_cell(
        tmp_path,
        class_names="abcde"[:classes],
        quality=4.0 if ranks else 0.0,
        rows=400,
        shares=shares,
        seeds=2,
    )
    record = read_json(path)
    for seed in record["seeds"]:
        seed["never_predicted"] = [1]
    write_json(path, record)
    facts = replace(FACTS, n=50_000, classes=classes, epsilon=4.0)
    for balanced in (None, False):  # balanced as the release: never predicting b counts
        refused = refusal(benchmark=path, facts=facts, balanced=balanced)
        assert refused
        check_tokens(refused, "b")
    other = refusal(benchmark=path, facts=facts, balanced=True)
    if classes == 2:
        assert (other is None) == ranks
        assert other is None or "AUC" in other
    else:
        assert other is None, "enough examples, says the planner"
        few = replace(facts, n=20, epsilon=0.1)
        refused = refusal(benchmark=path, facts=few, balanced=True)
        assert refused
        check_tokens(refused, "20 training", f"{classes} classes", "epsilon 0.1")


def check(metric: Headline, labels: Any) -> str | None:
    return refusal_of(check_metric, "v1", metric, labels)


@pytest.mark.parametrize(
    ("counts", "remedy"),
    [
        ([60, 30], None),  # exactly twice as many is allowed
        ([61, 30], "`metric: auc` or `metric: macro_accuracy`"),
        ([30, 61], "`metric: auc` or `metric: macro_accuracy`"),
        ([50, 45, 5], "`metric: macro_accuracy`"),
        ([9, 9, 9], None),
        ([7], None),
        ([9, 0, 9], None),  # a class without rows is not rare
    ],
)
def test_an_accuracy_of_classes_that_are_unequal_is_refused(
    counts: list[int], remedy: str | None
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    said = check("accuracy", labels)
    assert (said is not None) == (remedy is not None), f"{counts}: {said}"
    if said is not None:
        check_tokens(said, remedy, "`evaluate`", "epsilon")
    for metric in ("auc", "macro_accuracy"):
        assert check(metric, labels) is None


@pytest.mark.parametrize(
    ("present", "refused"),
    [([20, 20], False), ([20, 14], False), ([20, 27], True), ([20, 13], True), ([14, 26], False)],
)
def test_an_accuracy_of_labels_of_which_one_is_rare_or_common_is_refused(
    present: list[int], refused: bool
) -> None:
    """Of 40 rows, 13 or 27 with a label are more unequal than one to two."""
    labels = (np.arange(40)[:, None] < present).astype(np.int8)
    said = check("accuracy", labels)
    assert (said is not None) == refused
    assert not refused or "`metric: auc`" in str(said)
    assert check("auc", labels) is None
