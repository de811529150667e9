"""scikit-learn's digits: sizes are known without importing it; wrong options are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpprobe.data.dataset_sizes import count_used_rows
from dpprobe.data.registry import dataset_options

COUNTS = np.bincount(load_digits().target).tolist()


def of(**changed: Any) -> Any:
    return dataset_options({"source": "sklearn", "name": "digits"} | changed)


@pytest.mark.parametrize("fraction", [0.2, 0.25, 0.5])
def test_sizes_are_the_library_s(fraction: float) -> None:
    tested = [int(fraction * rows + 0.5) for rows in COUNTS]
    options = of(test_fraction=fraction)
    assert options.count_rows() == (sum(COUNTS) - sum(tested), sum(tested))
    assert options.count_classes() == len(COUNTS)
    trained = {str(n): rows - tested[n] for n, rows in enumerate(COUNTS)}
    assert options.class_rows() == trained
    assert count_used_rows(of(test_fraction=fraction, subsample={"per_class": 9})) == (
        90,
        sum(tested),
    )
    by_id = of(test_fraction=fraction, split_by="id")
    assert sum(by_id.count_rows()) == sum(COUNTS)
    assert abs(by_id.count_rows()[1] - fraction * sum(COUNTS)) < 5 * sum(COUNTS) ** 0.5
    assert by_id.class_rows() is None
