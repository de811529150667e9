"""A head that is no better than no head is refused before anything is booked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import PrivacyError
from dpprobe.heads.facts import DataFacts
from dpprobe.release.usefulness import benchmark_faults, check_metric, check_usefulness
from dpprobe.results.cell_record import read_cell
from dpprobe.results.metrics import evaluate_scores
from tests.support.cell_files import write_cell

DISEASE = ("healthy", "ill")
FACTS = DataFacts(
    n=20_000, dimension=768, classes=2, multi_label=False, epsilon=1.0, delta=1e-6, unit="image"
)


def faults_of(path: Path) -> str:
    return "; ".join(benchmark_faults(read_cell(path)))


def measured_never_predicted(scores: list[float]) -> list[int]:
    """Measures which classes a head never predicts that scores all images alike, as cells do."""
    labels = np.array([0, 0, 1])
    result = evaluate_scores(np.tile(np.array(scores, np.float32), (3, 1)), labels, link="softmax")
    never: list[int] = result["never_predicted"]
    return never


def test_a_head_that_never_finds_the_disease_is_useless(tmp_path: Path) -> None:
    """Its accuracy is 98%."""
    path = write_cell(
        tmp_path, class_names=DISEASE, shares=(0.98, 0.02), quality=0.0, rows=1000,
        headline="accuracy",
    )  # fmt: skip
    record = read_json(path)
    never = measured_never_predicted([1.0, 0.0])
    assert never == [1]
    for seed in record["seeds"]:
        seed["never_predicted"] = never
    write_json(path, record)
    said = faults_of(path)
    assert "its accuracy is not better than" in said
    assert "never predicts ill" in said
    with pytest.raises(PrivacyError, match=r"would be useless, its benchmark .*allow_useless"):
        check_usefulness("first", benchmark=path, facts=FACTS)


def test_an_auc_that_may_be_chance_is_told(tmp_path: Path) -> None:
    path = write_cell(tmp_path, class_names=DISEASE, quality=0.0, headline="auc")
    assert "its AUC is not better than the majority-class baseline, 0.500" in faults_of(path)
    named = write_cell(tmp_path, class_names=DISEASE, quality=0.0, headline="accuracy")
    assert "may be chance" in faults_of(named)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1)])
def test_a_good_head_passes(tmp_path: Path, shares: tuple[float, float]) -> None:
    path = write_cell(tmp_path, class_names=DISEASE, shares=shares, quality=4.0)
    assert faults_of(path) == ""
    check_usefulness("first", benchmark=path, facts=FACTS)


def test_without_a_benchmark_the_planner_tells() -> None:
    check_usefulness("first", benchmark=None, facts=FACTS)
    few = DataFacts(
        n=40, dimension=768, classes=2, multi_label=False, epsilon=0.1, delta=1e-3, unit="patient"
    )
    with pytest.raises(PrivacyError, match=r"says: 40 training patients are too few .*enough"):
        check_usefulness("first", benchmark=None, facts=few)


def test_an_accuracy_does_not_hide_a_rare_class() -> None:
    unequal, equal = np.repeat([0, 1], [95, 5]), np.repeat([0, 1], [60, 40])
    three = np.repeat([0, 1, 2], [50, 45, 5])
    labels = np.eye(4)[np.arange(40) % 4].astype(np.int8)
    for metric in ("auc", "macro_accuracy"):
        check_metric("first", metric, unequal)
    check_metric("first", "accuracy", equal)
    for rare, remedy in ((unequal, "auc"), (three, "macro_accuracy"), (labels, "auc")):
        with pytest.raises(PrivacyError, match=f"write `metric: {remedy}`"):
            check_metric("first", "accuracy", rare)


def test_a_class_missed_by_half_of_the_seeds_is_missed(tmp_path: Path) -> None:
    path = write_cell(tmp_path, class_names=DISEASE, quality=4.0, seeds=4)
    record = read_json(path)
    for seed, said in zip(record["seeds"], ("", "never predicts ill"), strict=False):
        seed["never_predicted"] = measured_never_predicted([1.0, 0.0])
        write_json(path, record)
        assert said in faults_of(path)
        assert bool(said) == bool(faults_of(path))


def test_of_several_labels_one_rare_one_is_enough() -> None:
    labels = np.zeros((40, 2), dtype=np.int8)
    labels[:20, 0] = labels[:1, 1] = 1
    with pytest.raises(PrivacyError, match="would hide the rare"):
        check_metric("first", "accuracy", labels)
