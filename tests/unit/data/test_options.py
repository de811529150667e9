"""The options that every dataset has."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from dpprobe.data.options import Headline, headline_metric
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY, changed


def test_delta_does_not_decide_the_split_tables() -> None:
    dataset = load_study(changed("datasets.digits.delta", 1e-6)).datasets["digits"]
    params = load_study(STUDY).datasets["digits"].preparation_params()
    assert dataset.preparation_params() == params
    allowed = load_study(changed("datasets.digits.allow_delta_above_one_over_n", True))
    assert allowed.datasets["digits"].preparation_params() == params
    assert allowed.datasets["digits"].image_params() == dataset.image_params()
    assert dataset_options(params).preparation_params() == params
    assert dataset.source_state() is None


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("classes", [None, 2, 3, 14])
def test_the_metric_of_a_dataset_fits_its_labels(classes: int | None, multi_label: bool) -> None:
    facts: Any = {"num_classes": classes, "multi_label": multi_label, "test_counts": (9, 1)}
    refused = {"macro_accuracy"} if multi_label else {"auc"} if classes in (3, 14) else set()
    for named in get_args(Headline):
        if named in refused:
            with pytest.raises(ConfigError, match=f"metric: {named} "):
                headline_metric(named, **facts)
        else:
            assert headline_metric(named, **facts) == named, "what a study names stays"
    skewed = "auc" if multi_label or classes == 2 else "macro_accuracy"
    assert headline_metric(None, **facts) == skewed
    for counts, even in (
        ((300, 150), True), ((301, 150), False), ((301, 200, 150), False), ((300, 200, 0), True),
        ((300, 0), True), ((2, 1), True), ((), True),
    ):  # fmt: skip
        expected = "accuracy" if even and not multi_label else skewed
        assert headline_metric(None, **facts | {"test_counts": counts}) == expected, counts


def test_the_metric_does_not_decide_the_split_tables() -> None:
    dataset = load_study(changed("datasets.digits.metric", "accuracy")).datasets["digits"]
    assert dataset.preparation_params() == load_study(STUDY).datasets["digits"].preparation_params()
