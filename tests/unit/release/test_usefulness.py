"""A head that is no better than no head is refused before anything is booked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import PrivacyError
from dpprobe.heads.facts import DataFacts
from dpprobe.release.usefulness import benchmark_faults, check_usefulness
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
